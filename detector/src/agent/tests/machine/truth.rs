//! What is true in the end.

use super::*;

impl Machine {
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
