//! Waiting for something to become true, with a deadline.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// For what normally takes milliseconds, on a machine that is shared and noisy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How often a state that announces nothing is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Asks until there is an answer.
///
/// # Panics
/// At the deadline, naming `what`.
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, ask).unwrap_or_else(|| panic!("waited {PATIENCE:?} in vain for {what}"))
}

/// Asks until there is an answer; `None` at the deadline.
pub fn until_within<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
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
