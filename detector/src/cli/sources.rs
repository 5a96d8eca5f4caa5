//! Where the listings get from the other modules what they show.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::inventory::{self, Facts, Life};
use crate::model::{DeviceNumber, NamespaceId};
use crate::mounts::{self, ControlFs, Problem, Scanner, Snapshot};
use crate::policy::{Policy, PolicyError};
use crate::telemetry::status::ConnectionReport;
use crate::worker::{Pool, PoolConfig, ProbeOutcome};

/// How long a daemon may take for a sign of life. A busy network file system answers within a second.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// How long all of them may take together: with more hung ones than there are workers, the last ones are not asked.
const TOTAL_DEADLINE: Duration = Duration::from_secs(5);

/// The listing, and what could not be seen.
pub struct Listing {
    /// Every connection on this machine.
    pub reports: Vec<ConnectionReport>,
    /// The reader's own mount namespace.
    pub own: Option<NamespaceId>,
    /// Why some may be missing, or their states be unknown.
    pub problems: Vec<String>,
}

/// Every connection on this machine, how it fares and where it is mounted. Blocks for [`TOTAL_DEADLINE`] at most.
///
/// # Errors
/// The mounts can't be read.
pub fn connections() -> Result<Listing, String> {
    let snapshot = Scanner::default().scan();
    if let Some(problem) = snapshot.problems.iter().find(|problem| matches!(problem, Problem::Own(_))) {
        return Err(problem.to_string());
    }
    let mut problems: Vec<_> = snapshot.problems.iter().map(ToString::to_string).collect();
    let mut note = |problem: String| problems.push(problem);
    // Before anybody is asked: the questions are requests, too.
    let control = control().unwrap_or_else(|error| {
        note(error.to_string());
        BTreeMap::new()
    });
    let lives = ask(&snapshot).unwrap_or_else(|error| {
        note(format!("no file system can be asked for a sign of life: {error}"));
        BTreeMap::new()
    });
    let holders = mounts::holders().unwrap_or_else(|error| {
        note(format!("the daemons can't be told: {error}"));
        // Nobody is known, so nothing may be concluded from that.
        mounts::Holders { denied: 1, ..mounts::Holders::default() }
    });
    let facts = Facts { snapshot, control, holders, lives };
    Ok(Listing { reports: inventory::reports(&facts, mounts::comm), own: facts.snapshot.own, problems })
}

fn control() -> Result<BTreeMap<DeviceNumber, Option<u64>>, mounts::ControlError> {
    let control = ControlFs::open()?;
    let requests = |device| control.waiting(device).ok().flatten();
    Ok(control.connections()?.into_iter().map(|device| (device, requests(device))).collect())
}

/// Asks each connection that can be asked, all at once, in worker processes: the question can block for ever.
fn ask(snapshot: &Snapshot) -> std::io::Result<BTreeMap<DeviceNumber, Life>> {
    let targets = inventory::to_ask(snapshot);
    if targets.is_empty() {
        return Ok(BTreeMap::new());
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let pool = Pool::start(PoolConfig::default())?;
        let mut questions = JoinSet::new();
        for (device, target) in targets {
            let pool = pool.clone();
            questions.spawn(async move { (device, life(pool.probe(target, ANSWER_DEADLINE).await)) });
        }
        let deadline = Instant::now() + TOTAL_DEADLINE;
        let mut lives = BTreeMap::new();
        while let Ok(Some(Ok((device, life)))) = tokio::time::timeout_at(deadline, questions.join_next()).await {
            lives.insert(device, life);
        }
        Ok(lives)
    })
}

fn life(outcome: ProbeOutcome) -> Life {
    match outcome {
        ProbeOutcome::Alive => Life::Answered,
        ProbeOutcome::Dead { errno: _ } => Life::Dead,
        ProbeOutcome::TimedOut => Life::Silent,
        ProbeOutcome::Gone | ProbeOutcome::Denied | ProbeOutcome::Failed(_) => Life::NotAsked,
    }
}

/// How many rules a policy file has.
///
/// # Errors
/// Its problems, each on a line.
pub fn policy_rules(file: &Path) -> Result<usize, PolicyError> {
    Policy::load(file).map(|policy| policy.rule_count())
}
