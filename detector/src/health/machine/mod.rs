//! The machine itself. Its three concerns have a file each: whether the connection lives (`question`), whether it is
//! mounted (`presence`), and which reminders are outstanding (`timers`). Here is what joins them.

mod presence;
mod question;
mod timers;

use self::presence::Presence;
use self::question::Question;
use self::timers::Timers;
use super::evidence::{Cause, Evidence, Moment};
use super::input::{Effect, Input, Origin, State, Timer, Verdict};
use crate::model::{AbortCall, AbortCause, Boottime, ConnectionId, Daemon, Reason};

pub use self::question::GRACE;

type Effects = Vec<Effect>;

/// The state machine of one connection.
#[derive(Debug, Clone)]
pub struct Machine {
    id: ConnectionId,
    origin: Origin,
    state: State,
    evidence: Evidence,
    /// Why it hangs or died.
    reason: Option<Reason>,
    /// The daemon whose end killed it.
    culprit: Option<Daemon>,
    question: Question,
    presence: Presence,
    timers: Timers,
}

impl Machine {
    /// A connection that was just learnt of.
    pub fn new(id: ConnectionId, origin: Origin) -> Self {
        Self {
            id,
            origin,
            state: State::Created,
            evidence: Evidence::default(),
            reason: None,
            culprit: None,
            question: Question::default(),
            presence: Presence::default(),
            timers: Timers::default(),
        }
    }

    /// Which connection.
    pub const fn id(&self) -> ConnectionId {
        self.id
    }

    /// Where it stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Why it hangs or died; `None` while it does neither.
    pub const fn reason(&self) -> Option<&Reason> {
        self.reason.as_ref()
    }

    /// Who serves or served it: the living first.
    pub fn daemons(&self) -> impl Iterator<Item = Daemon> {
        self.evidence.daemons()
    }

    /// The one daemon to name: whose end killed the connection, else one that serves it.
    pub fn daemon(&self) -> Option<Daemon> {
        self.culprit.clone().or_else(|| self.daemons().next())
    }

    /// Takes in what was learnt by `now`, and says what is to be done. Every input is accepted in every state; one that
    /// has no meaning there changes nothing.
    pub fn on(&mut self, now: Boottime, input: Input) -> Vec<Effect> {
        let mut effects = Effects::new();
        if self.state != State::Gone {
            self.take(now, input, &mut effects);
        }
        effects
    }

    fn take(&mut self, now: Boottime, input: Input, effects: &mut Effects) {
        match input {
            Input::Initialised => self.serves(effects),
            Input::Progress => self.progress(effects),
            Input::DaemonSeen(daemon) => self.evidence.seen(daemon),
            Input::DaemonExited { pid, at, stamped, end, source } => {
                self.evidence.exited(pid, Moment { at, stamped }, end, source);
                self.daemon_ended(source, effects);
            }
            Input::RequestsAborted { at, by, exiting, call } => {
                let pid = by.pid;
                self.evidence.aborted(Moment { at, stamped: true }, by, if exiting { None } else { call });
                self.requests_aborted(pid, exiting, effects);
            }
            Input::Aborted { at: _, by: _, cause: AbortCause::LastUnmount } => self.destroyed(effects),
            Input::Aborted { at, by, cause } => {
                self.evidence.severed(Moment { at, stamped: true }, by, cause);
                self.severed(at, effects);
            }
            Input::AbortWritten { at, actor } => {
                self.evidence.deliberate(Moment { at, stamped: false }, actor, AbortCall::Write);
                self.suspect(effects);
            }
            Input::ForcedUnmount { at, actor } => {
                self.evidence.deliberate(Moment { at, stamped: true }, actor, AbortCall::Umount);
                self.suspect(effects);
            }
            Input::AccessFailed { at: _ } => self.hint(now, effects),
            Input::Probed { outcome, at, first_look } => self.probed(now, outcome, at, first_look, effects),
            Input::Stalled { cause } => self.stalled(cause, effects),
            Input::Mounts { count: 0, control } => self.no_mounts(control, effects),
            Input::Mounts { .. } => self.mounts_present(effects),
            Input::Holders { named, others } => self.holders(named, others, effects),
            Input::Timer(timer) => self.timer(timer, effects),
            Input::RecoveryStarted => self.recovery_started(),
            Input::Recovered => self.recovered(effects),
            Input::RecoveryFailed { gave_up } => self.recovery_failed(gave_up, effects),
        }
    }

