//! The state of everything the agent knows, and what each event changes in it. No I/O: what has to be done comes out as
//! [`Action`]s.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use super::candidates::Candidate;
use super::connection::Connection;
use super::daemons::{HoldersAsked, Watched};
use super::event::{Action, Event, Scope};
use super::healing::Volume;
use super::telling::outcome_of;
use crate::health::{DaemonEnd, ExitSource, Input, Origin, State, Timer};
use crate::kernel::KernelEvent;
use crate::model::{
    AbortCall, AbortCause, BackendKind, Boottime, ConnectionId, DeviceNumber, Mount, MountId, NamespaceId, Process,
};
use crate::mounts::ChildMount;
use crate::policy::{Decision, Mode, Policy, Subject};
use crate::recovery::Features;
use crate::worker::ProbeOutcome;

/// An application that gets errors in a loop causes one probe a connection in this time, not one an error.
const HINT_INTERVAL: Duration = Duration::from_secs(1);

/// What does not change while the agent runs.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// What detection rests on.
    pub backend: BackendKind,
    /// Whether the answers to requests are seen: the kernel tells of each INIT.
    pub answers: bool,
    /// The agent's own mount namespace: the one that it heals.
    pub own: NamespaceId,
    /// What this kernel's mount calls can do.
    pub features: Features,
    /// Whether the policy's `heal` is carried out; `watch` only tells.
    pub heal: bool,
    /// Whether the agent may mount: without, every recovery is given up at once.
    pub may_mount: bool,
    /// When the system call hook is attached.
    pub vfs_errors: VfsErrors,
}

/// When the hook on every system call's end is attached: it costs all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VfsErrors {
    /// While a connection is there whose death nothing else would show, or one is dead and not healed.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The state. One task owns it.
#[derive(Debug)]
pub struct Node {
    pub(super) setting: Setting,
    /// When the event came that is being handled.
    pub(super) now: Boottime,
    pub(super) policy: Policy,
    pub(super) connections: BTreeMap<ConnectionId, Connection>,
    /// Which connection has a number now.
    current: HashMap<DeviceNumber, ConnectionId>,
    /// How many connections had a number so far.
    epochs: HashMap<DeviceNumber, u64>,
    /// The daemons that are watched, and what they serve.
    pub(super) processes: HashMap<u32, Watched>,
    /// Processes that hold a descriptor of some connection, nobody knows which (no `fuse_connection` in fdinfo), and how
    /// they were started, once that is read.
    pub(super) candidates: HashMap<u32, Option<Candidate>>,
    pub(super) namespaces: BTreeMap<NamespaceId, u32>,
    /// Those that were made for daemons that the agent started. What propagates there is nobody's mount.
    pub(super) private: HashMap<NamespaceId, Boottime>,
    /// Recoveries that are about to make such a namespace: one that a look finds meanwhile may be theirs.
    pub(super) isolating: HashSet<ConnectionId>,
    /// A look found one, which has to be looked at again.
    pub(super) strangers: bool,
    /// Mounts of the last look that had no unique id.
    pub(super) nameless: HashSet<(DeviceNumber, MountId)>,
    /// Unique ids of mounts whose connection has lost its number to another one, and since when that is known: a look
    /// that began before may still show them.
    pub(super) former: HashMap<u64, Boottime>,
    /// Mounts that another one covers at the same place.
    pub(super) covered: HashSet<(NamespaceId, MountId)>,
    pub(super) children: Vec<ChildMount>,
    pub(super) volumes: HashMap<PathBuf, Volume>,
    /// Inputs that the handling of an event gave rise to.
    pub(super) pending: VecDeque<(ConnectionId, Input)>,
    pub(super) actions: Vec<Action>,
    pub(super) holders: HoldersAsked,
    /// The kernel says of a descriptor whose it is (Linux 6.18): it has done so once.
    pub(super) names_holders: bool,
    vfs_wanted: bool,
    /// A look at the own mount table is under way or about to be.
    pub(super) looking: bool,
    /// The machine was looked at once.
    pub(super) looked: bool,
}

