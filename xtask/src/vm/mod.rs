//! `cargo xtask vm`: the scenarios on other kernels than this machine's, in virtual machines without KVM.

mod apt;
mod cpio;
mod image;
mod kernel;
mod machine;
mod matrix;
mod programs;
mod scenarios;
mod suite;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use self::apt::Apt;
use self::image::Base;
use self::kernel::{Kernel, Series};
use self::machine::{Machine, memory_file};
use crate::{packages, workspace};

/// Options of `vm`.
#[derive(clap::Args)]
pub struct Options {
    /// Only kernels that begin like this, e.g. 6.1; can be given several times
    #[arg(long, value_name = "VERSION")]
    kernel: Vec<String>,

    /// Only tests whose name PROGRAM::SCENARIO::BACKEND holds this; can be given several times
    #[arg(long, value_name = "TEXT")]
    scenario: Vec<String>,

    /// Only this backend; can be given several times
    #[arg(long, value_name = "NAME")]
    backend: Vec<String>,

    /// Whether the kernel is locked down (lockdown=confidentiality)
    #[arg(long, value_name = "WHEN", value_enum, default_value = "both")]
    lockdown: Lockdown,

    /// Run one shell command in the machine instead of the scenarios, and show its output
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,

    /// Fetch the newest release of the kernels even if there is one in the cache
    #[arg(long)]
    refresh: bool,

    /// Seconds that one boot may take
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    deadline: u64,
}

/// In which state a kernel is booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Lockdown {
    /// As Debian boots it
    Off,
    /// Locked down
    On,
    /// Once each way; a command is run without lockdown only
    Both,
}

impl Lockdown {
    const fn states(self, command: bool) -> &'static [bool] {
        match self {
            Self::Off => &[false],
            Self::On => &[true],
            Self::Both if command => &[false],
            Self::Both => &[false, true],
        }
    }
}

/// Runs the task.
///
/// # Errors
/// What is missing, or what failed.
pub fn run(options: &Options) -> Result<ExitCode> {
    let chosen = kernel::choose(&options.kernel)?;
    packages::ensure_installed(packages::VIRTUAL_MACHINES)?;
    // What the scenarios run is copied into the machine.
    packages::ensure_installed(packages::TESTS)?;
    let kernels = chosen.into_iter().map(|series| Ok((series, Kernel::get(series, options.refresh)?)));
    let kernels = kernels.collect::<Result<Vec<_>>>()?;
    let programs = programs::build()?;
    let bench = Bench {
        base: Base::pack(&programs, &programs::tools()?, &busybox()?)?,
        deadline: Duration::from_secs(options.deadline),
    };
    let boots = kernels.iter().flat_map(|(series, kernel)| {
        options.lockdown.states(options.run.is_some()).iter().map(move |&locked| Boot { series, kernel, locked })
    });
    match &options.run {
        Some(command) => run_command(&bench, boots, command),
        None => {
            let tests = suite::choose(&programs, &options.scenario, &options.backend)?;
            scenarios::run(&bench, boots, &tests)
        }
    }
}

/// What all machines have in common.
struct Bench {
    base: Base,
    deadline: Duration,
}

/// One boot.
struct Boot<'a> {
    series: &'a Series,
    kernel: &'a Kernel,
    locked: bool,
}

impl Boot<'_> {
    fn name(&self) -> String {
        format!("{}{}", self.series.name, if self.locked { " locked" } else { "" })
    }

    /// Boots and runs the job, a shell script, to its end: its exit code.
    fn run(&self, bench: &Bench, job: &str, line: impl FnMut(&str)) -> Result<i32> {
        let image = memory_file("image")?;
        bench.base.write(self.kernel, job, &image)?;
        let machine = Machine {
            kernel: self.kernel.image(),
            image: &image,
            parameters: if self.locked { "lockdown=confidentiality" } else { "" },
            deadline: bench.deadline,
        };
        println!("==> {} ({})", self.name(), self.kernel.release);
        machine.run(line)
    }
}

fn run_command<'a>(bench: &Bench, boots: impl Iterator<Item = Boot<'a>>, command: &str) -> Result<ExitCode> {
    let mut worst = ExitCode::SUCCESS;
    for boot in boots {
        let code = boot.run(bench, command, |line| println!("{line}"))?;
        if code != 0 {
            eprintln!("{}: the command ended with {code}", boot.name());
            worst = ExitCode::FAILURE;
        }
    }
    Ok(worst)
}

/// The shell and the small tools of the machine, from the cache or from Debian.
fn busybox() -> Result<PathBuf> {
    let directory = workspace::cache_dir()?.join("busybox-static");
    if !directory.exists() {
        let parent = workspace::cache_dir()?;
        fs::create_dir_all(&parent).with_context(|| format!("cannot make {}", parent.display()))?;
        let scratch = tempfile::Builder::new().prefix("fetch-").tempdir_in(parent).context("no scratch directory")?;
        let unpacked = scratch.path().join("unpacked");
        Apt::update(scratch.path(), &["bookworm"])?.unpack("busybox-static", &unpacked)?;
        fs::rename(&unpacked, &directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    Ok(directory.join("bin/busybox"))
}
