//! A model of the machine that a node runs on: file systems, their daemons, numbers that are used again, and everybody
//! who answers the node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;
use crate::model::TransitionKind;
use crate::recovery::Bring;
use crate::worker::ProbeTarget;

/// A file system as it really is.
struct Served {
    number: u32,
    pid: u32,
    alive: bool,
    /// It is mounted in a namespace that was made for its daemon, too.
    private: bool,
}

/// What will be said to the node, or done, from this moment on.
struct Later {
    due: Boottime,
    what: What,
}

enum What {
    Say(Event),
    Probe(ConnectionId, ProbeTarget),
    Control(ConnectionId),
    Work(Work),
    /// The mount table has calmed down: all namespaces are looked at.
    Calm,
}

/// A worker's job, as far as it has got.
struct Work {
    connection: ConnectionId,
    job: RecoverJob,
    /// Which file system takes the place.
    replacement: Option<usize>,
    healed: usize,
}

pub(super) struct Machine {
    pub bench: Bench,
    hooks: bool,
    served: Vec<Served>,
    /// Whose each mount is, by unique id.
    whose: BTreeMap<u64, usize>,
    watched: BTreeSet<u32>,
    /// In the order in which they are told: what the hooks see, what the workers report.
    kernel: VecDeque<Event>,
    reports: VecDeque<Event>,
    later: Vec<Later>,
    wanted: Option<Scope>,
    /// Under way: what listmount(2) gave, then also what mountinfo showed.
    listed: Option<(Boottime, Scope, Vec<Mount>)>,
    read: Option<Look>,
    /// What was told, by connection.
    pub told: BTreeMap<ConnectionId, Vec<&'static str>>,
}

impl Machine {
    pub fn new(backend: BackendKind) -> Self {
        let features = Features { beneath: true, unique_id: true };
        Self {
            bench: Bench::new(backend, features, "defaults: { mode: heal, backoff: { giveUpAfter: 24h } }"),
            hooks: backend == BackendKind::Tracepoint,
            served: Vec::new(),
            whose: BTreeMap::new(),
            watched: BTreeSet::new(),
            kernel: VecDeque::new(),
            reports: VecDeque::new(),
            later: Vec::new(),
            wanted: Some(Scope::Everything),
            listed: None,
            read: None,
            told: BTreeMap::new(),
        }
    }

    fn in_use(&self, number: u32) -> bool {
        self.bench.mounts.iter().any(|mount| mount.device.minor == number)
            || self.served.iter().any(|served| served.number == number && served.private)
    }

    /// The lowest number that is free, as the kernel gives them.
    fn start(&mut self, private: bool) -> usize {
        let number = (45..).find(|number| !self.in_use(*number)).unwrap();
        let pid = 1_000 + u32::try_from(self.served.len()).unwrap();
        self.served.push(Served { number, pid, alive: true, private });
        if self.hooks {
            let at = self.bench.now;
            let ready = KernelEvent::Ready { at, device: device(number), daemon: process(pid) };
            self.kernel.push_back(Event::Kernel(ready));
        }
        self.served.len() - 1
    }

    pub fn mount(&mut self, place: &str) {
        let number = self.served.len();
        self.start(false);
        self.hang(number, place);
    }

    fn hang(&mut self, served: usize, place: &str) -> Mount {
        let mount = self.bench.mount(self.served[served].number, place);
        self.whose.insert(mount.unique_id.unwrap(), served);
        self.changed();
        mount
    }

    pub fn bind(&mut self, which: usize, place: &str) {
        if let Some(mount) = pick(&self.bench.mounts, which) {
            self.hang(self.served_by(mount), place);
        }
    }

    /// Copies it to the other namespace, where nobody notices.
    pub fn copy(&mut self, which: usize, place: &str) {
        if let Some(mount) = pick(&self.bench.mounts, which) {
            self.bench.mount_in(OTHER, mount.device.minor, place);
            self.stack();
        }
    }

    /// Whose a mount is that is there: a number is not used again as long as one is.
    fn served_by(&self, mount: &Mount) -> usize {
        self.served.iter().rposition(|served| served.number == mount.device.minor).unwrap()
    }

    /// umount(2) takes the topmost.
    pub fn unmount(&mut self, namespace: NamespaceId, place: &str) {
        let there = |mount: &Mount| mount.namespace == namespace && mount.mount_point.as_os_str() == place;
        let Some(index) = self.bench.mounts.iter().rposition(there) else { return };
        let gone = self.bench.mounts.remove(index);
        let served = self.served_by(&gone);
        if namespace == OWN {
            self.changed()
        } else {
            self.stack()
        }
        self.release(served);
    }

