//! Many connections that die at the same moment.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

use super::kills::unmount;
use crate::agent::Agent;
use crate::process;
use crate::sandbox::Scratch;
use crate::steerfs;
use crate::transition::{Event, Line, between};

/// For the agent to tell of all mounts that were made.
const READY_PATIENCE: Duration = Duration::from_secs(120);

/// For the last death to be told. What is not told by then is lost.
const DEAD_PATIENCE: Duration = Duration::from_secs(15);

/// How long it is listened for a death that is told twice.
const ECHO: Duration = Duration::from_secs(1);

/// How the connections are spread over daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// One process serves all.
    OneDaemon,
    /// One process each.
    DaemonEach,
}

/// Living connections.
pub struct Crowd {
    mount_points: BTreeSet<PathBuf>,
    daemons: Vec<u32>,
}

/// What came of killing them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// How many.
    pub connections: usize,
    /// From right before the first kill(2) to the last decision.
    pub detected: Duration,
    /// To the end of the last process: what the kernel needs to end them, agent or not.
    pub ended: Duration,
    /// Connections whose death was not told.
    pub lost: usize,
    /// Deaths told again.
    pub doubled: usize,
}

impl Crowd {
    /// Mounts them, and waits until the agent has told that each is ready.
    ///
    /// # Errors
    /// A mount failed, or was not told of.
    pub fn mount(agent: &Agent, scratch: &Scratch, count: u32, spread: Spread) -> Result<Self> {
        let name = match spread {
            Spread::OneDaemon => "together",
            Spread::DaemonEach => "apart",
        };
        let directories: Result<BTreeSet<PathBuf>> =
            (0..count).map(|number| steerfs::mount_point(&scratch.dir, &format!("{name}-{number}"))).collect();
        let mount_points = directories?;
        let steerfs = &scratch.binaries.steerfs;
        let daemons = match spread {
            Spread::OneDaemon => {
                let all = scratch.dir.join(name);
                steerfs::mount(steerfs, &all, &["--source", "bench", "--mounts", &count.to_string()])?;
                vec![steerfs::daemon(&all)?]
            }
            Spread::DaemonEach => {
                for mount_point in &mount_points {
                    steerfs::mount(steerfs, mount_point, &["--source", "bench"])?;
                }
                process::find_descendants(|argument| mount_points.contains(argument))
            }
        };
        let crowd = Self { mount_points, daemons };
        let ready = crowd.collect(agent, Event::Ready, READY_PATIENCE)?;
        let told = ready.iter().flat_map(|line| &line.mounts).filter(|mount| crowd.has(&mount.mount_point)).count();
        if told < crowd.mount_points.len() {
            bail!("only {told} of {count} mounts were told to be ready");
        }
        Ok(crowd)
    }

    fn has(&self, mount_point: &Path) -> bool {
        self.mount_points.contains(mount_point)
    }

    /// The lines of this event about these mounts, until there is one for each or the time is over.
    fn collect(&self, agent: &Agent, event: Event, patience: Duration) -> Result<Vec<Line>> {
        let deadline = Instant::now() + patience;
        let mut lines = Vec::new();
        while lines.len() < self.mount_points.len() {
            match agent.next(deadline)? {
                Some(line) if line.event == event && self.is_about_one(&line) => lines.push(line),
                Some(_) => {}
                None => break,
            }
        }
        Ok(lines)
    }

    fn is_about_one(&self, line: &Line) -> bool {
        line.mounts.iter().any(|mount| self.has(&mount.mount_point))
    }

    /// Kills every daemon at once.
    ///
    /// # Errors
    /// A signal could not be sent, or the agent ended.
    pub fn kill(self, agent: &Agent) -> Result<Burst> {
        let last_end = last_end(&self.daemons)?;
        let (killed, start) = (Timestamp::now(), Instant::now());
        for &daemon in &self.daemons {
            kill(process::pid(daemon)?, Signal::SIGKILL).with_context(|| format!("cannot kill {daemon}"))?;
        }
        let mut lines = self.collect(agent, Event::Dead, DEAD_PATIENCE)?;
        let echo_ends = Instant::now() + ECHO;
        while let Some(line) = agent.next(echo_ends)? {
            if line.event == Event::Dead && self.is_about_one(&line) {
                lines.push(line);
            }
        }
        self.daemons.iter().try_for_each(|&daemon| process::reap(daemon))?;
        self.mount_points.iter().try_for_each(|mount_point| unmount(mount_point))?;
        let ended = match last_end.join() {
            Ok(end) => end?.saturating_duration_since(start),
            Err(_) => bail!("the thread that waits for the daemons' end panicked"),
        };
        Ok(Burst { ended, ..count(&lines, self.mount_points.len(), killed) })
    }
}

/// Waits in a thread for the end of all of them, and gives the moment.
fn last_end(daemons: &[u32]) -> Result<JoinHandle<Result<Instant>>> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("cannot open many descriptors")?;
    let open = |daemon: &u32| -> Result<OwnedFd> {
        let pid = rustix::process::Pid::from_raw(process::pid(*daemon)?.as_raw()).context("no process id")?;
        pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("cannot watch {daemon}"))
    };
    let watched = daemons.iter().map(open).collect::<Result<Vec<_>>>()?;
    let patience = Timespec::try_from(DEAD_PATIENCE).context("a time that poll(2) takes")?;
    Ok(thread::spawn(move || {
        // Readable once the process has ended (pidfd_open(2)), so the last of them to be waited for may have ended before.
        for daemon in &watched {
            let ended = poll(&mut [PollFd::new(daemon, PollFlags::IN)], Some(&patience)).context("poll")?;
            if ended == 0 {
                bail!("a daemon survived SIGKILL");
            }
        }
        Ok(Instant::now())
    }))
}

fn count(lines: &[Line], connections: usize, killed: Timestamp) -> Burst {
    let distinct: BTreeSet<_> = lines.iter().map(|line| (&line.connection, line.epoch)).collect();
    Burst {
        connections,
        detected: lines.iter().map(|line| between(killed, line.time)).max().unwrap_or_default(),
        ended: Duration::ZERO,
        lost: connections.saturating_sub(distinct.len()),
        doubled: lines.len() - distinct.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transition::samples;

    #[test]
    fn lost_and_doubled_are_told_apart() {
        let one = samples::line(samples::DEAD);
        let other = Line { connection: "0:46".into(), ..one.clone() };
        let killed = "2026-11-30T02:40:11.000000Z".parse().unwrap();
        let burst = count(&[one.clone(), other, one], 3, killed);
        assert_eq!(
            burst,
            Burst { connections: 3, detected: Duration::from_micros(486), ended: Duration::ZERO, lost: 1, doubled: 1 }
        );
    }
}
