//! A memory cgroup of a test's own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::sandbox::Sandbox;
use crate::wait;

/// Version 2, and version 1, as they are mounted everywhere (cgroups(7)).
const ROOTS: [(&str, &str); 2] = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];

/// Below the root of the hierarchy. Removed when it is dropped, with the processes in it.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    root: PathBuf,
    limit: &'static str,
}

impl MemoryCgroup {
    /// Makes one. `None`, with a word on standard error, where cgroups can't limit memory.
    ///
    /// # Panics
    /// If an existing hierarchy admits no new cgroup.
    pub fn new(sandbox: &Sandbox) -> Option<Self> {
        let name = format!("fuse-detector-test-{}-{}", process::id(), sandbox.backend().as_str());
        let found = ROOTS.iter().find(|(root, _)| Path::new(root).join("cgroup.procs").exists());
        let Some((root, limit)) = found else {
            eprintln!("SKIPPED: no cgroup hierarchy is mounted on /sys/fs/cgroup");
            return None;
        };
        let cgroup = Self { path: Path::new(root).join(name), root: root.into(), limit };
        fs::create_dir(&cgroup.path).unwrap_or_else(|error| panic!("mkdir {}: {error}", cgroup.path.display()));
        if !cgroup.path.join(limit).exists() {
            eprintln!("SKIPPED: memory is not controlled in {root}");
            return None;
        }
        Some(cgroup)
    }

    /// What a process writes its id to in order to join.
    pub fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// As `/proc/PID/cgroup` names it.
    ///
    /// # Panics
    /// Never: it lies below its root.
    pub fn name(&self) -> String {
        Path::new("/").join(self.path.strip_prefix(&self.root).expect("below its root")).display().to_string()
    }

    /// How many bytes its processes may have together, from now on.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn limit(&self, bytes: u64) {
        fs::write(self.path.join(self.limit), bytes.to_string()).expect("limit the memory");
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        for pid in fs::read_to_string(self.processes()).unwrap_or_default().lines() {
            crate::process::signal(pid.parse().expect("a process id"), nix::sys::signal::Signal::SIGKILL);
        }
        // It is busy until the last of them has been reaped.
        let removed = wait::until("the cgroup to be empty", || match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => None,
            done => Some(done),
        });
        removed.expect("rmdir");
    }
}