    /// With its last mount a file system ends, and its daemon leaves.
    fn release(&mut self, served: usize) {
        if !self.in_use(self.served[served].number) && self.served[served].alive {
            self.end(served, ExitStatus::Code(0));
        }
    }

    pub fn kill(&mut self, which: usize) {
        if which < self.served.len() && self.served[which].alive {
            self.end(which, ExitStatus::Signal(Signal::KILL));
        }
    }

    fn end(&mut self, served: usize, status: ExitStatus) {
        let pid = self.served[served].pid;
        (self.served[served].alive, self.served[served].private) = (false, false);
        let (at, daemon) = (self.bench.now, process(pid));
        if self.hooks {
            let exited = KernelEvent::DaemonExited { at, daemon, status, sender: None, oom: false };
            self.kernel.push_back(Event::Kernel(exited));
        }
        if self.watched.contains(&pid) {
            self.say(Event::ProcessEnded { pid, status: None, at });
        }
    }

    /// The own mount table changed: it is looked at now, the others a while later.
    fn changed(&mut self) {
        self.stack();
        self.wanted.get_or_insert(Scope::Own);
        if !self.later.iter().any(|later| matches!(later.what, What::Calm)) {
            self.later.push(Later { due: self.bench.now + Duration::from_secs(1), what: What::Calm });
        }
    }

    /// Which mount hangs on which.
    fn stack(&mut self) {
        let mounts = &self.bench.mounts;
        let place = |mount: &Mount| (mount.namespace, mount.mount_point.clone());
        let below = |index: usize| mounts[..index].iter().rfind(|it| place(it) == place(&mounts[index]));
        let child = |(index, mount): (usize, &Mount)| {
            let Mount { namespace, id, mount_point, fs_type, .. } = mount.clone();
            Some(ChildMount { namespace, id, parent: below(index)?.id, mount_point, fs_type })
        };
        self.bench.children = mounts.iter().enumerate().filter_map(child).collect();
    }

    /// A look goes a step further: list the unique ids, read mountinfo, say what was seen.
    pub fn look(&mut self) {
        match (self.listed.take(), self.read.take()) {
            (_, Some(look)) => {
                self.flush();
                // The next one begins before the node has heard of this one.
                self.list();
                let did = self.heard(|bench| bench.end(look));
                self.done(did);
            }
            (Some((began, scope, listed)), None) => {
                let mut look = self.bench.begin(scope);
                for mount in &mut look.mounts {
                    // The pair is all that mountinfo and the list have in common; both can have been used again.
                    let same = |it: &&Mount| (it.id, it.device) == (mount.id, mount.device);
                    mount.unique_id = listed.iter().find(same).and_then(|it| it.unique_id);
                }
                self.read = Some(Look { began, ..look });
            }
            (None, None) => self.list(),
        }
    }

    fn list(&mut self) {
        if let Some(scope) = self.wanted.take() {
            let Look { began, scope, mounts, .. } = self.bench.begin(scope);
            self.listed = Some((began, scope, mounts));
        }
    }

    /// What the hooks saw is told before anything else, and what a worker did before a look that saw it.
    fn flush(&mut self) {
        while self.kernel() || self.report() {}
    }

    pub fn kernel(&mut self) -> bool {
        self.kernel.pop_front().map(|event| self.tell(event)).is_some()
    }

    pub fn report(&mut self) -> bool {
        self.reports.pop_front().map(|event| self.tell(event)).is_some()
    }

    /// An application got an error; whose is not known.
    pub fn access_failed(&mut self) {
        if self.hooks {
            let at = self.bench.now;
            let failed = KernelEvent::VfsError { at, process: process(5), errno: libc::ENOTCONN, descriptor: None };
            self.kernel.push_back(Event::Kernel(failed));
        }
    }

    /// Of what is due, or will be, one comes now.
    pub fn answer(&mut self, which: usize) -> bool {
        if self.later.is_empty() {
            return false;
        }
        let Later { due, what } = self.later.remove(which % self.later.len());
        self.bench.now = self.bench.now.max(due);
        while self.kernel() {}
        match what {
            What::Say(event) => self.tell(event),
            What::Probe(connection, target) => {
                let (outcome, at) = (self.probe(&target), self.bench.now);
                self.tell(Event::Probed { connection, outcome, at });
            }
            What::Control(connection) => {
                let present = self.in_use(connection.device.minor);
                self.tell(Event::Control { connection, present });
            }
            What::Work(work) => self.work(work),
            What::Calm => self.wanted = Some(Scope::Everything),
        }
        true
    }

