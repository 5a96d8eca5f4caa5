//! Starting a daemon, or a command that starts one, where its mount can be made although the dead one is in the way.
//!
//! libfuse looks at the mount point before it mounts, which fails on a dead mount; and a mount made on top of it would need
//! the dead one to be taken away first, which shows the bare directory. So the daemon is started in a mount namespace of
//! its own, a slave of the host's, in which the dead mounts are detached, and every other FUSE mount that the daemon has
//! no visible use for ([`shed`]). Nobody else sees that. When the file system
//! answers there, clones of it are handed to the worker, which puts them in place on the host.
//!
//! A process between worker and daemon does this, the launcher ([`guardian`]). When the worker ends, or is killed, before
//! success, it ends what it launched, unless a replacement is mounted on the host by then: no daemon that serves an invisible
//! mount is left behind, and none is ended that serves a visible one. It is no child of the agent's and has no parent-death
//! signal, so that it can.

mod cgroup;
mod channel;
mod child;
mod descendants;
pub(super) mod former;
mod guardian;
mod mark;
mod privileges;
mod ready;
mod shed;
mod stderr;
mod watch;

pub use self::mark::Mark;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::channel::{Channel, FromGuardian, ToGuardian};
use super::error::{RecoverError, Stage};
use super::sys::{self, Looked, MountTarget};
use super::wire::ProgressForm;
use super::{RecoverJob, table};
use crate::model::{DeviceNumber, Mount, MountId};
use crate::mounts::newest_mount;

/// Where the replacement was mounted.
pub(super) enum Brought {
    /// In the worker's own namespace, by a command.
    Here(Box<Mount>),
    /// In the launcher's.
    There(There),
}

/// What the launched daemon serves. Each dead connection is in one of the two lists.
#[derive(Default)]
pub(super) struct There {
    /// The dead connections and their replacements.
    pub replacements: Vec<(DeviceNumber, Mount)>,
    /// The dead connections for which none came, and why.
    pub missing: Vec<(DeviceNumber, String)>,
}

/// The worker's end of a launcher.
pub(super) struct Launcher {
    channel: Channel,
    guardian: Pid,
    known: Known,
}

/// What was mounted in the worker's namespace before. Device numbers and mount ids are reused at once: the dead one can have
/// been unmounted meanwhile, and both be its successor's.
struct Known {
    /// The FUSE mounts.
    mounts: Vec<(MountId, DeviceNumber)>,
    /// The newest unique mount id, where the kernel tells.
    newest: Option<u64>,
}

impl Known {
    fn look() -> std::io::Result<Self> {
        let newest = newest_mount();
        let mounts = table::own()?.mounts.into_iter().map(|mount| (mount.id, mount.device)).collect();
        Ok(Self { mounts, newest })
    }

    /// Whether the mount was made since then. Of file systems that were mounted before, another mount is none of interest, unless
    /// it has the number of a dead one.
    fn is_new(&self, mount: &Mount, dead: &[Mount]) -> bool {
        let was_there = |device: DeviceNumber| self.mounts.iter().any(|(_, known)| *known == device);
        if was_there(mount.device) && dead.iter().all(|dead| dead.device != mount.device) {
            return false;
        }
        let unique_id = || match sys::look_at(&MountTarget::from(mount)) {
            // An owner's mount refuses others this answer.
            Ok(Looked::Same(seen)) => sys::unique_id(seen.fd.as_fd()).ok().flatten(),
            Ok(Looked::Gone) | Err(_) => None,
        };
        match self.newest.and_then(|newest| Some((newest, unique_id()?))) {
            Some((newest, id)) => id > newest,
            None => !self.mounts.contains(&(mount.id, mount.device)),
        }
    }
}

/// The worker waits a little longer than the launcher, so that it is the launcher that says what is amiss.
const MARGIN: Duration = Duration::from_millis(500);

impl Launcher {
    pub fn start(job: &RecoverJob, mark: &Mark, deadline: Instant) -> Result<Self, RecoverError> {
        let place = || job.dead.first().map(|mount| mount.mount_point.clone()).unwrap_or_default();
        let (ours, theirs) = Channel::pair().map_err(RecoverError::kernel(Stage::Launch, place()))?;
        let known = Known::look().map_err(RecoverError::kernel(Stage::ReadMounts, place()))?;
        // SAFETY: a worker has one thread, so no lock is held by another one and the child may do anything.
        match unsafe { nix::unistd::fork() }.map_err(RecoverError::kernel(Stage::Launch, place()))? {
            ForkResult::Child => {
                drop(ours);
                guardian::main(job, mark, theirs, deadline)
            }
            ForkResult::Parent { child } => {
                drop(theirs);
                allow_many_descriptors();
                Ok(Self { channel: ours, guardian: child, known })
            }
        }
    }

