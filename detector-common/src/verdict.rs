//! What an observed fact means. Pure functions, called by the kernel programs and tested on the host.

use crate::layout::CallTable;
use crate::maps::{DaemonState, Task};

/// FUSE_INIT, include/uapi/linux/fuse.h.
pub const FUSE_INIT: u32 = 26;

/// Bit `FR_FINISHED` of `enum fuse_req_flag`, fs/fuse/fuse_i.h (`fuse_dev_i.h` since Linux 6.16 or so).
pub const FR_FINISHED: u64 = 1 << 9;

/// `PF_EXITING`, include/linux/sched.h: the task is in `do_exit`.
pub const PF_EXITING: u32 = 0x4;
/// `PF_KTHREAD`, include/linux/sched.h: a thread of the kernel, that never makes a system call.
pub const PF_KTHREAD: u32 = 0x0020_0000;

const EBUSY: i64 = 16;
const ECONNABORTED: i32 = 103;
/// errno(3)
pub const ENOTCONN: i32 = 107;
const MNT_FORCE: u64 = 1;
const SIGKILL: u32 = 9;
/// `SIGNAL_GROUP_EXIT`, include/linux/sched/signal.h: the whole process was told to exit.
const SIGNAL_GROUP_EXIT: u32 = 0x4;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The daemon answered FUSE_INIT: the connection serves from now on.
    Initialised,
    /// The daemon answered.
    Answered,
    /// The daemon answered with an error. That is its right, and no death.
    ErrorReply {
        /// Positive errno.
        errno: u32,
    },
    /// The kernel ended it because the connection was aborted (`end_requests`, `fuse_abort_conn` and their successors).
    Aborted,
    /// The kernel ended it for another reason: a reply that needs no answer was read, a request was too large for the
    /// daemon's buffer, or the connection had been dead before (ENOTCONN for the FLUSH of a close).
    Kernel,
}

/// What the end of a request means. `unique` is that of the reply (`fuse_req.out.h.unique`): the kernel copies a
/// daemon's answer there (`fuse_dev_do_write`, `fuse_uring_commit`) and leaves zero when it ends the request itself, so
/// it tells an ECONNABORTED that the daemon answered from a real abort. `error` is zero or a negative errno.
#[inline(always)]
pub const fn request_end(opcode: u32, error: i32, unique: u64) -> Ending {
    match (unique, error) {
        (0, error) if error == -ECONNABORTED => Ending::Aborted,
        (0, _) => Ending::Kernel,
        (_, 0) if opcode == FUSE_INIT => Ending::Initialised,
        (_, 0) => Ending::Answered,
        (_, error) => Ending::ErrorReply { errno: error.unsigned_abs() },
    }
}

/// The kernel function from which a connection was aborted, the innermost one where they call one another.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortPath {
    /// None of those below. `request_wait_answer` and `fuse_dev_install` abort so, a task that opens CUSE devices too.
    Other = 0,
    /// `fuse_dev_release`: the last `/dev/fuse` descriptor was closed, by a living or a dying task.
    Release = 1,
    /// `fuse_conn_abort_write`: somebody wrote to the connection's `abort` file.
    Write = 2,
    /// `fuse_umount_begin`: `umount -f`.
    ForcedUnmount = 3,
    /// `fuse_conn_destroy`: the last mount is gone, as it should be when a file system ends.
    LastUnmount = 4,
    /// `fuse_check_timeout`: a request exceeded the kernel's own limit (Linux 6.15).
    Timeout = 5,
}

impl AbortPath {
    /// Every one, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Other, Self::Release, Self::Write, Self::ForcedUnmount, Self::LastUnmount, Self::Timeout];
}

/// What the return of a system call means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallVerdict {
    /// It returned an error that a dead connection gives.
    Failed {
        /// Positive errno.
        errno: u32,
        /// Whether the file was named by a descriptor (the first argument), not by a path.
        by_descriptor: bool,
    },
    /// `umount -f` of a busy file system.
    ForcedUnmount,
}