    /// A worker gives up what it is at.
    pub fn fail(&mut self) {
        let working = |later: &Later| matches!(later.what, What::Work(_));
        if let Some(index) = self.later.iter().rposition(working)
            && let What::Work(Work { connection, .. }) = self.later.remove(index).what
        {
            let error = "no such program".to_owned();
            for progress in [Progress::Failed { mount: None, error, refused: false }, Progress::Finished] {
                self.reports.push_back(Event::Progress { connection, progress });
            }
        }
    }

    fn probe(&self, target: &ProbeTarget) -> ProbeOutcome {
        let there = |mount: &&Mount| mount.unique_id == target.mount.unique_id || target.mount.unique_id.is_none();
        let same = |mount: &&Mount| (mount.id, mount.device) == (target.mount.id, target.mount.device);
        match self.bench.mounts.iter().filter(there).find(same) {
            None => ProbeOutcome::Gone,
            Some(mount) if self.served[self.served_by(mount)].alive => ProbeOutcome::Alive,
            Some(_) => DEAD,
        }
    }

    /// The next step of a worker's job: find the replacement, heal one mount, be done.
    fn work(&mut self, mut work: Work) {
        let connection = work.connection;
        let report = |progress| Event::Progress { connection, progress };
        let Some(replacement) = work.replacement else {
            work.replacement = match &work.job.bring {
                Bring::Existing(mount) => self.serving(mount),
                Bring::Respawn(_) | Bring::Command { .. } => Some(self.start(true)),
            };
            let Some(replacement) = work.replacement else {
                self.later.push(Later { due: self.bench.now, what: What::Work(work) });
                return self.fail();
            };
            let Served { number, pid, .. } = self.served[replacement];
            for dead in work.job.connections() {
                let at = self.bench.now;
                self.reports.push_back(report(Progress::Ready { dead, device: device(number), at, pid: Some(pid) }));
            }
            return self.later.push(Later { due: self.bench.now, what: What::Work(work) });
        };
        let Some(mount) = work.job.dead.get(work.healed).cloned() else {
            return self.reports.push_back(report(Progress::Finished));
        };
        if !self.served[replacement].alive {
            self.later.push(Later { due: self.bench.now, what: What::Work(work) });
            return self.fail();
        }
        work.healed += 1;
        let (healed, at) = (self.heal(&mount, replacement), self.bench.now);
        let device = device(self.served[replacement].number);
        let progress = if healed { Progress::Healed { mount, device, at } } else { Progress::Gone { mount } };
        self.reports.push_back(report(progress));
        self.later.push(Later { due: at, what: What::Work(work) });
    }

    /// The file system of a mount that is still there.
    fn serving(&self, mount: &Mount) -> Option<usize> {
        let there = self.bench.mounts.iter().find(|it| it.unique_id == mount.unique_id)?;
        let served = self.served_by(there);
        self.served[served].alive.then_some(served)
    }

    /// Puts a clone in the place of a dead mount. Whether that was still there.
    fn heal(&mut self, dead: &Mount, replacement: usize) -> bool {
        let Some(index) = self.bench.mounts.iter().position(|it| it.unique_id == dead.unique_id) else { return false };
        let clone = self.hang(replacement, dead.mount_point.to_str().unwrap());
        self.bench.mounts.pop();
        let old = std::mem::replace(&mut self.bench.mounts[index], clone);
        self.changed();
        self.release(self.served_by(&old));
        true
    }

    fn say(&mut self, event: Event) {
        self.later.push(Later { due: self.bench.now, what: What::Say(event) });
    }

    fn tell(&mut self, event: Event) {
        let did = self.heard(|bench| bench.on(event));
        self.done(did);
    }

    fn heard(&mut self, say: impl FnOnce(&mut Bench) -> Did) -> Did {
        let under_way = self.listed.as_ref().map(|(_, scope, _)| *scope).or(self.read.as_ref().map(|look| look.scope));
        self.bench.node.looking = [under_way, self.wanted].contains(&Some(Scope::Own));
        say(&mut self.bench)
    }