    /// Waits until the replacements answer: in the launcher's namespace or, where there is one to wait for, in either.
    pub fn wait(
        &mut self,
        job: &RecoverJob,
        deadline: Instant,
        report: &mut dyn FnMut(ProgressForm),
    ) -> Result<Brought, RecoverError> {
        let place = || job.dead.first().map(|mount| mount.mount_point.clone()).unwrap_or_default();
        let talk = |error| RecoverError::kernel::<std::io::Error>(Stage::Talk, place())(error);
        let connections = job.connections();
        let mut there = There::default();
        let mounts =
            std::fs::File::open("/proc/self/mountinfo").map_err(RecoverError::kernel(Stage::ReadMounts, place()))?;
        loop {
            let mut events = [
                PollFd::from_borrowed_fd(self.channel.descriptor(), PollFlags::IN),
                PollFd::new(&mounts, PollFlags::PRI),
            ];
            let woken = poll(&mut events, Some(&remaining(deadline + MARGIN))).map_err(|e| talk(e.into()))?;
            if woken == 0 {
                return Err(talk(std::io::Error::from_raw_os_error(libc::ETIMEDOUT)));
            }
            let [told, changed] = events.map(|event| !event.revents().is_empty());
            if changed
                && let [dead] = connections.as_slice()
                && let Some(mount) = self.mounted_here(job)
            {
                report(ready(dead.to_kernel(), &mount, crate::model::Boottime::now().0, None));
                return Ok(Brought::Here(Box::new(mount)));
            }
            if !told {
                continue;
            }
            match self.channel.receive::<FromGuardian>().map_err(talk)?.0 {
                FromGuardian::Isolated { namespace } => report(ProgressForm::Isolated { namespace }),
                FromGuardian::Noted { what } => report(ProgressForm::Noted { what }),
                FromGuardian::Launched { pid } => report(ProgressForm::Launched { pid }),
                FromGuardian::Ready { dead, mount, at, pid } => {
                    let mount = Mount::from(*mount);
                    report(ready(dead, &mount, at, pid));
                    there.replacements.push((DeviceNumber::from_kernel(dead), mount));
                }
                FromGuardian::Missing { dead, error } => {
                    there.missing.push((DeviceNumber::from_kernel(dead), error));
                }
                FromGuardian::Failed(error) => return Err(RecoverError::Launcher(error)),
                FromGuardian::Cloned { .. } => return Err(talk(std::io::ErrorKind::InvalidData.into())),
            }
            if there.replacements.len() + there.missing.len() == connections.len() {
                return Ok(Brought::There(there));
            }
        }
    }

    /// The replacement, if it was mounted on the dead mount, or in its place, in the worker's own namespace, and answers.
    fn mounted_here(&self, job: &RecoverJob) -> Option<Mount> {
        let table = table::own().ok()?;
        let in_place = |mount: &Mount| job.dead.iter().any(|dead| dead.mount_point == mount.mount_point);
        table
            .mounts
            .into_iter()
            .find(|mount| in_place(mount) && self.known.is_new(mount, &job.dead) && ready::answers(mount))
    }

    /// A detached clone of a part of the replacement of a dead connection, and whether that is a directory.
    pub fn clone_part(
        &mut self,
        dead: DeviceNumber,
        relative: &Path,
        mount_point: &Path,
    ) -> Result<(OwnedFd, bool), RecoverError> {
        let talk = |error| RecoverError::kernel::<std::io::Error>(Stage::Talk, mount_point)(error);
        let (relative, place) = ((&relative).into(), (&mount_point).into());
        let request = ToGuardian::Clone { dead: dead.to_kernel(), relative, mount_point: place };
        self.channel.send(&request, None).map_err(talk)?;
        match self.channel.receive::<FromGuardian>().map_err(talk)? {
            (FromGuardian::Cloned { is_directory }, Some(fd)) => Ok((fd, is_directory)),
            (FromGuardian::Failed(error), _) => Err(RecoverError::Launcher(error)),
            (
                FromGuardian::Isolated { .. }
                | FromGuardian::Noted { .. }
                | FromGuardian::Launched { .. }
                | FromGuardian::Ready { .. }
                | FromGuardian::Missing { .. }
                | FromGuardian::Cloned { .. },
                _,
            ) => Err(talk(std::io::ErrorKind::InvalidData.into())),
        }
    }

    /// The replacements are in place: lets the daemon live on, without its own copies of the mounts.
    pub fn release(self) -> Result<(), RecoverError> {
        let talk = RecoverError::kernel(Stage::Talk, "/");
        self.channel.send(&ToGuardian::Release, None).map_err(talk)?;
        // It ends at once; an error says that somebody else reaped it.
        let _ = waitpid(self.guardian, None);
        Ok(())
    }
}

fn ready(dead: u32, mount: &Mount, at: u64, pid: Option<u32>) -> ProgressForm {
    ProgressForm::Ready { dead, device: mount.device.to_kernel(), at, pid }
}

/// Each dead mount takes a descriptor until all are moved, and each replacement one. Done where the launched program is
/// started already, or by another process: its limit stays.
fn allow_many_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Can't fail up to the hard limit; with the old limit fewer mounts are healed in one go.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// For poll(2): what is left until a moment; nothing once it has passed.
fn remaining(until: Instant) -> Timespec {
    Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 })
}
