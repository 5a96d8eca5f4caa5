use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::Process;

/// What keeps a daemon from answering, as /proc/PID/stat shows it (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StallCause {
    /// `T`: SIGSTOP, SIGTSTP.
    Stopped,
    /// `t`: a debugger holds it.
    Traced,
    /// `D`: it waits in the kernel, for a disk or another file system, or its cgroup is frozen (version 1).
    Uninterruptible,
    /// Its cgroup is frozen (`cgroup.freeze`, version 2).
    Frozen,
}

impl StallCause {
    /// A clause for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Stopped => "the daemon is stopped",
            Self::Traced => "a debugger holds the daemon",
            Self::Uninterruptible => "the daemon waits in the kernel",
            Self::Frozen => "the daemon's cgroup is frozen",
        }
    }
}

/// The request that has waited longest when a connection was found to hang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingRequest {
    /// FUSE opcode.
    pub opcode: u32,
    /// Since it was sent.
    pub age: Duration,
    /// Who asks; `None` where the kernel doesn't say.
    pub process: Option<Process>,
}

impl WaitingRequest {
    /// The opcode's name; its number where it has none here.
    pub fn opcode_name(&self) -> String {
        name(self.opcode).map_or_else(|| self.opcode.to_string(), str::to_owned)
    }
}

impl Serialize for WaitingRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("WaitingRequest", 3)?;
        object.serialize_field("opcode", &self.opcode_name())?;
        object.serialize_field("ageMillis", &u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX))?;
        match &self.process {
            Some(process) => object.serialize_field("process", process)?,
            None => object.skip_field("process")?,
        }
        object.end()
    }
}

/// `enum fuse_opcode` of include/uapi/linux/fuse.h, without the prefix.
const fn name(opcode: u32) -> Option<&'static str> {
    Some(match opcode {
        1 => "LOOKUP",
        2 => "FORGET",
        3 => "GETATTR",
        4 => "SETATTR",
        5 => "READLINK",
        6 => "SYMLINK",
        8 => "MKNOD",
        9 => "MKDIR",
        10 => "UNLINK",
        11 => "RMDIR",
        12 => "RENAME",
        13 => "LINK",
        14 => "OPEN",
        15 => "READ",
        16 => "WRITE",
        17 => "STATFS",
        18 => "RELEASE",
        20 => "FSYNC",
        21 => "SETXATTR",
        22 => "GETXATTR",
        23 => "LISTXATTR",
        24 => "REMOVEXATTR",
        25 => "FLUSH",
        26 => "INIT",
        27 => "OPENDIR",
        28 => "READDIR",
        29 => "RELEASEDIR",
        30 => "FSYNCDIR",
        31 => "GETLK",
        32 => "SETLK",
        33 => "SETLKW",
        34 => "ACCESS",
        35 => "CREATE",
        36 => "INTERRUPT",
        37 => "BMAP",
        38 => "DESTROY",
        39 => "IOCTL",
        40 => "POLL",
        41 => "NOTIFY_REPLY",
        42 => "BATCH_FORGET",
        43 => "FALLOCATE",
        44 => "READDIRPLUS",
        45 => "RENAME2",
        46 => "LSEEK",
        47 => "COPY_FILE_RANGE",
        48 => "SETUPMAPPING",
        49 => "REMOVEMAPPING",
        50 => "SYNCFS",
        51 => "TMPFILE",
        52 => "STATX",
        _ => return None,
    })
}
