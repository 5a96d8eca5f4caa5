use std::time::Duration;

use super::{Effects, Machine};
use crate::health::evidence::{Cause, Moment};
use crate::health::input::{Effect, ExitSource, Origin, Others, ProbeOutcome, State, Timer, is_of_the_dead};
use crate::model::{Boottime, Process, Reason, StallCause};

/// How long a death that nothing violent explains is held back: libfuse, and the helper of its `auto_unmount`, close the
/// device before they unmount, and do so within milliseconds. Long enough for a loaded machine, short for a person.
pub const GRACE: Duration = Duration::from_millis(200);

/// The first wait before a question that got no answer is put again; doubled each time.
const RETRY: Duration = Duration::from_millis(200);

/// The longest such wait. A probe of a hung mount can cost a worker process until the mount is gone, so few are sent.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// How often a probe that failed by itself is repeated when nothing points to a death.
const RETRIES_UNPROVOKED: u32 = 5;

/// A daemon that answers its users with ENOTCONN looks dead to them. A connection that was just seen alive is not probed
/// for such a hint more often than this.
const HINT_INTERVAL: Duration = Duration::from_secs(1);

/// Whether the connection lives, and how far the asking got.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Question {
    probe: Probe,
    /// The probed mount was gone: another one may be there to ask through.
    lost_mount: bool,
    /// When a probe was last answered by the daemon.
    answered: Option<Boottime>,
    held: Option<Held>,
    holders_asked: bool,
    retries: u32,
}

/// The one probe that can be outstanding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Probe {
    #[default]
    Idle,
    Asked,
    /// Something happened since it was sent: its answer may be older.
    AskedAndStale,
}

/// A death held back.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// When the first probe found it.
    since: Boottime,
    /// The grace period is over: the next probe decides.
    due: bool,
}

impl Machine {
    pub(super) fn progress(&mut self, effects: &mut Effects) {
        let was = self.state;
        self.serves(effects);
        if was != self.state && self.evidence.suspicious() {
            self.ask(effects);
        }
    }

    pub(super) fn daemon_ended(&mut self, source: ExitSource, effects: &mut Effects) {
        match (source, self.state) {
            // Its descriptor is still open: a probe now would wait for it. But it may explain a death held back.
            (ExitSource::Hook, _) => self.reconsider(effects),
            (ExitSource::Pidfd, State::Detached) => self.look_soon(effects),
            (ExitSource::Pidfd, _) => self.suspect(effects),
        }
    }

    /// Closing a clone of the descriptor ends the requests read through it, without killing the connection
    /// (`fuse_dev_release`), so aborted requests alone prove nothing. Those of the only daemon, while it dies of a
    /// signal, do.
    pub(super) fn requests_aborted(&mut self, pid: u32, exiting: bool, effects: &mut Effects) {
        let undecided = self.in_question() || self.state == State::Detached;
        let killed = undecided && exiting && self.evidence.sole_daemon_killed(pid);
        match self.evidence.cause(GRACE) {
            Some(cause) if killed => self.die(cause, effects),
            _ => self.suspect(effects),
        }
    }

    /// It was aborted. If nothing violent explains that, a clean unmount may follow.
    pub(super) fn severed(&mut self, at: Boottime, effects: &mut Effects) {
        match self.evidence.cause(GRACE) {
            Some(cause) if self.state == State::Detached && cause.certain => self.die(cause, effects),
            _ if self.state == State::Detached => self.look_soon(effects),
            _ if self.in_question() => self.found_dead(at, false, false, effects),
            _ => {}
        }
    }

    /// Its last mount is gone, and its control directory goes.
    pub(super) fn destroyed(&mut self, effects: &mut Effects) {
        if self.in_question() || self.state == State::Detached {
            self.look_soon(effects);
        }
    }

    /// Something happened that may have killed it.
    pub(super) fn suspect(&mut self, effects: &mut Effects) {
        self.reconsider(effects);
        self.question.retries = 0;
        if self.question.held.is_none() {
            self.ask(effects);
        }
    }

    /// An application saw an error. It is enough to ask a little later.
    pub(super) fn hint(&mut self, now: Boottime, effects: &mut Effects) {
        if self.question.held.is_some() || !self.in_question() {
            return;
        }
        let wait = self.question.answered.map(|at| HINT_INTERVAL.saturating_sub(now.since(at))).unwrap_or_default();
        if wait.is_zero() {
            self.ask(effects);
        } else if !self.timers.is_armed(Timer::Retry) {
            self.timers.arm(Timer::Retry, wait, effects);
        }
    }

    pub(super) fn ask(&mut self, effects: &mut Effects) {
        if !self.in_question() || self.evidence.is_severed() {
            return;
        }
        match self.question.probe {
            Probe::Idle => {
                self.question.probe = Probe::Asked;
                self.evidence.weigh();
                self.timers.disarm(Timer::Retry, effects);
                effects.push(Effect::Probe);
            }
            Probe::Asked | Probe::AskedAndStale => self.question.probe = Probe::AskedAndStale,
        }
    }

    /// The mounts were looked at and some are there.
    pub(super) fn another_mount(&mut self, effects: &mut Effects) {
        if std::mem::take(&mut self.question.lost_mount) {
            self.ask(effects);
        }
    }

