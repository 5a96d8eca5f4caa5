//! What the machines ask for, and what they decide: probes, timers, and what people are told.

use std::time::Duration;

use super::connection::{Connection, transition_mount};
use super::event::{Action, Scope};
use super::node::Node;
use crate::health::{self, Effect, Input, State, Verdict};
use crate::model::{Boottime, ConnectionId, Mount, Reason, TransitionKind};
use crate::worker::{ProbeOutcome, ProbeTarget};

impl Node {
    /// Feeds the machines until none has anything more to say.
    pub(super) fn drain(&mut self) {
        while let Some((id, input)) = self.pending.pop_front() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            for effect in connection.machine.on(self.now, input) {
                self.effect(id, effect);
            }
        }
    }

    fn effect(&mut self, id: ConnectionId, effect: Effect) {
        match effect {
            Effect::Probe => self.probe(id),
            Effect::FindHolders => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.asks_holders = true;
                }
                self.ask_for_holders();
            }
            Effect::Arm(timer, after) => self.actions.push(Action::Arm { connection: id, timer, after }),
            Effect::Disarm(timer) => self.actions.push(Action::Disarm { connection: id, timer }),
            Effect::Tell(verdict) => self.decided(id, verdict),
        }
    }

    fn probe(&mut self, id: ConnectionId) {
        let target = self.probe_target(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match target {
            Some(target) if !connection.ignored => {
                (connection.asked, connection.lost) = (Some(target.mount.clone()), false);
                self.actions.push(Action::Probe { connection: id, target });
            }
            // Others cover its mounts, or it has none: it is asked as soon as a look sees one that can be reached.
            Some(_) | None => {
                (connection.asked, connection.lost) = (None, true);
                let first_look = connection.machine.state() == State::Created;
                let outcome = health::ProbeOutcome::Gone;
                self.push(id, Input::Probed { outcome, at: self.now, first_look });
            }
        }
    }

    fn probe_target(&self, id: ConnectionId) -> Option<ProbeTarget> {
        let covered = |mount: &Mount| self.is_covered(mount);
        self.connections.get(&id)?.probe_target(self.setting.own, &covered, &self.namespaces)
    }

    /// The mount that it was asked through was gone. If there is another one by now, that is what the machine waits for;
    /// the look that saw it can have come before the answer. One that was covered meanwhile is another one.
    pub(super) fn ask_elsewhere(&mut self, id: ConnectionId) {
        let target = self.probe_target(id).map(|target| target.mount);
        let waits = |known: &&mut Connection| known.lost && !known.ignored;
        let Some(connection) = self.connections.get_mut(&id).filter(waits) else { return };
        if target.is_none() {
            connection.asked = None;
        } else if target != connection.asked {
            let count = connection.mounts.len();
            self.push(id, Input::Mounts { count, control: true });
        }
    }

    /// A verdict on a connection that no look has seen mounted waits for the next look: a line without a mount point
    /// helps nobody. And `ready` waits until it is known who serves it, so that a death right after it is understood.
    fn decided(&mut self, id: ConnectionId, verdict: Verdict) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mounted = !connection.known_mounts().is_empty();
        let gone = connection.machine.state() == State::Gone;
        if gone && !(mounted && connection.told) {
            tracing::debug!(connection = %id, ?verdict, "came and went unseen");
            connection.untold.clear();
        } else if !mounted || self.waits(&verdict, id) {
            if !mounted {
                self.actions.push(Action::Scan(Scope::Own));
            }
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.untold.push((self.now, verdict));
            }
        } else {
            // What waited comes first.
            self.tell_all(id);
            self.verdict(self.now, id, verdict);
        }
    }

    /// `ready` waits for an introduction, `dead` for a look at the mount table that is under way: what was mounted or
    /// remounted right before is to be told, and healed, as it is now.
    fn waits(&self, verdict: &Verdict, id: ConnectionId) -> bool {
        match verdict {
            Verdict::Ready => self.connections.get(&id).is_some_and(|known| !known.introduced),
            Verdict::Dead { .. } => self.looking,
            Verdict::Hung(_) | Verdict::Unmounted | Verdict::Detached => false,
        }
    }

    /// It became known who serves it, or that nobody can tell.
    pub(super) fn introduce(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.introduced = true;
            self.tell_all(id);
        }
    }

    /// Tells what waited, once it is mounted somewhere.
    fn tell_all(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !connection.known_mounts().is_empty() {
            for (decided, verdict) in std::mem::take(&mut connection.untold) {
                self.verdict(decided, id, verdict);
            }
        }
    }

    /// After a look that began then: what waited for it is told. A connection that is not mounted here is looked for
    /// elsewhere.
    pub(super) fn tell_untold(&mut self, scope: Scope, began: Boottime) {
        let waiting = |known: &&Connection| !known.untold.is_empty();
        let waiting: Vec<_> = self.connections.values().filter(waiting).map(|known| known.id).collect();
        for id in waiting {
            let Some(connection) = self.connections.get(&id) else { continue };
            let complete = connection.untold.iter().all(|(decided, _)| *decided < began);
            if !connection.known_mounts().is_empty() {
                if connection.introduced || connection.is_down() {
                    self.tell_all(id);
                }
            } else if !complete {
                self.actions.push(Action::Scan(Scope::Own));
            } else if scope == Scope::Own {
                self.actions.push(Action::Scan(Scope::Everything));
            } else {
                // It is mounted nowhere: it went before it was seen, or is on its way.
                self.actions.push(Action::CheckControl(id));
            }
        }
    }

    fn verdict(&mut self, decided: Boottime, id: ConnectionId, verdict: Verdict) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match verdict {
            Verdict::Ready => {
                self.tell(id, TransitionKind::Ready, None);
                self.replacement_ready(id);
            }
            Verdict::Hung(reason) => {
                let stalled = matches!(reason, Reason::Stalled { .. });
                self.tell(id, TransitionKind::Hung(reason), None);
                if stalled {
                    self.free_clients(id);
                }
            }
            Verdict::Dead { mut reason, since, stamped } => {
                connection.died = since;
                if let Reason::Oom { cgroup } = &mut reason {
                    *cgroup = connection.launch.as_ref().and_then(|launch| launch.memory_cgroup());
                }
                let detection = since.filter(|_| stamped).map(|since| decided.since(since));
                let kind = TransitionKind::Dead(reason.clone());
                self.tell(id, kind, detection);
                self.died(decided, id, &reason);
            }
            Verdict::Unmounted => self.tell(id, TransitionKind::Unmounted, None),
            Verdict::Detached => self.tell(id, TransitionKind::Detached, None),
        }
    }

    pub(super) fn tell(&mut self, id: ConnectionId, kind: TransitionKind, detection: Option<Duration>) {
        let Some(connection) = self.connections.get_mut(&id).filter(|known| !known.ignored) else { return };
        connection.told = true;
        let transition = connection.transition(kind, self.setting.backend, detection);
        self.actions.push(Action::Tell(Box::new(transition)));
    }

    /// As [`Self::tell`], of these mounts: the connection has lost them meanwhile.
    pub(super) fn tell_of(&mut self, id: ConnectionId, kind: TransitionKind, mounts: &[Mount]) {
        let Some(connection) = self.connections.get(&id).filter(|known| !known.ignored) else { return };
        let mut transition = connection.transition(kind, self.setting.backend, None);
        transition.mounts = mounts.iter().map(transition_mount).collect();
        self.actions.push(Action::Tell(Box::new(transition)));
    }
}

/// A worker's answer in the machine's words.
pub(super) fn outcome_of(outcome: ProbeOutcome) -> health::ProbeOutcome {
    match outcome {
        ProbeOutcome::Alive => health::ProbeOutcome::Alive,
        ProbeOutcome::Dead { errno } => health::ProbeOutcome::Dead { errno },
        ProbeOutcome::Gone => health::ProbeOutcome::Gone,
        ProbeOutcome::TimedOut => health::ProbeOutcome::TimedOut,
        ProbeOutcome::Denied => health::ProbeOutcome::Denied,
        ProbeOutcome::Failed(why) => {
            tracing::debug!(why, "a probe failed");
            health::ProbeOutcome::Failed
        }
    }
}