/// Whether a system call's result can be anything but `None` for [`call_end`]: the cheap first test.
#[inline(always)]
pub const fn call_result_matters(result: i64) -> bool {
    result == -(ENOTCONN as i64) || result == -(ECONNABORTED as i64) || result == -EBUSY
}

/// What the return of a system call means. Sockets give ENOTCONN and ECONNABORTED all day: only calls that name a file
/// by path, and those on a descriptor that are practically never used on a socket, count.
#[inline(always)]
pub fn call_end(calls: &CallTable, call: u64, second: u64, result: i64) -> Option<CallVerdict> {
    if result == -EBUSY {
        return (call == calls.umount && second & MNT_FORCE != 0).then_some(CallVerdict::ForcedUnmount);
    }
    let errno = if result == -i64::from(ENOTCONN) {
        ENOTCONN.unsigned_abs()
    } else if result == -i64::from(ECONNABORTED) {
        ECONNABORTED.unsigned_abs()
    } else {
        return None;
    };
    if CallTable::contains(&calls.path, call) {
        Some(CallVerdict::Failed { errno, by_descriptor: false })
    } else if CallTable::contains(&calls.descriptor, call) {
        Some(CallVerdict::Failed { errno, by_descriptor: true })
    } else {
        None
    }
}

/// Signals whose default action ends no process (signal(7)): SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU,
/// SIGURG, SIGWINCH. The numbers are those of x86, arm64 and every other architecture but alpha, mips, parisc, sparc.
const HARMLESS: u32 = 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23 | 1 << 28;

/// Whether a signal that was sent (`signal_generate`) is to be remembered as what may end the daemon. `outcome` is the
/// tracepoint's `TRACE_SIGNAL_*` (include/trace/events/signal.h): 0 when it was delivered.
#[inline(always)]
pub const fn remember_signal(remembered: u32, signal: u32, outcome: i32) -> bool {
    let harmless = signal < 32 && HARMLESS & (1 << signal) != 0;
    outcome == 0 && !harmless && remembered != SIGKILL
}

/// Whether a signal's `si_code` says that the running task sent it: `SI_USER` (kill), `SI_QUEUE` (sigqueue), `SI_TKILL`
/// (tgkill). A positive code is the kernel's own (a real SEGV_MAPERR); the other negative ones (timers, asynchronous
/// I/O) come at a moment when any task may be running.
#[inline(always)]
pub const fn has_sender(code: i32) -> bool {
    matches!(code, 0 | -1 | -6)
}

/// The wait status of a process whose last thread exits, as `wait_task_zombie` in kernel/exit.c picks it.
#[inline(always)]
pub const fn wait_status(signal_flags: u32, group_status: u32, thread_status: u32) -> u32 {
    if signal_flags & SIGNAL_GROUP_EXIT != 0 { group_status } else { thread_status }
}

