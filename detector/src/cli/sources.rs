//! Where the listings get from the other modules what they show.

use std::path::Path;

use crate::policy::{Policy, PolicyError};
use crate::telemetry::status::ConnectionReport;

/// Every connection on this machine, how it fares and where it is mounted.
///
/// # Errors
/// The mounts can't be read.
pub fn connections() -> Result<Vec<ConnectionReport>, String> {
    Err("mounts is not part of this build".to_owned())
}

/// How many rules a policy file has.
///
/// # Errors
/// Its problems, each on a line.
pub fn policy_rules(file: &Path) -> Result<usize, PolicyError> {
    Policy::load(file).map(|policy| policy.rule_count())
}
