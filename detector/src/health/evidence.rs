use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::input::{DaemonEnd, ExitSource};
use crate::model::{AbortCall, AbortCause, Boottime, Daemon, ExitStatus, Process, Reason};

/// A moment, and whether the kernel stamped it or the agent read its clock when it learnt of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub at: Boottime,
    pub stamped: bool,
}

impl Moment {
    /// The better of two reports of one event: the kernel's stamp, else the earlier.
    fn better(self, other: Self) -> Self {
        match (self.stamped, other.stamped) {
            (true, false) => self,
            (false, true) => other,
            _ if other.at < self.at => other,
            _ => self,
        }
    }
}

/// What the connection would be said to have died of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cause {
    pub reason: Reason,
    pub moment: Option<Moment>,
    /// The daemon whose end it is.
    pub daemon: Option<Daemon>,
    /// Something violent or deliberate happened: no clean unmount is on its way, there is nothing to wait for.
    pub certain: bool,
}

impl Cause {
    /// Nothing explains it.
    pub const fn unknown(moment: Option<Moment>) -> Self {
        Self { reason: Reason::Unknown, moment, daemon: None, certain: false }
    }
}

/// A daemon that ended since the connection was last known to be alive.
#[derive(Debug, Clone)]
struct Ended {
    pid: u32,
    comm: Option<String>,
    moment: Moment,
    end: Option<DaemonEnd>,
    /// Its descriptors are closed.
    closed: bool,
    /// The outstanding probe was sent after this was known, so that its answer takes it into account.
    weighed: bool,
    /// The connection lived on without it, through somebody else who holds the descriptor.
    outlived: bool,
}

/// Somebody aborted the connection on purpose.
#[derive(Debug, Clone)]
struct Deliberate {
    call: AbortCall,
    actor: Option<Process>,
    moment: Moment,
    weighed: bool,
}

/// The kernel aborted the connection while it was connected.
#[derive(Debug, Clone)]
struct Severed {
    cause: AbortCause,
    by: Process,
    moment: Moment,
}

/// How many daemons that were replaced are remembered: reports of their end that come late are few.
const REPLACED: usize = 8;

/// Who serves the connection, and everything that could have killed it.
#[derive(Debug, Clone, Default)]
pub(super) struct Evidence {
    alive: BTreeMap<u32, Option<String>>,
    ended: Vec<Ended>,
    /// Those who ended while the connection lived on, the latest last.
    replaced: VecDeque<u32>,
    deliberate: Option<Deliberate>,
    severed: Option<Severed>,
    /// Requests were aborted, by whom or what is not known.
    aborted: Option<(Moment, bool)>,
}

impl Evidence {
    /// A daemon was seen. One that is known to have ended stays so: such a sighting was only late.
    pub fn seen(&mut self, daemon: Daemon) {
        let Daemon { pid, comm, alive } = daemon;
        if let Some(ended) = self.ended.iter_mut().find(|ended| ended.pid == pid) {
            ended.comm = ended.comm.take().or(comm);
        } else if alive && !self.replaced.contains(&pid) {
            let known = self.alive.entry(pid).or_default();
            *known = comm.or(known.take());
        }
    }

    pub fn exited(&mut self, pid: u32, moment: Moment, end: Option<DaemonEnd>, source: ExitSource) {
        let comm = self.alive.remove(&pid).flatten();
        let closed = source == ExitSource::Pidfd;
        // The hook tells first of what it tells; behind the pidfd's report, and the probe's, it is only late.
        if !closed && self.replaced.contains(&pid) {
            return;
        }
        match self.ended.iter_mut().find(|ended| ended.pid == pid) {
            Some(known) => {
                known.moment = known.moment.better(moment);
                // The hook knows sender and OOM; a pidfd at most the status.
                known.end = if closed { known.end.take().or(end) } else { end.or(known.end.take()) };
                known.closed |= closed;
                known.weighed = false;
            }
            None => self.ended.push(Ended { pid, comm, moment, end, closed, weighed: false, outlived: false }),
        }
    }

