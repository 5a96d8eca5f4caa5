//! The ring buffer's records: what the kernel programs tell the agent at once.
//!
//! On the wire each is one [`Wire`] of 64 bytes; in the programs and in the agent it is a [`Record`].

use core::fmt;

use crate::COMM_LEN;
use crate::maps::Task;
use crate::verdict::AbortPath;

/// A record as it lies in the ring buffer, in the machine's byte order.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    /// Which [`Record`].
    pub kind: u32,
    /// Device number; 0 where none is meant.
    pub device: u32,
    /// CLOCK_BOOTTIME in nanoseconds.
    pub at: u64,
    /// Whom it is about.
    pub process: Task,
    /// Somebody else; `tgid` 0 for nobody.
    pub other: Task,
    /// By kind: task flags, wait status or errno.
    pub value: i32,
    /// By kind: system call, descriptor (-1 for none) or whether memory ran out.
    pub detail: i32,
}

const _: () = assert!(size_of::<Wire>() == Wire::LEN && align_of::<Wire>() == 8);

const READY: u32 = 1;
const DAEMON_SEEN: u32 = 2;
const REQUESTS_ABORTED: u32 = 3;
const DAEMON_EXITED: u32 = 4;
const CALL_FAILED: u32 = 5;
const FORCED_UNMOUNT: u32 = 6;
const ABORTED: u32 = 7;
const BUSY: u32 = 8;

/// What a record says. `at` is CLOCK_BOOTTIME in nanoseconds, `device` the connection's number (kernel `dev_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// FUSE_INIT was answered without an error.
    Ready {
        /// When.
        at: u64,
        /// Of which connection.
        device: u32,
        /// By whom.
        daemon: Task,
    },
    /// A process answered a request of this connection for the first time.
    DaemonSeen {
        /// When.
        at: u64,
        /// Of which connection.
        device: u32,
        /// Who.
        daemon: Task,
    },
    /// The first request of a burst that the kernel itself ended because the connection was aborted.
    RequestsAborted {
        /// When.
        at: u64,
        /// Of which connection.
        device: u32,
        /// The task in whose context it was ended.
        by: Task,
        /// That task's `PF_*` flags.
        flags: u32,
        /// The number of the system call that it is in; `None` for a task that is in none.
        call: Option<u32>,
    },
    /// The last thread of a known daemon began to exit. Its descriptors are still open at this moment.
    DaemonExited {
        /// When.
        at: u64,
        /// Who.
        daemon: Task,
        /// Its wait status (wait(2)).
        status: u32,
        /// Who sent the signal that ended it, where somebody did.
        sender: Option<Task>,
        /// Whether the kernel killed it for want of memory.
        oom: bool,
    },
    /// The connection was connected and is aborted: it will never answer again.
    Aborted {
        /// When.
        at: u64,
        /// Which connection.
        device: u32,
        /// The task that aborts.
        by: Task,
        /// That task's `PF_*` flags.
        flags: u32,
        /// From which function.
        path: AbortPath,
    },
    /// Some connection has a request on its way, the first one since the agent asked to be told.
    Busy {
        /// When.
        at: u64,
        /// Which connection.
        device: u32,
    },
    /// A call on a file of a dead connection failed.
    CallFailed {
        /// When.
        at: u64,
        /// Of which connection; 0 when only the system call's result is known.
        device: u32,
        /// Whose call.
        process: Task,
        /// Positive errno.
        errno: u32,
        /// The descriptor it was called with; `None` for a call that takes a path.
        descriptor: Option<u32>,
    },
    /// `umount2(…, MNT_FORCE)` returned EBUSY: nothing was unmounted, the connection was aborted all the same.
    ForcedUnmount {
        /// When.
        at: u64,
        /// Whose call.
        process: Task,
    },
}

/// Bytes that are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Not the length of a record.
    Length(usize),
    /// A kind that this version doesn't know.
    Kind(u32),
    /// A field holds what no program writes.
    Field(&'static str),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a kernel record has {} bytes, this one {length}", Wire::LEN),
            Self::Kind(kind) => write!(f, "kernel record of unknown kind {kind}"),
            Self::Field(field) => write!(f, "kernel record with an impossible {field}"),
        }
    }
}

