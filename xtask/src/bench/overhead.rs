//! `cargo xtask bench overhead`: the same loads without the agent, with it, and with its hook on every system call.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use super::load::{self, Load, Target};
use super::programs::{self, Runs};
use super::report::{self, Table, verdict};
use crate::agent::Agent;
use crate::sandbox::Scratch;
use crate::stats::median;
use crate::steerfs;

/// What a hook on every system call may cost, in nanoseconds a call (the tracepoint backend's target).
const SYSTEM_CALL_TARGET: f64 = 40.0;

/// What a metadata-heavy load may lose of its throughput.
const REQUEST_TARGET: f64 = 1.01;

/// For the agent to attach to the end of every system call: it does so half a second after it is asked to.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);

/// Options of `bench overhead`.
#[derive(clap::Args)]
pub struct Options {
    /// How often each combination is timed, in turn
    #[arg(long, default_value_t = 40)]
    rounds: u32,
    /// Put the table into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// In which company the load runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    /// No agent.
    Off,
    /// The agent without the hook on every system call.
    On,
    /// With it.
    SysExit,
}

impl Setting {
    const ALL: [Self; 3] = [Self::Off, Self::On, Self::SysExit];

    fn agent(self, scratch: &Scratch) -> Result<Option<Agent>> {
        let start = |errors| super::agent(scratch, "tracepoint", false, &["--vfs-errors", errors]);
        match self {
            Self::Off => Ok(None),
            Self::On => start("off").map(Some),
            Self::SysExit => {
                let agent = start("on")?;
                programs::wait_until_attached(agent.pid(), "sys_exit", ATTACH_PATIENCE)?;
                Ok(Some(agent))
            }
        }
    }
}

/// Nanoseconds for one repetition, one value a round.
type Samples = BTreeMap<(Setting, usize), Vec<f64>>;

/// Measures in rounds, so that what else happens on the machine meets each setting alike.
///
/// # Errors
/// What failed; a missed target is none.
pub fn run(options: &Options, scratch: &Scratch) -> Result<()> {
    let backing = scratch.dir.join("backing");
    load::backing(&backing)?;
    let mount_point = steerfs::mount_point(&scratch.dir, "load")?;
    let served = backing.to_string_lossy();
    let arguments = ["--source", "bench", "--backing", &served, "--attr-timeout", "0", "--entry-timeout", "0"];
    steerfs::mount(&scratch.binaries.steerfs, &mount_point, &arguments)?;
    let target = Target::at(&mount_point);
    let mut samples = Samples::new();
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for setting in Setting::ALL {
            time_all(setting, scratch, &target, &mut samples)?;
        }
    }
    let counts = count_runs(scratch, &target)?;
    let body = format!("{}\n{}", ratios(&samples)?.render(), counts.render());
    report::publish(
        "overhead",
        &format!("cargo xtask bench overhead --rounds {}", options.rounds),
        &body,
        options.write,
    )
}

fn time_all(setting: Setting, scratch: &Scratch, target: &Target, samples: &mut Samples) -> Result<()> {
    let agent = setting.agent(scratch)?;
    for (index, load) in Load::ALL.into_iter().enumerate() {
        let nanos = target.time(load)?;
        samples.entry((setting, index)).or_default().push(nanos);
    }
    agent.map_or(Ok(()), Agent::stop)
}

fn ratios(samples: &Samples) -> Result<Table> {
    let mut table =
        Table::new(&["load", "agent off", "on", "with sys_exit", "on / off", "sys_exit / off", "target", ""]);
    for (index, load) in Load::ALL.into_iter().enumerate() {
        let of = |setting| {
            let values = samples.get(&(setting, index)).map_or([].as_slice(), Vec::as_slice);
            median(values).context("no round was measured")
        };
        let (off, on, sys_exit) = (of(Setting::Off)?, of(Setting::On)?, of(Setting::SysExit)?);
        let (target, reached) = match load {
            Load::Getppid => ("sys_exit: ≤ 40 ns more", sys_exit - off <= SYSTEM_CALL_TARGET),
            Load::Metadata => ("on: ≤ 1 % slower", on / off <= REQUEST_TARGET),
            Load::Data => ("", true),
        };
        table.row([
            load.name().to_owned(),
            nanos(off),
            nanos(on),
            nanos(sys_exit),
            format!("{:.3}", on / off),
            format!("{:.3}", sys_exit / off),
            target.to_owned(),
            if target.is_empty() { String::new() } else { verdict(reached) },
        ]);
    }
    Ok(table)
}

fn nanos(value: f64) -> String {
    match value {
        0.0..1e4 => format!("{value:.1} ns"),
        1e4..1e7 => format!("{:.1} µs", value / 1e3),
        _ => format!("{:.1} ms", value / 1e6),
    }
}

/// Each program's runs during each load, with all hooks attached.
fn count_runs(scratch: &Scratch, target: &Target) -> Result<Table> {
    let agent = Setting::SysExit.agent(scratch)?.context("the agent is off")?;
    let _statistics = programs::statistics()?;
    let mut table = Table::new(&["kernel program", "load", "runs", "ns a run"]);
    for load in Load::ALL {
        let before = programs::runs(agent.pid())?;
        target.time(load)?;
        for (name, after) in programs::runs(agent.pid())? {
            let earlier = before.get(&name).copied().unwrap_or_default();
            let runs = since(after, earlier);
            if let Some(each) = mean(runs) {
                table.row([name, load.name().to_owned(), runs.count.to_string(), format!("{each:.0}")]);
            }
        }
    }
    agent.stop()?;
    Ok(table)
}

fn since(after: Runs, before: Runs) -> Runs {
    Runs { count: after.count.saturating_sub(before.count), time: after.time.saturating_sub(before.time) }
}

/// Nanoseconds a run; `None` where it didn't run.
fn mean(Runs { count, time }: Runs) -> Option<f64> {
    let count = u32::try_from(count).ok().filter(|count| *count > 0)?;
    Some(Duration::as_secs_f64(&time) * 1e9 / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_from_the_medians() {
        let mut samples = Samples::new();
        for (index, values) in [[100.0, 100.4, 128.0], [1000.0, 1020.0, 1030.0], [1e7, 1e7, 1e7]].iter().enumerate() {
            for (setting, value) in Setting::ALL.into_iter().zip(values) {
                samples.insert((setting, index), vec![*value; 3]);
            }
        }
        let text = ratios(&samples).unwrap().render();
        let verdicts: Vec<_> = text.lines().skip(2).map(|row| row.rsplit('|').nth(1).unwrap().trim()).collect();
        assert_eq!(verdicts, ["PASS", "MISS", ""]);
        assert!(text.contains("1.280"), "{text}");
        assert!(ratios(&Samples::new()).is_err());
    }

    #[test]
    fn runs_are_those_in_between() {
        let runs = |count, nanos| Runs { count, time: Duration::from_nanos(nanos) };
        assert_eq!(mean(since(runs(110, 5_500), runs(10, 500))), Some(50.0));
        assert_eq!(mean(since(runs(10, 500), runs(10, 500))), None);
    }
}
