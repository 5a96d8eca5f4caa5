use std::time::Duration;

use super::Effects;
use crate::health::input::{Effect, Timer};

/// Which timers were armed and have neither passed nor been taken back. One that the shell reports all the same was
/// already on its way when it was disarmed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Timers {
    grace: bool,
    settle: bool,
    retry: bool,
}

impl Timers {
    pub fn arm(&mut self, timer: Timer, delay: Duration, effects: &mut Effects) {
        *self.slot(timer) = true;
        effects.push(Effect::Arm(timer, delay));
    }

    pub fn disarm(&mut self, timer: Timer, effects: &mut Effects) {
        if self.passed(timer) {
            effects.push(Effect::Disarm(timer));
        }
    }

    pub fn disarm_all(&mut self, effects: &mut Effects) {
        for timer in [Timer::Grace, Timer::Settle, Timer::Retry] {
            self.disarm(timer, effects);
        }
    }

    /// It is armed no longer. Whether it was.
    pub fn passed(&mut self, timer: Timer) -> bool {
        std::mem::replace(self.slot(timer), false)
    }

    pub const fn is_armed(&self, timer: Timer) -> bool {
        match timer {
            Timer::Grace => self.grace,
            Timer::Settle => self.settle,
            Timer::Retry => self.retry,
        }
    }

    const fn slot(&mut self, timer: Timer) -> &mut bool {
        match timer {
            Timer::Grace => &mut self.grace,
            Timer::Settle => &mut self.settle,
            Timer::Retry => &mut self.retry,
        }
    }
}
