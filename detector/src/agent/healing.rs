//! What is done about a dead connection: which of its mounts, by which strategy, when again.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::event::{Action, Scope};
use super::launch::Launch;
use super::node::Node;
use crate::health::Input;
use crate::kernel::MOUNT_CAPABILITY;
use crate::model::{Boottime, ConnectionId, DeviceNumber, FsKind, Mount, Process, Reason, Recovery, TransitionKind};
use crate::policy::{Access, Decision, Mode, OnAbort, StrategyChoice};
use crate::recovery::{self, BackoffSettings, Bring, FlapWatch, Progress, RecoverJob, Strategy};

/// How long a worker may take to put all mounts of a connection back once the replacement serves, on top of what the
/// replacement itself may take to start. Mount calls take microseconds; opening `/sub` of a slow file system takes as
/// long as its daemon likes.
const HEAL_DEADLINE: Duration = Duration::from_secs(30);

/// How long a daemon that is started again may take until it serves. JuiceFS or rclone talk to a remote service first.
const RESPAWN_DEADLINE: Duration = Duration::from_secs(60);

/// Mounts that somebody makes of a dead connection while it is healed are healed in a further round; who makes them faster
/// than that has to be told.
const CHECK_ROUNDS: u32 = 5;

/// A daemon's end ends its connections one after another, a few microseconds apart. Where it served several, so long is
/// waited for the others, again and again while some are not known to be dead yet: one start brings them all back, and
/// none can come back alone.
const GATHERING: Duration = Duration::from_millis(20);

/// For how long at most. A connection whose descriptor somebody else holds does not die with its daemon.
const GATHERING_LIMIT: Duration = Duration::from_secs(2);

/// Of so many places where something died is remembered how often; then those that do not flap are forgotten. A Pod's places
/// have its id in their names and never come again.
const REMEMBERED_VOLUMES: usize = 1024;

/// The attempts to recover one dead connection.
#[derive(Debug)]
pub(super) struct Healing {
    strategy: Strategy,
    /// The strategy can be carried out. Where it can't, what serves by itself is taken all the same.
    able: bool,
    stage: Stage,
    decision: Decision,
    backoff: recovery::Backoff,
    /// Where the whole file system was mounted when it died: where a replacement is recognised.
    places: Vec<PathBuf>,
    /// Where the mount that stands for the connection was: the key of its [`Volume`].
    volume: PathBuf,
    begun: Boottime,
    /// The replacement of the attempt under way.
    ready: Option<(DeviceNumber, Boottime)>,
    last_healed: Option<Boottime>,
    healed: Vec<Mount>,
    failures: Vec<String>,
    /// How often the check has found further mounts.
    rounds: u32,
    /// The other connections that the attempt begun for this one heals, too.
    companions: Vec<ConnectionId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Somebody else brings the replacement.
    Waiting,
    /// A worker is at it.
    Running,
    /// Every mount it knew of was healed by then; a look that begins later says whether others came up meanwhile.
    Checking(Boottime),
    /// Until the next attempt.
    Pausing,
    /// No further attempt.
    GivenUp,
}

/// What outlives the connections that hang at one place: how often they die, and how long to wait if that is often.
#[derive(Debug)]
pub(super) struct Volume {
    flaps: FlapWatch,
    backoff: recovery::Backoff,
}

impl Healing {
    /// It is not settled yet whether the attempt succeeded.
    pub fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Running | Stage::Checking(_))
    }

    /// What serves instead, and which mounts it replaced so far.
    pub fn healed(&self) -> Option<(DeviceNumber, &[Mount])> {
        self.ready.map(|(device, _)| (device, self.healed.as_slice()))
    }

    fn takes_replacement(&self) -> bool {
        matches!(self.stage, Stage::Waiting | Stage::Pausing | Stage::Checking(_))
    }

    fn begin_attempt(&mut self) {
        if !matches!(self.stage, Stage::Checking(_)) {
            self.ready = None;
            self.last_healed = None;
            self.healed.clear();
            self.rounds = 0;
        }
        self.stage = Stage::Running;
        self.failures.clear();
    }
}

