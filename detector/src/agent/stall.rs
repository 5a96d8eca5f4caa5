//! Whether a connection hangs: requests wait, and for a long time none was answered. No file system is asked for that.

use std::collections::HashSet;
use std::time::Duration;

use super::connection::primary;
use super::event::Action;
use super::node::Node;
use crate::health::{Input, State};
use crate::kernel::PendingRequest;
use crate::model::{AbortCause, Boottime, ConnectionId, DeviceNumber, Mount, Process, StallCause, WaitingRequest};
use crate::policy::{Mode, OnHung};

/// The requests of one connection, as the kernel programs count them.
#[derive(Debug, Clone)]
pub struct Requests {
    /// Which connection.
    pub device: DeviceNumber,
    /// Those on their way.
    pub pending: Vec<PendingRequest>,
    /// When the last one ended.
    pub last_end: Option<Boottime>,
    /// How many the control file system counts; `None` if it was not asked, or can't be.
    pub waiting: Option<u64>,
    /// What keeps its daemon from answering, where that can be seen.
    pub cause: Option<StallCause>,
}

/// Opcodes from include/uapi/linux/fuse.h.
mod opcode {
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const FSYNCDIR: u32 = 30;
    pub const SETLKW: u32 = 33;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const FALLOCATE: u32 = 43;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
}

/// Requests that move whole files to a remote service, or wait for a device, may take so many times longer.
const LONG: u32 = 10;

/// How long a request may be on its way before it is a sign that the daemon hangs; `None` if it never is.
fn patience(opcode: u32, threshold: Duration) -> Option<Duration> {
    match opcode {
        // Waits for another process's lock; is sent when nobody waits for the answer; is an answer itself.
        opcode::SETLKW | opcode::DESTROY | opcode::NOTIFY_REPLY => None,
        opcode::FSYNC
        | opcode::FLUSH
        | opcode::FSYNCDIR
        | opcode::IOCTL
        | opcode::POLL
        | opcode::FALLOCATE
        | opcode::COPY_FILE_RANGE
        | opcode::SYNCFS => Some(threshold.saturating_mul(LONG)),
        _ => Some(threshold),
    }
}

/// The request that has waited longest of those that waited too long, if nothing was answered meanwhile.
fn stalled(requests: &Requests, threshold: Duration, now: Boottime) -> Option<PendingRequest> {
    let Requests { pending, last_end, waiting, .. } = requests;
    let quiet = last_end.is_none_or(|end| now.since(end) >= threshold);
    let too_long = |request: &&PendingRequest| {
        patience(request.opcode, threshold).is_some_and(|patience| now.since(request.since) >= patience)
    };
    // `waiting` counts every request that has no answer; at zero those seen on their way ended unseen.
    let oldest = pending.iter().filter(too_long).min_by_key(|request| request.since).copied();
    oldest.filter(|_| quiet && *waiting != Some(0))
}

impl Node {
    /// What the kernel programs say of requests on their way.
    pub(super) fn requests(&mut self, all: Vec<Requests>) {
        for requests in all {
            let Some(id) = self.current(requests.device) else { continue };
            let Some(connection) = self.connections.get(&id).filter(|known| known.is_up()) else { continue };
            let threshold = self.hung_after(id);
            let hangs = connection.machine.state() == State::Hung;
            let answered = connection.hangs_since.is_some_and(|since| requests.last_end > Some(since));
            match stalled(&requests, threshold, self.now) {
                Some(oldest) if !hangs => self.hangs(id, &requests, oldest),
                None if hangs && answered => self.push(id, Input::Progress),
                _ => {}
            }
        }
    }

