//! A model of the machine that a node runs on: file systems, their daemons, numbers that are used again, and everybody
//! who answers the node.

mod answers;
mod truth;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;
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
}

fn pick<T>(all: &[T], which: usize) -> Option<&T> {
    all.get(which.checked_rem(all.len())?)
}