impl Node {
    /// Knows nothing yet: the first event to feed it is a look at everything.
    pub fn new(setting: Setting, policy: Policy) -> Self {
        Self {
            setting,
            now: Boottime::default(),
            policy,
            connections: BTreeMap::new(),
            current: HashMap::new(),
            epochs: HashMap::new(),
            processes: HashMap::new(),
            candidates: HashMap::new(),
            namespaces: BTreeMap::new(),
            private: HashMap::new(),
            isolating: HashSet::new(),
            strangers: false,
            nameless: HashSet::new(),
            former: HashMap::new(),
            covered: HashSet::new(),
            children: Vec::new(),
            volumes: HashMap::new(),
            pending: VecDeque::new(),
            actions: Vec::new(),
            holders: HoldersAsked::No,
            names_holders: false,
            vfs_wanted: false,
            looking: false,
            looked: false,
        }
    }

    /// What an event changes, and what has to be done about it.
    pub fn handle(&mut self, now: Boottime, event: Event) -> Vec<Action> {
        self.now = now;
        match event {
            Event::Kernel(event) => self.kernel(event),
            Event::Lost => self.rebuild(),
            Event::Scanned { snapshot, scope, began } => self.scanned(*snapshot, scope, began),
            Event::Requests(requests) => self.requests(requests),
            Event::HoldersFound(holders) => self.holders_found(holders),
            Event::AbortWritten { device, .. } if self.is_being_freed(device) => {}
            Event::AbortWritten { device, actor, at } => self.input_of(device, Input::AbortWritten { at, actor }),
            Event::Freed { connection, result, at } => self.freed(connection, result, at),
            Event::ProcessEnded { pid, status, at } => self.process_ended(pid, status, at),
            Event::Remembered { pid, record } => self.remembered(pid, record.as_deref()),
            Event::Probed { connection, outcome, at } => self.probed(connection, outcome, at),
            Event::Control { connection, present } => self.control(connection, present),
            Event::Timer { connection, timer } => self.timer(connection, timer),
            Event::Retry { connection } => self.attempt(connection),
            Event::Progress { connection, progress } => self.progress(connection, progress),
        }
        self.settle();
        std::mem::take(&mut self.actions)
    }

    /// Whether the system call hook is wanted as things stand.
    pub fn wants_vfs_errors(&self) -> bool {
        self.vfs_wanted
    }

    fn kernel(&mut self, event: KernelEvent) {
        match event {
            KernelEvent::Ready { at: _, device, daemon } => {
                let id = self.initialised(device);
                self.daemon_seen(id, daemon);
                self.push(id, Input::Initialised);
            }
            KernelEvent::DaemonSeen { at: _, device, daemon } => {
                let id = self.current_or_new(device);
                self.daemon_seen(id, daemon);
            }
            // Where the abort itself is seen, the end of requests says nothing more: of one of several descriptors it is
            // no death.
            KernelEvent::RequestsAborted { .. } if self.setting.backend.sees_aborts() => {}
            // The agent's own doing.
            KernelEvent::RequestsAborted { device, .. } if self.is_being_freed(device) => {}
            KernelEvent::RequestsAborted { at, device, by, exiting, kernel_thread, syscall } => {
                let call = if kernel_thread { Some(AbortCall::KernelThread) } else { syscall };
                self.input_of(device, Input::RequestsAborted { at, by, exiting, call });
            }
            KernelEvent::Busy { at: _ } => self.actions.push(Action::WatchRequests),
            KernelEvent::Aborted { at, device, by, cause } => self.aborted(at, device, by, cause),
            KernelEvent::DaemonExited { at, daemon, status, sender, oom } => {
                let end = Some(DaemonEnd { status, sender, oom });
                self.exited(daemon.pid, at, ExitSource::Hook, end.as_ref());
            }
            KernelEvent::VfsError { at, device: Some(device), process, .. } => self.refused(at, device, process.pid),
            KernelEvent::VfsError { at, device: None, process, .. } => self.vfs_error(at, process.pid),
            KernelEvent::ForcedUnmount { at, process } => {
                for id in self.living() {
                    self.push(id, Input::ForcedUnmount { at, actor: Some(process.clone()) });
                }
            }
        }
    }

    /// The connection whose INIT was answered just now: the one that was waiting for it, or else a new one that took
    /// over the number of one that is gone.
    fn initialised(&mut self, device: DeviceNumber) -> ConnectionId {
        if let Some(id) = self.current.get(&device).copied() {
            let waits = |known: &Connection| {
                let created = known.machine.state() == State::Created && !known.machine.is_severed();
                created && !known.is_elsewhere(self.setting.own)
            };
            if self.connections.get(&id).is_some_and(waits) {
                return id;
            }
            self.supersede(id);
        }
        self.create(device)
    }