    fn timer(&mut self, timer: Timer, effects: &mut Effects) {
        if !self.timers.passed(timer) {
            return;
        }
        match timer {
            Timer::Grace => self.grace_over(effects),
            Timer::Settle => self.presence.settled = true,
            Timer::Retry => self.ask(effects),
        }
    }

    /// The kernel said for certain that it will never answer again. Nothing the machine hears from now on changes that.
    pub const fn is_severed(&self) -> bool {
        self.evidence.is_severed()
    }

    /// It may be alive, and has mounts to ask through.
    fn in_question(&self) -> bool {
        match self.state {
            State::Created | State::Ready | State::Hung => true,
            State::Dead | State::Recovering | State::Failed | State::Detached | State::Gone => false,
        }
    }

    /// The daemon answers.
    fn serves(&mut self, effects: &mut Effects) {
        match self.state {
            State::Created | State::Hung => {
                self.state = State::Ready;
                self.reason = None;
                effects.push(Effect::Tell(Verdict::Ready));
            }
            State::Ready | State::Dead | State::Recovering | State::Failed | State::Detached | State::Gone => {}
        }
    }

    fn hang(&mut self, reason: Reason, effects: &mut Effects) {
        if self.state == State::Hung && self.reason.as_ref() == Some(&reason) {
            return;
        }
        self.state = State::Hung;
        self.reason = Some(reason.clone());
        effects.push(Effect::Tell(Verdict::Hung(reason)));
    }

    fn die(&mut self, cause: Cause, effects: &mut Effects) {
        let Cause { reason, moment, daemon, certain: _ } = cause;
        let reason = match (reason, &self.reason) {
            (Reason::Unknown, _) if self.never_served() => Reason::NeverInitialised { end: None },
            // Want of memory, and what a person did, says more than that it was not to serve for that.
            (end @ (Reason::Signal { .. } | Reason::Exit { .. }), _) if self.never_served() => {
                Reason::NeverInitialised { end: Some(Box::new(end)) }
            }
            // Ended because it hung: what is known of that is more.
            (Reason::Stalled { .. }, Some(known @ Reason::Stalled { .. })) => known.clone(),
            (reason, _) => reason,
        };
        self.state = State::Dead;
        self.culprit = daemon;
        self.reason = Some(reason.clone());
        self.timers.disarm_all(effects);
        let (since, stamped) = (moment.map(|moment| moment.at), moment.is_some_and(|moment| moment.stamped));
        effects.push(Effect::Tell(Verdict::Dead { reason, since, stamped }));
        if self.presence.absent {
            // Without mounts there will be no change of them that ends it.
            self.look_soon(effects);
        }
    }

    /// It appeared while the agent looked, and FUSE_INIT was not answered.
    fn never_served(&self) -> bool {
        let hangs_so = matches!(self.reason, Some(Reason::NeverInitialised { .. }));
        self.origin == Origin::Seen && (self.state == State::Created || hangs_so)
    }

    fn recovery_started(&mut self) {
        if matches!(self.state, State::Dead | State::Failed) {
            self.state = State::Recovering;
        }
    }

    /// Also when somebody else healed it first.
    fn recovered(&mut self, effects: &mut Effects) {
        if matches!(self.state, State::Dead | State::Failed | State::Recovering) {
            self.end(effects);
        }
    }

    fn recovery_failed(&mut self, gave_up: bool, effects: &mut Effects) {
        if self.state != State::Recovering {
            return;
        }
        if self.presence.absent {
            return self.leave(effects);
        }
        self.state = if gave_up { State::Failed } else { State::Dead };
    }

    fn leave(&mut self, effects: &mut Effects) {
        self.end(effects);
        effects.push(Effect::Tell(Verdict::Unmounted));
    }

    fn end(&mut self, effects: &mut Effects) {
        self.state = State::Gone;
        self.timers.disarm_all(effects);
    }
}
