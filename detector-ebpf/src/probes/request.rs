//! FUSE requests: `fuse_request_send` (the kernel puts a request in the daemon's queue) and `fuse_request_end` (it was
//! answered, or ended by the kernel). Both are tracepoints since Linux 6.11, with one argument, the `fuse_req`. Before that
//! the function `fuse_request_end` has the same one, and `queue_request_and_unlock` or `fuse_dev_queue_req` has it second.
//!
//! `fuse_request_end` runs in the context of whoever ends the request: the daemon that answers (`fuse_dev_do_write`),
//! the dying daemon whose descriptor is closed (`fuse_dev_release`), the task that aborts (`fuse_conn_abort_write`,
//! `fuse_umount_begin`), or a thread of the kernel (`fuse_check_timeout`, io_uring).

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::macros::{btf_tracepoint, fentry, kprobe, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, FEntryContext, ProbeContext, RawTracePointContext};
use detector_common::maps::{ConnectionState, InFlight, Loss, RequestError, Served};
use detector_common::record::Record;
use detector_common::verdict::{self, Ending, FR_FINISHED, FUSE_INIT, PF_KTHREAD};

use crate::memory::{
    Address, Memory, Probed, Typed, current_call, current_tgid, first_argument, makes_calls, offset, process_of,
    second_argument,
};
use crate::state::{
    Atomic, CONNECTIONS, Claim, Plain, REQUEST_ERRORS, SERVED, busy, count, count_in, enter, know_daemon, leave, lose,
    now, send,
};

