//! `run`: the wiring of the agent's parts.

use super::Ui;
use super::args::RunArgs;

/// Carries out the command and gives the exit code.
///
/// # Errors
/// What went wrong, for people.
pub fn main(_arguments: RunArgs, _ui: &Ui) -> Result<u8, String> {
    Err("run is not part of this build".to_owned())
}
