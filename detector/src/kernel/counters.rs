//! What the kernel programs count, read from their maps when somebody asks.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{Array, HashMap as KernelMap, MapData, MapError, PerCpuArray};
use detector_common::maps::{Bucket, CallError, ConnectionState, DaemonState, InFlight, Loss, RequestError, Served};

use super::load::take_map;
use super::plain::Plain;
use crate::model::{Boottime, DeviceNumber};

/// FUSE_SETLKW (include/uapi/linux/fuse.h) waits for another process's lock: its age says nothing about the daemon.
const FUSE_SETLKW: u32 = 33;

/// A map that changes while it is read can start again from its first key (`htab_map_get_next_key`). Nobody gets more
/// than so many entries; the largest hash map has 16,384.
const READ_LIMIT: usize = 32_768;

type Table<K, V> = Mutex<KernelMap<MapData, K, V>>;

/// The maps, shared by those who read and the one who writes.
pub(super) struct Maps {
    pub connections: Table<u32, Plain<ConnectionState>>,
    pub in_flight: Array<MapData, Plain<Bucket>>,
    /// Requests of these connections sent before these moments are over, though their end was not seen.
    pub settled: Mutex<HashMap<u32, Boottime>>,
    pub daemons: Table<u32, Plain<DaemonState>>,
    pub served: Table<Plain<Served>, u8>,
    pub request_errors: Table<Plain<RequestError>, u64>,
    pub call_errors: Table<Plain<CallError>, u64>,
    pub lost: PerCpuArray<MapData, u64>,
    pub told_busy: Mutex<Array<MapData, u32>>,
    pub malformed: Arc<AtomicU64>,
}

impl Maps {
    /// Takes the maps out of the loaded object.
    pub fn open(ebpf: &mut Ebpf) -> Result<Self, MapError> {
        Ok(Self {
            connections: Mutex::new(take_map(ebpf, "CONNECTIONS")?),
            in_flight: take_map(ebpf, "IN_FLIGHT")?,
            settled: Mutex::default(),
            daemons: Mutex::new(take_map(ebpf, "DAEMONS")?),
            served: Mutex::new(take_map(ebpf, "SERVED")?),
            request_errors: Mutex::new(take_map(ebpf, "REQUEST_ERRORS")?),
            call_errors: Mutex::new(take_map(ebpf, "CALL_ERRORS")?),
            lost: take_map(ebpf, "LOST")?,
            told_busy: Mutex::new(take_map(ebpf, "TOLD_BUSY")?),
            malformed: Arc::default(),
        })
    }

    /// Enters a daemon. One that is known already keeps what is known of it.
    pub fn watch(&self, tgid: u32, device: Option<u32>) -> Result<(), MapError> {
        match lock(&self.daemons).insert(tgid, Plain(DaemonState::default()), BPF_NOEXIST) {
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EEXIST) => {}
            result => result?,
        }
        match device {
            Some(device) => lock(&self.served).insert(Plain(Served { device, tgid }), 1, 0),
            None => Ok(()),
        }
    }

    /// Removes daemons and what they served, and what is kept under device numbers. The maps are gone through once, however
    /// many there are: a thousand can end at once.
    pub fn forget(&self, tgids: &HashSet<u32>, devices: &HashSet<u32>) {
        for tgid in tgids {
            // It is not there any more when its exit was told.
            let _ = lock(&self.daemons).remove(tgid);
        }
        for device in devices {
            // It is not there when no request was ever seen.
            let _ = lock(&self.connections).remove(device);
            self.settle(*device, Boottime::now());
        }
        remove_if(&self.served, |Plain(key)| tgids.contains(&key.tgid) || devices.contains(&key.device));
        if !devices.is_empty() {
            remove_if(&self.request_errors, |Plain(key)| devices.contains(&key.device));
        }
    }

    fn settle(&self, device: u32, before: Boottime) {
        lock(&self.settled).insert(device, before);
    }

    /// Every request on its way.
    fn requests(&self) -> Vec<InFlight> {
        let settled = lock(&self.settled);
        let on_its_way = |slot: &InFlight| {
            let over = settled.get(&slot.device).is_some_and(|before| slot.since < before.0);
            slot.request != 0 && slot.since != 0 && !over
        };
        let buckets = self.in_flight.iter().filter_map(Result::ok);
        buckets.flat_map(|Plain(bucket)| bucket.slots).filter(on_its_way).collect()
    }
}

