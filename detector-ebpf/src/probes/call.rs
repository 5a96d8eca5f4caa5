//! System calls that meet a dead connection: `sys_exit` (arguments: `pt_regs`, result). It runs at the end of every system
//! call of the machine, so it is attached only while somebody asks for it, and its first test is on the result alone.

use aya_ebpf::macros::{btf_tracepoint, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use detector_common::maps::{CallError, Loss};
use detector_common::record::Record;
use detector_common::verdict::{self, CallVerdict};

use crate::memory::{Address, CALLS, Memory, Probed, Typed, current_process, offset};
use crate::state::{CALL_ERRORS, count_in, lose, now, send};

#[btf_tracepoint(function = "sys_exit")]
fn sys_exit(context: BtfTracePointContext) {
    let result = context.arg(1);
    if verdict::call_result_matters(result) {
        returned::<Typed>(context.arg(0), result).unwrap_or_else(|| lose(Loss::Unreadable));
    }
}

#[raw_tracepoint(tracepoint = "sys_exit")]
fn sys_exit_raw(context: RawTracePointContext) {
    let result = context.arg(1);
    if verdict::call_result_matters(result) {
        returned::<Probed>(context.arg(0), result).unwrap_or_else(|| lose(Loss::Unreadable));
    }
}

#[inline(always)]
fn returned<M: Memory>(registers: Address, result: i64) -> Option<()> {
    let call = M::u64(registers, offset!(registers_call))?;
    let second = M::u64(registers, offset!(registers_second))?;
    // SAFETY: a static of this type.
    let calls = unsafe { &*core::hint::black_box(&raw const CALLS) };
    let Some(verdict) = verdict::call_end(calls, call, second, result) else { return Some(()) };
    let process = current_process();
    match verdict {
        CallVerdict::Failed { errno, by_descriptor } => {
            // Once per process and errno, until the agent has taken the counts.
            if count_in(&CALL_ERRORS, CallError { device: 0, tgid: process.tgid, errno }, Loss::CallErrors) {
                let descriptor =
                    if by_descriptor { Some(M::u64(registers, offset!(registers_first))? as u32) } else { None };
                send(Record::CallFailed { at: now(), device: 0, process, errno, descriptor });
            }
        }
        CallVerdict::ForcedUnmount => send(Record::ForcedUnmount { at: now(), process }),
    }
    Some(())
}
