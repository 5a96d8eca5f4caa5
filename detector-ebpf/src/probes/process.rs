//! How a daemon ends: `sched_process_exit` (`do_exit`, before the descriptors are closed; the task is the first argument
//! on every kernel, Linux 6.18 has a second), `signal_generate` (`__send_signal_locked`, in the context of the sender)
//! and `mark_victim` (`oom_kill_process`; its argument is a pid before Linux 6.9, a task since).

use aya_ebpf::macros::{btf_tracepoint, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use detector_common::layout::CallTable;
use detector_common::maps::{Loss, Task};
use detector_common::record::Record;
use detector_common::verdict;

use crate::memory::{Address, CALLS, Memory, Probed, Typed, current_call, current_process, offset, process_of};
use crate::state::{DAEMONS, lose, now, send};

#[btf_tracepoint(function = "sched_process_exit")]
fn sched_process_exit(context: BtfTracePointContext) {
    exited::<Typed>(context.arg(0)).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[raw_tracepoint(tracepoint = "sched_process_exit")]
fn sched_process_exit_raw(context: RawTracePointContext) {
    exited::<Probed>(context.arg(0)).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[btf_tracepoint(function = "signal_generate")]
fn signal_generate(context: BtfTracePointContext) {
    signalled::<Typed>(context.arg(0), code_of::<Typed>(context.arg(1)), context.arg(2), context.arg(4))
        .unwrap_or_else(|| lose(Loss::Unreadable));
}

/// For kernels that call the second argument a number (since Linux 6.12), as it can be one, and forbid other reads
/// (lockdown): what the running task is doing tells whether it sends the signal.
#[btf_tracepoint(function = "signal_generate")]
fn signal_generate_in_call(context: BtfTracePointContext) {
    signalled::<Typed>(context.arg(0), code_in_call(context.arg(1)), context.arg(2), context.arg(4))
        .unwrap_or_else(|| lose(Loss::Unreadable));
}

#[raw_tracepoint(tracepoint = "signal_generate")]
fn signal_generate_raw(context: RawTracePointContext) {
    signalled::<Probed>(context.arg(0), code_of::<Probed>(context.arg(1)), context.arg(2), context.arg(4))
        .unwrap_or_else(|| lose(Loss::Unreadable));
}

#[btf_tracepoint(function = "mark_victim")]
fn mark_victim(context: BtfTracePointContext) {
    chosen_task::<Typed>(context.arg(0)).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[raw_tracepoint(tracepoint = "mark_victim")]
fn mark_victim_raw(context: RawTracePointContext) {
    chosen_task::<Probed>(context.arg(0)).unwrap_or_else(|| lose(Loss::Unreadable));
}

/// For kernels that pass the victim's pid: no memory is read, so this needs neither types nor a helper.
#[raw_tracepoint(tracepoint = "mark_victim")]
fn mark_victim_pid(context: RawTracePointContext) {
    chosen(context.arg(0));
}

#[inline(always)]
fn exited<M: Memory>(task: Address) -> Option<()> {
    let tgid = M::u32(task, offset!(task_tgid))?;
    let Some(state) = DAEMONS.get_ptr(tgid) else { return Some(()) };
    let signal = M::pointer(task, offset!(task_signal))?;
    if M::u32(signal, offset!(signal_live))? != 0 {
        // Another thread of the daemon goes on.
        return Some(());
    }
    // SAFETY: a map's value, valid until the program ends, copied before it is removed.
    let state = unsafe { *state };
    if DAEMONS.remove(tgid).is_err() {
        // Two last threads exit at once, and the other one was faster.
        return Some(());
    }
    let status = verdict::wait_status(
        M::u32(signal, offset!(signal_flags))?,
        M::u32(signal, offset!(signal_exit_code))?,
        M::u32(task, offset!(task_exit_code))?,
    );
    let daemon = process_of::<M>(task)?;
    let sender = verdict::sender(&state, status);
    send(Record::DaemonExited { at: now(), daemon, status, sender, oom: state.oom != 0 });
    Some(())
}

/// `SEND_SIG_NOINFO` and `SEND_SIG_PRIV` (include/linux/sched/signal.h) in place of a `kernel_siginfo`: a plain signal
/// from the running process, and one from the kernel.
const NO_INFO: u64 = 0;
const PRIVILEGED: u64 = 1;

/// `SI_USER` and `SI_KERNEL` (sigaction(2)), which is what those two stand for.
const SI_USER: i32 = 0;
const SI_KERNEL: i32 = 0x80;

/// The `si_code` of a signal with this `kernel_siginfo`.
#[inline(always)]
fn code_of<M: Memory>(info: Address) -> impl FnOnce() -> Option<i32> {
    move || match info as u64 {
        NO_INFO => Some(SI_USER),
        PRIVILEGED => Some(SI_KERNEL),
        _ => M::u32(info, offset!(siginfo_code)).map(u32::cast_signed),
    }
}

/// As [`code_of`], without a look into the `kernel_siginfo`.
#[inline(always)]
fn code_in_call(info: u64) -> impl FnOnce() -> Option<i32> {
    move || {
        // SAFETY: a static of this type.
        let calls = unsafe { &*core::hint::black_box(&raw const CALLS) };
        let sends =
            info != PRIVILEGED && current_call().is_some_and(|call| CallTable::contains(&calls.signal, call.into()));
        Some(if sends { SI_USER } else { SI_KERNEL })
    }
}

#[inline(always)]
fn signalled<M: Memory>(signal: u32, code: impl FnOnce() -> Option<i32>, task: Address, outcome: i32) -> Option<()> {
    let tgid = M::u32(task, offset!(task_tgid))?;
    let Some(state) = DAEMONS.get_ptr_mut(tgid) else { return Some(()) };
    // SAFETY: a map's value, valid until the program ends.
    if !verdict::remember_signal(unsafe { (*state).signal }, signal, outcome) {
        return Some(());
    }
    let code = code()?;
    let sender = if verdict::has_sender(code) { current_process() } else { Task::default() };
    // SAFETY: as above; the signals to one process are sent one at a time, under its `siglock`.
    unsafe {
        (*state).at = now();
        (*state).signal = signal;
        (*state).code = code;
        (*state).sender = sender;
    }
    Some(())
}

#[inline(always)]
fn chosen_task<M: Memory>(task: Address) -> Option<()> {
    chosen(M::u32(task, offset!(task_tgid))?);
    Some(())
}

#[inline(always)]
fn chosen(tgid: u32) {
    if let Some(state) = DAEMONS.get_ptr_mut(tgid) {
        // SAFETY: a map's value, valid until the program ends.
        unsafe { (*state).oom = 1 };
    }
}
