//! The one task that owns the state: it takes what comes, feeds the [`Node`], and carries out what the node asks for.
//! Nothing here waits for anything but the next event.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, unbounded_channel};
use tokio::task::AbortHandle;

use super::event::{Action, Event, Scope};
use super::node::{Node, Setting, VfsErrors};
use super::sources::{self, Looker, Message, Queue};
use crate::health::Timer;
use crate::kernel::{Counters, Detection, EventStream, Healing, HookState, HookStatus, Kernel, KernelEvent, SYS_EXIT};
use crate::model::{Boottime, ConnectionId, DeviceNumber, Transition, TransitionKind};
use crate::mounts::{AbortWatch, ControlFs, MountWatch, Problem};
use crate::policy::Policy;
use crate::recovery::{Features, RecoverJob};
use crate::telemetry::Metrics;
use crate::telemetry::query::Query;
use crate::telemetry::status::Loss;
use crate::worker::{Pool, PoolConfig, ProbeTarget};

/// How long a sign of life may take. A healthy daemon answers statfs in microseconds to seconds (it may ask a remote
/// service); one that takes longer is slow or hung, which is no death, and costs nothing but a waiting worker.
const PROBE_DEADLINE: Duration = Duration::from_secs(10);

/// The system call hook follows the wish for it only when that has lasted so long: most outages are over sooner.
const VFS_ERRORS_DELAY: Duration = Duration::from_millis(500);

/// How often the errors that applications got are read while there are any.
const VFS_ERRORS_DRAIN: Duration = Duration::from_millis(200);

/// The kernel programs keep what is gone for this long.
const FORGET_DELAY: Duration = Duration::from_secs(1);

/// After a look that saw nothing at all, for want of memory or descriptors perhaps.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// So many different problems of looks are logged in full; further ones are counted.
const REPORTED: usize = 256;

/// What the agent needs to start.
pub struct Options {
    /// The kernel hooks, loaded.
    pub detection: Detection,
    /// What to heal.
    pub policy: Policy,
    /// Whether the policy is carried out; `watch` only tells.
    pub heal: bool,
    /// When the system call hook is attached.
    pub vfs_errors: VfsErrors,
    /// Who is told of each transition.
    pub tell: Box<dyn Fn(&Transition)>,
    /// Counts it all.
    pub metrics: Metrics,
    /// Questions from the HTTP server.
    pub queries: mpsc::Receiver<Query>,
    /// What the output could not write.
    pub output_losses: Box<dyn Fn() -> Vec<Loss>>,
}