impl Node {
    /// A connection was declared dead: heal it, if the policy says so.
    pub(super) fn died(&mut self, now: Boottime, id: ConnectionId, reason: &Reason) {
        let Some((decision, volume)) = self.healable(id, reason) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let choice = recovery::choose(configured(&decision.strategy), facts(connection, &decision));
        let whole = connection.mounts.iter().filter(|mount| mount.is_whole());
        let places = whole.map(|mount| mount.mount_point.clone()).collect();
        let settings = decision.backoff;
        connection.healing = Some(Healing {
            strategy: choice.as_ref().map_or(asked_for(&decision.strategy), |(strategy, _)| *strategy),
            able: choice.is_ok(),
            stage: Stage::Pausing,
            decision,
            backoff: recovery::Backoff::new(settings),
            places,
            volume: volume.clone(),
            begun: now,
            ready: None,
            last_healed: None,
            healed: Vec::new(),
            failures: Vec::new(),
            rounds: 0,
            companions: Vec::new(),
        });
        self.push(id, Input::RecoveryStarted);
        if !self.setting.may_mount {
            return self.give_up(
                id,
                format!("no privilege: {MOUNT_CAPABILITY} is missing, without which nothing can be mounted"),
            );
        }
        let (strategy, why) = match choice {
            Ok(chosen) => chosen,
            Err(error) => {
                self.tell_refused(id, error.to_string());
                return self.attempt(id);
            }
        };
        tracing::info!(connection = %id, strategy = strategy.as_str(), why, "recovery begins");
        if reason.is_deliberate() && strategy != Strategy::Rebind {
            self.mention_survivor(id);
        }
        let pause = self.flap_pause(now, volume, settings);
        self.tell(id, TransitionKind::Recovering { strategy: strategy.as_str(), flapping: !pause.is_zero() }, None);
        let gather = strategy == Strategy::Respawn && self.of_same_daemon(id).next().is_some();
        match pause {
            Duration::ZERO if !gather => self.attempt(id),
            pause => self.actions.push(Action::RetryAfter { connection: id, after: pause.max(GATHERING) }),
        }
    }

    /// The other connections that the connection's daemon served, dead or not yet.
    fn of_same_daemon(&self, id: ConnectionId) -> impl Iterator<Item = &Connection> {
        let daemon = self.connections.get(&id).and_then(started_as);
        self.connections.values().filter(move |known| known.id != id && daemon.is_some() && started_as(known) == daemon)
    }

    /// The daemon runs, and some of them live: only this connection was ended.
    fn serves_on(&self, id: ConnectionId) -> bool {
        let runs = |known: &Connection| known.daemon.as_ref().is_some_and(|daemon| daemon.alive);
        self.of_same_daemon(id).any(|known| known.is_up() && runs(known))
    }

    /// Some of them are about to die, too: the process has ended.
    fn is_still_dying(&self, id: ConnectionId) -> bool {
        let ended = |known: &Connection| known.daemon.as_ref().is_some_and(|daemon| !daemon.alive);
        self.of_same_daemon(id).any(|known| known.is_up() && ended(known))
    }

    /// Those of them that are to be launched, too: one start serves them all.
    fn companions(&self, id: ConnectionId) -> Vec<ConnectionId> {
        let waits = |known: &&Connection| {
            known.healing.as_ref().is_some_and(|healing| {
                healing.able
                    && healing.strategy == Strategy::Respawn
                    && matches!(healing.stage, Stage::Waiting | Stage::Pausing)
            })
        };
        let waiting = self.of_same_daemon(id).filter(waits).map(|known| known.id);
        waiting.filter(|other| self.replacement(*other).is_none() && !self.to_heal(*other).is_empty()).collect()
    }

    /// A volume that keeps dying soon after each recovery is given ever longer rests before the next.
    fn flap_pause(&mut self, now: Boottime, volume: PathBuf, settings: BackoffSettings) -> Duration {
        let fresh = || Volume {
            flaps: FlapWatch::new(recovery::FlapSettings::default()),
            backoff: recovery::Backoff::new(settings),
        };
        if self.volumes.len() >= REMEMBERED_VOLUMES {
            self.volumes.retain(|_, volume| volume.flaps.is_flapping(now));
        }
        let volume = self.volumes.entry(volume).or_insert_with(fresh);
        if volume.flaps.died(now) {
            // Without an end: the volume was healed each time, so giving up would be worse than going on slowly.
            return volume.backoff.after_failure(Duration::ZERO).unwrap_or(settings.max);
        }
        volume.backoff = recovery::Backoff::new(settings);
        Duration::ZERO
    }

