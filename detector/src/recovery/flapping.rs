use std::collections::VecDeque;
use std::time::Duration;

use crate::model::Boottime;

/// When a daemon is said to flap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlapSettings {
    /// Number of deaths.
    pub deaths: usize,
    /// Within this time.
    pub window: Duration,
}

impl Default for FlapSettings {
    /// Three deaths in ten minutes: one is an accident, and two can be one cause that hit twice (a restart that a second
    /// one follows, as in a rolling upgrade).
    fn default() -> Self {
        Self { deaths: 3, window: Duration::from_secs(600) }
    }
}

/// Recognises a file system that dies again soon after each recovery. Kept for each file system, not for each
/// connection: every recovery makes a new connection. Pure: the moments are the caller's.
#[derive(Debug, Clone)]
pub struct FlapWatch {
    settings: FlapSettings,
    deaths: VecDeque<Boottime>,
}

impl FlapWatch {
    /// Nothing has died yet.
    pub const fn new(settings: FlapSettings) -> Self {
        Self { settings, deaths: VecDeque::new() }
    }

    /// Counts a death. Whether it flaps now.
    pub fn died(&mut self, at: Boottime) -> bool {
        self.deaths.push_back(at);
        while self.deaths.len() > self.settings.deaths.max(1) {
            self.deaths.pop_front();
        }
        self.is_flapping(at)
    }

    /// Whether it flaps, seen from `now`: the last deaths all lie within the window.
    pub fn is_flapping(&self, now: Boottime) -> bool {
        self.deaths.len() >= self.settings.deaths.max(1)
            && self.deaths.front().is_some_and(|first| now.since(*first) <= self.settings.window)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn second(seconds: u64) -> Boottime {
        Boottime(seconds * 1_000_000_000)
    }

    proptest! {
        #[test]
        fn flaps_exactly_when_enough_deaths_lie_in_the_window(
            gaps in prop::collection::vec(0_u64..400, 1..40), deaths in 1_usize..6, window in 1_u64..1_000,
        ) {
            let mut watch = FlapWatch::new(FlapSettings { deaths, window: Duration::from_secs(window) });
            let mut times = Vec::new();
            let mut now = 0;
            for gap in gaps {
                now += gap;
                times.push(now);
                let within = times.iter().filter(|&&time| now - time <= window).count();
                prop_assert_eq!(watch.died(second(now)), within >= deaths);
            }
        }
    }

    #[test]
    fn a_quiet_time_ends_it() {
        let mut watch = FlapWatch::new(FlapSettings::default());
        assert!(!watch.died(second(0)));
        assert!(!watch.died(second(100)));
        assert!(watch.died(second(200)));
        assert!(watch.is_flapping(second(600)));
        assert!(!watch.is_flapping(second(601)));
    }
}
