//! The processes below the launcher. It is their subreaper (PR_SET_CHILD_SUBREAPER in prctl(2)), so those that detach
//! themselves from their parents stay below it, and none of them can be mistaken: an id is not reused before its parent
//! has reaped it.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

/// How long ended processes are waited for. One in an uninterruptible call is left to init.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at processes that are ending.
const PAUSE: Duration = Duration::from_millis(2);

/// Ends everything below this process.
pub(super) fn end_all() {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        // A child's children become this process's own when the child ends, so the next round finds them.
        for child in children(getpid()) {
            // Each launched program leads a session of its own; errors say that it has ended.
            let _ = killpg(child, Signal::SIGKILL);
            let _ = kill(child, Signal::SIGKILL);
        }
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => std::thread::sleep(PAUSE),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// The process that serves the file system: of those below this one that hold `/dev/fuse`, the farthest down. (A daemon's
/// parent holds the descriptor, too, until it exits.)
pub(super) fn serving() -> Option<u32> {
    let mut level = children(getpid());
    let mut found = None;
    while !level.is_empty() {
        found = level.iter().copied().find(|pid| holds_fuse(*pid)).or(found);
        level = level.into_iter().flat_map(children).collect();
    }
    u32::try_from(found?.as_raw()).ok()
}

/// All of them.
pub(super) fn all() -> Vec<u32> {
    let mut found = children(getpid());
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(children(pid));
        next += 1;
    }
    found.into_iter().filter_map(|pid| u32::try_from(pid.as_raw()).ok()).collect()
}

/// The children of a process (proc_pid_task(5), CONFIG_PROC_CHILDREN); none where that can't be known.
fn children(parent: Pid) -> Vec<Pid> {
    let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}

fn holds_fuse(pid: Pid) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .flatten()
        .any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == "/dev/fuse"))
}