    /// The decision for the connection's primary mount, if anything of it is to be healed at all.
    fn healable(&self, id: ConnectionId, reason: &Reason) -> Option<(Decision, PathBuf)> {
        if !self.setting.heal {
            return None;
        }
        let connection = self.connections.get(&id)?;
        let own: Vec<_> =
            connection.mounts.iter().filter(|mount| mount.namespace == self.setting.own).cloned().collect();
        let primary = super::connection::primary(&own)?;
        let decision = self.decision(primary).clone();
        let deliberate = reason.is_deliberate() && decision.on_abort == OnAbort::Report;
        if deliberate || self.to_heal(id).is_empty() {
            return None;
        }
        Some((decision, primary.mount_point.clone()))
    }

    /// The connection's mounts in the agent's own namespace that the policy wants healed.
    fn to_heal(&self, id: ConnectionId) -> Vec<Mount> {
        let Some(connection) = self.connections.get(&id) else { return Vec::new() };
        let wanted = |mount: &&Mount| {
            let decision = self.decision(mount);
            let access = decision.access == Access::Any || mount.flags.read_only;
            mount.namespace == self.setting.own && decision.mode == Mode::Heal && access
        };
        connection.mounts.iter().filter(wanted).cloned().collect()
    }

    /// Tries once. What is still there to heal is looked up anew each time.
    pub(super) fn attempt(&mut self, id: ConnectionId) {
        let mut dead = self.to_heal(id);
        let (replacement, dying, serving) = (self.replacement(id), self.is_still_dying(id), self.serves_on(id));
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(healing) = connection.healing.as_mut().filter(|healing| healing.takes_replacement()) else { return };
        if dead.is_empty() {
            return;
        }
        let mut existing = None;
        let (bring, deadline) = match (replacement, healing.strategy) {
            (Some(mount), _) => {
                // It was seen to serve just now, or while the last attempt was under way.
                existing = Some((mount.device, self.now));
                (Bring::Existing(mount), HEAL_DEADLINE)
            }
            (None, Strategy::Rebind) => return healing.stage = Stage::Waiting,
            (None, _) if !healing.able => return healing.stage = Stage::Waiting,
            // A second one would work on the same data. When the others die, too, one start brings all back.
            (None, Strategy::Respawn) if serving => {
                tracing::info!(connection = %id, "its daemon still serves other mounts: waiting for its end");
                return healing.stage = Stage::Waiting;
            }
            (None, Strategy::Respawn) if dying && self.now.since(healing.begun) < GATHERING_LIMIT => {
                return self.actions.push(Action::RetryAfter { connection: id, after: GATHERING });
            }
            (None, Strategy::Respawn) => match &connection.launch {
                Some(launch) => (Bring::Respawn(launch.spec.clone()), RESPAWN_DEADLINE + HEAL_DEADLINE),
                None => return self.give_up(id, "nobody saw how its daemon was started".to_owned()),
            },
            (None, Strategy::Command) => match &healing.decision.strategy {
                StrategyChoice::Command(command) => {
                    let cgroups = connection.launch.as_ref().map(|launch| launch.spec.cgroups.clone());
                    let argv = command.argv.clone();
                    let bring = Bring::Command { argv, timeout: command.timeout, cgroups: cgroups.unwrap_or_default() };
                    (bring, command.timeout + HEAL_DEADLINE)
                }
                StrategyChoice::Auto | StrategyChoice::Rebind | StrategyChoice::Respawn => {
                    return self.give_up(id, "the policy names no command".to_owned());
                }
            },
        };
        healing.begin_attempt();
        healing.ready = healing.ready.or(existing);
        let companions = if matches!(bring, Bring::Respawn(_)) { self.companions(id) } else { Vec::new() };
        for companion in &companions {
            dead.extend(self.to_heal(*companion));
            if let Some(healing) = self.connections.get_mut(companion).and_then(|known| known.healing.as_mut()) {
                healing.begin_attempt();
            }
            self.push(*companion, Input::RecoveryStarted);
        }
        if let Some(healing) = self.connections.get_mut(&id).and_then(|known| known.healing.as_mut()) {
            healing.companions = companions;
        }
        if !matches!(bring, Bring::Existing(_)) {
            self.isolating.insert(id);
        }
        let launched = self.launched(&dead);
        let job = RecoverJob { bring, dead, launched, features: self.setting.features, deadline };
        self.push(id, Input::RecoveryStarted);
        let replacement = existing.map(|(device, _)| device);
        tracing::debug!(connection = %id, mounts = job.dead.len(), ?replacement, "an attempt begins");
        self.actions.push(Action::Recover { connection: id, job: Box::new(job) });
    }

