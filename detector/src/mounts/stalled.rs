//! What keeps a process from running, as far as /proc and its cgroup tell.

use std::fs;
use std::path::PathBuf;

use super::proc::Stat;
use crate::model::StallCause;

/// Why the process does not run; `None` if nothing shows, or it is gone.
pub fn stall_cause(pid: u32) -> Option<StallCause> {
    let state = Stat::read(pid).ok()?.state;
    match state {
        b'T' => Some(StallCause::Stopped),
        b't' => Some(StallCause::Traced),
        // A process in a frozen cgroup sleeps (version 2), or is in `D` (version 1).
        _ if is_frozen(pid) => Some(StallCause::Frozen),
        b'D' => Some(StallCause::Uninterruptible),
        _ => None,
    }
}

/// By `cgroup.events` (cgroups(7), version 2) or `freezer.state` (version 1), where the hierarchies usually are.
fn is_frozen(pid: u32) -> bool {
    let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    memberships.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return false };
        let within = |root: &str, file: &str| {
            let directory = PathBuf::from(root).join(path.trim_start_matches('/'));
            fs::read_to_string(directory.join(file)).unwrap_or_default()
        };
        match controllers {
            "" => ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
                .into_iter()
                .any(|root| within(root, "cgroup.events").lines().any(|line| line == "frozen 1")),
            controllers if controllers.split(',').any(|name| name == "freezer") => {
                within("/sys/fs/cgroup/freezer", "freezer.state").trim() == "FROZEN"
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_stopped_process_is_told() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        assert_eq!(stall_cause(child.id()), None);
        kill(pid, Signal::SIGSTOP).unwrap();
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
        let seen = stall_cause(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen, Some(StallCause::Stopped));
        assert_eq!(stall_cause(child.id()), None, "gone");
    }
}
