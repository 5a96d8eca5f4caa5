//! Each scenario as the sequence of events that the machine gives rise to. Nothing but [`Node::handle`] is called, and what
//! it asks for is looked at.

mod daemons;
mod did;
mod gathering;
mod healing;
mod looks;
mod machine;
mod policy;
mod retries;
mod telling;
mod world;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use self::did::Did;
use super::*;
use crate::health::Timer;
use crate::kernel::KernelEvent;
use crate::model::{
    BackendKind, Boottime, ConnectionId, DeviceNumber, ExitStatus, Mount, MountFlags, MountId, NamespaceId, Process,
    Propagation, Signal,
};
use crate::mounts::{ChildMount, Credentials, DaemonRecord, Privileges, Problem, Snapshot};
use crate::policy::Policy;
use crate::recovery::{Features, Progress, RecoverJob};
use crate::worker::ProbeOutcome;

const OWN: NamespaceId = NamespaceId(4_026_531_841);
const OTHER: NamespaceId = NamespaceId(4_026_532_100);
/// A process that lives in the other namespace.
const OTHER_PID: u32 = 70;
const ADMIN: u32 = 77;
const DAEMON: u32 = 812;
const DEAD: ProbeOutcome = ProbeOutcome::Dead { errno: libc::ENOTCONN };
const HEAL: &str = "defaults: { mode: heal }\n";

/// A node, the mounts of the machine that it looks at, and a clock that moves a millisecond with every event.
struct Bench {
    node: Node,
    now: Boottime,
    features: Features,
    mounts: Vec<Mount>,
    children: Vec<ChildMount>,
    namespaces: BTreeMap<NamespaceId, u32>,
    /// How many mounts there were so far: the last one's unique id.
    made: u64,
}

/// A look that has begun, and what it saw.
struct Look {
    began: Boottime,
    scope: Scope,
    mounts: Vec<Mount>,
    children: Vec<ChildMount>,
    problems: Vec<Problem>,
}

impl Bench {
    fn new(backend: BackendKind, features: Features, policy: &str) -> Self {
        let answers = backend != BackendKind::Portable;
        let setting =
            Setting { backend, answers, own: OWN, features, heal: true, may_mount: true, vfs_errors: VfsErrors::Auto };
        let policy = Policy::parse(policy, "policy.yaml").unwrap_or_else(|error| panic!("{error}"));
        Self {
            node: Node::new(setting, policy),
            now: Boottime(1_000_000_000),
            features,
            mounts: Vec::new(),
            children: Vec::new(),
            namespaces: BTreeMap::from([(OWN, 1), (OTHER, OTHER_PID)]),
            made: 0,
        }
    }

    /// With kernel hooks, after the first look: it saw no mount.
    fn with(policy: &str) -> Self {
        let mut bench = Self::new(BackendKind::Tracepoint, Features { beneath: true, unique_id: true }, policy);
        bench.look_everywhere();
        bench
    }

    /// Without kernel hooks, after the first look.
    fn portable(policy: &str) -> Self {
        let mut bench = Self::new(BackendKind::Portable, Features { beneath: true, unique_id: true }, policy);
        bench.look_everywhere();
        bench
    }

