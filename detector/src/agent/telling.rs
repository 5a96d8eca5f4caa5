//! What the machines ask for, and what they decide: probes, timers, and what people are told.

use std::time::Duration;

use super::connection::transition_mount;
use super::event::{Action, Scope};
use super::node::Node;
use crate::health::{self, Effect, Input, State, Verdict};
use crate::model::{Boottime, ConnectionId, Mount, TransitionKind};
use crate::worker::ProbeOutcome;

impl Node {
    /// Feeds the machines until none has anything more to say.
    pub(super) fn drain(&mut self, now: Boottime) {
        while let Some((id, input)) = self.pending.pop_front() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            for effect in connection.machine.on(now, input) {
                self.effect(now, id, effect);
            }
        }
    }

    pub(super) fn effect(&mut self, now: Boottime, id: ConnectionId, effect: Effect) {
        match effect {
            Effect::Probe => self.probe(now, id),
            Effect::FindHolders => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.asks_holders = true;
                }
                self.ask_for_holders();
            }
            Effect::Arm(timer, after) => self.actions.push(Action::Arm { connection: id, timer, after }),
            Effect::Disarm(timer) => self.actions.push(Action::Disarm { connection: id, timer }),
            Effect::Tell(verdict) => self.decided(now, id, verdict),
        }
    }

    pub(super) fn probe(&mut self, now: Boottime, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        let covered = |mount: &Mount| self.is_covered(mount);
        match connection.probe_target(self.setting.own, &covered, &self.namespaces) {
            Some(target) => self.actions.push(Action::Probe { connection: id, target }),
            None => {
                let outcome = if connection.mounts.is_empty() {
                    ProbeOutcome::Gone
                } else {
                    ProbeOutcome::Failed("no mount of it can be reached: others cover them".to_owned())
                };
                let first_look = connection.machine.state() == State::Created;
                self.push(id, Input::Probed { outcome: outcome_of(outcome), at: now, first_look });
            }
        }
    }

    /// A verdict on a connection that no look has seen mounted waits for the next look: a line without a mount point
    /// helps nobody.
    fn decided(&mut self, now: Boottime, id: ConnectionId, verdict: Verdict) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.known_mounts().is_empty() && connection.machine.state() != State::Gone {
            if connection.untold.is_empty() {
                self.actions.push(Action::Scan(Scope::Own));
            }
            connection.untold.push((now, verdict));
        } else {
            self.verdict(now, id, verdict);
        }
    }

    /// Its mounts were looked for. One that is mounted nowhere after all is told of only if it is dead: its daemon died
    /// before anybody could look, or it was in use without a mount.
    pub(super) fn tell_untold(&mut self, id: ConnectionId, scope: Scope) {
        let Some(connection) = self.connections.get_mut(&id).filter(|known| !known.untold.is_empty()) else { return };
        let mounted = !connection.mounts.is_empty();
        if !mounted && scope == Scope::Own {
            // It was mounted in another namespace.
            return self.actions.push(Action::Scan(Scope::Everything));
        }
        for (decided, verdict) in std::mem::take(&mut connection.untold) {
            if mounted || matches!(verdict, Verdict::Dead { .. }) {
                self.verdict(decided, id, verdict);
            }
        }
    }

    fn verdict(&mut self, now: Boottime, id: ConnectionId, verdict: Verdict) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match verdict {
            Verdict::Ready => {
                self.tell(id, TransitionKind::Ready, None);
                self.replacement_ready(id);
            }
            Verdict::Hung(reason) => self.tell(id, TransitionKind::Hung(reason), None),
            Verdict::Dead { reason, since, stamped } => {
                connection.died = since;
                let detection = since.filter(|_| stamped).map(|since| now.since(since));
                let kind = TransitionKind::Dead(reason.clone());
                self.tell(id, kind, detection);
                self.died(now, id, &reason);
            }
            Verdict::Unmounted => self.tell(id, TransitionKind::Unmounted, None),
            Verdict::Detached => self.tell(id, TransitionKind::Detached, None),
        }
    }

    pub(super) fn tell(&mut self, id: ConnectionId, kind: TransitionKind, detection: Option<Duration>) {
        let Some(connection) = self.connections.get(&id).filter(|known| !known.ignored) else { return };
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
