//! `cargo xtask test`: everything that the tests need, the tests, and whether they left the machine as it was.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::prctl;

use crate::leftovers::{self, Survey};
use crate::packages;
use crate::process::{self, POLL, Running};
use crate::sandbox;
use crate::workspace::{self, Profile};

/// For what the tests ended to be gone. A connection's daemon ends on its own once its mount is taken away.
const SETTLE_PATIENCE: Duration = Duration::from_secs(5);

/// Options of `test`.
#[derive(clap::Args)]
pub struct Options {
    /// Unit tests only: no root, no packages, no mounts
    #[arg(long)]
    quick: bool,
    /// Further arguments for `cargo test`, e.g. `-- --test recovery`
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Runs the tests.
///
/// # Errors
/// What is missing, that a test failed, or what is left behind.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.quick {
        let mut command = workspace::cargo()?;
        let status = Running::start(command.args(["test", "--lib", "--bins"]).args(&options.arguments))?.wait()?;
        return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    sandbox::check_machine()?;
    packages::ensure_installed(packages::TESTS)?;
    workspace::build(Profile::Dev)?;
    // Whatever detaches itself in a test becomes a child of this process, so that it is found.
    prctl::set_child_subreaper(true).context("cannot become a subreaper")?;
    let scratch = tempfile::Builder::new().prefix("fuse-detector-").tempdir().context("no scratch directory")?.keep();
    let passed = cargo_test(&scratch, &options.arguments);
    let survey = settle(&scratch);
    println!("{survey}");
    let removed = fs::remove_dir(&scratch);
    process::end_descendants(SETTLE_PATIENCE)?;
    ensure!(survey.found.is_empty(), "the tests left the machine in another state than they found it");
    removed.with_context(|| format!("cannot remove {}", scratch.display()))?;
    Ok(if passed? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether they passed. Compiled first, so that nothing of the compiler's is in the scratch directory.
fn cargo_test(scratch: &Path, arguments: &[String]) -> Result<bool> {
    let compiled = Running::start(workspace::cargo()?.args(["test", "--no-run"]).args(cargo_arguments(arguments)))?;
    if !compiled.wait()?.success() {
        bail!("the tests do not compile");
    }
    let mut command = workspace::cargo()?;
    // A daemon that is missing is skipped by default; here its package is installed.
    command.env("TMPDIR", scratch).env("FUSE_DETECTOR_REQUIRE_DAEMONS", "1");
    // One test at a time: each scenario has an agent of its own, which watches the whole machine, other tests' mounts included.
    command.env("RUST_TEST_THREADS", "1");
    command.args(["test", "--no-fail-fast"]).args(arguments);
    Ok(Running::start(&mut command)?.wait()?.success())
}

/// Those before `--`: the others are for the test programs.
fn cargo_arguments(arguments: &[String]) -> impl Iterator<Item = &String> {
    arguments.iter().take_while(|argument| *argument != "--")
}

/// The state once nothing is left, or when the time is over.
fn settle(scratch: &Path) -> Survey {
    let deadline = Instant::now() + SETTLE_PATIENCE;
    loop {
        process::reap_zombies();
        let survey = leftovers::survey(scratch);
        if survey.found.is_empty() || Instant::now() >= deadline {
            return survey;
        }
        sleep(POLL);
    }
}
