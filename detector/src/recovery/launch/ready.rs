//! Whether the daemon of a mount answers.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid};

use crate::model::{Boottime, Mount};
use crate::recovery::sys::{self, Looked, MountTarget};
use crate::worker::{AskError, ask};

/// Asks the daemon, for as long as it takes. FUSE_INIT precedes every other request, so an answer says that it is ready.
pub(super) fn answers(mount: &Mount) -> bool {
    question(mount).is_ok()
}

fn question(mount: &Mount) -> Result<(), Errno> {
    match sys::look_at(&MountTarget::from(mount)) {
        Ok(Looked::Same(seen)) => match ask(seen.fd.as_fd(), mount.owner_only()) {
            // The daemon's own error is an answer, too.
            Ok(()) | Err(AskError::Answer(Errno::ENOSYS | Errno::EIO | Errno::EOPNOTSUPP)) => Ok(()),
            Err(AskError::Dead(errno) | AskError::Answer(errno) | AskError::Owner(errno)) => Err(errno),
        },
        Ok(Looked::Gone) => Err(Errno::ENOENT),
        Err(_) => Err(Errno::EIO),
    }
}

/// A process that asks in the launcher's stead: before FUSE_INIT is answered, nothing but a fatal signal interrupts the call
/// (`fuse_get_req` in fs/fuse/dev.c).
pub(super) struct Asker {
    pid: Pid,
    answer: UnixStream,
}

impl Asker {
    pub fn start(mount: &Mount) -> std::io::Result<Self> {
        let (answer, mut theirs) = UnixStream::pair()?;
        // SAFETY: the launcher has one thread.
        match unsafe { nix::unistd::fork() }? {
            ForkResult::Child => {
                let moment = question(mount).map_or(0, |()| Boottime::now().0);
                let _ = theirs.write_all(&moment.to_ne_bytes());
                // SAFETY: _exit(2) ends the process; nothing of the parent's is run or flushed.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => Ok(Self { pid: child, answer }),
        }
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.answer.as_fd()
    }

    /// The moment of the answer; `None` if the file system died instead. To be called once the descriptor is readable.
    pub fn moment(mut self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.answer.read_exact(&mut bytes).ok()?;
        Some(u64::from_ne_bytes(bytes)).filter(|moment| *moment != 0)
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // Not reaped yet, so the id is still its own. Once killed it ends at once, or, where the daemon has read the question
        // and is stuck, with the daemon, which is ended next: so it is not waited for if it doesn't end.
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
    }
}
