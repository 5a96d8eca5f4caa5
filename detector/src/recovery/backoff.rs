use std::time::Duration;

pub use crate::policy::Backoff as BackoffSettings;

/// The delays of one connection's recovery: doubling from `initial` to `max` until `give_up_after` has passed. Pure: the
/// time is the caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    settings: BackoffSettings,
    failures: u32,
}

impl Backoff {
    /// Nothing has failed yet.
    pub const fn new(settings: BackoffSettings) -> Self {
        Self { settings, failures: 0 }
    }

    /// Number of failures that were counted.
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a failure. `elapsed` is the time since the first attempt started. The delay until the next attempt, or
    /// `None` when it would start after the time to give up.
    pub fn after_failure(&mut self, elapsed: Duration) -> Option<Duration> {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let delay = self.settings.initial.saturating_mul(factor).min(self.settings.max);
        self.failures = self.failures.saturating_add(1);
        (elapsed.saturating_add(delay) <= self.settings.give_up_after).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings() -> impl Strategy<Value = BackoffSettings> {
        (1_u64..10_000, 1_u64..600_000, 0_u64..10_000_000).prop_map(|(initial, max, give_up_after)| BackoffSettings {
            initial: Duration::from_millis(initial),
            max: Duration::from_millis(max),
            give_up_after: Duration::from_millis(give_up_after),
        })
    }

    proptest! {
        #[test]
        fn delays_grow_stay_below_the_maximum_and_end(settings in settings()) {
            let mut backoff = Backoff::new(settings);
            let (mut elapsed, mut last) = (Duration::ZERO, Duration::ZERO);
            let mut attempts = 0_u32;
            while let Some(delay) = backoff.after_failure(elapsed) {
                prop_assert!(delay >= last && delay <= settings.max);
                prop_assert!(delay == settings.max || delay >= last.saturating_mul(2) || last.is_zero());
                elapsed += delay;
                prop_assert!(elapsed <= settings.give_up_after);
                last = delay;
                attempts += 1;
                if attempts > 10_000 { break; }
            }
            prop_assert_eq!(backoff.failures(), attempts + u32::from(attempts <= 10_000));
        }
    }

    #[test]
    fn the_first_delay_is_the_initial_one() {
        let settings = BackoffSettings {
            initial: Duration::from_millis(200),
            max: Duration::from_secs(30),
            give_up_after: Duration::from_secs(900),
        };
        let mut backoff = Backoff::new(settings);
        let delays: Vec<_> = (0..9).filter_map(|_| backoff.after_failure(Duration::ZERO)).collect();
        let millis: Vec<_> = delays.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000]);
    }
}
