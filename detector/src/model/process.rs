use std::fmt;

use serde::{Serialize, Serializer};

/// A process that did something, as it was called then.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Process {
    /// Process id (thread group id) in the agent's pid namespace.
    pub pid: u32,
    /// Its name: `comm`, at most 15 bytes, non-UTF-8 bytes replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
}

/// The process that serves a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Daemon {
    /// Process id in the agent's pid namespace.
    pub pid: u32,
    /// Its name, where it could still be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// Whether it is running; a zombie is not.
    pub alive: bool,
}

/// In whose context the kernel aborted requests, when the task was not exiting: which system call, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AbortCall {
    /// write(2): `fuse_conn_abort_write`, the connection's `abort` file.
    Write,
    /// umount(2): `fuse_umount_begin` for `umount -f`, or, where only the system call is known, `fuse_conn_destroy` for the last
    /// reference of a clean unmount.
    Umount,
    /// None, but a thread of the kernel: `fuse_check_timeout` (Linux 6.15), or the late release of an io_uring daemon's
    /// descriptor, whose process has ended then.
    KernelThread,
}

/// Why the kernel aborted a connection, as the function tells from which it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AbortCause {
    /// The last `/dev/fuse` descriptor was closed (`fuse_dev_release`).
    Closed {
        /// By a task that exits.
        exiting: bool,
    },
    /// On purpose.
    Call(AbortCall),
    /// Its last mount is gone (`fuse_conn_destroy`): the regular end.
    LastUnmount,
    /// A request exceeded the kernel's own limit (`fuse_check_timeout`).
    RequestTimeout,
    /// The agent itself did it, because the connection hung and the policy says `onHung: abort`.
    Stalled,
    /// From elsewhere.
    Unknown,
}

/// A signal by number. Written by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(pub u8);

impl Signal {
    /// SIGKILL
    pub const KILL: Self = Self(9);
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::sys::signal::Signal::try_from(i32::from(self.0)) {
            Ok(signal) => f.write_str(signal.as_str()),
            // Real-time signals have no fixed name (signal(7)).
            Err(_) => write!(f, "SIG{}", self.0),
        }
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a process ended: the two halves of the status that wait(2) gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitStatus {
    /// It called exit with this code.
    Code(u8),
    /// A signal ended it.
    Signal(Signal),
}

impl ExitStatus {
    /// From the wait status (`task->exit_code`, field 52 of /proc/PID/stat, `pidfd_info.exit_code`): signal in the low
    /// seven bits, 0x80 for a core dump, exit code in the second byte (wait(2)).
    pub const fn from_wait_status(status: u32) -> Self {
        match status & 0x7f {
            0 => Self::Code(((status >> 8) & 0xff) as u8),
            signal => Self::Signal(Signal((signal & 0x7f) as u8)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_status_is_taken_apart() {
        assert_eq!(ExitStatus::from_wait_status(0), ExitStatus::Code(0));
        assert_eq!(ExitStatus::from_wait_status(3 << 8), ExitStatus::Code(3));
        assert_eq!(ExitStatus::from_wait_status(9), ExitStatus::Signal(Signal::KILL));
        assert_eq!(ExitStatus::from_wait_status(0x80 | 11), ExitStatus::Signal(Signal(11)));
    }

    #[test]
    fn signals_are_written_by_name() {
        assert_eq!(Signal(9).to_string(), "SIGKILL");
        assert_eq!(Signal(11).to_string(), "SIGSEGV");
        assert_eq!(Signal(40).to_string(), "SIG40");
    }
}
