//! What the agent uses while nothing happens.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{clock_getcpuclockid, clock_gettime};

use crate::process;

/// After the last mount was made, before it counts as idle: the agent's follow-up work is done by then, and the threads
/// that it needed are gone too (tokio ends a thread of its blocking pool that had nothing to do for 10 s).
const SETTLE: Duration = Duration::from_secs(15);

/// Use over a time, of the agent and of its worker processes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// How long it was watched.
    pub watched: Duration,
    /// CPU time used, in user and kernel mode.
    pub cpu: Duration,
    /// How often a thread was switched to: voluntary and other context switches.
    pub switches: u64,
    /// Resident memory of the agent's process, KiB.
    pub agent_kib: u64,
    /// Resident memory of all its worker processes, KiB. Pages that several share count for each.
    pub workers_kib: u64,
    /// How many workers.
    pub workers: usize,
}

/// Watches the process and its descendants.
///
/// # Errors
/// The process is gone.
pub fn watch(agent: u32, duration: Duration) -> Result<Idle> {
    sleep(SETTLE);
    let processes = family(agent);
    let before = usage(&processes)?;
    sleep(duration);
    let after = usage(&processes)?;
    let memory = |pid: u32| status_field(&format!("/proc/{pid}/status"), "VmRSS:").context("no VmRSS");
    let workers = processes.iter().filter(|pid| **pid != agent);
    Ok(Idle {
        watched: duration,
        cpu: after.cpu.saturating_sub(before.cpu),
        switches: after.switches.iter().map(|(id, count)| count - before.switches.get(id).unwrap_or(&0)).sum(),
        agent_kib: memory(agent)?,
        workers_kib: workers.clone().map(|pid| memory(*pid)).sum::<Result<u64>>()?,
        workers: workers.count(),
    })
}

fn family(agent: u32) -> Vec<u32> {
    let descendants = process::descendants(&process::table(), agent);
    // A daemon that the agent started again is no part of it; here none died.
    std::iter::once(agent).chain(descendants.into_iter().map(|entry| entry.pid)).collect()
}

struct Usage {
    cpu: Duration,
    /// By thread. Threads that ended take their count with them.
    switches: BTreeMap<u32, u64>,
}

fn usage(processes: &[u32]) -> Result<Usage> {
    let mut usage = Usage { cpu: Duration::ZERO, switches: BTreeMap::new() };
    for &pid in processes {
        // The clock of a process counts nanoseconds of all its threads, those that ended included.
        let clock = clock_getcpuclockid(process::pid(pid)?).with_context(|| format!("no CPU clock of {pid}"))?;
        usage.cpu += Duration::from(clock_gettime(clock).with_context(|| format!("cannot read the clock of {pid}"))?);
        for thread in threads(pid) {
            let status = format!("/proc/{pid}/task/{thread}/status");
            let count = |field| status_field(&status, field).unwrap_or(0);
            let switches = count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:");
            usage.switches.insert(thread, switches);
        }
    }
    Ok(usage)
}

fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

fn status_field(path: &str, field: &str) -> Option<u64> {
    parse_field(&fs::read_to_string(path).ok()?, field)
}

/// proc_pid_status(5): `VmRSS:` and, after blanks, `5120 kB`.
fn parse_field(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "Name:\tx\nVmRSS:\t    5120 kB\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(parse_field(status, "VmRSS:"), Some(5120));
        assert_eq!(parse_field(status, "voluntary_ctxt_switches:"), Some(7));
        assert_eq!(parse_field(status, "nonvoluntary_ctxt_switches:"), Some(2));
        assert_eq!(parse_field(status, "VmSwap:"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        let own = usage(&[std::process::id()]).unwrap();
        assert!(own.cpu > Duration::ZERO && own.switches.values().sum::<u64>() > 0);
    }
}
