//! The launcher itself: between the worker and what it launches.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::MountPropagationFlags;

use super::channel::{Channel, FromGuardian, ToGuardian};
use super::ready::{self, Asker};
use super::shed::{self, Told};
use super::stderr::Stderr;
use super::{child, descendants, remaining};
use crate::model::{ExitStatus, Mount, MountId};
use crate::recovery::error::{RecoverError, Stage};
use crate::recovery::sys::{self, Looked, MountTarget, Seen};
use crate::recovery::{Bring, RecoverJob, heal, table};

/// The launcher's whole life. Ends the process.
pub(super) fn main(job: &RecoverJob, channel: Channel, deadline: Instant) -> ! {
    let deadline = match &job.bring {
        Bring::Command { timeout, .. } => deadline.min(Instant::now() + *timeout),
        Bring::Existing(_) | Bring::Respawn(_) => deadline,
    };
    if let Err(error) = launch_and_serve(job, &channel, deadline) {
        descendants::end_all();
        // The worker may have gone: nobody is left to be told.
        let _ = channel.send(&FromGuardian::Failed(error.to_string()), None);
    }
    // SAFETY: _exit(2) ends the process; nothing of the worker's, whose copy this is, is run or flushed.
    unsafe { libc::_exit(0) }
}

fn launch_and_serve(job: &RecoverJob, channel: &Channel, deadline: Instant) -> Result<(), RecoverError> {
    let place = job.dead.first().map(|mount| mount.mount_point.clone()).unwrap_or_default();
    isolate(&place)?;
    clear_away(job)?;
    let known = shed_others(job)?;
    let children = watch_children(&place)?;
    let stderr = Stderr::new().map_err(RecoverError::kernel(Stage::Launch, &place))?;
    let (child, name) = child::start(job, &stderr).map_err(RecoverError::kernel(Stage::Launch, &place))?;
    tell(channel, &FromGuardian::Launched { pid: child.id() }, &place)?;

    let mut watch = Watch {
        job,
        channel,
        deadline,
        place,
        known,
        children,
        stderr,
        name,
        program: Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)),
        ended: None,
    };
    let (mount, at) = watch.until_ready()?;
    let Looked::Same(seen) = sys::look_at(&MountTarget::from(&mount))? else {
        return Err(RecoverError::ReplacementGone { path: mount.mount_point });
    };
    let pid = descendants::serving();
    tell(channel, &FromGuardian::Ready { mount: Box::new((&mount).into()), at, pid }, &watch.place)?;
    serve(channel, &mount, &seen)
}

/// A mount namespace in which nothing that is done shows elsewhere, but which follows what is mounted and unmounted on the
/// host: a private one would keep every file system busy that the host unmounts while the daemon lives.
fn isolate(place: &Path) -> Result<(), RecoverError> {
    // An error says that the process leads a session already.
    let _ = nix::unistd::setsid();
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).map_err(RecoverError::kernel(Stage::Launch, place))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(RecoverError::kernel(Stage::MakeNamespace, place))?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", slave).map_err(RecoverError::kernel(Stage::MakeNamespace, place))
}

fn own_mounts() -> Result<Vec<Mount>, RecoverError> {
    let table = table::own().map_err(RecoverError::kernel(Stage::ReadMounts, "/proc/self/mountinfo"))?;
    Ok(table.mounts)
}

/// Detaches the dead mounts in this namespace, guards below them included.
fn clear_away(job: &RecoverJob) -> Result<(), RecoverError> {
    let before = own_mounts()?;
    for dead in &job.dead {
        let path = &dead.mount_point;
        let is_layer = |seen: &Seen| {
            before.iter().any(|mount| {
                mount.id == seen.id
                    && mount.mount_point == *path
                    && (&mount.fs_type, &mount.source) == (&dead.fs_type, &dead.source)
            })
        };
        // Each round takes away one of the mounts that were there.
        for _ in 0..before.len() {
            match sys::see(path) {
                Ok(seen) if is_layer(&seen) => {
                    sys::detach(seen.fd.as_fd()).map_err(RecoverError::kernel(Stage::Detach, path))?;
                }
                // Below a dead mount that was not cleared away yet, or gone: it is no obstacle then.
                Ok(_) | Err(_) => break,
            }
        }
    }
    Ok(())
}