    /// Living daemons of these that the agent launched.
    fn launched(&self, dead: &[Mount]) -> Vec<u32> {
        let is_one = |known: &&Connection| dead.iter().any(|mount| mount.device == known.id.device);
        let ours = self.connections.values().filter(|known| known.launch.as_ref().is_some_and(|launch| launch.ours));
        let living = |known: &Connection| known.daemon.as_ref().filter(|daemon| daemon.alive).map(|daemon| daemon.pid);
        ours.filter(is_one).filter(|known| known.is_down()).filter_map(living).collect()
    }

    /// A daemon can live on when its connection is aborted. One that the agent did not launch is not the agent's to end.
    fn mention_survivor(&self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Some(daemon) = connection.daemon.as_ref().filter(|daemon| daemon.alive) else { return };
        if connection.launch.as_ref().is_none_or(|launch| !launch.ours) {
            let (pid, comm) = (daemon.pid, daemon.comm.as_deref().unwrap_or_default());
            tracing::warn!(connection = %id, pid, comm, "the daemon lives on beside its successor: it is not ours to end");
        }
    }

    /// A living connection of the same type and source that is mounted where the dead one was, or whose daemon was launched
    /// for the dead one, by an attempt that was cut off. That of the attempt under way was found to serve by the worker, be it
    /// known here or not.
    fn replacement(&self, dead: ConnectionId) -> Option<Mount> {
        let connection = self.connections.get(&dead)?;
        let healing = connection.healing.as_ref()?;
        let fits = |mount: &&Mount| {
            mount.namespace == self.setting.own
                && mount.is_whole()
                && Some(&mount.fs_type) == connection.fs_type.as_ref()
                && Some(&mount.source) == connection.source.as_ref()
        };
        let brought = healing.ready.map(|(device, _)| device);
        let serves = |known: &Connection| known.serves() || known.is_up() && Some(known.id.device) == brought;
        let serving = self.connections.values().filter(|known| known.id != dead && serves(known));
        let launched_for = |known: &Connection| {
            let mark = known.launch.as_ref().and_then(|launch| launch.mark.as_ref());
            mark.is_some_and(|mark| mark.is_for(&connection.mounts))
        };
        let candidates = serving.flat_map(|known| known.mounts.iter().map(move |mount| (known, mount)));
        let in_place = |(known, mount): &(&Connection, &Mount)| {
            fits(mount) && (healing.places.contains(&mount.mount_point) || launched_for(known))
        };
        candidates.filter(|candidate| in_place(candidate)).map(|(_, mount)| mount.clone()).next()
    }

    /// A connection serves: those that died where it hangs may have been waiting for it.
    pub(super) fn replacement_ready(&mut self, id: ConnectionId) {
        let waiting = self
            .connections
            .values()
            .filter(|known| known.id != id && known.healing.as_ref().is_some_and(Healing::takes_replacement));
        let waiting: Vec<_> = waiting.map(|known| known.id).collect();
        for dead in waiting {
            let is_it = |mount: Mount| mount.device == id.device;
            if !self.is_checked(dead, id.device) && self.replacement(dead).is_some_and(is_it) {
                self.attempt(dead);
            }
        }
    }

    /// Every mount was healed from that replacement, and a look will tell whether one is left. Until then those that a healthy
    /// one covers now, as guards do before Linux 6.5, look as if they were.
    fn is_checked(&self, dead: ConnectionId, replacement: DeviceNumber) -> bool {
        let healing = self.connections.get(&dead).and_then(|known| known.healing.as_ref());
        healing.is_some_and(|healing| {
            matches!(healing.stage, Stage::Checking(_))
                && healing.ready.is_some_and(|(device, _)| device == replacement)
        })
    }

    /// A recovery that was begun for this connection goes on.
    pub(super) fn progress(&mut self, id: ConnectionId, progress: Progress) {
        if let Progress::Isolated { namespace } = progress {
            self.private.insert(namespace, self.now);
        }
        if matches!(progress, Progress::Isolated { .. } | Progress::Finished) {
            self.isolated(id);
        }
        for concerned in self.concerned(id, &progress) {
            self.advance(concerned, progress.clone());
        }
    }

