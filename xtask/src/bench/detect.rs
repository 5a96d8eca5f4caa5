//! `cargo xtask bench detect`.

use std::time::Duration;

use anyhow::Result;

use super::burst::{Burst, Crowd, Spread};
use super::idle::{self, Idle};
use super::kills::{self, Kills};
use super::report::{self, Table, time, verdict};
use crate::sandbox::Scratch;
use crate::stats::Summary;

/// Options of `bench detect`.
#[derive(clap::Args)]
pub struct Options {
    /// How many daemons to kill, one after another, in each backend
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// The backends to measure
    #[arg(long, value_delimiter = ',', default_value = "tracepoint,portable")]
    backend: Vec<String>,
    /// How many connections are idle, and then die at once
    #[arg(long, default_value_t = 1000)]
    connections: u32,
    /// For how long the idle agent is watched
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    idle: u64,
    /// Put the table into docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// What was measured with one backend.
struct Measured<'a> {
    backend: &'a str,
    kills: Kills,
    idle: Idle,
    bursts: [(Spread, Burst); 2],
}

/// Measures each backend, one after another.
///
/// # Errors
/// What failed; a missed target is none.
pub fn run(options: &Options, scratch: &Scratch) -> Result<()> {
    let measured: Result<Vec<_>> = options.backend.iter().map(|backend| measure(options, scratch, backend)).collect();
    let mut table = Table::new(&["what", "backend", "n", "median", "p99", "max", "target", "verdict"]);
    for one in &measured? {
        missed_row(&mut table, one);
        latency_rows(&mut table, one);
        burst_rows(&mut table, one);
        idle_rows(&mut table, one);
    }
    report::publish("detect", &command(options), &table.render(), options.write)
}

fn command(options: &Options) -> String {
    let Options { kills, backend, connections, idle, write: _ } = options;
    let backend = backend.join(",");
    format!("cargo xtask bench detect --kills {kills} --backend {backend} --connections {connections} --idle {idle}")
}

fn measure<'a>(options: &Options, scratch: &Scratch, backend: &'a str) -> Result<Measured<'a>> {
    let scratch = &scratch.subdirectory(backend)?;
    eprintln!("{backend}: {} kills", options.kills);
    let agent = super::agent(scratch, backend, true, &[])?;
    let kills = kills::run(&agent, scratch, options.kills)?;
    agent.stop()?;

    let agent = super::agent(scratch, backend, false, &[])?;
    eprintln!("{backend}: idle for {} s with {} mounts", options.idle, options.connections);
    let crowd = Crowd::mount(&agent, scratch, options.connections, Spread::OneDaemon)?;
    let idle = idle::watch(agent.pid(), Duration::from_secs(options.idle))?;
    eprintln!("{backend}: {} connections killed at once", options.connections);
    let together = crowd.kill(&agent)?;
    let apart = Crowd::mount(&agent, scratch, options.connections, Spread::DaemonEach)?.kill(&agent)?;
    agent.stop()?;
    let bursts = [(Spread::OneDaemon, together), (Spread::DaemonEach, apart)];
    Ok(Measured { backend, kills, idle, bursts })
}

/// The design's targets. Where it names one figure without saying which, the 99th percentile has to reach it.
mod target {
    use std::time::Duration;

    pub const DETECTION_MEDIAN: Duration = Duration::from_micros(100);
    pub const DETECTION_P99: Duration = Duration::from_millis(1);
    pub const DECISION_MEDIAN: Duration = Duration::from_millis(2);
    pub const RECOVERY_P99: Duration = Duration::from_millis(5);
    pub const BURST: Duration = Duration::from_millis(250);
    /// Over one minute.
    pub const IDLE_CPU: Duration = Duration::from_millis(10);
    pub const MEMORY_KIB: u64 = 16 * 1024;
}

fn latency_rows(table: &mut Table, measured: &Measured<'_>) {
    let Kills { detection, decision, recovery, outage, missed: _ } = &measured.kills;
    let mut row = |what: &str, samples: &[Duration], target: &str, reached: &dyn Fn(&Summary) -> bool| {
        let Some(summary) = Summary::of(samples) else {
            return table.row([what, measured.backend, "0", "", "", "", target, "not measured"].map(str::to_owned));
        };
        let verdict = if target.is_empty() { String::new() } else { verdict(reached(&summary)) };
        let Summary { count, median, p99, max } = summary;
        let cells = [count.to_string(), time(median), time(p99), time(max), target.to_owned(), verdict];
        table.row([what.to_owned(), measured.backend.to_owned()].into_iter().chain(cells));
    };
    row("kernel event to decision", detection, "median ≤ 100 µs, p99 ≤ 1 ms", &|summary| {
        summary.median <= target::DETECTION_MEDIAN && summary.p99 <= target::DETECTION_P99
    });
    row("`kill` to decision", decision, "median ≤ 2 ms", &|summary| summary.median <= target::DECISION_MEDIAN);
    row("replacement ready to verified heal", recovery, "≤ 5 ms", &|summary| summary.p99 <= target::RECOVERY_P99);
    row("`kill` to verified heal", outage, "", &|_| true);
}