#[btf_tracepoint(function = "fuse_request_send")]
fn fuse_request_send(context: BtfTracePointContext) {
    sent::<Typed, Atomic>(context.arg(0)).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[raw_tracepoint(tracepoint = "fuse_request_send")]
fn fuse_request_send_raw(context: RawTracePointContext) {
    sent::<Probed, Atomic>(context.arg(0)).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[btf_tracepoint(function = "fuse_request_end")]
fn fuse_request_end(context: BtfTracePointContext) {
    ended::<Typed>(context.arg(0), aborted_in_call::<Typed>).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[raw_tracepoint(tracepoint = "fuse_request_end")]
fn fuse_request_end_raw(context: RawTracePointContext) {
    ended::<Probed>(context.arg(0), aborted_in_call::<Probed>).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[fentry]
fn request_queued(context: FEntryContext) {
    sent::<Typed, Atomic>(context.arg(1)).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[kprobe]
fn request_queued_probe(context: ProbeContext) -> u32 {
    let request = second_argument(&context);
    request.and_then(sent::<Probed, Plain>).unwrap_or_else(|| lose(Loss::Unreadable));
    0
}

#[fentry]
fn request_end(context: FEntryContext) {
    ending::<Typed>(context.arg(0)).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[kprobe]
fn request_end_probe(context: ProbeContext) -> u32 {
    first_argument(&context).and_then(ending::<Probed>).unwrap_or_else(|| lose(Loss::Unreadable));
    0
}

/// The function is entered a second time with a request that the abort found locked; the first time counts.
#[inline(always)]
fn ending<M: Memory>(request: Address) -> Option<()> {
    if M::u64(request, offset!(request_flags))? & FR_FINISHED != 0 {
        return Some(());
    }
    ended::<M>(request, aborted::<M>)
}

/// The device number of the request's connection.
#[inline(always)]
fn device_of<M: Memory>(request: Address) -> Option<u32> {
    let owner = M::pointer(request, offset!(request_owner))?;
    let connection = M::pointer(owner, offset!(owner_connection))?;
    M::u32(connection, offset!(connection_device))
}

#[inline(always)]
fn sent<M: Memory, C: Claim>(request: Address) -> Option<()> {
    let device = device_of::<M>(request)?;
    let opcode = M::u32(request, offset!(request_opcode))?;
    let pid = M::u32(request, offset!(request_pid))?;
    match CONNECTIONS.get_ptr_mut(device) {
        // SAFETY: a map's value, valid until the program ends.
        Some(connection) if opcode != FUSE_INIT => count(unsafe { &raw mut (*connection).sent }),
        // The number is new or was given to another connection: what was counted under it is over.
        _ => {
            let connection = ConnectionState { sent: 1, ..ConnectionState::default() };
            if CONNECTIONS.insert(device, connection, u64::from(BPF_ANY)).is_err() {
                lose(Loss::Connections);
            }
        }
    }
    busy(device);
    enter::<C>(InFlight { request: request as u64, since: now(), device, opcode, pid, reserved: 0 });
    Some(())
}

#[inline(always)]
fn ended<M: Memory>(request: Address, aborted: impl Fn(*mut ConnectionState, u32) -> Option<()>) -> Option<()> {
    let device = device_of::<M>(request)?;
    let opcode = M::u32(request, offset!(request_opcode))?;
    let error = M::u32(request, offset!(reply_error))?.cast_signed();
    let unique = M::u64(request, offset!(reply_unique))?;
    leave(request as u64);
    let Some(connection) = connection_of(device) else { return Some(()) };
    // SAFETY: a map's value, valid until the program ends; what several CPUs add to is added atomically, of the other
    // members any CPU's latest value is right.
    unsafe {
        count(&raw mut (*connection).ended);
        (*connection).last_end = now();
    }
    match verdict::request_end(opcode, error, unique) {
        Ending::Initialised => initialised::<M>(connection, device),
        Ending::Answered => answered::<M>(connection, device),
        Ending::ErrorReply { errno } => {
            count_in(&REQUEST_ERRORS, RequestError { device, errno }, Loss::RequestErrors);
            answered::<M>(connection, device)
        }
        Ending::Aborted => aborted(connection, device),
        Ending::Kernel => Some(()),
    }
}

/// What is counted for a connection, from now on if it is new.
#[inline(always)]
fn connection_of(device: u32) -> Option<*mut ConnectionState> {
    if let Some(connection) = CONNECTIONS.get_ptr_mut(device) {
        return Some(connection);
    }
    if CONNECTIONS.insert(device, ConnectionState::default(), u64::from(BPF_ANY)).is_err() {
        lose(Loss::Connections);
    }
    CONNECTIONS.get_ptr_mut(device)
}

/// The daemon serves from now on.
#[inline(always)]
fn initialised<M: Memory>(connection: *mut ConnectionState, device: u32) -> Option<()> {
    let daemon = process_of::<M>(M::current())?;
    // SAFETY: a map's value, valid until the program ends.
    unsafe { (*connection).last_tgid = daemon.tgid };
    serves(device, daemon.tgid);
    send(Record::Ready { at: now(), device, daemon });
    Some(())
}

/// The daemon is alive; perhaps it is one that nobody knows yet.
#[inline(always)]
fn answered<M: Memory>(connection: *mut ConnectionState, device: u32) -> Option<()> {
    let tgid = current_tgid();
    // SAFETY: a map's value, valid until the program ends.
    let (burst, last) = unsafe { ((*connection).burst, (*connection).last_tgid) };
    if burst != 0 {
        // SAFETY: as above.
        unsafe { (*connection).burst = 0 };
    }
    if last == tgid {
        return Some(());
    }
    // SAFETY: as above.
    unsafe { (*connection).last_tgid = tgid };
    if SERVED.get_ptr(Served { device, tgid }).is_some() {
        return Some(());
    }
    let task = M::current();
    if M::u32(task, offset!(task_flags))? & PF_KTHREAD != 0 {
        // virtiofs, or io_uring finishing an answer in a thread of the kernel.
        return Some(());
    }
    let daemon = process_of::<M>(task)?;
    serves(device, tgid);
    send(Record::DaemonSeen { at: now(), device, daemon });
    Some(())
}

#[inline(always)]
fn serves(device: u32, tgid: u32) {
    if SERVED.insert(Served { device, tgid }, 1, u64::from(BPF_ANY)).is_err() {
        lose(Loss::Served);
    }
    know_daemon(tgid);
}

/// The connection was aborted, perhaps. Only the first request of a burst is reported: the agent reads the number from the
/// map. Where a probe on the abort itself tells who did it, that is all.
#[inline(always)]
fn aborted<M: Memory>(connection: *mut ConnectionState, device: u32) -> Option<()> {
    if !begins_burst(connection) {
        return Some(());
    }
    let task = M::current();
    let flags = M::u32(task, offset!(task_flags))?;
    let by = process_of::<M>(task)?;
    send(Record::RequestsAborted { at: now(), device, by, flags, call: None });
    Some(())
}

/// As [`aborted`], with the system call in which it happened.
#[inline(always)]
fn aborted_in_call<M: Memory>(connection: *mut ConnectionState, device: u32) -> Option<()> {
    if !begins_burst(connection) {
        return Some(());
    }
    let task = M::current();
    let flags = M::u32(task, offset!(task_flags))?;
    let call = if makes_calls(flags) { current_call() } else { None };
    let by = process_of::<M>(task)?;
    send(Record::RequestsAborted { at: now(), device, by, flags, call });
    Some(())
}

/// Counts an aborted request. Whether it is the first since the daemon's last answer.
#[inline(always)]
fn begins_burst(connection: *mut ConnectionState) -> bool {
    // SAFETY: a map's value, valid until the program ends.
    unsafe {
        let first = (*connection).burst == 0;
        count(&raw mut (*connection).aborted);
        count(&raw mut (*connection).burst);
        first
    }
}
