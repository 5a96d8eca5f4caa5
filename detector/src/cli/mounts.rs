//! `mounts`: the connections as a table or as the contract's JSON.

use std::ffi::OsStr;
use std::time::Duration;

use super::style::{Painter, Style};
use super::table::{Cell, Table};
use super::units;
use crate::model::{Daemon, NamespaceId, TransitionMount};
use crate::telemetry::status::{ConnectionReport, ConnectionState};
use crate::text;

/// The contract's array, on one line.
///
/// # Errors
/// None that can happen: every field is plain data.
pub fn json(reports: &[ConnectionReport]) -> serde_json::Result<String> {
    serde_json::to_string(reports).map(|json| json + "\n")
}

const HEADINGS: [&str; 8] = ["STATE", "CONNECTION", "TYPE", "DAEMON", "REQUESTS", "SOURCE", "NAMESPACE", "MOUNTED AT"];
const SOURCE_COLUMN: usize = 5;

/// The table for people. A connection's further mounts stand below its first. A mount in another mount namespace than the
/// reader's `own` is marked: its path means nothing here.
pub fn table(
    reports: &[ConnectionReport],
    own: Option<NamespaceId>,
    painter: Painter,
    terminal: Option<usize>,
) -> String {
    if reports.is_empty() {
        return "no FUSE mount was found in the mount namespaces that can be seen\n".to_owned();
    }
    let mut table = Table::new(HEADINGS, SOURCE_COLUMN);
    for report in reports {
        let mut places = report.mounts.iter().map(|mount| [namespace(mount, own), place(mount)]);
        let nowhere = || [Cell::default(), Cell::styled(Style::Faint, "(nowhere)")];
        let [namespace, first] = places.next().unwrap_or_else(nowhere);
        table.row([
            Cell::styled(style(report.state), report.state.as_str()),
            Cell::plain(report.connection.to_string()),
            optional(report.fs_type.as_deref().map(OsStr::new)),
            report.daemon.as_ref().map(daemon).unwrap_or_default(),
            requests(report),
            optional(report.source.as_deref()),
            namespace,
            first,
        ]);
        for [namespace, place] in places {
            let [state, connection, fs_type, daemon, requests, source]: [Cell; 6] = Default::default();
            table.row([state, connection, fs_type, daemon, requests, source, namespace, place]);
        }
    }
    table.render(painter, terminal)
}

fn optional(name: Option<&OsStr>) -> Cell {
    name.map(|name| Cell::plain(text::printable(name))).unwrap_or_default()
}

fn namespace(mount: &TransitionMount, own: Option<NamespaceId>) -> Cell {
    if Some(mount.namespace) == own { Cell::plain("own") } else { Cell::plain(mount.namespace.to_string()) }
}

const fn style(state: ConnectionState) -> Style {
    match state {
        ConnectionState::Created | ConnectionState::Recovering => Style::Busy,
        ConnectionState::Unknown => Style::Faint,
        ConnectionState::Ready => Style::Good,
        ConnectionState::Hung => Style::Warning,
        ConnectionState::Dead | ConnectionState::Failed => Style::Bad,
    }
}

fn daemon(Daemon { pid, comm, alive }: &Daemon) -> Cell {
    let comm = comm.as_deref().map(|comm| text::printable(comm.as_ref())).unwrap_or_default();
    let text = if comm.is_empty() { pid.to_string() } else { format!("{comm} ({pid})") };
    if *alive { Cell::plain(text) } else { Cell::styled(Style::Bad, format!("{text} gone")) }
}

fn requests(report: &ConnectionReport) -> Cell {
    let age = report.oldest_request_millis.map(|millis| units::duration(Duration::from_millis(millis)));
    match (report.requests_in_flight, age) {
        (Some(number), Some(age)) => Cell::plain(format!("{number}, oldest {age}")),
        (Some(number), None) => Cell::plain(number.to_string()),
        (None, Some(age)) => Cell::plain(format!("oldest {age}")),
        (None, None) => Cell::default(),
    }
}

/// The mount point, with what is special about this mount.
fn place(mount: &TransitionMount) -> Cell {
    let TransitionMount { namespace: _, mount_point, root, flags } = mount;
    let mut special = Vec::new();
    if flags.read_only {
        special.push("read-only".to_owned());
    }
    if root.as_os_str() != "/" {
        special.push(format!("its {}", text::printable(root.as_os_str())));
    }
    let mut place = text::printable(mount_point.as_os_str());
    if !special.is_empty() {
        place += &format!("  [{}]", special.join(", "));
    }
    Cell::plain(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DeviceNumber, MountFlags};

    fn mount(namespace: u64, mount_point: &str, root: &str, read_only: bool) -> TransitionMount {
        TransitionMount {
            namespace: NamespaceId(namespace),
            mount_point: mount_point.into(),
            root: root.into(),
            flags: MountFlags { read_only, ..MountFlags::default() },
        }
    }

    fn reports() -> Vec<ConnectionReport> {
        vec![
            ConnectionReport {
                connection: DeviceNumber { major: 0, minor: 45 },
                fs_type: Some("fuse.sshfs".into()),
                source: Some("user@host:/data".into()),
                state: ConnectionState::Dead,
                daemon: Some(Daemon { pid: 812, comm: Some("sshfs".into()), alive: false }),
                requests_in_flight: None,
                oldest_request_millis: None,
                mounts: vec![mount(1, "/mnt/a b", "/", false), mount(4_026_532_100, "/data\n", "/sub", true)],
            },
            ConnectionReport {
                connection: DeviceNumber { major: 8, minor: 1 },
                fs_type: Some("fuseblk".into()),
                source: Some("/dev/sda1".into()),
                state: ConnectionState::Hung,
                daemon: Some(Daemon { pid: 7, comm: None, alive: true }),
                requests_in_flight: Some(3),
                oldest_request_millis: Some(42_000),
                mounts: Vec::new(),
            },
        ]
    }

    #[test]
    fn the_table_for_people() {
        assert_eq!(
            table(&reports(), Some(NamespaceId(1)), Painter::PLAIN, None),
            concat!(
                "STATE  CONNECTION  TYPE        DAEMON            REQUESTS          SOURCE           NAMESPACE   MOUNTED AT\n",
                "dead   0:45        fuse.sshfs  sshfs (812) gone                    user@host:/data  own         /mnt/a b\n",
                "                                                                                    4026532100  ",
                "/data\\n  [read-only, its /sub]\n",
                "hung   8:1         fuseblk     7                 3, oldest 42.0 s  /dev/sda1                    (nowhere)\n",
            )
        );
    }

    #[test]
    fn colour_is_in_the_states() {
        let text = table(&reports(), None, Painter::COLORED, None);
        assert!(text.contains("\x1b[1;31mdead\x1b[0m   0:45"), "{text}");
        assert!(text.contains("\x1b[33mhung\x1b[0m   8:1"), "{text}");
    }

    #[test]
    fn nothing_mounted_is_said() {
        assert!(table(&[], None, Painter::PLAIN, None).starts_with("no FUSE mount"));
        assert_eq!(json(&[]).unwrap(), "[]\n");
    }
}