    pub(super) fn probed(
        &mut self,
        now: Boottime,
        outcome: ProbeOutcome,
        at: Boottime,
        first_look: bool,
        effects: &mut Effects,
    ) {
        let before = std::mem::take(&mut self.question.probe);
        if !self.in_question() || self.evidence.is_severed() {
            // Of one that was aborted more is known than any answer tells.
            return;
        }
        match outcome {
            ProbeOutcome::Dead { errno } if is_of_the_dead(errno) => {
                return self.found_dead(at, first_look, errno == libc::ECONNREFUSED, effects);
            }
            ProbeOutcome::Alive => self.found_alive(now, before, effects),
            ProbeOutcome::Gone => {
                self.question.lost_mount = true;
                self.retry_if_doubtful(effects);
            }
            // Who is left may hold the descriptor without serving.
            ProbeOutcome::TimedOut if self.evidence.bereaved() => self.find_holders(effects),
            ProbeOutcome::TimedOut | ProbeOutcome::Denied => self.retry_if_doubtful(effects),
            ProbeOutcome::Dead { .. } | ProbeOutcome::Failed if self.question.retries < RETRIES_UNPROVOKED => {
                self.retry(effects);
            }
            ProbeOutcome::Dead { .. } | ProbeOutcome::Failed => self.retry_if_doubtful(effects),
        }
        if before == Probe::AskedAndStale {
            self.ask(effects);
        }
    }

    fn found_alive(&mut self, now: Boottime, before: Probe, effects: &mut Effects) {
        self.question.answered = Some(now);
        self.forget_question(effects);
        // Who ended since was replaced by somebody else (a planned hand-over). A look that the machine did not ask for
        // may have been taken before.
        if before != Probe::Idle {
            self.evidence.acquit();
        }
        self.serves(effects);
    }

    /// `refused`: FUSE_INIT was answered with an error, or with nothing that the kernel understands.
    fn found_dead(&mut self, at: Boottime, first_look: bool, refused: bool, effects: &mut Effects) {
        let cause = self.evidence.cause(GRACE);
        let held = self.question.held;
        let due = first_look || held.is_some_and(|held| held.due);
        if due || cause.as_ref().is_some_and(|cause| cause.certain) {
            let moment = held.map(|held| Moment { at: held.since, stamped: false });
            let mut cause = cause.unwrap_or(Cause::unknown(moment));
            if refused && cause.reason == Reason::Unknown {
                cause.reason = Reason::NeverInitialised { end: None };
            }
            self.die(cause, effects);
        } else if held.is_none() {
            self.question.held = Some(Held { since: at, due: false });
            self.timers.disarm(Timer::Retry, effects);
            self.timers.arm(Timer::Grace, GRACE, effects);
        }
    }

    pub(super) fn grace_over(&mut self, effects: &mut Effects) {
        let Some(held) = &mut self.question.held else { return };
        held.due = true;
        let since = held.since;
        if self.evidence.is_severed() {
            self.found_dead(since, false, false, effects);
        } else {
            self.ask(effects);
        }
    }

    /// Evidence came while a death was held back. If it explains that death, no clean unmount is on its way.
    fn reconsider(&mut self, effects: &mut Effects) {
        if self.question.held.is_none() || !self.in_question() {
            return;
        }
        if let Some(cause) = self.evidence.cause(GRACE).filter(|cause| cause.certain) {
            self.die(cause, effects);
        }
    }

    pub(super) fn stalled(&mut self, cause: Option<StallCause>, effects: &mut Effects) {
        if !self.in_question() || self.question.held.is_some() {
            return;
        }
        match (self.state, self.origin) {
            _ if self.evidence.abandoned() => self.find_holders(effects),
            (State::Created, Origin::Seen) => self.hang(Reason::NeverInitialised { end: None }, effects),
            (State::Hung, _) => {}
            _ => self.hang(Reason::Stalled { cause }, effects),
        }
    }

    pub(super) fn find_holders(&mut self, effects: &mut Effects) {
        if !std::mem::replace(&mut self.question.holders_asked, true) {
            effects.push(Effect::FindHolders);
        }
    }

    pub(super) fn holders(&mut self, named: Vec<Process>, others: Others, effects: &mut Effects) {
        let asked = std::mem::take(&mut self.question.holders_asked);
        if asked && !named.is_empty() {
            self.evidence.outlive();
        }
        if asked && self.state == State::Detached {
            return self.holders_while_detached(!named.is_empty(), effects);
        }
        if !asked || !self.in_question() || !self.evidence.bereaved() {
            return;
        }
        // That the connection outlived all who are known to have served it, is the kernel's word that somebody holds it.
        let (held, holder) = match (named.into_iter().next(), others) {
            (Some(holder), _) => (true, Some(holder)),
            (None, Others::One(holder)) => (self.evidence.abandoned(), Some(holder)),
            (None, Others::Several) => (self.evidence.abandoned(), None),
            (None, Others::Nobody) => (false, None),
        };
        if held {
            self.evidence.outlive();
            self.hang(Reason::DescriptorHeld { holder }, effects);
        }
        // Nothing tells reliably of what a holder, or somebody else, does to it from now on.
        self.retry(effects);
    }

    /// The question is settled, or can't be asked any more.
    pub(super) fn forget_question(&mut self, effects: &mut Effects) {
        self.question.held = None;
        self.question.retries = 0;
        self.timers.disarm(Timer::Grace, effects);
        self.timers.disarm(Timer::Retry, effects);
    }

    fn retry_if_doubtful(&mut self, effects: &mut Effects) {
        if self.question.held.is_some() || self.evidence.suspicious() {
            self.retry(effects);
        }
    }

    fn retry(&mut self, effects: &mut Effects) {
        let delay = RETRY.saturating_mul(2_u32.saturating_pow(self.question.retries)).min(RETRY_MAX);
        self.question.retries = self.question.retries.saturating_add(1);
        self.timers.arm(Timer::Retry, delay, effects);
    }
}
