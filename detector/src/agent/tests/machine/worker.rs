//! What a worker process does.

use super::*;

impl Machine {
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

    pub(super) fn probe(&self, target: &ProbeTarget) -> ProbeOutcome {
        let there = |mount: &&Mount| mount.unique_id == target.mount.unique_id || target.mount.unique_id.is_none();
        let same = |mount: &&Mount| (mount.id, mount.device) == (target.mount.id, target.mount.device);
        match self.bench.mounts.iter().filter(there).find(same) {
            None => ProbeOutcome::Gone,
            Some(mount) if self.served[self.served_by(mount)].alive => ProbeOutcome::Alive,
            Some(_) => DEAD,
        }
    }

    /// The next step of a worker's job: find the replacement, heal one mount, be done.
    pub(super) fn work(&mut self, mut work: Work) {
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
}