/// Removes the entries whose key is chosen. One that vanishes meanwhile is gone all the same.
fn remove_if<K: aya::Pod + Hash + Eq, V: aya::Pod>(table: &Table<K, V>, chosen: impl Fn(&K) -> bool) {
    let keys: HashSet<K> = lock(table).keys().take(READ_LIMIT).filter_map(Result::ok).filter(chosen).collect();
    let mut table = lock(table);
    for key in keys {
        let _ = table.remove(&key);
    }
}

/// `BPF_NOEXIST` (include/uapi/linux/bpf.h): fail rather than overwrite.
const BPF_NOEXIST: u64 = 1;

/// Nothing panics while a lock is held, and the maps are the kernel's: they stay consistent.
pub(super) fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every entry. An entry that vanishes meanwhile, or an error, ends nothing: the rest is read.
pub(super) fn entries<K: aya::Pod + Hash + Eq, V: aya::Pod>(table: &Table<K, V>) -> HashMap<K, V> {
    lock(table).iter().take(READ_LIMIT).filter_map(Result::ok).collect()
}

/// Counts of one connection, since its FUSE_INIT or since the programs were attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Requests put in the daemon's queue.
    pub sent: u64,
    /// Requests that ended, however.
    pub ended: u64,
    /// Requests that the kernel ended because the connection was aborted.
    pub aborted: u64,
    /// Requests on their way. Not `sent - ended`: a request whose caller is killed before the daemon has read it ends
    /// unseen (`request_wait_answer`), and the number would never come down again.
    pub in_flight: u64,
    /// When the last request ended.
    pub last_end: Option<Boottime>,
}

/// A request on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingRequest {
    /// FUSE opcode (include/uapi/linux/fuse.h).
    pub opcode: u32,
    /// Who asks, as seen from the daemon's pid namespace; 0 when the kernel doesn't say.
    pub pid: u32,
    /// Since when.
    pub since: Boottime,
}

/// Calls of one process that failed with a dead connection's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VfsErrors {
    /// Of which connection, where that is known.
    pub device: Option<DeviceNumber>,
    /// Whose.
    pub pid: u32,
    /// Positive errno.
    pub errno: i32,
    /// How many.
    pub count: u64,
}

/// Reads the kernel programs' counters. Each call reads the kernel's maps; cheap to clone.
#[derive(Clone)]
pub struct Counters(pub(super) Arc<Maps>);

impl Counters {
    /// Every connection that sent or ended a request.
    pub fn connections(&self) -> Vec<(DeviceNumber, ConnectionCounters)> {
        let mut in_flight: HashMap<u32, u64> = HashMap::new();
        for request in self.0.requests() {
            *in_flight.entry(request.device).or_default() += 1;
        }
        let of = |(device, Plain(state)): (u32, Plain<ConnectionState>)| {
            let counters = ConnectionCounters {
                sent: state.sent,
                ended: state.ended,
                aborted: state.aborted,
                in_flight: in_flight.get(&device).copied().unwrap_or(0),
                last_end: (state.last_end != 0).then_some(Boottime(state.last_end)),
            };
            (DeviceNumber::from_kernel(device), counters)
        };
        entries(&self.0.connections).into_iter().map(of).collect()
    }

    /// Requests of this connection that the kernel ended because it was aborted; `None` when it was never seen.
    pub fn aborted(&self, device: DeviceNumber) -> Option<u64> {
        lock(&self.0.connections).get(&device.to_kernel(), 0).ok().map(|Plain(state)| state.aborted)
    }

