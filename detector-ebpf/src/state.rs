//! The maps, and the two ways out: a record, or a count of what could not be recorded.
//!
//! The hash maps are preallocated: tracepoints fire where the kernel must not allocate, and before Linux 6.1 a map that
//! allocates from such a program could deadlock. That costs about 5 MiB of kernel memory.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use aya_log_ebpf::debug;
use detector_common::maps::{
    BUCKETS, Bucket, CallError, ConnectionState, DaemonState, InFlight, Loss, RequestError, Served, bucket_of,
};
use detector_common::record::{Record, Wire};

/// Room for 7,281 records (64 bytes and 8 of header): a thousand connections that die at once send two or three each,
/// perhaps before the agent runs at all.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(512 * 1024, 0);

/// One counter for each [`Loss`].
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(Loss::ALL.len() as u32, 0);

/// Requests on their way.
#[map]
static IN_FLIGHT: Array<Bucket> = Array::with_max_entries(BUCKETS, 0);

/// Not zero once the agent was told that some connection is busy, until it wants to be told again.
#[map]
static TOLD_BUSY: Array<u32> = Array::with_max_entries(1, 0);

/// Connections, by device number.
#[map]
pub static CONNECTIONS: HashMap<u32, ConnectionState> = HashMap::with_max_entries(8_192, 0);

/// Known daemons, by thread group id.
#[map]
pub static DAEMONS: HashMap<u32, DaemonState> = HashMap::with_max_entries(8_192, 0);

/// Which daemon was reported for which connection.
#[map]
pub static SERVED: HashMap<Served, u8> = HashMap::with_max_entries(16_384, 0);

/// Errors that daemons answered.
#[map]
pub static REQUEST_ERRORS: HashMap<RequestError, u64> = HashMap::with_max_entries(8_192, 0);

/// Which function a thread (its id) entered last of those that abort connections. Most leave by the abort, which removes
/// the entry; of those that find nothing to abort, the oldest give way.
#[map]
pub static ABORT_PATHS: LruHashMap<u32, u32> = LruHashMap::with_max_entries(4_096, 0);

/// System calls that returned a dead connection's error, until the agent takes the counts.
#[map]
pub static CALL_ERRORS: HashMap<CallError, u64> = HashMap::with_max_entries(4_096, 0);

/// CLOCK_BOOTTIME in nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// How a free slot is made a request's.
pub trait Claim {
    /// Whether it is the request's now.
    fn claim(address: *mut u64, request: u64) -> bool;
}

/// Atomically: Linux 5.12.
pub enum Atomic {}

/// For older kernels: of two CPUs that take the same slot at once the later one gets it. The age of the other's request is
/// unknown then.
pub enum Plain {}

impl Claim for Plain {
    #[inline(always)]
    fn claim(address: *mut u64, request: u64) -> bool {
        // SAFETY: an aligned member of a map's value, valid until the program ends.
        unsafe {
            let free = address.read_volatile() == 0;
            if free {
                address.write_volatile(request);
            }
            free
        }
    }
}

/// A connection has a request on its way. Told once, however many there are, until the agent has seen all of them end: a
/// node at work causes one record in some seconds.
#[inline(always)]
pub fn busy(device: u32) {
    let Some(told) = TOLD_BUSY.get_ptr_mut(0) else { return };
    // Two CPUs may both tell; that does no harm.
    //
    // SAFETY: a map's value, valid until the program ends.
    unsafe {
        if *told == 0 {
            *told = 1;
            send(Record::Busy { at: now(), device });
        }
    }
}

/// Enters a request that was sent.
#[inline(always)]
pub fn enter<C: Claim>(request: InFlight) {
    let Some(bucket) = IN_FLIGHT.get_ptr_mut(bucket_of(lower_half(request.request))) else { return };
    // SAFETY: a map's value, valid until the program ends.
    for slot in unsafe { &mut (*bucket).slots } {
        let address = &raw mut slot.request;
        // The kernel takes requests from a slab: one that ended unseen (killed before the daemon read it: there is no
        // fuse_request_end) gives way when its memory is used again.
        //
        // SAFETY: an aligned member of a map's value.
        if unsafe { *address } == request.request || C::claim(address, request.request) {
            slot.device = request.device;
            slot.opcode = request.opcode;
            slot.pid = request.pid;
            // SAFETY: as above. Volatile, to be written last.
            unsafe { (&raw mut slot.since).write_volatile(request.since) };
            return;
        }
    }
    lose(Loss::InFlight);
}