impl core::error::Error for Malformed {}

impl Wire {
    /// Bytes of every record.
    pub const LEN: usize = 64;

    #[inline(always)]
    const fn of(kind: u32, device: u32, at: u64, process: Task) -> Self {
        Self { kind, device, at, process, other: Task { tgid: 0, comm: [0; COMM_LEN] }, value: 0, detail: 0 }
    }
}

/// -1 for none: system call numbers and descriptors are never negative.
#[inline(always)]
const fn or_minus_one(number: Option<u32>) -> i32 {
    match number {
        Some(number) => number.cast_signed(),
        None => -1,
    }
}

impl From<Record> for Wire {
    #[inline(always)]
    fn from(record: Record) -> Self {
        match record {
            Record::Ready { at, device, daemon } => Self::of(READY, device, at, daemon),
            Record::DaemonSeen { at, device, daemon } => Self::of(DAEMON_SEEN, device, at, daemon),
            Record::RequestsAborted { at, device, by, flags, call } => Self {
                value: flags.cast_signed(),
                detail: or_minus_one(call),
                ..Self::of(REQUESTS_ABORTED, device, at, by)
            },
            Record::DaemonExited { at, daemon, status, sender, oom } => Self {
                other: sender.unwrap_or_default(),
                value: status.cast_signed(),
                detail: oom as i32,
                ..Self::of(DAEMON_EXITED, 0, at, daemon)
            },
            Record::Aborted { at, device, by, flags, path } => {
                Self { value: flags.cast_signed(), detail: path as i32, ..Self::of(ABORTED, device, at, by) }
            }
            Record::Busy { at, device } => Self::of(BUSY, device, at, Task { tgid: 0, comm: [0; COMM_LEN] }),
            Record::CallFailed { at, device, process, errno, descriptor } => Self {
                value: errno.cast_signed(),
                detail: or_minus_one(descriptor),
                ..Self::of(CALL_FAILED, device, at, process)
            },
            Record::ForcedUnmount { at, process } => Self::of(FORCED_UNMOUNT, 0, at, process),
        }
    }
}

/// Takes fields from the front of the bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Length(self.0.len()))?;
        self.0 = rest;
        Ok(*field)
    }

    fn number(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    fn task(&mut self) -> Result<Task, Malformed> {
        Ok(Task { tgid: self.number()?, comm: self.take()? })
    }
}

impl TryFrom<&[u8]> for Record {
    type Error = Malformed;

    fn try_from(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() != Wire::LEN {
            return Err(Malformed::Length(bytes.len()));
        }
        let mut fields = Fields(bytes);
        let (kind, device) = (fields.number()?, fields.number()?);
        let at = u64::from_ne_bytes(fields.take()?);
        let (process, other) = (fields.task()?, fields.task()?);
        let (value, detail) = (fields.number()?, fields.number()?);
        if process.tgid == 0 && !matches!(kind, REQUESTS_ABORTED | ABORTED | BUSY) {
            return Err(Malformed::Field("process"));
        }
        Ok(match kind {
            READY => Self::Ready { at, device, daemon: process },
            DAEMON_SEEN => Self::DaemonSeen { at, device, daemon: process },
            REQUESTS_ABORTED => Self::RequestsAborted { at, device, by: process, flags: value, call: optional(detail) },
            DAEMON_EXITED => Self::DaemonExited {
                at,
                daemon: process,
                status: value,
                sender: (other.tgid != 0).then_some(other),
                oom: match detail {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed::Field("oom flag")),
                },
            },
            ABORTED => {
                let path = AbortPath::ALL.get(usize::try_from(detail).unwrap_or(usize::MAX));
                let path = *path.ok_or(Malformed::Field("abort path"))?;
                Self::Aborted { at, device, by: process, flags: value, path }
            }
            BUSY => Self::Busy { at, device },
            CALL_FAILED => Self::CallFailed {
                at,
                device,
                process,
                errno: match value {
                    1..=4095 => value, // MAX_ERRNO, include/linux/err.h
                    _ => return Err(Malformed::Field("errno")),
                },
                descriptor: optional(detail),
            },
            FORCED_UNMOUNT => Self::ForcedUnmount { at, process },
            _ => return Err(Malformed::Kind(kind)),
        })
    }
}