/// Detaches the FUSE mounts that the program doesn't need. Those that are left.
fn shed_others(job: &RecoverJob) -> Result<Vec<MountId>, RecoverError> {
    let mut mounts = own_mounts()?;
    let told = Told::of(job, &mounts);
    // Each round takes the topmost layer of every place, until one finds nothing more that can be seen.
    for _ in 0..mounts.len() {
        let detachable = shed::detachable(&mounts, &told);
        let visible = detachable.into_iter().filter_map(|mount| match sys::look_at(&MountTarget::from(mount)) {
            Ok(Looked::Same(seen)) => Some(seen),
            // Another mount hides it. One that can't be told apart is left as well: it is in nobody's way.
            Ok(Looked::Gone) | Err(_) => None,
        });
        let mut progress = false;
        for seen in visible {
            progress |= sys::detach(seen.fd.as_fd()).is_ok();
        }
        if !progress {
            break;
        }
        mounts = own_mounts()?;
    }
    Ok(mounts.into_iter().map(|mount| mount.id).collect())
}

fn watch_children(place: &Path) -> Result<SignalFd, RecoverError> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    // The launched program starts with an empty mask: the standard library resets it.
    mask.thread_block().map_err(RecoverError::kernel(Stage::Launch, place))?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(RecoverError::kernel(Stage::Launch, place))
}

fn tell(channel: &Channel, message: &FromGuardian, place: &Path) -> Result<(), RecoverError> {
    channel.send(message, None).map_err(RecoverError::kernel(Stage::Talk, place))
}

/// Hands out clones until the worker has done its part.
fn serve(channel: &Channel, mount: &Mount, seen: &Seen) -> Result<(), RecoverError> {
    loop {
        // The end of the worker, in whatever way, is the end of what was launched for it.
        let (request, _) = channel.receive::<ToGuardian>().map_err(|_| RecoverError::GivenUp)?;
        match request {
            ToGuardian::Clone { relative, mount_point } => {
                let (relative, mount_point) = (PathBuf::from(relative), PathBuf::from(mount_point));
                match heal::clone_part(seen, mount.owner_only(), &relative, &mount_point) {
                    Ok((fd, is_directory)) => channel.send(&FromGuardian::Cloned { is_directory }, Some(fd.as_fd())),
                    Err(error) => channel.send(&FromGuardian::Failed(error.to_string()), None),
                }
                .map_err(|_| RecoverError::GivenUp)?;
            }
            ToGuardian::Release => return detach_own(mount),
        }
    }
}

/// Takes away the mount that the daemon made in this namespace, so that an unmount on the host is the last one and ends the
/// connection. Where propagation took it away already, a slave of the host's may hang there: that one follows the host.
fn detach_own(mount: &Mount) -> Result<(), RecoverError> {
    if let Ok(Looked::Same(seen)) = sys::look_at(&MountTarget::from(mount)) {
        sys::detach(seen.fd.as_fd()).map_err(RecoverError::kernel(Stage::Detach, &mount.mount_point))?;
    }
    Ok(())
}

/// Waits for the file system.
struct Watch<'a> {
    job: &'a RecoverJob,
    channel: &'a Channel,
    deadline: Instant,
    place: PathBuf,
    /// FUSE mounts that are not the awaited one.
    known: Vec<MountId>,
    children: SignalFd,
    stderr: Stderr,
    name: String,
    program: Pid,
    /// How the program that was started ended, once it has.
    ended: Option<ExitStatus>,
}

