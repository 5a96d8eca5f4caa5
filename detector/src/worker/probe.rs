use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use rustix::fs::{AtFlags, StatxFlags};

use super::owner::as_owner;
use super::protocol::ProbeForm;
use crate::model::Mount;
use crate::recovery::{Looked, MountTarget, RecoverError, is_of_the_dead, look_at};

/// A mount to be asked whether its daemon answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    /// Which mount, in the agent's own mount namespace.
    pub mount: MountTarget,
    /// The user and group as whom to ask, where it serves nobody else ([`Mount::owner_only`]).
    pub owner: Option<(u32, u32)>,
}

impl From<&Mount> for ProbeTarget {
    fn from(mount: &Mount) -> Self {
        Self { mount: mount.into(), owner: mount.owner_only() }
    }
}

impl ProbeTarget {
    /// A mount of another mount namespace, reached through a process that lives there (proc_pid_root(5)).
    pub fn through(pid: u32, mount: &Mount) -> Self {
        let mut target = Self::from(mount);
        let path = mount.mount_point.strip_prefix("/").unwrap_or(&mount.mount_point);
        target.mount.mount_point = Path::new("/proc").join(pid.to_string()).join("root").join(path);
        target
    }
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The daemon answered, be it with an error of its own.
    Alive,
    /// The kernel answered for it.
    Dead {
        /// One of [`crate::health::is_of_the_dead`].
        errno: i32,
    },
    /// The mount is no longer there, or another one hides it.
    Gone,
    /// No answer before the deadline. This tells nothing but that: slowness is no death.
    TimedOut,
    /// The agent may not ask.
    Denied,
    /// The question could not be put.
    Failed(String),
}

/// Why [`ask`] has no good news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskError {
    /// The kernel refuses, as it does every request on a dead connection.
    Dead(Errno),
    /// Another error that statfs returned.
    Answer(Errno),
    /// The owner's ids could not be taken on.
    Owner(Errno),
}

/// Asks the file system's daemon for its size: fstatfs(2) has no cache to answer from, unlike stat(2), which can succeed on
/// a dead mount. Blocks for as long as the daemon pleases.
pub(crate) fn ask(file: BorrowedFd<'_>, owner: Option<(u32, u32)>) -> Result<(), AskError> {
    let answer = match owner {
        Some(owner) => as_owner(owner, || answers(file)).map_err(AskError::Owner)?,
        None => answers(file),
    };
    answer.map_err(|errno| {
        let kind = if is_of_the_dead(errno) { AskError::Dead } else { AskError::Answer };
        kind(Errno::from_raw(errno.raw_os_error()))
    })
}

/// A daemon can answer statfs with ENOTCONN itself, so an error of a dead connection has to be confirmed by another
/// request: the kernel refuses them all. Forced, statx(2) does not answer from the cache.
fn answers(file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let first = rustix::fs::fstatfs(file).map(drop);
    if !first.is_err_and(is_of_the_dead) {
        return first;
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    match rustix::fs::statx(file, c"", flags, StatxFlags::BASIC_STATS) {
        Err(errno) if is_of_the_dead(errno) => first,
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The worker's half of a probe.
pub(super) fn probe(mount: &MountTarget, owner: Option<(u32, u32)>) -> ProbeForm {
    let seen = match look_at(mount) {
        Ok(Looked::Same(seen)) => seen,
        Ok(Looked::Gone) => return ProbeForm::Gone,
        Err(RecoverError::Kernel { errno: Errno::EACCES | Errno::EPERM, .. }) => return ProbeForm::Denied,
        Err(error) => return ProbeForm::Failed(error.to_string()),
    };
    match ask(seen.fd.as_fd(), owner) {
        Ok(()) => ProbeForm::Alive,
        Err(AskError::Dead(errno)) => ProbeForm::Dead { errno: errno as i32 },
        Err(AskError::Answer(Errno::EACCES | Errno::EPERM) | AskError::Owner(_)) => ProbeForm::Denied,
        // The daemon's own answer, EIO or ENOSYS say: it lives.
        Err(AskError::Answer(_)) => ProbeForm::Alive,
    }
}
