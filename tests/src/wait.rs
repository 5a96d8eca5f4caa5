//! Waiting for something to become true, with a deadline.

use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// For what normally takes milliseconds, on a machine that is shared and noisy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// By how much every deadline is multiplied, where everything takes longer: an emulated machine, say.
const FACTOR: &str = "FUSE_DETECTOR_PATIENCE";

/// How often a state that announces nothing is looked at.
const POLL: Duration = Duration::from_millis(5);

/// A deadline on this machine.
///
/// # Panics
/// If the environment's factor is no number.
pub fn stretched(patience: Duration) -> Duration {
    static STRETCH: OnceLock<u32> = OnceLock::new();
    let factor = STRETCH.get_or_init(|| std::env::var(FACTOR).ok().map_or(1, |text| text.parse().expect(FACTOR)));
    patience.saturating_mul(*factor)
}

/// Asks until there is an answer.
///
/// # Panics
/// At the deadline, naming `what`.
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, ask).unwrap_or_else(|| panic!("waited {:?} in vain for {what}", stretched(PATIENCE)))
}

/// Asks until there is an answer; `None` at the deadline, which is [`stretched`].
pub fn until_within<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + stretched(patience);
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        sleep(POLL);
    }
}
