//! `cargo xtask ci`: what a change has to pass. Every step runs, also after one that failed.

use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process::Running;
use crate::workspace;

/// One step.
struct Step {
    /// What it checks.
    name: &'static str,
    /// cargo's arguments.
    arguments: &'static [&'static str],
}

/// Here a backend that does not work fails the tests, which elsewhere would skip what needs it.
const ENVIRONMENT: (&str, &str) = ("FUSE_DETECTOR_EXPECT_BACKENDS", "tracepoint,portable");

/// A few scenarios in a virtual machine, with either backend: the whole matrix takes hours.
const ANOTHER_KERNEL: &[&str] = &[
    "xtask",
    "vm",
    "--kernel",
    "6.12",
    "--lockdown",
    "off",
    "--deadline",
    "600",
    "--scenario",
    "death::sigkill::",
    "--scenario",
    "recovery::binds_keep_root_and_flags::",
    "--scenario",
    "unmounting::umount::",
];

const STEPS: &[Step] = &[
    Step { name: "format", arguments: &["fmt", "--all", "--check"] },
    Step { name: "clippy", arguments: &["clippy", "--all-targets", "--", "--deny", "warnings"] },
    Step { name: "tests", arguments: &["xtask", "test"] },
    Step { name: "another kernel", arguments: ANOTHER_KERNEL },
    Step { name: "kernel objects", arguments: &["xtask", "build-ebpf", "--check"] },
    Step { name: "reference", arguments: &["xtask", "docs", "--check"] },
];

/// How a step ended.
struct Outcome {
    name: &'static str,
    took: Duration,
    failure: Option<String>,
}

/// Runs all steps, then sums up.
///
/// # Errors
/// None: a step that cannot be started failed.
pub fn run() -> Result<ExitCode> {
    let outcomes: Vec<Outcome> = STEPS.iter().map(run_step).collect();
    println!("\n==> summary");
    for outcome in &outcomes {
        println!("{}", describe(outcome));
    }
    let passed = outcomes.iter().all(|outcome| outcome.failure.is_none());
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_step(step: &Step) -> Outcome {
    let Step { name, arguments } = step;
    println!("\n==> {name}: cargo {}", arguments.join(" "));
    let start = Instant::now();
    let failure = match cargo(arguments) {
        Ok(()) => None,
        Err(error) => Some(format!("{error:#}")),
    };
    let outcome = Outcome { name, took: start.elapsed(), failure };
    println!("==> {}", describe(&outcome));
    outcome
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let mut command = workspace::cargo()?;
    let (name, value) = ENVIRONMENT;
    let status = Running::start(command.args(arguments).env(name, value).stdin(Stdio::null()))?.wait()?;
    anyhow::ensure!(status.success(), "{status}");
    Ok(())
}

fn describe(outcome: &Outcome) -> String {
    let Outcome { name, took, failure } = outcome;
    let took = took.as_secs_f64();
    match failure {
        None => format!("{name:<16} passed {took:>8.1} s"),
        Some(why) => format!("{name:<16} FAILED {took:>8.1} s  {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_aligned() {
        let passed = Outcome { name: "format", took: Duration::from_millis(1234), failure: None };
        let failed = Outcome { name: "kernel objects", took: Duration::from_secs(90), failure: Some("exit 1".into()) };
        assert_eq!(describe(&passed), "format           passed      1.2 s");
        assert_eq!(describe(&failed), "kernel objects   FAILED     90.0 s  exit 1");
    }
}
