//! The kernel's events, decoded, in the order in which they lie in the ring buffer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{MapData, RingBuf};
use detector_common::maps::Task;
use detector_common::record::Record;
use detector_common::verdict::{AbortPath, PF_EXITING, PF_KTHREAD};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::log::KernelLog;
use crate::model::{AbortCall, AbortCause, Boottime, DeviceNumber, ExitStatus, Process};

/// What the kernel programs tell at once. Everything else they count: [`super::Counters`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelEvent {
    /// FUSE_INIT was answered without an error: the connection serves.
    Ready {
        /// When.
        at: Boottime,
        /// Of which connection.
        device: DeviceNumber,
        /// Who answered.
        daemon: Process,
    },
    /// A process answered a request of this connection for the first time.
    DaemonSeen {
        /// When.
        at: Boottime,
        /// Of which connection.
        device: DeviceNumber,
        /// Who.
        daemon: Process,
    },
    /// The kernel itself ended a request with ECONNABORTED: the first one of a burst, which ends with the daemon's next
    /// answer. A hint, not yet a death: closing one of several cloned descriptors (`FUSE_DEV_IOC_CLONE`) ends that
    /// descriptor's requests alone.
    RequestsAborted {
        /// When.
        at: Boottime,
        /// Of which connection.
        device: DeviceNumber,
        /// The process in whose context it happened.
        by: Process,
        /// Whether that process is dying: it is the daemon, and its descriptor was just closed.
        exiting: bool,
        /// Whether it is a thread of the kernel: `fuse_check_timeout` aborts so (Linux 6.15), and so does the late
        /// release of an io_uring daemon's descriptor.
        kernel_thread: bool,
        /// What it called, if that can abort a connection.
        syscall: Option<AbortCall>,
    },
    /// A connection that was connected is aborted: it will never answer again.
    Aborted {
        /// When.
        at: Boottime,
        /// Which.
        device: DeviceNumber,
        /// The process in whose context it happens.
        by: Process,
        /// From where.
        cause: AbortCause,
    },
    /// A connection has a request on its way: the first one since [`super::Kernel::tell_when_busy`].
    Busy {
        /// When.
        at: Boottime,
    },
    /// The last thread of a known daemon began to exit. Its descriptors are closed, and its connections aborted, some
    /// microseconds later (`do_exit`: the tracepoint comes before `exit_files`).
    DaemonExited {
        /// When.
        at: Boottime,
        /// Who.
        daemon: Process,
        /// How.
        status: ExitStatus,
        /// Who sent the signal that ended it. `None` when the kernel raised it, or nobody saw it sent.
        sender: Option<Process>,
        /// Whether the kernel killed it for want of memory.
        oom: bool,
    },
    /// A call on a file of a dead connection failed. Once for each connection, process and errno until
    /// [`super::Counters::drain_vfs_errors`].
    VfsError {
        /// When.
        at: Boottime,
        /// Of which connection, where that is known: seen by the hook on the end of every system call, it is not.
        device: Option<DeviceNumber>,
        /// Whose call.
        process: Process,
        /// Positive errno: ENOTCONN or ECONNABORTED.
        errno: i32,
        /// The descriptor the call was made on, which may be a socket. `None`: the call took a path.
        descriptor: Option<i32>,
    },
    /// `umount2(…, MNT_FORCE)` returned EBUSY: the mount stays, its connection was aborted.
    ForcedUnmount {
        /// When.
        at: Boottime,
        /// Who.
        process: Process,
    },
}

/// The system call of that number, if it can abort a connection.
fn abort_call(number: u32) -> Option<AbortCall> {
    const WRITES: [libc::c_long; 5] =
        [libc::SYS_write, libc::SYS_pwrite64, libc::SYS_writev, libc::SYS_pwritev, libc::SYS_pwritev2];
    let number = libc::c_long::from(number);
    if WRITES.contains(&number) {
        Some(AbortCall::Write)
    } else {
        (number == libc::SYS_umount2).then_some(AbortCall::Umount)
    }
}

fn cause(path: AbortPath, flags: u32) -> AbortCause {
    match path {
        AbortPath::Release => AbortCause::Closed { exiting: flags & PF_EXITING != 0 },
        AbortPath::Write => AbortCause::Call(AbortCall::Write),
        AbortPath::ForcedUnmount => AbortCause::Call(AbortCall::Umount),
        AbortPath::LastUnmount => AbortCause::LastUnmount,
        AbortPath::Timeout => AbortCause::RequestTimeout,
        AbortPath::Other => AbortCause::Unknown,
    }
}

/// A process as the kernel tells of it.
fn process(task: Task) -> Process {
    let name = task.comm.split(|byte| *byte == 0).next().unwrap_or_default();
    let comm = (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned());
    Process { pid: task.tgid, comm }
}