fn missed_row(table: &mut Table, measured: &Measured<'_>) {
    let missed = measured.kills.missed;
    let healed = u32::try_from(measured.kills.outage.len()).unwrap_or(u32::MAX);
    let (what, backend) = ("kills told and healed".to_owned(), measured.backend.to_owned());
    let (all, value) = ((healed + missed).to_string(), format!("{missed} missed"));
    table.row([what, backend, all, String::new(), String::new(), value, "all".to_owned(), verdict(missed == 0)]);
}

fn burst_rows(table: &mut Table, measured: &Measured<'_>) {
    for (spread, Burst { connections, detected, ended, lost, doubled }) in measured.bursts {
        let who = match spread {
            Spread::OneDaemon => "of one daemon",
            Spread::DaemonEach => "of a daemon each",
        };
        let reached = detected <= target::BURST && lost == 0 && doubled == 0;
        table.row([
            format!("connections {who} die at once: last decision"),
            measured.backend.to_owned(),
            connections.to_string(),
            String::new(),
            String::new(),
            format!("{}; {lost} lost, {doubled} twice; processes ended in {}", time(detected), time(ended)),
            "≤ 250 ms, none lost, none twice".to_owned(),
            verdict(reached),
        ]);
    }
}

fn idle_rows(table: &mut Table, measured: &Measured<'_>) {
    let Idle { watched, cpu, switches, agent_kib, workers_kib, workers } = measured.idle;
    let mut row = |what: String, value: String, target: &str, reached: bool| {
        let empty = String::new;
        let backend = measured.backend.to_owned();
        table.row([what, backend, empty(), empty(), empty(), value, target.to_owned(), verdict(reached)]);
    };
    let connections = measured.bursts.first().map_or(0, |(_, burst)| burst.connections);
    let over = format!("idle, {connections} mounts, {} s", watched.as_secs());
    let a_minute = cpu.mul_f64(60.0 / watched.as_secs_f64());
    row(format!("{over}: CPU time"), time(cpu), "< 10 ms a minute", a_minute < target::IDLE_CPU);
    row(format!("{over}: wake-ups"), switches.to_string(), "none that is periodic", switches == 0);
    let memory = |kib: u64| format!("{:.1} MiB", Duration::from_secs(kib).as_secs_f64() / 1024.0);
    let value = format!("{} and {workers} workers {}", memory(agent_kib), memory(workers_kib));
    row(format!("{over}: RSS"), value, "≤ 16 MiB", agent_kib + workers_kib <= target::MEMORY_KIB);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured<'static> {
        let micros = |value: u64| vec![Duration::from_micros(value); 200];
        let kills = Kills {
            detection: Vec::new(),
            decision: micros(900),
            recovery: micros(6_000),
            outage: micros(20_000),
            missed: 1,
        };
        let burst = Burst {
            connections: 1000,
            detected: Duration::from_millis(90),
            ended: Duration::from_millis(60),
            lost: 0,
            doubled: 0,
        };
        Measured {
            backend: "portable",
            kills,
            idle: Idle {
                watched: Duration::from_secs(30),
                cpu: Duration::from_millis(6),
                switches: 0,
                agent_kib: 9_216,
                workers_kib: 2_048,
                workers: 1,
            },
            bursts: [(Spread::OneDaemon, burst), (Spread::DaemonEach, Burst { lost: 1, ..burst })],
        }
    }

    #[test]
    fn every_target_has_its_verdict() {
        let mut table = Table::new(&["what", "backend", "n", "median", "p99", "max", "target", "verdict"]);
        missed_row(&mut table, &measured());
        latency_rows(&mut table, &measured());
        burst_rows(&mut table, &measured());
        idle_rows(&mut table, &measured());
        let text = table.render();
        let verdicts: Vec<_> = text.lines().skip(2).map(|row| row.rsplit('|').nth(1).unwrap().trim()).collect();
        // 6 ms in 30 s are 12 ms a minute.
        assert_eq!(verdicts, ["MISS", "not measured", "PASS", "MISS", "", "PASS", "MISS", "MISS", "PASS", "PASS"]);
        assert!(text.contains("9.0 MiB and 1 workers 2.0 MiB"), "{text}");
    }
}