    pub fn aborted(&mut self, moment: Moment, by: Process, call: Option<AbortCall>) {
        let first = self.aborted.map_or(moment, |(known, _)| known.better(moment));
        self.aborted = Some((first, false));
        // A daemon's own write to /dev/fuse ends requests that an abort found locked (`fuse_dev_do_write`): it is not
        // the one who aborted.
        if let Some(call) = call
            && !self.knows(by.pid)
        {
            self.deliberate(moment, Some(by), call);
        }
    }

    /// It happens once.
    pub fn severed(&mut self, moment: Moment, by: Process, cause: AbortCause) {
        self.severed.get_or_insert(Severed { cause, by, moment });
    }

    /// It is known for certain that the connection will never answer again.
    pub const fn is_severed(&self) -> bool {
        self.severed.is_some()
    }

    /// The first who did it is the one.
    pub fn deliberate(&mut self, moment: Moment, actor: Option<Process>, call: AbortCall) {
        let known = self.deliberate.get_or_insert(Deliberate { call, actor, moment, weighed: false });
        known.weighed = false;
        known.moment = known.moment.better(moment);
    }

    fn knows(&self, pid: u32) -> bool {
        self.alive.contains_key(&pid) || self.ended.iter().any(|ended| ended.pid == pid)
    }

    /// Nobody known serves it any more, and the descriptors of those who did are closed.
    pub fn abandoned(&self) -> bool {
        self.alive.is_empty() && !self.ended.is_empty() && self.ended.iter().all(|ended| ended.closed)
    }

    /// A daemon of it ended with its descriptors closed, and it was not heard of since.
    pub fn bereaved(&self) -> bool {
        self.ended.iter().any(|ended| ended.closed)
    }

    /// The process is the only daemon the connection is known to have, and is dying of a signal.
    pub fn sole_daemon_killed(&self, pid: u32) -> bool {
        self.alive.is_empty() && matches!(self.ended.as_slice(), [only] if only.pid == pid && only.signal().is_some())
    }

    /// Something has happened after which the connection may well be dead.
    pub fn suspicious(&self) -> bool {
        self.ended.iter().any(|ended| ended.closed) || self.deliberate.is_some() || self.aborted.is_some()
    }

    /// A probe is sent now: its answer weighs all that is known, except a daemon whose descriptor may still be open.
    pub fn weigh(&mut self) {
        for ended in self.ended.iter_mut().filter(|ended| ended.closed) {
            ended.weighed = true;
        }
        if let Some(deliberate) = &mut self.deliberate {
            deliberate.weighed = true;
        }
        if let Some((_, weighed)) = &mut self.aborted {
            *weighed = true;
        }
    }

    /// The connection turned out to be alive: nothing that was weighed killed it.
    pub fn acquit(&mut self) {
        let replaced = self.ended.extract_if(.., |ended| ended.weighed).map(|ended| ended.pid);
        self.replaced.extend(replaced);
        let excess = self.replaced.len().saturating_sub(REPLACED);
        self.replaced.drain(..excess);
        self.deliberate.take_if(|deliberate| deliberate.weighed);
        self.aborted.take_if(|(_, weighed)| *weighed);
    }

    /// Somebody else holds the descriptor: what ended before did not kill the connection by itself.
    pub fn outlive(&mut self) {
        for ended in self.ended.iter_mut().filter(|ended| ended.weighed) {
            ended.outlived = true;
        }
    }