impl Watch<'_> {
    /// The new mount and the moment when its daemon answered.
    fn until_ready(&mut self) -> Result<(Mount, u64), RecoverError> {
        let table = File::open("/proc/self/mountinfo").map_err(RecoverError::kernel(Stage::ReadMounts, &self.place))?;
        let mut asking: Option<(Mount, Asker)> = None;
        loop {
            if asking.is_none() {
                asking = self.ask_new_mount()?;
            }
            let answered = self.sleep(&table, asking.as_ref().map(|(_, asker)| asker))?;
            if let Some((mount, asker)) = asking.take_if(|_| answered) {
                self.known.push(mount.id);
                if let Some(at) = asker.moment() {
                    return Ok((mount, at));
                }
            }
            // While it is asked, the asker's own end must not be taken for a child's.
            if asking.is_none() {
                self.reap()?;
            }
        }
    }

    fn ask_new_mount(&self) -> Result<Option<(Mount, Asker)>, RecoverError> {
        let mounts = table::own().map_err(RecoverError::kernel(Stage::ReadMounts, &self.place))?.mounts;
        let is_new = |mount: &Mount| !self.known.contains(&mount.id) && ready::replaces(mount, &self.job.dead);
        let Some(mount) = mounts.into_iter().find(is_new) else { return Ok(None) };
        let asker = Asker::start(&mount).map_err(RecoverError::kernel(Stage::Launch, &self.place))?;
        Ok(Some((mount, asker)))
    }

    /// Until something happens. Whether the asker has an answer.
    fn sleep(&self, table: &File, asker: Option<&Asker>) -> Result<bool, RecoverError> {
        let mut events = vec![
            PollFd::from_borrowed_fd(self.channel.descriptor(), PollFlags::IN),
            PollFd::new(table, PollFlags::PRI),
            PollFd::new(&self.children, PollFlags::IN),
        ];
        events.extend(asker.map(|asker| PollFd::from_borrowed_fd(asker.descriptor(), PollFlags::IN)));
        let woken = poll(&mut events, Some(&remaining(self.deadline)))
            .map_err(RecoverError::kernel(Stage::Talk, &self.place))?;
        if woken == 0 {
            return Err(self.too_late(asker.is_some()));
        }
        let happened = |index: usize| events.get(index).is_some_and(|event| !event.revents().is_empty());
        if happened(0) {
            // The worker has nothing to say before the file system is ready: it has ended.
            return Err(RecoverError::GivenUp);
        }
        Ok(happened(3))
    }

    fn too_late(&self, mounted: bool) -> RecoverError {
        let (program, path, stderr) = (self.name.clone(), self.place.clone(), self.stderr.tail());
        if mounted {
            RecoverError::NeverReady { program, path, stderr }
        } else {
            RecoverError::NothingMounted { program, path, stderr }
        }
    }

    /// Learns of children that ended. A failure once nobody is left who could mount.
    fn reap(&mut self) -> Result<(), RecoverError> {
        // Emptied, so that it wakes for the next one only.
        while let Ok(Some(_)) = self.children.read_signal() {}
        let nobody_left = loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => break false,
                Ok(WaitStatus::Exited(pid, code)) if pid == self.program => {
                    self.ended = Some(ExitStatus::Code(u8::try_from(code).unwrap_or(u8::MAX)));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.program => {
                    self.ended = Some(ExitStatus::from_wait_status(signal as u32));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => break true,
            }
        };
        let failed = match (self.ended, &self.job.bring) {
            (None, _) => false,
            // A daemon's parent exits with 0 once its child serves; a command can leave the work to a service manager.
            (Some(ExitStatus::Code(0)), Bring::Command { .. }) => false,
            (Some(ExitStatus::Code(0)), Bring::Existing(_) | Bring::Respawn(_)) => nobody_left,
            (Some(_), _) => true,
        };
        if !failed {
            return Ok(());
        }
        let (program, path, stderr) = (self.name.clone(), self.place.clone(), self.stderr.tail());
        Err(RecoverError::Ended { program, path, status: self.ended, stderr })
    }
}
