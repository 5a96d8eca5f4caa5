use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use super::healing::Healing;
use super::launch::Launch;
use crate::health::{Machine, Origin, State, Verdict};
use crate::model::{
    BackendKind, Boottime, ConnectionId, Daemon, Mount, NamespaceId, Transition, TransitionKind, TransitionMount,
    WaitingRequest,
};
use crate::recovery::MountTarget;
use crate::telemetry::status::ConnectionState;
use crate::worker::ProbeTarget;

/// A connection as the agent knows it: its health, where it hangs, who serves it.
#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnectionId,
    pub machine: Machine,
    /// As of the last look, in every namespace; while the list is empty, `last_mounts` keeps what was there before.
    pub mounts: Vec<Mount>,
    pub last_mounts: Vec<Mount>,
    pub fs_type: Option<String>,
    pub source: Option<OsString>,
    /// The daemon that was last known to serve it.
    pub daemon: Option<Daemon>,
    /// What was decided, and when, before its mounts were known.
    pub untold: Vec<(Boottime, Verdict)>,
    /// Somebody was told of it.
    pub told: bool,
    /// It is known who serves it, and how that was started, as far as it can be known.
    pub introduced: bool,
    /// When a look first saw it mounted.
    pub mounted: Option<Boottime>,
    /// Nobody was found to hold its descriptor, and it was asked for a sign of life for that.
    pub sought: bool,
    /// When it was last probed because an application got an error.
    pub hinted: Option<Boottime>,
    /// When it was last found to hang, and what waited longest then.
    pub hangs_since: Option<Boottime>,
    pub oldest: Option<WaitingRequest>,
    /// The agent aborts it, because it hangs.
    pub being_freed: bool,
    /// Since when it is dead.
    pub died: Option<Boottime>,
    pub healing: Option<Healing>,
    /// How its daemon was started, read while it ran.
    pub launch: Option<Arc<Launch>>,
    /// Its machine asked who holds the descriptor.
    pub asks_holders: bool,
    /// It was asked for a first sign of life.
    pub looked_at: bool,
    /// Through which mount it was asked last.
    pub asked: Option<MountTarget>,
    /// That mount was gone, or there was none to ask through.
    pub lost: bool,
    /// It was asked for a sign of life and gave none in time.
    pub silent: bool,
    /// A look found it under the number of another one, to which its INIT may have been attributed.
    pub unheard: bool,
    /// Others cover all its mounts: nobody can reach it by a path, to use it or to probe it.
    pub hidden: bool,
    /// The policy says to leave it alone.
    pub ignored: bool,
}

impl Connection {
    pub fn new(id: ConnectionId, origin: Origin) -> Self {
        Self {
            id,
            machine: Machine::new(id, origin),
            mounts: Vec::new(),
            last_mounts: Vec::new(),
            fs_type: None,
            source: None,
            daemon: None,
            untold: Vec::new(),
            told: false,
            introduced: false,
            mounted: None,
            sought: false,
            hinted: None,
            hangs_since: None,
            oldest: None,
            being_freed: false,
            died: None,
            healing: None,
            launch: None,
            asks_holders: false,
            looked_at: false,
            asked: None,
            lost: false,
            silent: false,
            unheard: false,
            hidden: false,
            ignored: false,
        }
    }

    /// Takes over what a look at the mounts saw of it.
    pub fn set_mounts(&mut self, mounts: Vec<Mount>) {
        if let Some(mount) = primary(&mounts) {
            self.fs_type = Some(mount.fs_type.clone());
            self.source = Some(mount.source.clone());
        }
        let before = std::mem::replace(&mut self.mounts, mounts);
        if !self.mounts.is_empty() {
            self.last_mounts.clear();
        } else if !before.is_empty() {
            self.last_mounts = before;
        }
    }

    /// It was last seen in the agent's mount namespace.
    pub fn is_here(&self, own: NamespaceId) -> bool {
        self.mounts.iter().any(|mount| mount.namespace == own)
    }

    /// It was last seen in other mount namespaces only: changes there are not notified.
    pub fn is_elsewhere(&self, own: NamespaceId) -> bool {
        self.is_mounted_beside(own) && !self.is_here(own)
    }