    /// Its namespace is known, or won't come: of those found meanwhile, it can be told now whose they are.
    fn isolated(&mut self, id: ConnectionId) {
        self.isolating.remove(&id);
        if self.isolating.is_empty() && std::mem::take(&mut self.strangers) {
            self.actions.push(Action::Scan(Scope::Everything));
        }
    }

    /// Whom of those that the attempt heals a message is about.
    fn concerned(&self, id: ConnectionId, progress: &Progress) -> Vec<ConnectionId> {
        let healing = self.connections.get(&id).and_then(|known| known.healing.as_ref());
        let companions = healing.map_or(&[][..], |healing| &healing.companions);
        let served_by = |device| companions.iter().copied().find(|other| other.device == device).unwrap_or(id);
        match progress {
            Progress::Isolated { .. } | Progress::Noted { .. } | Progress::Launched { .. } => vec![id],
            Progress::Ready { dead, .. } => vec![served_by(*dead)],
            Progress::Healed { mount, .. } | Progress::Gone { mount } | Progress::Failed { mount: Some(mount), .. } => {
                vec![served_by(mount.device)]
            }
            Progress::Failed { mount: None, .. } | Progress::Finished => {
                companions.iter().copied().chain([id]).collect()
            }
        }
    }

    fn advance(&mut self, id: ConnectionId, progress: Progress) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(healing) = &mut connection.healing else { return };
        match progress {
            Progress::Isolated { namespace } => tracing::debug!(connection = %id, namespace = %namespace, "isolated"),
            Progress::Noted { what } => tracing::info!(connection = %id, "{what}"),
            Progress::Launched { pid } => tracing::debug!(connection = %id, pid, "replacement started"),
            Progress::Ready { dead: _, device, at, pid } => {
                healing.ready.get_or_insert((device, at));
                let replacement = self.serving_or_new(device);
                if let Some(pid) = pid.filter(|_| self.without_daemon().contains(&replacement)) {
                    self.daemon_seen(replacement, Process { pid, comm: None });
                }
            }
            Progress::Healed { mount, device: _, at } => {
                healing.last_healed = Some(at);
                healing.healed.push(mount);
            }
            Progress::Gone { mount } => {
                tracing::info!(connection = %id, mount_point = %mount.mount_point.display(), "unmounted meanwhile");
            }
            Progress::Failed { mount, error, refused: _ } => healing.failures.push(match mount {
                Some(mount) => format!("{}: {error}", crate::text::printable(mount.mount_point.as_os_str())),
                None => error,
            }),
            Progress::Finished => self.conclude(id),
        }
    }

    fn conclude(&mut self, id: ConnectionId) {
        let Some(healing) = self.connections.get_mut(&id).and_then(|known| known.healing.as_mut()) else { return };
        if healing.failures.is_empty() {
            healing.stage = Stage::Checking(self.now);
            self.actions.push(Action::Scan(Scope::Own));
        } else {
            self.attempt_failed(id);
        }
    }

    /// The mount table was read after an attempt that healed all it knew of: mounts that were made meanwhile are healed,
    /// too, and only when none is left it is a success.
    pub(super) fn check_healed(&mut self, began: Boottime) {
        let due = |healing: &Healing| matches!(healing.stage, Stage::Checking(healed) if healed < began);
        let checking = |known: &&Connection| known.healing.as_ref().is_some_and(due);
        let checking: Vec<_> = self.connections.values().filter(checking).map(|known| known.id).collect();
        for id in checking {
            // A dead mount that a healthy one covers is a guard, or a driver's own doing: nobody sees it.
            let mut left = self.to_heal(id);
            left.retain(|mount| !self.is_covered(mount));
            let Some(healing) = self.connections.get_mut(&id).and_then(|known| known.healing.as_mut()) else {
                continue;
            };
            healing.rounds += 1;
            if left.is_empty() {
                self.recovered(id);
            } else if healing.rounds < CHECK_ROUNDS {
                self.attempt(id);
            } else {
                healing.failures.push(format!("{} dead mounts are still there after each attempt", left.len()));
                self.attempt_failed(id);
            }
        }
    }

    fn recovered(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (died, launch) = (connection.died, connection.launch.take());
        let Some(Healing { strategy, ready, last_healed, healed, .. }) = connection.healing.take() else { return };
        if let (Some((device, ready)), Some(last_healed)) = (ready, last_healed) {
            let replacement = self.serving_or_new(device);
            // The new daemon runs in a mount namespace made for it; how to start it again is known from the old one.
            if let (Strategy::Respawn, Some(new)) = (strategy, self.connections.get_mut(&replacement)) {
                new.launch = launch.map(|launch| Arc::new(Launch { ours: true, ..(*launch).clone() }));
            }
            let outage = died.map(|died| last_healed.since(died));
            let recovery = last_healed.since(ready);
            let recovery = Recovery { strategy: strategy.as_str(), recovery, outage, replacement };
            self.tell_of(id, TransitionKind::Recovered(recovery), &healed);
            if self.connections.get(&id).is_some_and(|known| known.is_mounted_beside(self.setting.own)) {
                // A container's copies are as dead as before: known, so that they are no second death.
                return self.push(id, Input::RecoveryFailed { gave_up: true });
            }
        } else if self.connections.get(&id).is_none_or(|known| !known.is_here(self.setting.own)) {
            // Its mounts were taken away meanwhile. Elsewhere it may still be mounted.
            return self.push(id, Input::RecoveryFailed { gave_up: false });
        }
        self.push(id, Input::Recovered);
    }

    fn attempt_failed(&mut self, id: ConnectionId) {
        let now = self.now;
        let Some(healing) = self.connections.get_mut(&id).and_then(|known| known.healing.as_mut()) else { return };
        healing.stage = Stage::Pausing;
        let retry_in = healing.backoff.after_failure(now.since(healing.begun));
        let error = healing.failures.join("; ");
        let Some(after) = retry_in else { return self.give_up(id, error) };
        let strategy = healing.strategy.as_str();
        let flapping = self.volumes.get(&healing.volume).is_some_and(|volume| volume.flaps.is_flapping(now));
        self.push(id, Input::RecoveryFailed { gave_up: false });
        self.tell(id, TransitionKind::RecoveryFailed { strategy, error, retry_in, flapping }, None);
        self.actions.push(Action::RetryAfter { connection: id, after });
    }

    fn give_up(&mut self, id: ConnectionId, error: String) {
        let Some(healing) = self.connections.get_mut(&id).and_then(|known| known.healing.as_mut()) else { return };
        healing.stage = Stage::GivenUp;
        self.tell_refused(id, error);
    }

    fn tell_refused(&mut self, id: ConnectionId, error: String) {
        let Some(healing) = self.connections.get(&id).and_then(|known| known.healing.as_ref()) else { return };
        let strategy = healing.strategy.as_str();
        self.push(id, Input::RecoveryFailed { gave_up: true });
        self.tell(id, TransitionKind::RecoveryFailed { strategy, error, retry_in: None, flapping: false }, None);
    }
}

