//! How often each of the agent's kernel programs ran, and for how long, from the kernel's own statistics.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};

use crate::process::POLL;

/// Counts of one program since it was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Runs {
    /// How often it ran while the statistics were on.
    pub count: u64,
    /// For how long altogether.
    pub time: Duration,
}

/// Switches the statistics on (BPF_ENABLE_STATS, Linux 5.8) until the result is dropped, also by the end of this
/// process. They cost some 20 ns a run, so nothing else is timed meanwhile.
///
/// # Errors
/// The kernel refuses (CAP_SYS_ADMIN).
pub fn statistics() -> Result<OwnedFd> {
    enable_stats(Stats::RunTime).context("cannot switch on the kernel's statistics of its BPF programs")
}

/// The counts of all programs that the process holds, by name.
///
/// # Errors
/// The kernel does not list its programs.
pub fn runs(pid: u32) -> Result<BTreeMap<String, Runs>> {
    let held = held(pid);
    let mut runs = BTreeMap::new();
    for program in loaded_programs() {
        let program = program.context("cannot list the kernel's BPF programs")?;
        if let Some(counts) = held.get(&program.id()) {
            let name = program.name_as_str().unwrap_or("?").to_owned();
            runs.insert(name, *counts);
        }
    }
    Ok(runs)
}

/// The counts by program id, from the descriptors of the process.
fn held(pid: u32) -> BTreeMap<u32, Runs> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| parse_fdinfo(&fs::read_to_string(descriptor.path()).ok()?)).collect()
}

/// Waits until the process holds a link of a program to this raw tracepoint.
///
/// # Errors
/// There was none within `patience`.
pub fn wait_until_attached(pid: u32, tracepoint: &str, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !is_attached(pid, tracepoint) {
        ensure!(Instant::now() < deadline, "the agent did not attach to {tracepoint} within {patience:?}");
        sleep(POLL);
    }
    Ok(())
}

fn is_attached(pid: u32, tracepoint: &str) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut texts = descriptors.filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok());
    texts.any(|text| names_tracepoint(&text, tracepoint))
}

/// What the kernel tells of a link's descriptor (`bpf_raw_tp_link_show_fdinfo` in kernel/bpf/syscall.c), of programs on
/// BTF-typed tracepoints too.
fn names_tracepoint(text: &str, tracepoint: &str) -> bool {
    text.lines().filter_map(|line| line.strip_prefix("tp_name:")).any(|name| name.trim() == tracepoint)
}

/// What the kernel tells of a program's descriptor (`bpf_prog_show_fdinfo` in kernel/bpf/syscall.c). A link's names the
/// program too, but has no counts.
fn parse_fdinfo(text: &str) -> Option<(u32, Runs)> {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().parse::<u64>().ok()
    };
    let id = u32::try_from(field("prog_id")?).ok()?;
    Some((id, Runs { count: field("run_cnt")?, time: Duration::from_nanos(field("run_time_ns")?) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_counts_and_links_do_not() {
        let program = "pos:\t0\nflags:\t02000002\nprog_type:\t17\nprog_jited:\t1\nmemlock:\t4096\nprog_id:\t42\n\
                       run_time_ns:\t5500\nrun_cnt:\t100\nrecursion_misses:\t0\n";
        assert_eq!(parse_fdinfo(program), Some((42, Runs { count: 100, time: Duration::from_nanos(5500) })));
        let link = "pos:\t0\nlink_type:\traw_tracepoint\nlink_id:\t7\nprog_tag:\tabc\nprog_id:\t42\n";
        assert_eq!(parse_fdinfo(link), None);
    }

    #[test]
    fn a_link_names_its_tracepoint() {
        let link = "pos:\t0\nlink_type:\traw_tracepoint\nlink_id:\t7\nprog_id:\t42\ntp_name:\tsys_exit\n";
        assert!(names_tracepoint(link, "sys_exit") && !names_tracepoint(link, "sys_enter"));
    }
}
