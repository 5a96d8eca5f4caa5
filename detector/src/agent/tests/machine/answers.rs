//! What the node asks for, and who answers.

use super::*;
use crate::model::TransitionKind;

impl Machine {
    /// An application got an error; whose is not known.
    pub fn access_failed(&mut self) {
        if self.hooks {
            let at = self.bench.now;
            let failed = KernelEvent::VfsError {
                at,
                device: None,
                process: process(5),
                errno: libc::ENOTCONN,
                descriptor: None,
            };
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

    pub(super) fn say(&mut self, event: Event) {
        self.later.push(Later { due: self.bench.now, what: What::Say(event) });
    }

    pub(super) fn tell(&mut self, event: Event) {
        let did = self.heard(|bench| bench.on(event));
        self.done(did);
    }

    pub(super) fn heard(&mut self, say: impl FnOnce(&mut Bench) -> Did) -> Did {
        let under_way = self.listed.as_ref().map(|(_, scope, _)| *scope).or(self.read.as_ref().map(|look| look.scope));
        self.bench.node.looking = [under_way, self.wanted].contains(&Some(Scope::Own));
        say(&mut self.bench)
    }

    pub(super) fn done(&mut self, did: Did) {
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
            Action::Remember(pid) => self.remember(pid),
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
            Action::Report(_)
            | Action::ForgetConnection(_)
            | Action::VfsErrorsWishChanged
            | Action::WatchRequests
            | Action::Free { .. }
            | Action::CountVfsErrors { .. } => {}
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
        self.say(Event::HoldersFound(Found { began, by_connection, ..Found::default() }));
    }

    fn is_alive(&self, pid: u32) -> bool {
        self.served.iter().any(|served| served.pid == pid && served.alive)
    }

    fn remember(&mut self, pid: u32) {
        let record = self.is_alive(pid).then(|| Box::new(record(pid, "testfs")));
        self.say(Event::Remembered { pid, record });
    }

    fn watch(&mut self, pid: u32) {
        self.watched.insert(pid);
        if !self.is_alive(pid) {
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
}
