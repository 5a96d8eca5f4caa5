//! What it means that a mount was healed.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

use crate::agent::Agent;
use crate::event::Event;
use crate::mountinfo::{self, Entry};
use crate::wait::{PATIENCE, stretched};

/// The answer of statvfs(3), which asks the daemon; in a thread of its own, because a hung one never answers.
///
/// # Panics
/// If there is no answer in time.
pub fn ask(path: &Path) -> Result<(), Errno> {
    let (sender, answer) = channel();
    let asked = path.to_owned();
    thread::spawn(move || sender.send(statvfs(&asked).map(drop)));
    answer.recv_timeout(stretched(PATIENCE)).unwrap_or_else(|_| panic!("statvfs {} does not answer", path.display()))
}

/// What is mounted now, to be compared with what is mounted after healing.
#[derive(Debug, Clone)]
pub struct Before {
    mounts: Vec<Entry>,
}

impl Before {
    /// Looks at the uppermost mount of each path.
    ///
    /// # Panics
    /// If nothing is mounted at one.
    pub fn look(paths: &[PathBuf]) -> Self {
        let top =
            |path: &PathBuf| mountinfo::at(path).pop().unwrap_or_else(|| panic!("no mount at {}", path.display()));
        Self { mounts: paths.iter().map(top).collect() }
    }

    /// Waits for `recovered`, which has to name every path, and checks each as an application would.
    ///
    /// # Panics
    /// If a mount does not serve, is another than it was, or hides something.
    pub fn wait_healed(&self, agent: &mut Agent<'_>) -> Event {
        let first = self.mounts.first().expect("a mount").mount_point.clone();
        let event = agent.wait("recovered", &first);
        for mount in &self.mounts {
            assert!(event.is_at(&mount.mount_point), "{} is missing in {event}", mount.mount_point.display());
            self.check(mount);
        }
        event
    }

    /// Checks every path without waiting for anything.
    ///
    /// # Panics
    /// As [`Self::wait_healed`].
    pub fn check_all(&self) {
        self.mounts.iter().for_each(|mount| self.check(mount));
    }

    fn check(&self, before: &Entry) {
        let path = &before.mount_point;
        assert_eq!(ask(path), Ok(()), "statvfs {}", path.display());
        let mut stack = mountinfo::at(path);
        let top = stack.pop().unwrap_or_else(|| panic!("nothing is mounted at {} any more", path.display()));
        assert_eq!(top.shape(), before.shape(), "the replacement at {} differs", path.display());
        // A kernel without MOVE_MOUNT_BENEATH (before 6.5) needs the dead mount below, as a guard: one, never more.
        assert!(stack.len() <= usize::from(!kernel_moves_beneath()), "below {top:?} are left: {stack:?}");
    }
}

/// Whether the kernel has `MOVE_MOUNT_BENEATH` (Linux 6.5). Without it, what was dead stays below what replaced it.
///
/// # Panics
/// Never: uname(2) fails only for a bad address.
pub fn kernel_moves_beneath() -> bool {
    let release = nix::sys::utsname::uname().expect("uname");
    let mut numbers = release.release().to_str().unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6u32, 5u32)
}
