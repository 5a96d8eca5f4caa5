//! `heal`: the wiring of the agent's parts.

use super::Ui;
use super::args::HealArgs;

/// Carries out the command and gives the exit code.
///
/// # Errors
/// What went wrong, for people.
pub fn main(_arguments: HealArgs, _ui: &Ui) -> Result<u8, String> {
    Err("heal is not part of this build".to_owned())
}