    /// For each connection that has any, the request that is longest on its way. Requests that wait for a lock are left
    /// out.
    pub fn oldest_requests(&self) -> HashMap<DeviceNumber, PendingRequest> {
        let mut oldest: HashMap<DeviceNumber, PendingRequest> = HashMap::new();
        for InFlight { since, device, opcode, pid, .. } in self.0.requests() {
            if opcode == FUSE_SETLKW {
                continue;
            }
            let request = PendingRequest { opcode, pid, since: Boottime(since) };
            let entry = oldest.entry(DeviceNumber::from_kernel(device)).or_insert(request);
            if request.since < entry.since {
                *entry = request;
            }
        }
        oldest
    }

    /// Every request on its way, by connection.
    pub fn on_their_way(&self) -> HashMap<DeviceNumber, Vec<PendingRequest>> {
        let mut requests: HashMap<DeviceNumber, Vec<PendingRequest>> = HashMap::new();
        for InFlight { since, device, opcode, pid, .. } in self.0.requests() {
            let request = PendingRequest { opcode, pid, since: Boottime(since) };
            requests.entry(DeviceNumber::from_kernel(device)).or_default().push(request);
        }
        requests
    }

    /// When the connection's last request ended; `None` if none did since it was mounted, or since the programs run.
    pub fn last_end(&self, device: DeviceNumber) -> Option<Boottime> {
        let Plain(state) = lock(&self.0.connections).get(&device.to_kernel(), 0).ok()?;
        (state.last_end != 0).then_some(Boottime(state.last_end))
    }

    /// Nothing of this connection is on its way, says the control file system (`waiting` is 0): forgets requests sent
    /// before `before` that ended unseen.
    pub fn settle(&self, device: DeviceNumber, before: Boottime) {
        self.0.settle(device.to_kernel(), before);
    }

    /// Errors that daemons answered: connection, positive errno, how often.
    pub fn request_errors(&self) -> Vec<(DeviceNumber, i32, u64)> {
        let of = |(Plain(key), count): (Plain<RequestError>, u64)| {
            (DeviceNumber::from_kernel(key.device), key.errno.cast_signed(), count)
        };
        entries(&self.0.request_errors).into_iter().map(of).collect()
    }

    /// Takes the counts of calls that failed with a dead connection's error. From then on the next such call of a process
    /// is an event again.
    pub fn drain_vfs_errors(&self) -> Vec<VfsErrors> {
        let counts = entries(&self.0.call_errors);
        let mut table = lock(&self.0.call_errors);
        let take = |(key, count): (Plain<CallError>, u64)| {
            // Only this removes entries. A call between the look and the removal goes uncounted.
            let _ = table.remove(&key);
            let CallError { device, tgid, errno } = key.0;
            let device = (device != 0).then_some(DeviceNumber::from_kernel(device));
            VfsErrors { device, pid: tgid, errno: errno.cast_signed(), count }
        };
        counts.into_iter().map(take).collect()
    }

    /// How often something was lost without which the state can be wrong.
    pub fn events_lost(&self) -> u64 {
        let hiding = (0..).zip(Loss::ALL).filter(|(_, loss)| loss.hides_events());
        let lost = hiding.map(|(index, _)| self.0.lost.get(&index, 0).map(|values| values.iter().sum()).unwrap_or(0));
        lost.sum::<u64>() + self.0.malformed.load(Ordering::Relaxed)
    }

    /// What could not be recorded, or not be understood: where, why, how often. Zeroes included, so that a metric exists
    /// before something is lost.
    pub fn lost(&self) -> Vec<(&'static str, &'static str, u64)> {
        let kernel = (0..).zip(Loss::ALL).map(|(index, loss)| {
            let count = self.0.lost.get(&index, 0).map(|values| values.iter().sum()).unwrap_or(0);
            ("kernel", loss.reason(), count)
        });
        kernel.chain([("ring", "malformed", self.0.malformed.load(Ordering::Relaxed))]).collect()
    }
}
