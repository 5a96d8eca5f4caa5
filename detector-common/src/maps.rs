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
/// device number. All times are CLOCK_BOOTTIME in nanoseconds.
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
    /// When the last request ended; 0 for never.
    pub last_end: u64,
    /// The thread group that answered last: spares the look into the set of known daemons for nearly every request.
    pub last_tgid: u32,
    /// Nothing; keeps the size a multiple of eight.
    pub reserved: u32,
}

/// A request on its way. Key: the address of the kernel's `fuse_req`; Linux 6.12 has not given it a number yet when it
/// reports it sent.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// When it was sent: CLOCK_BOOTTIME, nanoseconds.
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

/// Key of the counters of system calls that returned an error of a dead connection.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CallError {
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
    /// The map of requests in flight is full.
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
}

impl Loss {
    /// Every one, in the order of the array.
    pub const ALL: [Self; 8] = [
        Self::RingFull,
        Self::Connections,
        Self::InFlight,
        Self::Daemons,
        Self::Served,
        Self::RequestErrors,
        Self::CallErrors,
        Self::Unreadable,
    ];

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
        }
    }
}

// Both sides are compiled apart: a field that moves must fail here, not in the field.
const _: () = {
    assert!(size_of::<Task>() == 20);
    assert!(size_of::<DaemonState>() == 40);
    assert!(size_of::<ConnectionState>() == 48);
    assert!(size_of::<InFlight>() == 24);
    assert!(size_of::<Served>() == 8);
    assert!(size_of::<RequestError>() == 8);
    assert!(size_of::<CallError>() == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_lies_at_its_index() {
        for (index, loss) in Loss::ALL.iter().enumerate() {
            assert_eq!(*loss as usize, index);
        }
    }
}
