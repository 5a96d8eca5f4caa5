//! Golden lines.

use std::time::Duration;

use super::*;
use crate::model::{
    BackendKind, ConnectionId, DeviceNumber, MountFlags, NamespaceId, Process, Reason, Signal, TransitionMount,
};

fn mount(mount_point: &str) -> TransitionMount {
    TransitionMount {
        namespace: NamespaceId(4026531841),
        mount_point: mount_point.into(),
        root: "/".into(),
        flags: MountFlags::default(),
    }
}

fn connection(minor: u32) -> ConnectionId {
    ConnectionId { device: DeviceNumber { major: 0, minor }, epoch: 1 }
}

fn transition(kind: TransitionKind) -> Transition {
    Transition {
        kind,
        connection: connection(45),
        backend: BackendKind::Tracepoint,
        fs_type: Some("fuse.bindfs".into()),
        source: Some("/srv/data".into()),
        daemon: Some(Daemon { pid: 812, comm: Some("bindfs".into()), alive: false }),
        detection: Some(Duration::from_micros(74)),
        aborted_requests: Some(1),
        oldest_request: None,
        mounts: vec![mount("/mnt/a b")],
    }
}

fn killed() -> TransitionKind {
    let sender = Some(Process { pid: 900, comm: Some("bash".into()) });
    TransitionKind::Dead(Reason::Signal { signal: Signal::KILL, sender })
}

fn failed(retry_in: Option<Duration>) -> TransitionKind {
    TransitionKind::RecoveryFailed {
        strategy: "respawn",
        error: "/usr/bin/bindfs: ENOENT".into(),
        retry_in,
        flapping: retry_in.is_none(),
    }
}

fn printed(transition: &Transition, painter: Painter) -> String {
    let time: Timestamp = "2026-11-30T02:40:11.123456Z".parse().unwrap();
    line(transition, &time.to_zoned(TimeZone::UTC), painter, None)
}

fn plain(transition: &Transition) -> String {
    printed(transition, Painter::PLAIN)
}

#[test]
fn every_event_has_its_line() {
    let recovered = TransitionKind::Recovered(Recovery {
        strategy: "respawn",
        recovery: Duration::from_micros(3_100),
        outage: Some(Duration::from_millis(412)),
        replacement: connection(46),
    });
    let start = "02:40:11.123";
    let middle = "/mnt/a b                  fuse.bindfs of /srv/data";
    for (kind, word, rest) in [
        (TransitionKind::Ready, "READY     ", "  served by bindfs (812)"),
        (
            TransitionKind::Hung(Reason::Stalled { cause: None }),
            "HUNG      ",
            "  bindfs (812): requests wait and none is answered  74 µs, 1 request aborted",
        ),
        (killed(), "DEAD      ", "  bindfs (812): killed by SIGKILL from bash (900)  74 µs, 1 request aborted"),
        (TransitionKind::Recovering { strategy: "respawn", flapping: false }, "RECOVERING", "  by respawn"),
        (recovered, "RECOVERED ", "  by respawn, now connection 0:46  3.1 ms after it was ready, outage 412 ms"),
        (
            failed(Some(Duration::from_millis(400))),
            "FAILED    ",
            "  respawn: /usr/bin/bindfs: ENOENT  next try in 400 ms",
        ),
        (
            failed(None),
            "GAVE UP   ",
            "  respawn: /usr/bin/bindfs: ENOENT; the daemon dies again soon after each recovery",
        ),
        (TransitionKind::Unmounted, "UNMOUNTED ", ""),
        (TransitionKind::Detached, "DETACHED  ", "  no mount left, but still in use"),
    ] {
        assert_eq!(plain(&transition(kind)), format!("{start}  {word}  {middle}{rest}"));
    }
}

#[test]
fn colour_marks_the_event_and_dims_the_rest() {
    assert_eq!(
        printed(&transition(killed()), Painter::COLORED),
        "\x1b[2m02:40:11.123\x1b[0m  \x1b[1;31mDEAD\x1b[0m        /mnt/a b                  fuse.bindfs of /srv/data  \
         bindfs (812): killed by SIGKILL from bash (900)  \x1b[2m74 µs, 1 request aborted\x1b[0m"
    );
}

