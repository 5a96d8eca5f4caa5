//! Keys and values of the maps that both sides use. All are made of fixed-width integers without implicit padding: the
//! kernel compares keys byte by byte.

use crate::COMM_LEN;

/// Which process: thread group id and the thread group leader's name.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Task {
    /// Thread group id in the initial pid namespace; 0 when nobody is meant.
    pub tgid: u32,
    /// Name, padded with zero bytes.
    pub comm: [u8; COMM_LEN],
}

/// A daemon that is known to serve a connection, and what was last done to it. Key: its thread group id.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DaemonState {
    /// When the signal was sent: CLOCK_BOOTTIME, nanoseconds.
    pub at: u64,
    /// The last deadly signal delivered to it; 0 for none. SIGKILL is not overwritten by a later one.
    pub signal: u32,
    /// Its `si_code` (sigaction(2)).
    pub code: i32,
    /// 1 once the kernel chose it as the victim of an out-of-memory kill.
    pub oom: u32,
    /// Who sent it; `tgid` 0 when the kernel raised it.
    pub sender: Task,
}

/// What was counted for one connection since its FUSE_INIT was sent, or since the programs were attached. Key: its
/// device number.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionState {
    /// Requests that the kernel put in the queue (`fuse_request_send`).
    pub sent: u64,
    /// Requests that ended, however (`fuse_request_end`).
    pub ended: u64,
    /// Requests that the kernel itself ended because the connection was aborted.
    pub aborted: u64,
    /// Those among them since the daemon's last answer: the first one of such a burst is reported, the others counted.
    pub burst: u64,
    /// When the last request ended: CLOCK_BOOTTIME, nanoseconds; 0 for never.
    pub last_end: u64,
    /// The thread group that answered last: spares the look into the set of known daemons for nearly every request.
    pub last_tgid: u32,
    /// Nothing; keeps the size a multiple of eight.
    pub reserved: u32,
}

/// A request on its way, or nothing.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// The address of the kernel's `fuse_req`: Linux 6.12 has not given it a number yet when it reports it sent. 0 in a
    /// slot that is free.
    pub request: u64,
    /// When it was sent: CLOCK_BOOTTIME, nanoseconds. Written last; 0 while the slot is being filled.
    pub since: u64,
    /// Of which connection.
    pub device: u32,
    /// FUSE opcode.
    pub opcode: u32,
    /// Who asks; 0 when the kernel doesn't say.
    pub pid: u32,
    /// Nothing; keeps the size a multiple of eight.
    pub reserved: u32,
}

/// Requests on their way whose addresses fall together. An array of these is a hash table that costs a request some
/// nanoseconds, where the kernel's own hash map takes a lock and costs a hundred at either end.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// The slots.
    pub slots: [InFlight; BUCKET_SLOTS],
}

/// Slots of a bucket. With a hundred requests on their way, nine in one bucket do not happen.
pub const BUCKET_SLOTS: usize = 8;

/// Buckets: 4,096 slots, 128 KiB. A power of two.
pub const BUCKETS: u32 = 512;

/// Which bucket a request belongs to, by the lower half of its address: the verifier forbids arithmetic on a typed
/// pointer, but not to copy half of one. A request's size (168 to 200 bytes) makes the low bits poor; the multiplication
/// (2^32 divided by the golden ratio, Knuth's multiplicative hashing) spreads the others.
#[inline(always)]
pub const fn bucket_of(address: u32) -> u32 {
    (address.wrapping_mul(0x9e37_79b9) >> 16) & (BUCKETS - 1)
}

/// Key of the set of (connection, daemon) pairs that were reported.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Served {
    /// Device number.
    pub device: u32,
    /// Thread group id.
    pub tgid: u32,
}

/// Key of the counters of errors that daemons answered.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RequestError {
    /// Device number.
    pub device: u32,
    /// Positive errno.
    pub errno: u32,
}

/// Key of the counters of calls that failed with an error of a dead connection.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CallError {
    /// Device number; 0 when only the system call's result is known.
    pub device: u32,
    /// Thread group id.
    pub tgid: u32,
    /// Positive errno.
    pub errno: u32,
}

/// Why something was not recorded. Index into the per-CPU array of counters.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The ring buffer had no room for a record.
    RingFull = 0,
    /// The map of connections is full.
    Connections = 1,
    /// A bucket of requests on their way is full: the age of one is unknown.
    InFlight = 2,
    /// The map of known daemons is full.
    Daemons = 3,
    /// The set of (connection, daemon) pairs is full.
    Served = 4,
    /// The counters of errors that daemons answered are full.
    RequestErrors = 5,
    /// The counters of failed system calls are full.
    CallErrors = 6,
    /// A kernel structure could not be read.
    Unreadable = 7,
    /// No room to note from which function a connection is aborted: the cause of that abort is unknown.
    AbortPaths = 8,
}

impl Loss {
    /// Every one, in the order of the array.
    pub const ALL: [Self; 9] = [
        Self::RingFull,
        Self::Connections,
        Self::InFlight,
        Self::Daemons,
        Self::Served,
        Self::RequestErrors,
        Self::CallErrors,
        Self::Unreadable,
        Self::AbortPaths,
    ];

    /// Whether it leaves the reader with a wrong picture of what lives, and not merely without a figure.
    pub const fn hides_events(self) -> bool {
        match self {
            Self::RingFull | Self::Connections | Self::Daemons | Self::Served | Self::Unreadable => true,
            Self::InFlight | Self::RequestErrors | Self::CallErrors | Self::AbortPaths => false,
        }
    }

    /// As the metrics' label `reason` writes it.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::Connections => "connections_full",
            Self::InFlight => "in_flight_full",
            Self::Daemons => "daemons_full",
            Self::Served => "served_full",
            Self::RequestErrors => "request_errors_full",
            Self::CallErrors => "call_errors_full",
            Self::Unreadable => "unreadable",
            Self::AbortPaths => "abort_paths_full",
        }
    }
}

// Both sides are compiled apart: a field that moves must fail here, not in the field.
const _: () = {
    assert!(size_of::<Task>() == 20);
    assert!(size_of::<DaemonState>() == 40);
    assert!(size_of::<ConnectionState>() == 48);
    assert!(size_of::<InFlight>() == 32);
    assert!(size_of::<Bucket>() == 256);
    assert!(BUCKETS.is_power_of_two());
    assert!(size_of::<Served>() == 8);
    assert!(size_of::<RequestError>() == 8);
    assert!(size_of::<CallError>() == 12);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_one_slab_fall_into_different_buckets() {
        // 4 KiB slabs of 192-byte objects, as SLUB lays them out.
        let mut load = [0_u8; BUCKETS as usize];
        for index in 0..1024_u32 {
            let request = 0x0123_0000 + (index / 21) * 4096 + (index % 21) * 192;
            load[bucket_of(request) as usize] += 1;
        }
        assert!(load.iter().all(|count| usize::from(*count) <= BUCKET_SLOTS), "{:?}", load.iter().max());
    }

    #[test]
    fn every_loss_lies_at_its_index() {
        for (index, loss) in Loss::ALL.iter().enumerate() {
            assert_eq!(*loss as usize, index);
        }
    }
}
