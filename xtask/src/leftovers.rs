//! What a task left on the machine. Everything that a task starts gets its scratch directory as `TMPDIR`, so processes,
//! mounts, mount namespaces and loop devices of ours are recognised by that directory's unique name, whoever holds
//! them and whatever else runs on the machine.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::process;

/// One thing that should be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// A process that inherited our `TMPDIR`, or descends from us.
    Process {
        /// Its id.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// A mount below the scratch directory.
    Mount {
        /// The inode number of the mount namespace.
        namespace: u64,
        /// A process in it.
        pid: u32,
        /// Its line of mountinfo.
        line: String,
    },
    /// A loop device on a file below the scratch directory.
    Loop {
        /// `loop0`
        device: String,
        /// The file.
        file: String,
    },
    /// A file in the scratch directory, or the directory itself.
    File {
        /// Its path.
        path: String,
    },
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, comm } => write!(f, "process {pid} ({comm})"),
            Self::Mount { namespace, pid, line } => {
                write!(f, "mount in namespace {namespace} (of process {pid}): {line}")
            }
            Self::Loop { device, file } => write!(f, "loop device /dev/{device} on {file}"),
            Self::File { path } => write!(f, "file {path}"),
        }
    }
}

/// How much was looked at, and what was found.
#[derive(Debug, Default)]
pub struct Survey {
    /// Processes looked at.
    pub processes: usize,
    /// Distinct mount namespaces looked at.
    pub namespaces: usize,
    /// What is left.
    pub found: Vec<Leftover>,
}

impl fmt::Display for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processes, namespaces, found } = self;
        let looked = format!("looked at {processes} processes, {namespaces} mount namespaces and the loop devices");
        if found.is_empty() {
            return write!(f, "left behind: nothing ({looked})");
        }
        write!(f, "left behind ({looked}):")?;
        found.iter().try_for_each(|one| write!(f, "\n  {one}"))
    }
}

/// Looks for what belongs to the scratch directory; processes that end while they are looked at are none.
pub fn survey(scratch: &Path) -> Survey {
    // The name alone: mountinfo writes some characters of the directories above it as octal escapes.
    let name = scratch.file_name().unwrap_or(scratch.as_os_str()).as_bytes();
    let table = process::table();
    let mut survey = Survey { processes: table.len(), ..Survey::default() };
    let descendants: BTreeSet<u32> =
        process::descendants(&table, std::process::id()).into_iter().map(|entry| entry.pid).collect();
    let mut namespaces = BTreeSet::new();
    for entry in &table {
        if entry.pid != std::process::id() && (descendants.contains(&entry.pid) || carries(entry.pid, name)) {
            survey.found.push(Leftover::Process { pid: entry.pid, comm: entry.comm.clone() });
        }
        if let Some(namespace) = mount_namespace(entry.pid)
            && namespaces.insert(namespace)
        {
            survey.found.extend(mounts(entry.pid, namespace, name));
        }
    }
    survey.namespaces = namespaces.len();
    survey.found.extend(loop_devices(name));
    survey.found.extend(files(scratch));
    survey
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && haystack.windows(needle.len()).any(|window| window == needle)
}

fn carries(pid: u32, name: &[u8]) -> bool {
    process::environment(pid).iter().any(|variable| variable.starts_with(b"TMPDIR=") && contains(variable, name))
}

/// `readlink /proc/PID/ns/mnt` is `mnt:[4026531841]` (namespaces(7)).
fn mount_namespace(pid: u32) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
    link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
}

fn mounts(pid: u32, namespace: u64, name: &[u8]) -> Vec<Leftover> {
    let mountinfo = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let lines = mountinfo.split(|&byte| byte == b'\n').filter(|line| contains(line, name));
    lines.map(|line| Leftover::Mount { namespace, pid, line: String::from_utf8_lossy(line).into_owned() }).collect()
}

fn loop_devices(name: &[u8]) -> Vec<Leftover> {
    let block_devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let on_file = block_devices.filter_map(|device| {
        let file = fs::read(device.path().join("loop/backing_file")).ok()?;
        let file = String::from_utf8_lossy(file.trim_ascii_end()).into_owned();
        contains(file.as_bytes(), name)
            .then(|| Leftover::Loop { device: device.file_name().to_string_lossy().into_owned(), file })
    });
    on_file.collect()
}

/// What is in the scratch directory, one level deep: each test makes its own directory there and takes it away again.
fn files(scratch: &Path) -> Vec<Leftover> {
    let entries = fs::read_dir(scratch).into_iter().flatten().flatten();
    entries.map(|entry| Leftover::File { path: entry.path().to_string_lossy().into_owned() }).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::Running;

    #[test]
    fn a_process_and_a_file_of_ours_are_found_and_then_gone() {
        let scratch = tempfile::Builder::new().prefix("fuse-detector-xtask-test-").tempdir().unwrap();
        let file = scratch.path().join("left");
        fs::write(&file, "").unwrap();
        let sleeper = Running::start(Command::new("sleep").arg("60").env("TMPDIR", scratch.path())).unwrap();
        let pid = sleeper.pid();
        let is_ours = |survey: &Survey| {
            let process = survey.found.iter().any(|one| matches!(one, Leftover::Process { pid: p, .. } if *p == pid));
            let left = survey.found.contains(&Leftover::File { path: file.to_string_lossy().into_owned() });
            (process, left)
        };
        assert_eq!(is_ours(&survey(scratch.path())), (true, true));
        drop(sleeper);
        fs::remove_file(&file).unwrap();
        assert_eq!(is_ours(&survey(scratch.path())), (false, false));
    }

    #[test]
    fn a_survey_says_what_it_looked_at() {
        let mut survey = Survey { processes: 80, namespaces: 3, found: Vec::new() };
        assert_eq!(
            survey.to_string(),
            "left behind: nothing (looked at 80 processes, 3 mount namespaces and the loop devices)"
        );
        survey.found.push(Leftover::Loop { device: "loop0".into(), file: "/tmp/x".into() });
        assert!(survey.to_string().ends_with(":\n  loop device /dev/loop0 on /tmp/x"));
    }
}