    fn on(&mut self, event: Event) -> Did {
        self.now = self.now + Duration::from_millis(1);
        Did(self.node.handle(self.now, event))
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Mounts it, the whole file system. Mount ids are reused: the lowest that is free is taken.
    fn mount_in(&mut self, namespace: NamespaceId, minor: u32, place: &str) -> Mount {
        self.made += 1;
        let free = |number: &u64| !self.mounts.iter().any(|mount| mount.id.0 == *number);
        let number = (100..).find(free).unwrap();
        let named = namespace == OWN && self.features.unique_id;
        let mount = Mount {
            namespace,
            id: MountId(number),
            unique_id: named.then_some(self.made),
            parent: MountId(1),
            device: device(minor),
            root: "/".into(),
            root_deleted: false,
            mount_point: place.into(),
            flags: MountFlags::default(),
            propagation: Propagation::default(),
            fs_type: "fuse.test".into(),
            source: "data".into(),
            super_options: "rw,allow_other".into(),
        };
        self.mounts.push(mount.clone());
        mount
    }

    fn mount(&mut self, minor: u32, place: &str) -> Mount {
        self.mount_in(OWN, minor, place)
    }

    fn unmount(&mut self, gone: &Mount) {
        self.mounts.retain(|mount| (mount.namespace, mount.id) != (gone.namespace, gone.id));
    }

    fn unmount_all(&mut self, minor: u32) {
        self.mounts.retain(|mount| mount.device != device(minor));
    }

    /// A look begins, and sees what is mounted now.
    fn begin(&mut self, scope: Scope) -> Look {
        self.now = self.now + Duration::from_millis(1);
        let seen = |mount: &&Mount| scope == Scope::Everything || mount.namespace == OWN;
        let mounts = self.mounts.iter().filter(seen).cloned().collect();
        Look { began: self.now, scope, mounts, children: self.children.clone(), problems: Vec::new() }
    }

    /// It ends.
    fn end(&mut self, look: Look) -> Did {
        let Look { began, scope, mounts, children, problems } = look;
        let seen = |namespace: NamespaceId| scope == Scope::Everything || namespace == OWN;
        let namespaces = self.namespaces.iter().map(|(namespace, pid)| (*namespace, *pid));
        let namespaces = namespaces.filter(|(namespace, _)| seen(*namespace)).collect();
        let snapshot = Snapshot { own: Some(OWN), mounts, children, namespaces, problems };
        self.on(Event::Scanned { snapshot: Box::new(snapshot), scope, began })
    }

    fn look(&mut self) -> Did {
        let look = self.begin(Scope::Own);
        self.end(look)
    }

    fn look_everywhere(&mut self) -> Did {
        let look = self.begin(Scope::Everything);
        self.end(look)
    }

    /// FUSE_INIT was answered.
    fn initialised(&mut self, minor: u32, pid: u32) -> Did {
        let at = self.now;
        self.on(Event::Kernel(KernelEvent::Ready { at, device: device(minor), daemon: process(pid) }))
    }

    /// How the daemon was started is read. Its arguments are those given.
    fn remembered(&mut self, pid: u32, arguments: &str) -> Did {
        self.on(Event::Remembered { pid, record: Some(Box::new(record(pid, arguments))) })
    }

    /// A new connection, which serves, with one mount, known with its daemon.
    fn serving(&mut self, minor: u32, place: &str, pid: u32) -> Mount {
        let mount = self.mount(minor, place);
        let mut did = self.look();
        did.append(self.initialised(minor, pid));
        did.append(self.remembered(pid, "testfs"));
        assert!(did.told().last().is_some_and(|told| told.ends_with("ready")), "{:?}", did.told());
        mount
    }

    /// SIGKILL ends the daemon: the hook tells, then the pidfd.
    fn kill(&mut self, pid: u32) -> Did {
        let (at, status) = (self.now, ExitStatus::Signal(Signal::KILL));
        let daemon = process(pid);
        let sender = Some(process(ADMIN));
        let mut did = self.on(Event::Kernel(KernelEvent::DaemonExited { at, daemon, status, sender, oom: false }));
        did.append(self.on(Event::ProcessEnded { pid, status: Some(status), at }));
        did
    }

    fn probed(&mut self, connection: ConnectionId, outcome: ProbeOutcome) -> Did {
        let at = self.now;
        self.on(Event::Probed { connection, outcome, at })
    }

    /// The only daemon is killed, and the kernel confirms that the connection is dead.
    fn die(&mut self, connection: ConnectionId, pid: u32) -> Did {
        let did = self.kill(pid);
        assert_eq!(did.probed(), [connection]);
        self.probed(connection, DEAD)
    }

    fn control(&mut self, connection: ConnectionId, present: bool) -> Did {
        self.on(Event::Control { connection, present })
    }

    fn retry(&mut self, connection: ConnectionId) -> Did {
        self.on(Event::Retry { connection })
    }

    fn progress(&mut self, connection: ConnectionId, progress: Progress) -> Did {
        self.on(Event::Progress { connection, progress })
    }

    /// The worker does its job with a replacement that has this number, and says so; the look that follows is not taken.
    fn work(&mut self, connection: ConnectionId, job: &RecoverJob, minor: u32) -> Did {
        let mut did = Did::default();
        for dead in job.connections() {
            let at = self.now;
            did.append(self.progress(connection, Progress::Ready { dead, device: device(minor), at, pid: None }));
        }
        for mount in &job.dead {
            self.unmount(mount);
            self.mount(minor, mount.mount_point.to_str().unwrap());
            let (mount, at) = (mount.clone(), self.now);
            did.append(self.progress(connection, Progress::Healed { mount, device: device(minor), at }));
        }
        did.append(self.progress(connection, Progress::Finished));
        did
    }

    /// The worker's attempt fails as a whole.
    fn fail(&mut self, connection: ConnectionId, error: &str) -> Did {
        let error = error.to_owned();
        let mut did = self.progress(connection, Progress::Failed { mount: None, error, refused: false });
        did.append(self.progress(connection, Progress::Finished));
        did
    }
}

fn device(minor: u32) -> DeviceNumber {
    DeviceNumber { major: 0, minor }
}

fn connection(minor: u32, epoch: u64) -> ConnectionId {
    ConnectionId { device: device(minor), epoch }
}

fn process(pid: u32) -> Process {
    Process { pid, comm: Some(format!("p{pid}")) }
}

/// A daemon of the host, in the agent's namespace.
fn record(pid: u32, arguments: &str) -> DaemonRecord {
    DaemonRecord {
        pid,
        comm: "testfs".to_owned(),
        start_time: 1,
        exe: "/usr/bin/testfs".into(),
        exe_deleted: false,
        argv: arguments.split(' ').map(Into::into).collect(),
        env: Vec::new(),
        cwd: "/".into(),
        root: "/".into(),
        credentials: Credentials::default(),
        umask: None,
        cgroups: Vec::new(),
        mount_namespace: OWN,
        namespaces: BTreeMap::new(),
        oom_score_adj: 0,
        limits: Vec::new(),
        privileges: Privileges::default(),
        foreign_namespaces: Vec::new(),
        out_of_reach: 0,
    }
}

fn places(mounts: &[Mount]) -> Vec<PathBuf> {
    mounts.iter().map(|mount| mount.mount_point.clone()).collect()
}