    /// What explains a death: want of memory, then a deadly signal, a deliberate abort, an exit code. Daemons that the
    /// connection outlived come behind an abort, but explain more than the exit of whoever held on to the descriptor.
    /// `None` if nothing was heard of at all.
    pub fn cause(&self, grace: Duration) -> Option<Cause> {
        let code =
            || self.ended.iter().find_map(|ended| Some(ended.cause(Reason::Exit { code: ended.code()? }, false)));
        let plain = || {
            let severed = self.severed.as_ref().map(|severed| severed.moment);
            let aborted = severed.or(self.aborted.map(|(moment, _)| moment));
            let moment = aborted.or(self.ended.first().map(|ended| ended.moment));
            moment.map(|moment| Cause::unknown(Some(moment)))
        };
        self.severed_cause()
            .or_else(|| self.violence(false))
            .or_else(|| self.deliberate_cause(grace))
            .or_else(|| self.violence(true))
            .or_else(code)
            .or_else(plain)
    }

    /// What the abort itself says. That a descriptor was closed says nothing of why.
    fn severed_cause(&self) -> Option<Cause> {
        let Severed { cause, by, moment } = self.severed.as_ref()?;
        let reason = match cause {
            AbortCause::Call(call) => deliberate_reason(*call, Some(by.clone())),
            AbortCause::RequestTimeout => Reason::RequestTimeout,
            AbortCause::Stalled => Reason::Stalled { cause: None },
            AbortCause::Closed { .. } | AbortCause::LastUnmount | AbortCause::Unknown => return None,
        };
        Some(Cause { reason, moment: Some(*moment), daemon: None, certain: true })
    }

    fn violence(&self, outlived: bool) -> Option<Cause> {
        let ended = || self.ended.iter().filter(move |ended| ended.outlived == outlived);
        let oom = ended().find(|ended| ended.oom()).map(|ended| ended.cause(Reason::Oom { cgroup: None }, true));
        oom.or_else(|| ended().find_map(Ended::signal_cause))
    }

    /// An abort explains a death unless all daemons had ended well before it. The two are told by different sources, so
    /// those that came within `grace` of one another are not ordered: the daemon's exit was then the abort's effect.
    fn deliberate_cause(&self, grace: Duration) -> Option<Cause> {
        let Deliberate { call, actor, moment, weighed: _ } = self.deliberate.as_ref()?;
        let late = |ended: &Ended| !ended.outlived && ended.moment.at + grace < moment.at;
        if self.alive.is_empty() && !self.ended.is_empty() && self.ended.iter().all(late) {
            return None;
        }
        let reason = deliberate_reason(*call, actor.clone());
        Some(Cause { reason, moment: Some(*moment), daemon: None, certain: true })
    }

    /// Those who serve it, then those who ended.
    pub fn daemons(&self) -> impl Iterator<Item = Daemon> {
        let alive = self.alive.iter().map(|(pid, comm)| Daemon { pid: *pid, comm: comm.clone(), alive: true });
        alive.chain(self.ended.iter().map(Ended::daemon))
    }
}

fn deliberate_reason(call: AbortCall, actor: Option<Process>) -> Reason {
    match call {
        AbortCall::Write => Reason::AdminAbort { actor },
        AbortCall::Umount => Reason::ForcedUnmount { actor },
        AbortCall::KernelThread => Reason::RequestTimeout,
    }
}

impl Ended {
    fn oom(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.oom)
    }

    fn signal(&self) -> Option<crate::model::Signal> {
        match self.end.as_ref()?.status {
            ExitStatus::Signal(signal) => Some(signal),
            ExitStatus::Code(_) => None,
        }
    }

    fn signal_cause(&self) -> Option<Cause> {
        let sender = self.end.as_ref().and_then(|end| end.sender.clone());
        Some(self.cause(Reason::Signal { signal: self.signal()?, sender }, true))
    }

    fn code(&self) -> Option<u8> {
        match self.end.as_ref()?.status {
            ExitStatus::Code(code) => Some(code),
            ExitStatus::Signal(_) => None,
        }
    }

    fn daemon(&self) -> Daemon {
        Daemon { pid: self.pid, comm: self.comm.clone(), alive: false }
    }

    fn cause(&self, reason: Reason, certain: bool) -> Cause {
        Cause { reason, moment: Some(self.moment), daemon: Some(self.daemon()), certain }
    }
}