    pub(super) fn current_or_new(&mut self, device: DeviceNumber) -> ConnectionId {
        match self.current.get(&device) {
            Some(id) => *id,
            None => self.create(device),
        }
    }

    /// The connection that serves under this number. One that is dead has lost it: the kernel gives a number again only
    /// when the superblock is gone.
    pub(super) fn serving_or_new(&mut self, device: DeviceNumber) -> ConnectionId {
        if let Some(id) = self.current(device)
            && self.connections.get(&id).is_some_and(Connection::is_down)
        {
            self.supersede(id);
        }
        self.current_or_new(device)
    }

    pub(super) fn current(&self, device: DeviceNumber) -> Option<ConnectionId> {
        self.current.get(&device).copied()
    }

    pub(super) fn create(&mut self, device: DeviceNumber) -> ConnectionId {
        let epoch = self.epochs.entry(device).or_default();
        *epoch += 1;
        let id = ConnectionId { device, epoch: *epoch };
        // Without a hook on INIT, nobody knows of a new connection whether it was ever answered.
        let watched = self.looked && self.setting.answers;
        let origin = if watched { Origin::Seen } else { Origin::Found };
        self.current.insert(device, id);
        self.connections.insert(id, Connection::new(id, origin));
        id
    }

    /// Another connection has the number now: this one's superblock is gone.
    pub(super) fn supersede(&mut self, id: ConnectionId) {
        tracing::debug!(connection = %id, "another connection has its number now");
        if let Some(connection) = self.connections.get_mut(&id) {
            let ids = connection.known_mounts().iter().filter_map(|mount| mount.unique_id);
            self.former.extend(ids.map(|id| (id, self.now)));
            connection.set_mounts(Vec::new());
            self.push(id, Input::Mounts { count: 0, control: false });
            self.give_up_waiting(id);
            self.drain();
        }
        if self.current.get(&id.device) == Some(&id) {
            self.current.remove(&id.device);
        }
    }

    fn aborted(&mut self, at: Boottime, device: DeviceNumber, by: Process, cause: AbortCause) {
        let own = self.setting.own;
        let elsewhere = |id| self.connections.get(&id).is_some_and(|known: &Connection| known.is_elsewhere(own));
        if cause == AbortCause::LastUnmount && self.current(device).is_some_and(elsewhere) {
            // Changes of other namespaces' mount tables are not notified of.
            self.actions.push(Action::Scan(Scope::Everything));
        }
        let freed = cause == AbortCause::Call(AbortCall::Write) && self.is_being_freed(device);
        let cause = if freed { AbortCause::Stalled } else { cause };
        self.input_of(device, Input::Aborted { at, by, cause });
    }

    /// A dead connection refused a request.
    fn refused(&mut self, at: Boottime, device: DeviceNumber, pid: u32) {
        let known = self.current(device).and_then(|id| self.connections.get(&id));
        let fs_type = known.and_then(|known| known.fs_type.clone());
        self.actions.push(Action::CountVfsErrors { pid, device: Some(device), fs_type });
        // The abort went unseen.
        self.input_of(device, Input::AccessFailed { at });
    }

    fn vfs_error(&mut self, at: Boottime, pid: u32) {
        let dead: Vec<_> = self.connections.values().filter(|known| known.is_down()).collect();
        let explained = !dead.is_empty();
        let types: HashSet<_> = dead.iter().filter_map(|known| known.fs_type.clone()).collect();
        let fs_type = if types.len() == 1 { types.into_iter().next() } else { None };
        self.actions.push(Action::CountVfsErrors { pid, device: None, fs_type });
        // One that is known to be dead is the likely cause. Then only those are asked whose death nothing else would show.
        for id in if explained { self.without_daemon() } else { self.living() } {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.hinted.is_none_or(|last| at.since(last) >= HINT_INTERVAL) {
                connection.hinted = Some(at);
                self.push(id, Input::AccessFailed { at });
            }
        }
    }

