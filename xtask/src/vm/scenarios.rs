//! Runs the scenarios in one machine after the other.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::matrix::Matrix;
use super::suite::{self, Ended, Outcome, Reader, Test};
use super::{Bench, Boot};

/// How much of a failed test's output is shown.
const OUTPUT_LINES: usize = 120;

/// A machine whose kernel panics takes the scenario that it was at with it; those that are left get another machine, so often.
/// It need not be the kernel's fault: an emulated processor can run code that another one has just changed (static keys).
const MACHINES: usize = 5;

/// The backend for which lockdown makes no difference: it has no BPF and reads no kernel memory.
const WITHOUT_BPF: &str = "portable";

/// Whether all passed that can run on the kernels.
///
/// # Errors
/// A machine that can't be made. One that hangs or panics is a failure of the tests that it did not come to.
pub fn run<'a>(bench: &Bench, boots: impl Iterator<Item = Boot<'a>>, tests: &[Test]) -> Result<ExitCode> {
    let mut matrix = Matrix::default();
    let mut times = Vec::new();
    for boot in boots {
        let matters = |test: &&Test| !boot.locked || test.backend().is_some_and(|backend| backend != WITHOUT_BPF);
        let tests: Vec<Test> = tests.iter().filter(matters).cloned().collect();
        if tests.is_empty() {
            continue;
        }
        let start = Instant::now();
        matrix.boot(&boot.name());
        run_boot(bench, &boot, &tests, &mut matrix);
        times.push((boot.name(), start.elapsed()));
    }
    println!("\n{matrix}");
    println!(
        "not run in locked kernels: {WITHOUT_BPF}, and tests with a backend of their own, which have no BPF to be refused"
    );
    for (name, took) in times {
        println!("{name:<16} {:>6.0} s", took.as_secs_f64());
    }
    Ok(if matrix.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_boot(bench: &Bench, boot: &Boot<'_>, tests: &[Test], matrix: &mut Matrix) {
    let mut left = tests.to_vec();
    let mut why = "the machine did not come to it".to_owned();
    for _ in 0..MACHINES {
        let Some((test, reason)) = run_machine(bench, boot, &mut left, matrix) else { break };
        let Some(test) = test else {
            why = format!("{reason} (the machine had not come to its end)");
            break;
        };
        left.retain(|other| *other != test);
        matrix.add(&test, Outcome::Failed(format!("{reason}, while it ran")));
    }
    for test in &left {
        matrix.add(test, Outcome::Failed(why.clone()));
    }
}

/// Runs what is left in one machine, and takes away what has ended. If the machine comes to a bad end: the scenario that it was
/// at, and why.
fn run_machine(
    bench: &Bench,
    boot: &Boot<'_>,
    left: &mut Vec<Test>,
    matrix: &mut Matrix,
) -> Option<(Option<Test>, String)> {
    let mut reader = Reader::default();
    let mut last = Instant::now();
    let job = suite::job(left, boot.series.expected(boot.locked));
    let done = boot.run(bench, &job, |line| {
        if let Some(ended) = reader.line(line) {
            tell(&ended, last.elapsed());
            last = Instant::now();
            left.retain(|test| *test != ended.test);
            matrix.add(&ended.test, ended.outcome);
        }
    });
    let error = done.err()?;
    println!("FAIL: {error:#}");
    let interrupted = reader.interrupted();
    if let Some((test, output)) = &interrupted {
        println!("it was at {test}, which had said:\n{}", output.join("\n"));
    }
    Some((interrupted.map(|(test, _)| test), error.root_cause().to_string()))
}

fn tell(ended: &Ended, took: Duration) {
    let Ended { test, outcome, output } = ended;
    let took = took.as_secs_f64();
    match outcome {
        Outcome::Passed => println!("{took:>6.1} s  pass    {test}"),
        Outcome::Cannot(why) => println!("{took:>6.1} s  cannot  {test}: {why}"),
        Outcome::Failed(why) => {
            println!("{took:>6.1} s  FAIL    {test}: {why}");
            for line in output.iter().skip(output.len().saturating_sub(OUTPUT_LINES)) {
                println!("            {line}");
            }
        }
    }
}