    fn done(&mut self, did: Did) {
        for action in did.0 {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.bench.now;
        match action {
            Action::Tell(told) => {
                if let TransitionKind::Dead(_) = told.kind {
                    let number = told.connection.device.minor;
                    let died = self.served.iter().any(|served| served.number == number && !served.alive);
                    assert!(died, "a living connection was said to be dead: {}", told.connection);
                }
                self.told.entry(told.connection).or_default().push(told.kind.event());
            }
            Action::Probe { connection, target } => {
                self.later.push(Later { due: now, what: What::Probe(connection, target) });
            }
            Action::FindHolders => self.find_holders(),
            Action::Scan(Scope::Everything) => self.wanted = Some(Scope::Everything),
            Action::Scan(Scope::Own) => drop(self.wanted.get_or_insert(Scope::Own)),
            Action::CheckControl(connection) => {
                self.later.push(Later { due: now, what: What::Control(connection) });
            }
            Action::WatchProcess { pid, .. } => self.watch(pid),
            Action::Arm { connection, timer, after } => {
                self.disarm(connection, timer);
                let what = What::Say(Event::Timer { connection, timer });
                self.later.push(Later { due: now + after, what });
            }
            Action::Disarm { connection, timer } => self.disarm(connection, timer),
            Action::Recover { connection, job } => {
                self.check_job(&job);
                let work = Work { connection, job: *job, replacement: None, healed: 0 };
                self.later.push(Later { due: now, what: What::Work(work) });
            }
            Action::RetryAfter { connection, after } => {
                self.later.push(Later { due: now + after, what: What::Say(Event::Retry { connection }) });
            }
            Action::ForgetProcess(pid) => drop(self.watched.remove(&pid)),
            Action::ForgetConnection(_) | Action::VfsErrorsWishChanged | Action::CountVfsErrors { .. } => {}
        }
    }

    fn disarm(&mut self, of: ConnectionId, which: Timer) {
        self.later.retain(|later| match &later.what {
            What::Say(Event::Timer { connection, timer }) => (*connection, *timer) != (of, which),
            _ => true,
        });
    }

    fn find_holders(&mut self) {
        let began = self.bench.now;
        let holds = |served: &&Served| served.alive && self.in_use(served.number);
        let holders = self.served.iter().filter(holds);
        let by_connection = holders.map(|served| (device(served.number), vec![process(served.pid)])).collect();
        self.say(Event::HoldersFound(Found { began, by_connection, unattributed: Vec::new() }));
    }

    fn watch(&mut self, pid: u32) {
        self.watched.insert(pid);
        let alive = self.served.iter().any(|served| served.pid == pid && served.alive);
        let record = alive.then(|| Box::new(record(pid, "testfs")));
        self.say(Event::Remembered { pid, record });
        if !alive {
            let at = self.bench.now;
            self.say(Event::ProcessEnded { pid, status: None, at });
        }
    }

    /// What is to be replaced has to be dead.
    fn check_job(&self, job: &RecoverJob) {
        assert!(!job.dead.is_empty());
        for mount in &job.dead {
            assert_eq!(mount.namespace, OWN);
            let named = mount.unique_id.and_then(|id| self.whose.get(&id));
            let same =
                |it: &&Mount| (it.id, it.device, &it.mount_point) == (mount.id, mount.device, &mount.mount_point);
            let here = || self.bench.mounts.iter().find(same).map(|mount| self.served_by(mount));
            let alive = named.copied().or_else(here).is_some_and(|served| self.served[served].alive);
            assert!(!alive, "a mount that serves is to be replaced: {mount:?}");
        }
    }

    /// Until nothing is under way any more. What can't be reached is asked for ever: long enough for every other pause.
    pub fn settle(&mut self) {
        let end = self.bench.now + Duration::from_secs(400);
        self.wanted = Some(Scope::Everything);
        for _ in 0..2_000 {
            self.flush();
            let next = (0..self.later.len()).min_by_key(|index| self.later[*index].due);
            let looking = self.listed.is_some() || self.read.is_some() || self.wanted.is_some();
            match next {
                _ if looking => self.look(),
                Some(next) if self.later[next].due < end => drop(self.answer(next)),
                Some(_) | None => return,
            }
        }
        panic!("it never comes to rest");
    }

    /// What is true now must have been told.
    pub fn check(&self) {
        for mount in &self.bench.mounts {
            let covered = self.bench.children.iter().any(|child| child.parent == mount.id);
            let served = &self.served[self.served_by(mount)];
            let told = self.told.iter().rfind(|(id, _)| id.device == mount.device);
            let last = told.and_then(|(_, told)| told.last().copied());
            let right = match (served.alive, last) {
                (true, last) => last == Some("ready"),
                // Where the agent heals nothing, a dead mount stays when all is healed.
                (false, Some("recovered")) => mount.namespace == OTHER,
                (false, last) => matches!(last, Some("dead" | "recovering" | "recoveryFailed")),
            };
            assert!(right || covered, "alive: {}, told: {told:?}, of {mount:?}", served.alive);
        }
        for (id, told) in &self.told {
            let over = !self.in_use(id.device.minor);
            assert!(!over || matches!(told.last(), Some(&("unmounted" | "recovered"))), "{id}: {told:?}");
            assert!(told.iter().filter(|event| **event == "dead").count() <= 1, "{id}: {told:?}");
        }
    }
}

fn pick<T>(all: &[T], which: usize) -> Option<&T> {
    all.get(which.checked_rem(all.len())?)
}