impl From<Record> for KernelEvent {
    fn from(record: Record) -> Self {
        match record {
            Record::Ready { at, device, daemon } => {
                Self::Ready { at: Boottime(at), device: DeviceNumber::from_kernel(device), daemon: process(daemon) }
            }
            Record::DaemonSeen { at, device, daemon } => Self::DaemonSeen {
                at: Boottime(at),
                device: DeviceNumber::from_kernel(device),
                daemon: process(daemon),
            },
            Record::RequestsAborted { at, device, by, flags, call } => Self::RequestsAborted {
                at: Boottime(at),
                device: DeviceNumber::from_kernel(device),
                by: process(by),
                exiting: flags & PF_EXITING != 0,
                kernel_thread: flags & PF_KTHREAD != 0,
                syscall: call.and_then(abort_call),
            },
            Record::DaemonExited { at, daemon, status, sender, oom } => Self::DaemonExited {
                at: Boottime(at),
                daemon: process(daemon),
                status: ExitStatus::from_wait_status(status),
                sender: sender.map(process),
                oom,
            },
            Record::Aborted { at, device, by, flags, path } => Self::Aborted {
                at: Boottime(at),
                device: DeviceNumber::from_kernel(device),
                by: process(by),
                cause: cause(path, flags),
            },
            Record::Busy { at, device: _ } => Self::Busy { at: Boottime(at) },
            Record::CallFailed { at, device, process: caller, errno, descriptor } => Self::VfsError {
                at: Boottime(at),
                device: (device != 0).then_some(DeviceNumber::from_kernel(device)),
                process: process(caller),
                errno: errno.cast_signed(),
                descriptor: descriptor.map(u32::cast_signed),
            },
            Record::ForcedUnmount { at, process: caller } => {
                Self::ForcedUnmount { at: Boottime(at), process: process(caller) }
            }
        }
    }
}

/// At most so many events are handed over at once, so that a flood does not keep the reader from handing over at all.
const BATCH: usize = 1024;

/// The ring buffer's reader. It waits for the kernel only: it decodes, hands over, and counts what it can't decode.
pub struct EventStream {
    ring: AsyncFd<RingBuf<MapData>>,
    log: Option<KernelLog>,
    malformed: Arc<AtomicU64>,
}

impl EventStream {
    /// Has to be called within a tokio runtime.
    pub(super) fn new(ring: RingBuf<MapData>, log: Option<KernelLog>, malformed: Arc<AtomicU64>) -> io::Result<Self> {
        // SAFETY: the ring buffer owns its descriptor, keeps it open and never gives another one.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?;
        Ok(Self { ring, log, malformed })
    }

    /// Waits for events and appends them to `batch`. Safe to cancel: an event is taken from the ring only when it is put
    /// into `batch`.
    ///
    /// # Errors
    /// When the ring buffer can't be polled, which means that the runtime is shutting down.
    pub async fn next_batch(&mut self, batch: &mut Vec<KernelEvent>) -> io::Result<()> {
        loop {
            let log = async {
                match &mut self.log {
                    Some(log) => log.flush_when_readable().await,
                    None => std::future::pending().await,
                }
            };
            let mut guard = tokio::select! {
                guard = self.ring.readable_mut() => guard?,
                flushed = log => { flushed?; continue }
            };
            let before = batch.len();
            if drain(guard.get_inner_mut(), batch, &self.malformed) {
                guard.clear_ready();
            }
            if batch.len() > before {
                return Ok(());
            }
        }
    }

    /// Appends what lies in the ring by now, without waiting.
    pub fn take_ready(&mut self, batch: &mut Vec<KernelEvent>) {
        drain(self.ring.get_mut(), batch, &self.malformed);
    }
}

/// Moves records from the ring to the batch. True when the ring is empty.
fn drain(ring: &mut RingBuf<MapData>, batch: &mut Vec<KernelEvent>, malformed: &AtomicU64) -> bool {
    for _ in 0..BATCH {
        let Some(item) = ring.next() else { return true };
        match Record::try_from(&*item) {
            Ok(record) => batch.push(record.into()),
            Err(error) => {
                malformed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "a kernel record was not understood");
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(tgid: u32, name: &[u8]) -> Task {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name);
        Task { tgid, comm }
    }

    #[test]
    fn an_exit_is_told_with_its_sender() {
        let record = Record::DaemonExited {
            at: 7,
            daemon: task(812, b"bindfs"),
            status: 9,
            sender: Some(task(900, b"bash\xff")),
            oom: false,
        };
        let event = KernelEvent::DaemonExited {
            at: Boottime(7),
            daemon: Process { pid: 812, comm: Some("bindfs".into()) },
            status: ExitStatus::Signal(crate::model::Signal::KILL),
            sender: Some(Process { pid: 900, comm: Some("bash\u{fffd}".into()) }),
            oom: false,
        };
        assert_eq!(KernelEvent::from(record), event);
    }

    #[test]
    fn who_aborted_is_told_by_flags_and_call() {
        let of = |flags, call| match KernelEvent::from(Record::RequestsAborted {
            at: 0,
            device: 45,
            by: task(1, b""),
            flags,
            call,
        }) {
            KernelEvent::RequestsAborted { exiting, kernel_thread, syscall, .. } => (exiting, kernel_thread, syscall),
            other => panic!("{other:?}"),
        };
        let write = u32::try_from(libc::SYS_write).unwrap();
        let umount = u32::try_from(libc::SYS_umount2).unwrap();
        let close = u32::try_from(libc::SYS_close).unwrap();
        assert_eq!(of(PF_EXITING, None), (true, false, None));
        assert_eq!(of(PF_KTHREAD, None), (false, true, None));
        assert_eq!(of(0, Some(write)), (false, false, Some(AbortCall::Write)));
        assert_eq!(of(0, Some(umount)), (false, false, Some(AbortCall::Umount)));
        assert_eq!(of(0, Some(close)), (false, false, None));
    }
}