fn facts(connection: &Connection, decision: &Decision) -> recovery::Facts {
    let launch = connection.launch.as_ref();
    recovery::Facts {
        daemon_remembered: launch.is_some(),
        daemon_in_container: launch.is_some_and(|launch| launch.in_container),
        daemon_in_own_namespace: launch.is_some_and(|launch| launch.in_own_namespace),
        daemon_namespace: launch.and_then(|launch| launch.foreign_namespace),
        daemon_out_of_reach: launch.map_or(0, |launch| launch.out_of_reach),
        on_block_device: connection.fs_type.as_deref().and_then(FsKind::of) == Some(FsKind::FuseBlk),
        command_given: matches!(decision.strategy, StrategyChoice::Command(_)),
    }
}

/// What tells connections of one daemon from others: its process id, which can be another's by now, and its arguments.
fn started_as(connection: &Connection) -> Option<(u32, &[OsString])> {
    Some((connection.daemon.as_ref()?.pid, &connection.launch.as_ref()?.spec.argv))
}

/// The strategy that could not be chosen. `auto` always can.
const fn asked_for(strategy: &StrategyChoice) -> Strategy {
    match strategy {
        StrategyChoice::Auto | StrategyChoice::Rebind => Strategy::Rebind,
        StrategyChoice::Respawn => Strategy::Respawn,
        StrategyChoice::Command(_) => Strategy::Command,
    }
}

fn configured(strategy: &StrategyChoice) -> recovery::StrategyChoice {
    match strategy {
        StrategyChoice::Auto => recovery::StrategyChoice::Auto,
        StrategyChoice::Rebind => recovery::StrategyChoice::Rebind,
        StrategyChoice::Respawn => recovery::StrategyChoice::Respawn,
        StrategyChoice::Command(_) => recovery::StrategyChoice::Command,
    }
}