    /// It is mounted in other mount namespaces, too.
    pub fn is_mounted_beside(&self, own: NamespaceId) -> bool {
        self.mounts.iter().any(|mount| mount.namespace != own)
    }

    /// It may serve, or serve again.
    pub fn is_up(&self) -> bool {
        !self.hidden && matches!(self.machine.state(), State::Created | State::Ready | State::Hung)
    }

    /// It is dead and still mounted.
    pub fn is_down(&self) -> bool {
        matches!(self.machine.state(), State::Dead | State::Recovering | State::Failed)
    }

    /// It answers.
    pub fn serves(&self) -> bool {
        self.machine.state() == State::Ready
    }

    /// A worker is at it.
    pub fn is_being_healed(&self) -> bool {
        self.healing.as_ref().is_some_and(Healing::is_under_way)
    }

    /// Its mounts, or the last that it had.
    pub fn known_mounts(&self) -> &[Mount] {
        if self.mounts.is_empty() { &self.last_mounts } else { &self.mounts }
    }

    /// What happened to it, as it is told.
    pub fn transition(&self, kind: TransitionKind, backend: BackendKind, detection: Option<Duration>) -> Transition {
        // Who is dead without a mount, after `umount -l`, hurts nobody there any more.
        let mounts = if matches!(kind, TransitionKind::Dead(_)) { &self.mounts } else { self.known_mounts() };
        let oldest_request = self.oldest.clone().filter(|_| matches!(kind, TransitionKind::Hung(_)));
        Transition {
            kind,
            connection: self.id,
            backend,
            fs_type: self.fs_type.clone(),
            source: self.source.clone(),
            daemon: self.daemon.clone(),
            detection,
            aborted_requests: None,
            oldest_request,
            mounts: mounts.iter().map(transition_mount).collect(),
        }
    }

    /// The mount through which it is probed, preferring the agent's own namespace; elsewhere it is reached through
    /// `/proc/PID/root` of a process there. A mount that another one covers can't be reached by its path.
    pub fn probe_target(
        &self,
        own: NamespaceId,
        covered: &dyn Fn(&Mount) -> bool,
        namespaces: &BTreeMap<NamespaceId, u32>,
    ) -> Option<ProbeTarget> {
        let reachable = |mount: &&Mount| !mount.root_deleted && !covered(mount);
        if let Some(here) = self.mounts.iter().filter(|mount| mount.namespace == own).find(reachable) {
            return Some(ProbeTarget::from(here));
        }
        let through = |mount: &Mount| Some(ProbeTarget::through(*namespaces.get(&mount.namespace)?, mount));
        self.mounts.iter().filter(reachable).find_map(through)
    }

    /// How it fares, as far as anybody asked: the contract's state. A connection that is detached or gone has no mount to be
    /// listed with. `in_flight` are the requests without an answer, where somebody counts.
    pub fn fares(&self, in_flight: Option<u64>) -> Option<ConnectionState> {
        let told = ConnectionState::of(self.machine.state())?;
        let seen_to_serve = self.machine.daemons().any(|daemon| daemon.alive);
        Some(match told {
            // Once nothing waits any more, it may have answered since.
            ConnectionState::Created if self.silent && in_flight != Some(0) => ConnectionState::Hung,
            // Nobody asks it: what is known is what the kernel hooks told, and of a daemon that ended only that.
            ConnectionState::Created if self.ignored => ConnectionState::Unknown,
            ConnectionState::Ready | ConnectionState::Hung if self.ignored && !seen_to_serve => {
                ConnectionState::Unknown
            }
            told => told,
        })
    }
}

/// Of several mounts of one connection, the oldest of the whole file system: the one that the daemon made. Ids grow
/// with time as far as they are unique; mountinfo's are only nearly so, and serve where there is nothing better.
pub(super) fn primary(mounts: &[Mount]) -> Option<&Mount> {
    mounts.iter().min_by_key(|mount| (!mount.is_whole(), mount.unique_id.is_none(), mount.unique_id, mount.id))
}

pub(super) fn transition_mount(mount: &Mount) -> TransitionMount {
    TransitionMount {
        namespace: mount.namespace,
        mount_point: mount.mount_point.clone(),
        root: mount.root.clone(),
        flags: mount.flags,
    }
}
