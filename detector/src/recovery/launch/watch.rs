//! Waiting for what was launched to mount, and to answer, in place of each dead connection.

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};

use super::channel::Channel;
use super::ready::Asker;
use super::remaining;
use super::stderr::Stderr;
use crate::model::{DeviceNumber, ExitStatus, Mount, MountId};
use crate::recovery::error::{RecoverError, Stage};
use crate::recovery::{Bring, RecoverJob, table};

/// How long the other file systems of a daemon are waited for after one of them answered. A daemon that serves several
/// mounts one right after another; one that no longer serves them all must not keep the others dead.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// The replacement of one dead connection.
pub(super) struct Arrival {
    pub dead: DeviceNumber,
    pub mount: Mount,
    /// When its daemon answered: nanoseconds since boot.
    pub at: u64,
}

/// What came of waiting: at least one replacement.
pub(super) struct Arrivals {
    pub arrived: Vec<Arrival>,
    /// The dead connections for which none came, and why.
    pub missing: Vec<(DeviceNumber, RecoverError)>,
}

/// Waits for the file systems.
pub(super) struct Watch<'a> {
    pub job: &'a RecoverJob,
    pub channel: &'a Channel,
    pub deadline: Instant,
    /// FUSE mounts that are none of the awaited ones.
    pub known: HashSet<MountId>,
    pub children: SignalFd,
    pub stderr: Stderr,
    pub name: String,
    pub program: Pid,
    /// How the program that was started ended, once it has.
    pub ended: Option<ExitStatus>,
    /// The dead connections that have no replacement yet.
    pub waiting: Vec<DeviceNumber>,
}

/// A new mount whose daemon is being asked.
struct Asking {
    dead: DeviceNumber,
    mount: Mount,
    asker: Asker,
}

/// What ended a sleep.
struct Woken {
    mounts_changed: bool,
    /// Of each asker in turn, whether it has come to an end.
    answered: Vec<bool>,
}

impl Watch<'_> {
    /// # Errors
    /// Nobody is left who could mount anything, nothing answered in time, or the worker has gone.
    pub fn until_ready(mut self) -> Result<Arrivals, RecoverError> {
        let table =
            File::open("/proc/self/mountinfo").map_err(RecoverError::kernel(Stage::ReadMounts, self.place()))?;
        let (mut asking, mut arrived, mut look) = (Vec::new(), Vec::new(), true);
        let mut until = self.deadline;
        while !self.waiting.is_empty() {
            if std::mem::take(&mut look) {
                self.ask_new_mounts(&mut asking)?;
            }
            // While askers run, the end of one of them must not be taken for that of what was launched.
            if asking.is_empty() {
                self.reap()?;
            }
            let Some(woken) = self.sleep(&table, &asking, until)? else { break };
            let mut answered = woken.answered.into_iter();
            let done: Vec<Asking> = asking.extract_if(.., |_| answered.next() == Some(true)).collect();
            // Whoever has not answered may be mounted anew.
            look = woken.mounts_changed || !done.is_empty();
            for Asking { dead, mount, asker } in done {
                if let Some(at) = asker.moment() {
                    self.waiting.retain(|waiting| *waiting != dead);
                    arrived.push(Arrival { dead, mount, at });
                    until = self.deadline.min(Instant::now() + STRAGGLERS);
                }
            }
        }
        let mut missing: Vec<_> = self.waiting.iter().map(|dead| (*dead, self.too_late(*dead, &asking))).collect();
        match missing.pop_if(|_| arrived.is_empty()) {
            Some((_, error)) => Err(error),
            None => Ok(Arrivals { arrived, missing }),
        }
    }

    /// Where the first of the awaited ones is to appear, for messages.
    fn place(&self) -> PathBuf {
        self.waiting.first().and_then(|dead| self.place_of(*dead)).unwrap_or_default()
    }

    fn place_of(&self, dead: DeviceNumber) -> Option<PathBuf> {
        self.job.dead.iter().find(|mount| mount.device == dead).map(|mount| mount.mount_point.clone())
    }

    /// Has those asked that hang where an awaited one is to appear, one at a time for each.
    fn ask_new_mounts(&mut self, asking: &mut Vec<Asking>) -> Result<(), RecoverError> {
        let mounts = table::own().map_err(RecoverError::kernel(Stage::ReadMounts, self.place()))?.mounts;
        for mount in mounts {
            if self.known.contains(&mount.id) {
                continue;
            }
            // It can have the dead one's number, if that was unmounted meanwhile.
            let replaces = |dead: &&Mount| dead.mount_point == mount.mount_point;
            let Some(dead) = self.job.dead.iter().find(replaces).map(|dead| dead.device) else { continue };
            if !self.waiting.contains(&dead) || asking.iter().any(|other| other.dead == dead) {
                continue;
            }
            let asker = Asker::start(&mount).map_err(RecoverError::kernel(Stage::Launch, &mount.mount_point))?;
            self.known.insert(mount.id);
            asking.push(Asking { dead, mount, asker });
        }
        Ok(())
    }

    /// Until something happens; `None` once it is too late.
    fn sleep(&self, table: &File, asking: &[Asking], until: Instant) -> Result<Option<Woken>, RecoverError> {
        let mut events = vec![
            PollFd::from_borrowed_fd(self.channel.descriptor(), PollFlags::IN),
            PollFd::new(table, PollFlags::PRI),
            PollFd::from_borrowed_fd(self.stderr.descriptor(), PollFlags::IN),
        ];
        events.extend(asking.iter().map(|it| PollFd::from_borrowed_fd(it.asker.descriptor(), PollFlags::IN)));
        if asking.is_empty() {
            events.push(PollFd::new(&self.children, PollFlags::IN));
        }
        let woken =
            poll(&mut events, Some(&remaining(until))).map_err(RecoverError::kernel(Stage::Talk, self.place()))?;
        if woken == 0 {
            return Ok(None);
        }
        let mut happened = events.iter().map(|event| !event.revents().is_empty());
        if happened.next() == Some(true) {
            // The worker has nothing to say before the file systems are ready: it has ended.
            return Err(RecoverError::GivenUp);
        }
        let mounts_changed = happened.next() == Some(true);
        if happened.next() == Some(true) {
            self.stderr.take();
        }
        Ok(Some(Woken { mounts_changed, answered: happened.take(asking.len()).collect() }))
    }

    fn too_late(&self, dead: DeviceNumber, asking: &[Asking]) -> RecoverError {
        let path = self.place_of(dead).unwrap_or_default();
        let (program, stderr) = (self.name.clone(), self.stderr.tail());
        if asking.iter().any(|it| it.dead == dead) {
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
        let (program, path, stderr) = (self.name.clone(), self.place(), self.stderr.tail());
        Err(RecoverError::Ended { program, path, status: self.ended, stderr })
    }
}