/// Undoes [`or_minus_one`].
const fn optional(number: u32) -> Option<u32> {
    if number.cast_signed() < 0 { None } else { Some(number) }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// The bytes as the kernel program writes them.
    fn bytes(wire: &Wire) -> Vec<u8> {
        let Wire { kind, device, at, process, other, value, detail } = *wire;
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(device.to_ne_bytes());
        bytes.extend(at.to_ne_bytes());
        for task in [process, other] {
            bytes.extend(task.tgid.to_ne_bytes());
            bytes.extend(task.comm);
        }
        bytes.extend(value.to_ne_bytes());
        bytes.extend(detail.to_ne_bytes());
        bytes
    }

    fn task() -> impl Strategy<Value = Task> {
        (1..=u32::MAX, any::<[u8; COMM_LEN]>()).prop_map(|(tgid, comm)| Task { tgid, comm })
    }

    fn record() -> impl Strategy<Value = Record> {
        let optional = || prop::option::of(0..=u32::MAX >> 1);
        prop_oneof![
            (any::<u64>(), any::<u32>(), task()).prop_map(|(at, device, daemon)| Record::Ready { at, device, daemon }),
            (any::<u64>(), any::<u32>(), task()).prop_map(|(at, device, daemon)| Record::DaemonSeen {
                at,
                device,
                daemon
            }),
            (any::<u64>(), any::<u32>(), task(), any::<u32>(), optional())
                .prop_map(|(at, device, by, flags, call)| Record::RequestsAborted { at, device, by, flags, call }),
            (any::<u64>(), task(), any::<u32>(), prop::option::of(task()), any::<bool>())
                .prop_map(|(at, daemon, status, sender, oom)| Record::DaemonExited { at, daemon, status, sender, oom }),
            (any::<u64>(), any::<u32>(), task(), 1..4096_u32, optional()).prop_map(
                |(at, device, process, errno, descriptor)| Record::CallFailed {
                    at,
                    device,
                    process,
                    errno,
                    descriptor
                }
            ),
            (any::<u64>(), any::<u32>()).prop_map(|(at, device)| Record::Busy { at, device }),
            (any::<u64>(), any::<u32>(), task(), any::<u32>(), prop::sample::select(&AbortPath::ALL[..]))
                .prop_map(|(at, device, by, flags, path)| Record::Aborted { at, device, by, flags, path }),
            (any::<u64>(), task()).prop_map(|(at, process)| Record::ForcedUnmount { at, process }),
        ]
    }

    proptest! {
        #[test]
        fn what_a_program_writes_the_agent_reads(record in record()) {
            prop_assert_eq!(Record::try_from(&*bytes(&Wire::from(record))), Ok(record));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            let decoded = Record::try_from(&*bytes);
            prop_assert!(decoded.is_err() || bytes.len() == Wire::LEN);
        }

        #[test]
        fn a_truncated_record_is_refused(record in record(), length in 0..Wire::LEN) {
            let bytes = bytes(&Wire::from(record));
            prop_assert_eq!(Record::try_from(&bytes[..length]), Err(Malformed::Length(length)));
        }

        #[test]
        fn an_unknown_kind_is_refused(record in record(), kind in prop_oneof![Just(0), 9..=u32::MAX]) {
            let mut bytes = bytes(&Wire::from(record));
            bytes[..4].copy_from_slice(&kind.to_ne_bytes());
            let decoded = Record::try_from(&*bytes);
            prop_assert!(matches!(decoded, Err(Malformed::Kind(found)) if found == kind)
                || matches!(decoded, Err(Malformed::Field("process"))));
        }
    }
}