/// Why the agent can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No workers.
    #[error("worker processes can't be started: {0}; probes and mounts are their work")]
    Workers(#[source] io::Error),
    /// No ring buffer.
    #[error("the kernel programs' ring buffer can't be read: {0}; --backend portable does without")]
    Events(#[source] io::Error),
    /// No mount table.
    #[error("the mount table can't be read: {0}; is /proc mounted?")]
    Mounts(#[source] io::Error),
}

/// The running agent.
pub struct Shell {
    pub(super) node: Node,
    pub(super) kernel: Option<Kernel>,
    pub(super) counters: Option<Counters>,
    pub(super) hooks: Vec<HookStatus>,
    pub(super) metrics: Metrics,
    pub(super) pool: Pool,
    pub(super) control: Option<ControlFs>,
    pub(super) stream: Option<EventStream>,
    queue: Queue,
    messages: UnboundedReceiver<Message>,
    queries: mpsc::Receiver<Query>,
    looker: Looker,
    tell: Box<dyn Fn(&Transition)>,
    pub(super) output_losses: Box<dyn Fn() -> Vec<Loss>>,
    timers: HashMap<(ConnectionId, Timer), AbortHandle>,
    processes: HashMap<u32, AbortHandle>,
    lost: u64,
    /// Daemons and connections that the kernel programs may forget.
    forgotten: (HashSet<u32>, HashSet<DeviceNumber>),
    /// By process, and connection where it is known, the file system type that its errors are counted for.
    pub(super) attributed: HashMap<(u32, Option<DeviceNumber>), Option<String>>,
    draining: bool,
    /// Requests on their way are being watched.
    pub(super) watching: bool,
    /// The agent's own name, which its workers share.
    name: Option<String>,
    /// Errors of which it was not known when they were read whose they are: the event may be on its way.
    pub(super) unattributed: Vec<crate::kernel::VfsErrors>,
    /// What looks at the mounts could not see, by reason: how often.
    pub(super) unseen: BTreeMap<&'static str, u64>,
    reported: HashSet<String>,
}

impl Shell {
    /// Starts the workers and the watches. Has to be called within a tokio runtime.
    ///
    /// # Errors
    /// Without workers or a mount table there is nothing it can do.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let Options { detection, policy, heal, vfs_errors, tell, metrics, queries, output_losses } = options;
        let answers = detection.sees_answers();
        let Detection { backend, mut kernel, hooks } = detection;
        let (queue, messages) = unbounded_channel();
        let pool = Pool::start(PoolConfig::default()).map_err(StartError::Workers)?;
        let own = crate::mounts::own_namespace().map_err(StartError::Mounts)?;
        let watch = MountWatch::open().map_err(StartError::Mounts)?;
        tokio::spawn(sources::watch_mounts(watch, queue.clone()));
        let control = ControlFs::open().inspect_err(|error| tracing::warn!(%error, "no FUSE control file system")).ok();
        if let Some(control) = &control {
            match AbortWatch::open(control) {
                Ok(watch) => drop(tokio::spawn(sources::watch_aborts(watch, queue.clone()))),
                Err(error) => tracing::warn!(%error, "who aborts a connection is not seen"),
            }
        }
        let stream = match &mut kernel {
            Some(kernel) => kernel.take_events().map_err(StartError::Events)?,
            None => None,
        };
        let may_mount = !matches!(Healing::read(), Healing::Impossible(_));
        let setting = Setting { backend, answers, own, features: Features::detect(), heal, may_mount, vfs_errors };
        Ok(Self {
            node: Node::new(setting, policy),
            counters: kernel.as_ref().map(Kernel::counters),
            stream,
            kernel,
            hooks,
            metrics,
            pool,
            control,
            looker: Looker::new(queue.clone()),
            queue,
            messages,
            queries,
            tell,
            output_losses,
            timers: HashMap::new(),
            processes: HashMap::new(),
            lost: 0,
            forgotten: Default::default(),
            attributed: HashMap::new(),
            draining: false,
            watching: false,
            name: crate::mounts::comm(std::process::id()),
            unattributed: Vec::new(),
            unseen: BTreeMap::new(),
            reported: HashSet::new(),
        })
    }

    /// Runs until `stop` is ready. Nothing is unmounted on the way out.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut batch = Vec::new();
        self.looker.look(Scope::Everything);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                read = next_batch(&mut self.stream, &mut batch) => self.kernel_read(read),
                Some(message) = self.messages.recv() => {
                    // What the kernel said before is told before: a daemon's exit with its cause precedes the pidfd.
                    if let Some(stream) = &mut self.stream {
                        stream.take_ready(&mut batch);
                    }
                    self.kernel_events(&mut batch);
                    self.message(message);
                }
                Some(query) = self.queries.recv() => self.answer(query),
            }
            self.kernel_events(&mut batch);
        }
    }

    fn kernel_read(&mut self, read: io::Result<()>) {
        if let Err(error) = read {
            tracing::error!(%error, "the kernel's events can't be read any more");
            self.stream = None;
        }
    }

    fn kernel_events(&mut self, batch: &mut Vec<KernelEvent>) {
        if batch.is_empty() {
            return;
        }
        for event in batch.drain(..) {
            if self.is_our_own(&event) || self.is_about_a_socket(&event) {
                // The process's next error is told only when this one has been read.
                self.drain_later();
            } else {
                self.handle(Event::Kernel(event));
            }
        }
        let lost = self.counters.as_ref().map_or(0, Counters::events_lost);
        if std::mem::replace(&mut self.lost, lost) < lost {
            tracing::warn!(lost, "kernel events were lost; the state is rebuilt");
            self.handle(Event::Lost);
        }
    }

    /// The agent's own workers ask the dead. They are known by their name, which is the agent's.
    fn is_our_own(&self, event: &KernelEvent) -> bool {
        let KernelEvent::VfsError { process, .. } = event else { return false };
        process.comm.is_some() && process.comm == self.name
    }

    /// ENOTCONN is what sockets say, too: a call on a descriptor that is one concerns no file system.
    fn is_about_a_socket(&self, event: &KernelEvent) -> bool {
        let KernelEvent::VfsError { process, descriptor: Some(descriptor), .. } = event else { return false };
        let link = std::fs::read_link(format!("/proc/{}/fd/{descriptor}", process.pid));
        link.is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Event(event) => {
                if let Event::Timer { connection, timer } = event {
                    self.timers.remove(&(connection, timer));
                }
                self.handle(event);
            }
            Message::MountsChanged => self.looker.changed(),
            Message::Calm => self.looker.calm(),
            Message::LookOver(scanner, seen) => {
                // Before what was seen: by then it has to be known whether another look follows.
                self.looker.over(scanner);
                match *seen {
                    Ok(event) => self.handle(event),
                    Err(error) => self.seen_badly(vec![Problem::Own(error)]),
                }
            }
            Message::VfsErrorsDue => self.follow_vfs_wish(),
            Message::RequestsDue => self.watch_requests(),
            Message::ForgetDue => self.forget(),
            Message::DrainVfsErrors => {
                self.draining = false;
                self.drain_vfs_errors();
            }
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        self.node.looking = self.looker.is_looking_here();
        for action in self.node.handle(Boottime::now(), event) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Tell(transition) => self.tell(*transition),
            Action::Probe { connection, target } => self.probe(connection, target),
            Action::WatchRequests => self.requests_are_pending(),
            Action::Free { connection, target } => sources::free(connection, target, self.queue.clone()),
            Action::FindHolders => sources::find_holders(self.queue.clone()),
            Action::Scan(scope) => self.looker.look(scope),
            Action::Report(problems) => self.seen_badly(problems),
            Action::CheckControl(connection) => self.check_control(connection),
            Action::Remember(pid) => sources::remember(pid, self.queue.clone()),
            Action::WatchProcess { pid, device } => {
                if let Some(kernel) = &mut self.kernel
                    && let Err(error) = kernel.watch_daemon(pid, Some(device))
                {
                    tracing::warn!(pid, %error, "the kernel programs don't know of a daemon");
                }
                self.processes.entry(pid).or_insert_with(|| sources::watch_process(pid, self.queue.clone()));
            }
            Action::ForgetProcess(pid) => {
                self.forget_later();
                self.forgotten.0.insert(pid);
                if let Some(watch) = self.processes.remove(&pid) {
                    watch.abort();
                }
            }
            Action::ForgetConnection(device) => {
                self.forget_later();
                self.forgotten.1.insert(device);
            }
            Action::Arm { connection, timer, after } => self.arm(connection, timer, after),
            Action::Disarm { connection, timer } => {
                if let Some(armed) = self.timers.remove(&(connection, timer)) {
                    armed.abort();
                }
            }
            Action::Recover { connection, job } => self.recover(connection, *job),
            Action::RetryAfter { connection, after } => {
                self.send_later(after, Event::Retry { connection }.into());
            }
            Action::VfsErrorsWishChanged => drop(self.send_later(VFS_ERRORS_DELAY, Message::VfsErrorsDue)),
            Action::CountVfsErrors { pid, device, fs_type } => {
                self.attributed.insert((pid, device), fs_type);
                self.drain_later();
            }
        }
    }

    /// Each problem is counted, and logged once: the next look meets it again.
    fn seen_badly(&mut self, problems: Vec<Problem>) {
        let blind = problems.iter().any(|problem| matches!(problem, Problem::Own(_) | Problem::Proc(_)));
        for problem in problems {
            if problem.is_of_the_moment() {
                *self.unseen.entry(problem.reason()).or_default() += 1;
            }
            let text = problem.to_string();
            if self.reported.len() < REPORTED && self.reported.insert(text.clone()) {
                tracing::warn!("{}", crate::text::printable(text.as_ref()));
            }
        }
        if blind {
            self.send_later(LOOK_AGAIN, Message::Calm);
        }
    }

    fn tell(&mut self, mut transition: Transition) {
        if matches!(transition.kind, TransitionKind::Dead(_)) {
            let device = transition.connection.device;
            transition.aborted_requests = self.counters.as_ref().and_then(|counters| counters.aborted(device));
        }
        if let Some(process) = transition.oldest_request.as_mut().and_then(|request| request.process.as_mut()) {
            process.comm = crate::mounts::comm(process.pid);
        }
        self.metrics.transition(&transition);
        (self.tell)(&transition);
    }

    fn probe(&self, connection: ConnectionId, target: ProbeTarget) {
        let (pool, queue) = (self.pool.clone(), self.queue.clone());
        tokio::spawn(async move {
            let outcome = pool.probe(target, PROBE_DEADLINE).await;
            let _ = queue.send(Event::Probed { connection, outcome, at: Boottime::now() }.into());
        });
    }

    fn check_control(&mut self, connection: ConnectionId) {
        let present = self.control.as_ref().map(|control| control.contains(connection.device));
        // Without the control file system nobody can tell a detached connection from one that is gone.
        let present = present.is_some_and(|present| present.unwrap_or(false));
        let _ = self.queue.send(Event::Control { connection, present }.into());
    }

    fn arm(&mut self, connection: ConnectionId, timer: Timer, after: Duration) {
        let armed = self.send_later(after, Event::Timer { connection, timer }.into());
        if let Some(before) = self.timers.insert((connection, timer), armed) {
            before.abort();
        }
    }

    pub(super) fn send_later(&self, after: Duration, message: Message) -> AbortHandle {
        let queue = self.queue.clone();
        let task = tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let _ = queue.send(message);
        });
        task.abort_handle()
    }

    fn recover(&self, connection: ConnectionId, job: RecoverJob) {
        let mut steps = self.pool.recover(job);
        let queue = self.queue.clone();
        tokio::spawn(async move {
            while let Some(progress) = steps.recv().await {
                let _ = queue.send(Event::Progress { connection, progress }.into());
            }
        });
    }

    fn drain_later(&mut self) {
        if !std::mem::replace(&mut self.draining, true) {
            self.send_later(VFS_ERRORS_DRAIN, Message::DrainVfsErrors);
        }
    }

    /// Many can end at once, and each forgetting walks through the kernel's maps: they are forgotten together.
    fn forget_later(&self) {
        if self.forgotten.0.is_empty() && self.forgotten.1.is_empty() {
            self.send_later(FORGET_DELAY, Message::ForgetDue);
        }
    }

    fn forget(&mut self) {
        let (mut pids, mut devices) = std::mem::take(&mut self.forgotten);
        // Numbers are reused: what serves or is served again by now stays.
        pids.retain(|pid| !self.processes.contains_key(pid));
        devices.retain(|device| self.node.current(*device).is_none());
        if let Some(kernel) = &mut self.kernel {
            kernel.forget(&pids, &devices);
        }
    }

    fn follow_vfs_wish(&mut self) {
        let wanted = self.node.wants_vfs_errors();
        let Some(kernel) = &mut self.kernel else { return };
        match kernel.set_vfs_errors(wanted) {
            Ok(()) => {
                for hook in self.hooks.iter_mut().filter(|hook| hook.name == SYS_EXIT) {
                    hook.status = if wanted { HookState::Attached } else { HookState::NotNeeded };
                }
            }
            Err(error) => tracing::warn!(%error, "errors that applications get are not seen"),
        }
    }
}

async fn next_batch(stream: &mut Option<EventStream>, batch: &mut Vec<KernelEvent>) -> io::Result<()> {
    match stream {
        Some(stream) => stream.next_batch(batch).await,
        None => std::future::pending().await,
    }
}