/// Who ended a daemon that exited with `status`, where the signal that did it was seen being sent by somebody.
#[inline(always)]
pub fn sender(state: &DaemonState, status: u32) -> Option<Task> {
    let signal = status & 0x7f;
    (signal != 0 && signal == state.signal && has_sender(state.code) && state.sender.tgid != 0).then_some(state.sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKUP: u32 = 1;

    #[test]
    fn a_daemons_own_errors_are_no_abort() {
        assert_eq!(request_end(LOOKUP, -103, 8), Ending::ErrorReply { errno: 103 });
        assert_eq!(request_end(LOOKUP, -107, 8), Ending::ErrorReply { errno: 107 });
        assert_eq!(request_end(LOOKUP, -103, 0), Ending::Aborted);
    }

    #[test]
    fn only_an_answer_without_an_error_to_init_is_ready() {
        assert_eq!(request_end(FUSE_INIT, 0, 2), Ending::Initialised);
        assert_eq!(request_end(FUSE_INIT, -5, 2), Ending::ErrorReply { errno: 5 });
        assert_eq!(request_end(FUSE_INIT, -103, 0), Ending::Aborted);
        assert_eq!(request_end(LOOKUP, 0, 4), Ending::Answered);
    }

    #[test]
    fn what_the_kernel_ends_for_other_reasons_is_neither() {
        assert_eq!(request_end(41, 0, 0), Ending::Kernel);
        assert_eq!(request_end(25, -107, 0), Ending::Kernel);
        assert_eq!(request_end(LOOKUP, i32::MIN, 4), Ending::ErrorReply { errno: 1 << 31 });
    }

    const OPEN: u64 = 2;
    const READ: u64 = 0;
    const RECVFROM: u64 = 45;
    const UMOUNT: u64 = 166;

    fn calls() -> CallTable {
        let mut calls = CallTable { umount: UMOUNT, ..CallTable::UNKNOWN };
        CallTable::mark(&mut calls.path, OPEN);
        CallTable::mark(&mut calls.descriptor, READ);
        calls
    }

    #[test]
    fn calls_on_sockets_are_left_out() {
        assert_eq!(call_end(&calls(), RECVFROM, 0, -107), None);
        assert_eq!(call_end(&calls(), u64::MAX, 0, -107), None);
        let failed = |errno, by_descriptor| Some(CallVerdict::Failed { errno, by_descriptor });
        assert_eq!(call_end(&calls(), OPEN, 0, -107), failed(107, false));
        assert_eq!(call_end(&calls(), OPEN, 0, -103), failed(103, false));
        assert_eq!(call_end(&calls(), READ, 0, -107), failed(107, true));
        for result in [0, 107, 103, -1, -5, i64::MIN] {
            assert_eq!(call_end(&calls(), OPEN, 0, result), None, "{result}");
            assert!(!call_result_matters(result));
        }
    }

    #[test]
    fn only_a_forced_unmount_that_is_busy_counts() {
        assert_eq!(call_end(&calls(), UMOUNT, 1, -16), Some(CallVerdict::ForcedUnmount));
        assert_eq!(call_end(&calls(), UMOUNT, 2, -16), None);
        assert_eq!(call_end(&calls(), OPEN, 1, -16), None);
        assert_eq!(call_end(&calls(), UMOUNT, 1, 0), None);
    }

    #[test]
    fn the_signal_that_ends_a_daemon_is_remembered() {
        assert!(remember_signal(0, 9, 0));
        assert!(remember_signal(15, 9, 0));
        assert!(remember_signal(0, 40, 0));
        assert!(!remember_signal(9, 15, 0), "SIGKILL is what ends it");
        assert!(!remember_signal(0, 9, 1), "ignored");
        for harmless in [17, 18, 19, 20, 21, 22, 23, 28] {
            assert!(!remember_signal(0, harmless, 0), "{harmless}");
        }
    }

    #[test]
    fn a_signal_has_a_sender_only_if_a_process_sent_that_very_one() {
        let shell = Task { tgid: 900, comm: *b"bash\0\0\0\0\0\0\0\0\0\0\0\0" };
        let state = |signal, code| DaemonState { signal, code, sender: shell, ..DaemonState::default() };
        assert_eq!(sender(&state(11, 0), 0x80 | 11), Some(shell), "kill -SEGV");
        assert_eq!(sender(&state(11, 1), 0x80 | 11), None, "a real SEGV_MAPERR");
        assert_eq!(sender(&state(14, -2), 14), None, "a timer");
        assert_eq!(sender(&state(15, 0), 0), None, "it handled SIGTERM and exited");
        assert_eq!(sender(&state(15, 0), 9), None, "another signal ended it");
    }

    #[test]
    fn the_wait_status_is_the_groups_once_it_exits_as_a_group() {
        assert_eq!(wait_status(SIGNAL_GROUP_EXIT, 9, 0), 9);
        assert_eq!(wait_status(0, 0, 3 << 8), 3 << 8);
    }
}
