use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::Features;
use crate::model::{Boottime, DeviceNumber, Mount, NamespaceId};
use crate::mounts::{Limit, Privileges};

/// One recovery: everything a worker process needs to know.
#[derive(Debug, Clone, PartialEq)]
pub struct RecoverJob {
    /// Where the living replacement comes from.
    pub bring: Bring,
    /// The dead mounts in the worker's own mount namespace. They are those of one connection or, where one daemon that
    /// served several is launched, of all these: their devices tell them apart.
    pub dead: Vec<Mount>,
    /// Those among the processes that serve the dead connections which were launched by this program: where the kernel doesn't
    /// tell what a process serves, nothing else says that such a one has outlived its connection.
    pub launched: Vec<u32>,
    /// What the kernel can do.
    pub features: Features,
    /// How long it may take, from the start of the work to the last mount verified. What was launched and isn't ready by
    /// then is ended.
    pub deadline: Duration,
}

impl RecoverJob {
    /// The dead connections, in the order in which the job names them.
    pub(crate) fn connections(&self) -> Vec<DeviceNumber> {
        let mut devices = Vec::new();
        for Mount { device, .. } in &self.dead {
            if !devices.contains(device) {
                devices.push(*device);
            }
        }
        devices
    }

    /// The mounts of one of them.
    pub(crate) fn dead_of(&self, connection: DeviceNumber) -> Vec<Mount> {
        self.dead.iter().filter(|dead| dead.device == connection).cloned().collect()
    }
}

/// Who brings the living replacement.
#[derive(Debug, Clone, PartialEq)]
pub enum Bring {
    /// It is mounted already, somewhere in this mount namespace (`rebind`).
    Existing(Mount),
    /// The daemon is started again as it was (`respawn`).
    Respawn(LaunchSpec),
    /// A command of the policy starts it.
    Command {
        /// Program and arguments; the program is looked up in `PATH`.
        argv: Vec<OsString>,
        /// The command's own limit; the job's deadline holds besides.
        timeout: Duration,
        /// The cgroups of the dead daemon, so that what the command leaves running belongs where the daemon belonged.
        cgroups: Vec<CgroupMembership>,
    },
}

/// How the dead daemon was started, so that it can be started again. Environment and arguments can hold secrets:
/// `Debug` shows how many there are and no more.
#[derive(Clone, PartialEq, Eq)]
pub struct LaunchSpec {
    /// The program (`/proc/PID/exe`).
    pub exe: PathBuf,
    /// All arguments, the program's name first.
    pub argv: Vec<OsString>,
    /// The environment, `NAME=value` each.
    pub env: Vec<OsString>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its user id.
    pub uid: u32,
    /// Its group id.
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
    /// Its cgroups, one for each hierarchy.
    pub cgroups: Vec<CgroupMembership>,
    /// `/proc/PID/oom_score_adj`, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Its file mode creation mask.
    pub umask: Option<u32>,
    /// Its resource limits.
    pub limits: Vec<Limit>,
    /// What it may do; `None`: what the launcher may.
    pub privileges: Option<Privileges>,
}

impl fmt::Debug for LaunchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exe, argv, env, cwd, uid, gid, groups, cgroups, oom_score_adj, umask, limits, privileges } = self;
        f.debug_struct("LaunchSpec")
            .field("exe", exe)
            .field("argv", &format_args!("<{} arguments>", argv.len()))
            .field("env", &format_args!("<{} variables>", env.len()))
            .field("cwd", cwd)
            .field("uid", uid)
            .field("gid", gid)
            .field("groups", groups)
            .field("cgroups", cgroups)
            .field("oom_score_adj", oom_score_adj)
            .field("umask", umask)
            .field("limits", limits)
            .field("privileges", privileges)
            .finish()
    }
}

/// One line of `/proc/PID/cgroup` (cgroups(7)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupMembership {
    /// The second field: the controllers of a version 1 hierarchy or its `name=…`, as written; empty for version 2.
    pub controllers: String,
    /// The third field: the path within the hierarchy.
    pub path: PathBuf,
}

/// What a recovery tells while it goes on. The last one is always [`Progress::Finished`].
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// A mount namespace was made for what is to be started: what is mounted there is nobody's.
    Isolated {
        /// Which.
        namespace: NamespaceId,
    },
    /// Something was done, or not done, that the log has to know of.
    Noted {
        /// What.
        what: String,
    },
    /// A daemon or command was started.
    Launched {
        /// Its process id in the worker's pid namespace.
        pid: u32,
    },
    /// The replacement of a dead connection answered FUSE_INIT.
    Ready {
        /// The dead connection.
        dead: DeviceNumber,
        /// Its device.
        device: DeviceNumber,
        /// When the answer was seen.
        at: Boottime,
        /// The daemon, where it is known which process serves.
        pid: Option<u32>,
    },
    /// A mount was replaced, and the file system answered through its path.
    Healed {
        /// The dead mount, as it was given.
        mount: Mount,
        /// The device that answered.
        device: DeviceNumber,
        /// When it answered.
        at: Boottime,
    },
    /// The mount, or the place where it hung, is no longer there. There is nothing left to heal and nothing was created.
    Gone {
        /// The dead mount, as it was given.
        mount: Mount,
    },
    /// A mount, or without one the whole recovery, failed. The dead mount is still there.
    Failed {
        /// The dead mount, as it was given.
        mount: Option<Mount>,
        /// What failed, with its errno.
        error: String,
        /// Trying again can't help as long as nothing changes: see [`super::Refusal`].
        refused: bool,
    },
    /// Nothing follows.
    Finished,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let spec = LaunchSpec {
            exe: "/usr/bin/sshfs".into(),
            argv: vec!["sshfs".into(), "-o".into(), "password=hunter2".into()],
            env: vec!["TOKEN=hunter2".into()],
            cwd: "/".into(),
            uid: 0,
            gid: 0,
            groups: vec![0],
            cgroups: vec![],
            oom_score_adj: None,
            umask: None,
            limits: vec![],
            privileges: None,
        };
        let shown = format!("{:?}", Bring::Respawn(spec));
        assert!(shown.contains("<3 arguments>") && !shown.contains("hunter2"), "{shown}");
    }
}