#[test]
fn what_is_unknown_is_left_out() {
    let bare = Transition {
        fs_type: None,
        source: None,
        daemon: None,
        detection: None,
        aborted_requests: None,
        oldest_request: None,
        mounts: Vec::new(),
        ..transition(TransitionKind::Dead(Reason::Unknown))
    };
    assert_eq!(plain(&bare), "02:40:11.123  DEAD        (no mount, 0:45)          nobody saw it die");
}

#[test]
fn a_source_that_repeats_the_type_is_not_printed() {
    let same = Transition { source: Some("bindfs".into()), ..transition(TransitionKind::Unmounted) };
    assert!(plain(&same).ends_with("  fuse.bindfs"));
}

#[test]
fn many_mounts_are_counted_and_namespaces_are_not_repeated() {
    let mut many = transition(TransitionKind::Unmounted);
    many.mounts = ["/a", "/a", "/b", "/c", "/d", "/e"].map(mount).to_vec();
    assert!(plain(&many).contains("  /a, /b, /c and 2 more  "), "{}", plain(&many));
}

const LONG: &str = "/var/lib/kubelet/pods/0e2a/volumes/kubernetes.io~csi/pvc-1/mount";

#[test]
fn a_long_path_moves_no_column_and_stands_whole_at_the_end() {
    let long = Transition { mounts: vec![mount(LONG)], ..transition(killed()) };
    assert_eq!(
        plain(&long),
        format!(
            "02:40:11.123  DEAD        …etes.io~csi/pvc-1/mount  fuse.bindfs of /srv/data  bindfs (812): killed by SIGKILL \
             from bash (900)  74 µs, 1 request aborted  at {LONG}"
        )
    );
}

#[test]
fn a_terminal_gets_no_line_that_it_would_break() {
    let long = Transition { mounts: vec![mount(LONG)], ..transition(killed()) };
    let time: Timestamp = "2026-11-30T02:40:11.123456Z".parse().unwrap();
    let on_terminal = |width| line(&long, &time.to_zoned(TimeZone::UTC), Painter::PLAIN, Some(width));
    let indent = " ".repeat(26);
    assert_eq!(
        on_terminal(100),
        format!(
            "02:40:11.123  DEAD        …etes.io~csi/pvc-1/mount  fuse.bindfs of /srv/data\n\
             {indent}bindfs (812): killed by SIGKILL from bash (900)  74 µs, 1 request aborted\n\
             {indent}at {LONG}"
        )
    );
    assert_eq!(on_terminal(400), plain(&long));
    // Too narrow for any part: each has a line.
    assert_eq!(on_terminal(20).lines().count(), 5);
}

#[test]
fn hostile_names_neither_move_the_cursor_nor_start_a_line() {
    let evil = "\x1b[2J\nDEAD\r";
    let hostile = Transition {
        fs_type: Some(evil.into()),
        source: Some(evil.into()),
        daemon: Some(Daemon { pid: 1, comm: Some(evil.into()), alive: true }),
        mounts: vec![mount(evil)],
        ..transition(TransitionKind::Dead(Reason::Oom { cgroup: Some(evil.into()) }))
    };
    let line = plain(&hostile);
    assert!(!line.chars().any(char::is_control), "{line:?}");
}

#[test]
fn json_is_the_contracts_line_whatever_the_painter() {
    use std::io::Read as _;
    let (mut reader, writer) = std::io::pipe().unwrap();
    let sink = LineSink::start("test", writer.into()).unwrap();
    let printer = Printer::new(sink, Output::Json, Painter::COLORED);
    let time = "2026-11-30T02:40:11.123456Z".parse().unwrap();
    printer.print(&transition(killed()), time);
    assert!(printer.sink().finish(Duration::from_secs(20)));
    drop(printer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, transition(killed()).to_json(time).unwrap() + "\n");
}
