use std::fmt;
use std::path::PathBuf;

use nix::errno::Errno;

use super::Refusal;
use crate::model::{DeviceNumber, ExitStatus};
use crate::text::printable;

/// The system call that failed, named after what it was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// openat2(2) of the mount point.
    OpenMountPoint,
    /// statx(2) of the mount.
    Identify,
    /// openat2(2) of the mount's root within the replacement.
    OpenRoot,
    /// open_tree(2).
    Clone,
    /// mount_setattr(2) with the mount's flags.
    SetFlags,
    /// mount_setattr(2) with the mount's propagation.
    SetPropagation,
    /// move_mount(2).
    Move,
    /// umount2(2) of the dead mount.
    Detach,
    /// fstatfs(2) through the healed path.
    Verify,
    /// Switching to the mount's owner.
    BecomeOwner,
    /// Reading mountinfo.
    ReadMounts,
    /// unshare(2), mount(2): the daemon's own mount namespace.
    MakeNamespace,
    /// fork(2), execve(2) and what comes before it.
    Launch,
    /// Messages between the worker and its launcher.
    Talk,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMountPoint => "open the mount point",
            Self::Identify => "look at the mount",
            Self::OpenRoot => "find in the replacement the directory that was mounted at",
            Self::Clone => "clone the replacement for",
            Self::SetFlags => "set the mount flags for",
            Self::SetPropagation => "set the propagation for",
            Self::Move => "move the replacement to",
            Self::Detach => "detach the dead mount at",
            Self::Verify => "ask the file system at",
            Self::BecomeOwner => "take on the ids of the mount's owner at",
            Self::ReadMounts => "read the mount table of",
            Self::MakeNamespace => "make a mount namespace for the daemon of",
            Self::Launch => "start the daemon of",
            Self::Talk => "talk to the launcher of",
        })
    }
}

/// Why a mount was not healed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// A system call failed.
    #[error("cannot {stage} {}: {errno}", printable(path.as_os_str()))]
    Kernel {
        /// Which, and what for.
        stage: Stage,
        /// The mount point.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// The plan has no step for the mount.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What was to be replaced answers.
    #[error("{} is alive: nothing was done to it", printable(path.as_os_str()))]
    Alive {
        /// Where it hangs.
        path: PathBuf,
    },
    /// A file can be replaced by a file only, a directory by a directory.
    #[error("{} is a {} in the replacement, but a {} was mounted", printable(path.as_os_str()), kind(*replacement_is_directory), kind(!*replacement_is_directory))]
    KindDiffers {
        /// The mount point.
        path: PathBuf,
        /// What the replacement has there.
        replacement_is_directory: bool,
    },
    /// After the move something else than the replacement is seen at the path.
    #[error("after the move {} shows device {found}, not {expected}", printable(path.as_os_str()))]
    WrongDevice {
        /// The mount point.
        path: PathBuf,
        /// What is there.
        found: DeviceNumber,
        /// What was moved there.
        expected: DeviceNumber,
    },
    /// Somebody mounted over the dead mount between the last look and its detachment.
    #[error(
        "what somebody mounted over {} at that very moment was detached instead of the dead mount: mount it again",
        printable(path.as_os_str())
    )]
    AnotherDetached {
        /// The mount point.
        path: PathBuf,
    },
    /// The replacement that was to be re-attached is no longer where it was.
    #[error("the replacement at {} is gone", printable(path.as_os_str()))]
    ReplacementGone {
        /// Its mount point.
        path: PathBuf,
    },
    /// The daemon or the command ended before the file system was mounted.
    #[error("{program} {} before it mounted {}{stderr}", ended(*status), printable(path.as_os_str()))]
    Ended {
        /// Its name.
        program: String,
        /// The mount point.
        path: PathBuf,
        /// How it ended, where that is known.
        status: Option<ExitStatus>,
        /// The last lines that it wrote to standard error.
        stderr: Tail,
    },
    /// What the launcher of the daemon reports of its own work, as it put it.
    #[error("{0}")]
    Launcher(String),
    /// Nothing is left to bring a replacement for, or the worker has gone: what was launched is ended.
    #[error("the recovery was given up")]
    GivenUp,
    /// The deadline passed.
    #[error("{program} mounted nothing at {} in time{stderr}", printable(path.as_os_str()))]
    NothingMounted {
        /// Its name.
        program: String,
        /// The mount point.
        path: PathBuf,
        /// The last lines that it wrote to standard error.
        stderr: Tail,
    },
    /// The file system was mounted, but its daemon did not answer FUSE_INIT before the deadline.
    #[error("{program} mounted {}, but does not answer{stderr}", printable(path.as_os_str()))]
    NeverReady {
        /// Its name.
        program: String,
        /// The mount point.
        path: PathBuf,
        /// The last lines that it wrote to standard error.
        stderr: Tail,
    },
}

/// The end of what a program wrote to standard error. In messages it is made fit for one line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tail(pub Vec<u8>);

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.0);
        let text = text.trim();
        if text.is_empty() { Ok(()) } else { write!(f, "; it said: {}", printable(text.replace('\n', " / ").as_ref())) }
    }
}

impl RecoverError {
    /// For `map_err` of a failed system call.
    pub(crate) fn kernel<E: Into<RawErrno>>(stage: Stage, path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        move |error| Self::Kernel { stage, path: path.into(), errno: error.into().0 }
    }
}

/// What the libraries in use call an errno, as one.
pub(crate) struct RawErrno(pub Errno);

impl From<rustix::io::Errno> for RawErrno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(Errno::from_raw(errno.raw_os_error()))
    }
}

impl From<Errno> for RawErrno {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<std::io::Error> for RawErrno {
    fn from(error: std::io::Error) -> Self {
        // An error without errno is one of the standard library's own: a short read, a malformed message.
        Self(error.raw_os_error().map_or(Errno::EPROTO, Errno::from_raw))
    }
}

const fn kind(directory: bool) -> &'static str {
    if directory { "directory" } else { "file" }
}

fn ended(status: Option<ExitStatus>) -> String {
    match status {
        Some(ExitStatus::Code(code)) => format!("exited with code {code}"),
        Some(ExitStatus::Signal(signal)) => format!("was killed by {signal}"),
        None => "ended".to_owned(),
    }
}