    fn probed(&mut self, id: ConnectionId, outcome: ProbeOutcome, at: Boottime) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let first_look = connection.machine.state() == State::Created;
        connection.lost = outcome == ProbeOutcome::Gone;
        connection.silent = outcome == ProbeOutcome::TimedOut;
        self.push(id, Input::Probed { outcome: outcome_of(outcome), at, first_look });
        self.ask_elsewhere(id);
    }

    fn timer(&mut self, id: ConnectionId, timer: Timer) {
        self.push(id, Input::Timer(timer));
        if timer == Timer::Settle {
            self.actions.push(Action::CheckControl(id));
        }
    }

    fn control(&mut self, id: ConnectionId, present: bool) {
        let Some(connection) = self.connections.get(&id) else { return };
        let control = present && self.is_current(id);
        self.push(id, Input::Mounts { count: connection.mounts.len(), control });
        self.give_up_waiting(id);
    }

    /// Without mounts nothing is left to recover. An attempt under way finds out by itself.
    fn give_up_waiting(&mut self, id: ConnectionId) {
        if self.connections.get(&id).is_some_and(|known| known.mounts.is_empty() && !known.is_being_healed()) {
            self.push(id, Input::RecoveryFailed { gave_up: false });
        }
    }

    /// After a loss: look at everything again, and ask every connection for a sign of life.
    fn rebuild(&mut self) {
        self.actions.push(Action::Scan(Scope::Everything));
        self.ask_for_holders();
        for id in self.living() {
            self.push(id, Input::AccessFailed { at: self.now });
        }
    }

    pub(super) fn is_current(&self, id: ConnectionId) -> bool {
        self.current.get(&id.device) == Some(&id)
    }

    fn living(&self) -> Vec<ConnectionId> {
        self.connections.values().filter(|known| known.is_up()).map(|known| known.id).collect()
    }

    fn input_of(&mut self, device: DeviceNumber, input: Input) {
        if let Some(id) = self.current(device) {
            self.push(id, input);
        }
    }

    pub(super) fn push(&mut self, id: ConnectionId, input: Input) {
        self.pending.push_back((id, input));
    }

    fn settle(&mut self) {
        self.drain();
        self.forget_the_gone();
        let wanted = match self.setting.vfs_errors {
            VfsErrors::On => true,
            VfsErrors::Off => false,
            VfsErrors::Auto => {
                !self.without_daemon().is_empty()
                    || self.connections.values().any(|known| known.is_down() && !known.ignored)
            }
        };
        if std::mem::replace(&mut self.vfs_wanted, wanted) != wanted {
            self.actions.push(Action::VfsErrorsWishChanged);
        }
    }

    /// What the policy says of a mount.
    pub(super) fn decision(&self, mount: &Mount) -> &Decision {
        self.policy.decide(&Subject { mount_point: &mount.mount_point, fs_type: &mount.fs_type, source: &mount.source })
    }

    /// Whether another mount hangs on the very same place, so that its path leads elsewhere.
    pub(super) fn is_covered(&self, mount: &Mount) -> bool {
        self.covered.contains(&(mount.namespace, mount.id))
    }

    pub(super) fn is_ignored(&self, mounts: &[Mount]) -> bool {
        !mounts.is_empty() && mounts.iter().all(|mount| self.decision(mount).mode == Mode::Ignore)
    }

    fn forget_the_gone(&mut self) {
        let gone: Vec<_> = self
            .connections
            .values()
            .filter(|known| known.machine.state() == State::Gone && !known.is_being_healed())
            .map(|known| known.id)
            .collect();
        for id in gone {
            self.connections.remove(&id);
            if self.is_current(id) {
                self.current.remove(&id.device);
                self.actions.push(Action::ForgetConnection(id.device));
            }
            self.processes.retain(|pid, watched| {
                watched.serves.remove(&id);
                let needed = !watched.serves.is_empty();
                if !needed {
                    self.actions.push(Action::ForgetProcess(*pid));
                }
                needed
            });
        }
    }

    pub(super) fn set_places(
        &mut self,
        namespaces: Option<BTreeMap<NamespaceId, u32>>,
        covered: HashSet<(NamespaceId, MountId)>,
        children: Vec<ChildMount>,
    ) {
        self.namespaces = namespaces.unwrap_or_else(|| std::mem::take(&mut self.namespaces));
        self.covered = covered;
        self.children = children;
    }
}
