use std::time::Duration;

use super::question::GRACE;
use super::{Effects, Machine};
use crate::health::input::{Effect, State, Timer, Verdict};

/// How long the control directory may outlive the last mount of a clean unmount: umount(2) takes the mount out of its
/// namespace first and removes the directory when the superblock goes (`fuse_conn_destroy`), after dirty pages were
/// written and inodes evicted.
const SETTLE: Duration = Duration::from_millis(100);

/// A connection without mounts is looked at again in ever longer steps up to this: nothing notifies of the end of its
/// control directory.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// What is known of the connection's mounts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Presence {
    /// It was seen in a mount namespace.
    mounted: bool,
    /// The settle timer has passed: the next look is believed.
    pub settled: bool,
    /// The last wait of the settle timer.
    delay: Duration,
    /// The last look found no mount.
    pub absent: bool,
}

impl Default for Presence {
    fn default() -> Self {
        Self { mounted: false, settled: false, delay: SETTLE, absent: false }
    }
}

impl Machine {
    pub(super) fn mounts_present(&mut self, effects: &mut Effects) {
        self.presence = Presence { mounted: true, ..Presence::default() };
        self.timers.disarm(Timer::Settle, effects);
        if self.state == State::Detached {
            self.state = State::Ready;
            effects.push(Effect::Tell(Verdict::Ready));
            if self.evidence.suspicious() {
                self.ask(effects);
            }
        }
        self.another_mount(effects);
    }

    pub(super) fn no_mounts(&mut self, control: bool, effects: &mut Effects) {
        self.presence.absent = true;
        match self.state {
            State::Dead | State::Failed => self.leave(effects),
            // Recovery takes the dead mounts away itself: its outcome decides.
            State::Recovering | State::Gone => {}
            State::Created | State::Ready | State::Hung if control => self.only_control(effects),
            State::Detached if control => self.still_detached(effects),
            State::Created | State::Ready | State::Hung | State::Detached => self.leave(effects),
        }
    }

    /// Either the control directory is about to follow its mounts, or the connection is still in use.
    fn only_control(&mut self, effects: &mut Effects) {
        if !self.presence.settled {
            if !self.timers.is_armed(Timer::Settle) {
                self.timers.arm(Timer::Settle, self.presence.delay, effects);
            }
            return;
        }
        if !self.presence.mounted {
            // Perhaps on its way into a namespace: fsmount(2) comes before move_mount(2).
            return self.look_later(effects);
        }
        self.state = State::Detached;
        self.reason = None;
        self.forget_question(effects);
        effects.push(Effect::Tell(Verdict::Detached));
        self.still_detached(effects);
    }

    /// There is no mount to probe through. That the connection outlives all its known daemons, and nobody else holds its
    /// descriptor, is the kernel's word that it is dead.
    fn still_detached(&mut self, effects: &mut Effects) {
        if self.presence.settled && self.evidence.abandoned() {
            self.find_holders(effects);
        } else if !self.timers.is_armed(Timer::Settle) {
            self.look_later(effects);
        }
    }

    pub(super) fn holders_while_detached(&mut self, held: bool, effects: &mut Effects) {
        match self.evidence.cause(GRACE) {
            Some(cause) if !held && self.evidence.abandoned() => self.die(cause, effects),
            _ => self.look_later(effects),
        }
    }

    /// A daemon of a detached connection ended: often because its connection did.
    pub(super) fn look_soon(&mut self, effects: &mut Effects) {
        self.presence.settled = false;
        self.presence.delay = SETTLE;
        self.timers.arm(Timer::Settle, SETTLE, effects);
    }

    fn look_later(&mut self, effects: &mut Effects) {
        self.presence.settled = false;
        self.presence.delay = self.presence.delay.saturating_mul(2).min(SETTLE_MAX);
        self.timers.arm(Timer::Settle, self.presence.delay, effects);
    }
}