    fn hangs(&mut self, id: ConnectionId, requests: &Requests, oldest: PendingRequest) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.hangs_since = Some(now);
        let process = (oldest.pid != 0).then_some(Process { pid: oldest.pid, comm: None });
        let age = now.since(oldest.since);
        connection.oldest = Some(WaitingRequest { opcode: oldest.opcode, age, process });
        self.push(id, Input::Stalled { cause: requests.cause });
    }

    /// It hangs: whoever waits for it is freed by the end of the connection, if the policy says so.
    pub(super) fn free_clients(&mut self, id: ConnectionId) {
        let own = self.setting.own;
        let Some(connection) = self.connections.get(&id) else { return };
        let here: Vec<_> = connection.mounts.iter().filter(|mount| mount.namespace == own).cloned().collect();
        let Some(decision) = primary(&here).map(|mount| self.decision(mount)) else { return };
        let wanted = decision.mode == Mode::Heal && decision.on_hung == OnHung::Abort;
        if !wanted || !self.setting.heal {
            return;
        }
        let covered = |mount: &Mount| self.is_covered(mount);
        let Some(target) = connection.probe_target(own, &covered, &self.namespaces) else { return };
        tracing::warn!(connection = %id, "it hangs: its connection is aborted, as the policy says");
        self.actions.push(Action::Free { connection: id, target: target.mount });
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.being_freed = true;
        }
    }

    /// Its abort is the agent's own doing.
    pub(super) fn is_being_freed(&self, device: DeviceNumber) -> bool {
        let known = self.current(device).and_then(|id| self.connections.get(&id));
        known.is_some_and(|known| known.being_freed)
    }

    pub(super) fn freed(&mut self, id: ConnectionId, result: Result<(), String>, at: Boottime) {
        match result {
            Ok(()) => {
                let by = Process { pid: std::process::id(), comm: None };
                self.push(id, Input::Aborted { at, by, cause: AbortCause::Stalled });
            }
            Err(error) => {
                tracing::warn!(connection = %id, error, "what hangs could not be aborted");
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.being_freed = false;
                }
            }
        }
    }

    /// The policy's threshold for the connection.
    fn hung_after(&self, id: ConnectionId) -> Duration {
        let mount = self.connections.get(&id).and_then(|known| primary(&known.mounts));
        mount.map_or(self.policy.shortest_hung_after(), |mount| self.decision(mount).hung_after)
    }

    /// Connections that hang: what becomes of them is looked at more often.
    pub(super) fn hung(&self) -> HashSet<DeviceNumber> {
        let hung = self.connections.values().filter(|known| known.machine.state() == State::Hung);
        hung.map(|known| known.id.device).collect()
    }

    /// Who serves it.
    pub(super) fn daemon_of(&self, device: DeviceNumber) -> Option<u32> {
        let daemon = self.connections.get(&self.current(device)?)?.daemon.as_ref()?;
        daemon.alive.then_some(daemon.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Duration = Duration::from_secs(30);
    const NOW: Boottime = Boottime(1_000_000_000_000_000);

    fn requests(opcode: u32, age: u64, last_end: Option<u64>) -> Requests {
        let ago = |seconds: u64| Boottime(NOW.0 - seconds * 1_000_000_000);
        let pending = vec![PendingRequest { opcode, pid: 7, since: ago(age) }];
        let device = DeviceNumber { major: 0, minor: 45 };
        Requests { device, pending, last_end: last_end.map(ago), waiting: None, cause: None }
    }

    #[test]
    fn a_request_that_waits_while_others_are_answered_is_slow_and_no_hang() {
        assert!(stalled(&requests(1, 30, None), THRESHOLD, NOW).is_some());
        assert!(stalled(&requests(1, 30, Some(40)), THRESHOLD, NOW).is_some());
        assert!(stalled(&requests(1, 29, None), THRESHOLD, NOW).is_none(), "not yet");
        assert!(stalled(&requests(1, 300, Some(8)), THRESHOLD, NOW).is_none(), "another was answered");
    }

    #[test]
    fn some_requests_may_take_long() {
        assert!(stalled(&requests(opcode::SETLKW, 3_000, None), THRESHOLD, NOW).is_none());
        assert!(stalled(&requests(opcode::FSYNC, 299, None), THRESHOLD, NOW).is_none());
        assert!(stalled(&requests(opcode::FSYNC, 300, None), THRESHOLD, NOW).is_some());
    }

    #[test]
    fn what_the_control_file_system_does_not_count_ended_unseen() {
        let killed = Requests { waiting: Some(0), ..requests(1, 60, None) };
        assert!(stalled(&killed, THRESHOLD, NOW).is_none());
        assert!(stalled(&Requests { waiting: Some(1), ..killed }, THRESHOLD, NOW).is_some());
    }
}
