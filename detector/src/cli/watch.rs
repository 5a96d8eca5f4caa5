//! `watch`: the agent that only tells.

use super::Ui;
use super::args::{Listen, WatchArgs};
use super::run::{self, Plan};
use crate::policy::Policy;

/// Carries out the command and gives the exit code.
///
/// # Errors
/// What went wrong, for people.
pub fn main(arguments: WatchArgs, ui: &Ui) -> Result<u8, String> {
    let plan = Plan {
        policy: Policy::builtin(),
        heal: false,
        detection: arguments.detection,
        output: arguments.output.output,
        listen: Listen::Off,
        kernel_log: false,
        log_format: None,
    };
    run::start(plan, ui)
}
