//! Daemons killed one after another at a random moment, each on a mount of its own.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::agent::Agent;
use crate::process::{self, POLL};
use crate::sandbox::Scratch;
use crate::steerfs;
use crate::transition::{Event, between};

/// For each of the agent's lines.
const PATIENCE: Duration = Duration::from_secs(20);

/// The kill comes at a random moment of this span: longer than a tick of the slowest kernel clock (`CONFIG_HZ=100`), so
/// that the phase of periodic work in the kernel and in the agent is random too.
const PHASE: Duration = Duration::from_millis(20);

/// What was measured, one value a kill.
#[derive(Default)]
pub struct Kills {
    /// From the kernel's event to the decision, as the agent says (`detectionMicros`). Empty without kernel events.
    pub detection: Vec<Duration>,
    /// From right before kill(2) to the decision (the line's `time`), both on CLOCK_REALTIME.
    pub decision: Vec<Duration>,
    /// From the replacement being ready to the verified heal, as the agent says (`recoveryMicros`).
    pub recovery: Vec<Duration>,
    /// From right before kill(2) to the verified heal (the line's `time`).
    pub outage: Vec<Duration>,
    /// Kills after which the agent did not tell the death or the heal.
    pub missed: u32,
}

/// A round that failed costs [`PATIENCE`]; after so many, something is broken and there is nothing to measure.
const MOST_MISSED: u32 = 5;

/// Kills `count` daemons, one at a time. A round that failed is said on standard error, and counts.
///
/// # Errors
/// Too many rounds failed.
pub fn run(agent: &Agent, scratch: &Scratch, count: u32) -> Result<Kills> {
    let mut kills = Kills::default();
    let mut random = Random::seeded();
    for number in 0..count {
        let name = format!("kill-{number}");
        let Err(error) = round(agent, scratch, &name, random.below(PHASE), &mut kills) else { continue };
        let error = error.context(name.clone());
        kills.missed += 1;
        ensure!(kills.missed <= MOST_MISSED, "{error:#}\n{} of {} kills failed", kills.missed, number + 1);
        eprintln!("{error:#}");
        // It may be unmounted already, or dead; what is left of it must not disturb the next round.
        let _ = umount2(&scratch.dir.join(name), MntFlags::MNT_DETACH);
    }
    Ok(kills)
}

fn round(agent: &Agent, scratch: &Scratch, name: &str, phase: Duration, kills: &mut Kills) -> Result<()> {
    let mount_point = steerfs::mount_point(&scratch.dir, name)?;
    steerfs::mount(&scratch.binaries.steerfs, &mount_point, &["--source", "bench"])?;
    let wait = |what: &str, event: Event| {
        agent.wait(what, PATIENCE, |line| line.event == event && line.is_about(&mount_point))
    };
    wait("the mount to be ready", Event::Ready)?;
    let daemon = steerfs::daemon(&mount_point)?;
    sleep(phase);
    let killed = Timestamp::now();
    process::kill_child(daemon)?;
    let dead = wait("the death", Event::Dead)?;
    let recovered = wait("the heal", Event::Recovered)?;
    ensure!(fs::read(mount_point.join(steerfs::FILE))? != steerfs::BARE, "healed, but the bare directory is visible");
    kills.detection.extend(dead.detection_micros.map(Duration::from_micros));
    kills.decision.push(between(killed, dead.time));
    kills.recovery.extend(recovered.recovery_micros.map(Duration::from_micros));
    kills.outage.push(between(killed, recovered.time));
    // The last mount of the connection: its daemon then ends by itself.
    unmount(&mount_point)
}

/// Unmounts as umount(8) does. The agent looks at a mount through a descriptor, and while it does, it is in use.
///
/// # Errors
/// umount2(2)'s, EBUSY only after [`PATIENCE`].
pub fn unmount(mount_point: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match umount2(mount_point, MntFlags::empty()) {
            Err(Errno::EBUSY) if Instant::now() < deadline => sleep(POLL),
            done => return done.with_context(|| format!("cannot unmount {}", mount_point.display())),
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough for a random phase.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(now.as_secs() ^ u64::from(now.subsec_nanos()) << 32)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(self.next() % micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_spread_over_the_whole_span() {
        let mut random = Random(1);
        let phases: Vec<_> = (0..1000).map(|_| random.below(PHASE)).collect();
        assert!(phases.iter().all(|phase| *phase < PHASE));
        let late = phases.iter().filter(|phase| **phase >= PHASE / 2).count();
        assert!((400..600).contains(&late), "{late} of 1000 in the second half");
    }
}
