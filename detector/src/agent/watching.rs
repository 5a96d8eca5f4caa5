//! Requests on their way are looked at again and again until none is left; on an idle machine nobody wakes up for that.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::event::Event;
use super::shell::Shell;
use super::sources::Message;
use super::stall::Requests;
use crate::kernel::{Counters, PendingRequest};
use crate::model::{Boottime, DeviceNumber};
use crate::mounts;

/// So often within the threshold after which something is said to hang.
const LOOKS: u32 = 3;

/// The bounds of the time between two looks.
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);

/// While something hangs: how late it may be told that it answers again.
const WHILE_HUNG: Duration = Duration::from_secs(1);

/// A request that is on its way for less says nothing, and is not asked about.
const YOUNG: Duration = Duration::from_secs(1);

impl Shell {
    /// The kernel told of a request, the first one in a while.
    pub(super) fn requests_are_pending(&mut self) {
        if !std::mem::replace(&mut self.watching, true) {
            self.send_later(self.interval(), Message::RequestsDue);
        }
    }

    fn interval(&self) -> Duration {
        (self.node.policy.shortest_hung_after() / LOOKS).clamp(SHORTEST, LONGEST)
    }

    /// A look at the kernel programs' maps, and another one later if requests are left.
    pub(super) fn watch_requests(&mut self) {
        let Some(counters) = self.counters.clone() else { return };
        let mut pending = counters.on_their_way();
        let hung = self.node.hung();
        if pending.is_empty() && hung.is_empty() {
            if let Some(Err(error)) = self.kernel.as_ref().map(crate::kernel::Kernel::tell_when_busy) {
                tracing::warn!(%error, "requests that hang are not noticed any more");
            }
            // One that came in between was not told.
            pending = counters.on_their_way();
            self.watching = !pending.is_empty();
            if !self.watching {
                return;
            }
        }
        let all = self.look_at_requests(&counters, pending, &hung);
        self.handle(Event::Requests(all));
        let pause = if self.node.hung().is_empty() { self.interval() } else { WHILE_HUNG };
        self.send_later(pause, Message::RequestsDue);
    }

    fn look_at_requests(
        &self,
        counters: &Counters,
        mut pending: HashMap<DeviceNumber, Vec<PendingRequest>>,
        hung: &HashSet<DeviceNumber>,
    ) -> Vec<Requests> {
        let now = Boottime::now();
        let devices: HashSet<DeviceNumber> = pending.keys().chain(hung).copied().collect();
        let look = |device: DeviceNumber| {
            let pending = pending.remove(&device).unwrap_or_default();
            let is_old = pending.iter().any(|request| now.since(request.since) >= YOUNG);
            let control = self.control.as_ref().filter(|_| is_old);
            let waiting = control.and_then(|control| control.waiting(device).ok().flatten());
            if waiting == Some(0) {
                // They ended unseen: their callers were killed before the daemon read them.
                counters.settle(device, now);
            }
            let daemon = self.node.daemon_of(device).filter(|_| is_old);
            let cause = daemon.and_then(mounts::stall_cause);
            Requests { device, pending, last_end: counters.last_end(device), waiting, cause }
        };
        devices.into_iter().map(look).collect()
    }
}