/// Removes a request that ended. It is not there when it was sent before the programs were attached.
#[inline(always)]
pub fn leave(request: u64) {
    let Some(bucket) = IN_FLIGHT.get_ptr_mut(bucket_of(lower_half(request))) else { return };
    // SAFETY: a map's value, valid until the program ends.
    for slot in unsafe { &mut (*bucket).slots } {
        if slot.request == request {
            // SAFETY: as above. Volatile, to be written in this order: whoever claims the slot finds no old time in it.
            unsafe {
                (&raw mut slot.since).write_volatile(0);
                (&raw mut slot.request).write_volatile(0);
            }
        }
    }
}

/// The lower half of an address, copied by the one instruction that makes a number of a typed pointer.
#[inline(always)]
fn lower_half(address: u64) -> u32 {
    let half: u32;
    // SAFETY: a copy from register to register.
    unsafe { core::arch::asm!("{half} = {address}", half = out(wreg) half, address = in(wreg) address as u32) };
    half
}

impl Claim for Atomic {
    #[inline(always)]
    fn claim(address: *mut u64, request: u64) -> bool {
        let found: u64;
        // SAFETY: an aligned member of a map's value, valid until the program ends.
        unsafe {
            core::arch::asm!("r0 = cmpxchg_64({address} + 0, r0, {request})", address = in(reg) address,
                request = in(reg) request, inout("r0") 0_u64 => found);
        }
        found == 0
    }
}

/// Sends a record, or counts that there was no room.
#[inline(always)]
pub fn send(record: Record) {
    submit(&Wire::from(record));
}

/// One function for all, so that the code which formats the log message exists once.
#[inline(never)]
fn submit(wire: &Wire) {
    debug!(
        (),
        "record {}: device {} process {} other {} value {} detail {}",
        wire.kind,
        wire.device,
        wire.process.tgid,
        wire.other.tgid,
        wire.value,
        wire.detail
    );
    match EVENTS.reserve::<Wire>(0) {
        Some(mut entry) => {
            entry.write(*wire);
            entry.submit(0);
        }
        None => lose(Loss::RingFull),
    }
}

/// Counts a loss.
#[inline(always)]
pub fn lose(loss: Loss) {
    count_loss(loss as u32);
}

#[inline(never)]
fn count_loss(loss: u32) {
    debug!((), "lost something, reason {}", loss);
    if let Some(counter) = LOST.get_ptr_mut(loss) {
        // SAFETY: this CPU's own element.
        unsafe { *counter += 1 };
    }
}

/// Adds one to a counter that other CPUs add to.
#[inline(always)]
pub fn count(counter: *mut u64) {
    // Rust counts the BPF target among those without atomic operations. This one, an addition whose result is not asked
    // for, every kernel has (one with a result: Linux 5.12).
    //
    // SAFETY: an aligned member of a map's value, valid until the program ends.
    unsafe {
        core::arch::asm!("lock *(u64 *)({counter} + 0) += {one}", counter = in(reg) counter, one = in(reg) 1_u64);
    }
}

/// Adds one to a map's counter, which may be new. True when it was.
#[inline(always)]
pub fn count_in<K>(map: &HashMap<K, u64>, key: K, full: Loss) -> bool {
    if let Some(counter) = map.get_ptr_mut(&key) {
        count(counter);
        return false;
    }
    let added = map.insert(&key, 1, u64::from(BPF_NOEXIST)).is_ok();
    if !added {
        lose(full);
    }
    added
}

/// Makes a process a known daemon, without forgetting what is known of it.
#[inline(always)]
pub fn know_daemon(tgid: u32) {
    if DAEMONS.get_ptr(tgid).is_none() && DAEMONS.insert(tgid, DaemonState::default(), u64::from(BPF_NOEXIST)).is_err()
    {
        lose(Loss::Daemons);
    }
}
