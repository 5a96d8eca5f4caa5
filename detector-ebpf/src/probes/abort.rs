//! The end of a connection at its source: `fuse_abort_conn` (`fuse_chan_abort` since Linux 7.2), entered while the
//! connection is connected; the functions that lead there, each of which leaves a note of its name for its thread; and
//! `fuse_get_req`, which refuses a request when the connection is dead.
//!
//! Functions have no stable interface: which of them a kernel has, and what they are given, is told by its BTF.

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::macros::{fentry, kprobe};
use aya_ebpf::programs::{FEntryContext, ProbeContext};
use detector_common::maps::{CallError, Loss};
use detector_common::record::Record;
use detector_common::verdict::{AbortPath, ENOTCONN, PF_KTHREAD};

use crate::memory::{
    Address, Memory, Probed, Typed, current_process, current_tid, first_argument, offset, process_of, second_argument,
};
use crate::state::{ABORT_PATHS, CALL_ERRORS, count_in, lose, now, send};

#[fentry]
fn abort(context: FEntryContext) {
    aborting::<Typed>(context.arg(0)).unwrap_or_else(|| lose(Loss::Unreadable));
}

#[kprobe]
fn abort_probe(context: ProbeContext) -> u32 {
    first_argument(&context).and_then(aborting::<Probed>).unwrap_or_else(|| lose(Loss::Unreadable));
    0
}

#[fentry]
fn refuse(context: FEntryContext) {
    let refused = match offset!(refused_argument) {
        0 => asked::<Typed>(context.arg(0)),
        _ => asked::<Typed>(context.arg(1)),
    };
    refused.unwrap_or_else(|| lose(Loss::Unreadable));
}

#[kprobe]
fn refuse_probe(context: ProbeContext) -> u32 {
    let asked_of = match offset!(refused_argument) {
        0 => first_argument(&context),
        _ => second_argument(&context),
    };
    asked_of.and_then(asked::<Probed>).unwrap_or_else(|| lose(Loss::Unreadable));
    0
}

/// The two programs that note an [`AbortPath`].
macro_rules! note {
    ($path:ident, $typed:ident, $probed:ident) => {
        #[fentry]
        fn $typed(_: FEntryContext) {
            note(AbortPath::$path);
        }

        #[kprobe]
        fn $probed(_: ProbeContext) -> u32 {
            note(AbortPath::$path);
            0
        }
    };
}

note!(Release, release, release_probe);
note!(Write, write, write_probe);
note!(ForcedUnmount, force, force_probe);
note!(LastUnmount, destroy, destroy_probe);
note!(Timeout, timeout, timeout_probe);

/// The innermost function is entered last.
#[inline(always)]
fn note(path: AbortPath) {
    if ABORT_PATHS.insert(current_tid(), path as u32, u64::from(BPF_ANY)).is_err() {
        lose(Loss::AbortPaths);
    }
}

#[inline(always)]
fn noted(thread: u32) -> AbortPath {
    // SAFETY: only this thread's programs write its entry.
    let path = unsafe { ABORT_PATHS.get(thread) }.copied().unwrap_or(0);
    match path {
        1 => AbortPath::Release,
        2 => AbortPath::Write,
        3 => AbortPath::ForcedUnmount,
        4 => AbortPath::LastUnmount,
        5 => AbortPath::Timeout,
        _ => AbortPath::Other,
    }
}

/// `link` is what holds `connected`: the `fuse_conn`, or the `fuse_chan` that leads to it.
#[inline(always)]
fn device_of<M: Memory>(link: Address) -> Option<u32> {
    let connection = match offset!(has_chan) {
        0 => link,
        _ => M::pointer(link, offset!(owner_connection))?,
    };
    M::u32(connection, offset!(connection_device))
}

#[inline(always)]
fn aborting<M: Memory>(link: Address) -> Option<()> {
    let thread = current_tid();
    let path = noted(thread);
    // It is not there when nothing was noted.
    let _ = ABORT_PATHS.remove(thread);
    if M::u32(link, offset!(connected))? == 0 {
        // It was dead before.
        return Some(());
    }
    let task = M::current();
    let (flags, by) = (M::u32(task, offset!(task_flags))?, process_of::<M>(task)?);
    send(Record::Aborted { at: now(), device: device_of::<M>(link)?, by, flags, path });
    Some(())
}

/// `fuse_get_req` waits while the connection is not initialised, then looks at `connected` and returns ENOTCONN: it
/// certainly does so if the connection is dead when it is entered. A caller that waited for FUSE_INIT is not counted.
#[inline(always)]
fn asked<M: Memory>(owner: Address) -> Option<()> {
    let link = match offset!(has_chan) {
        0 => M::pointer(owner, offset!(owner_connection))?,
        _ => owner,
    };
    if M::u32(link, offset!(connected))? != 0 || M::u32(M::current(), offset!(task_flags))? & PF_KTHREAD != 0 {
        return Some(());
    }
    let (device, process) = (device_of::<M>(link)?, current_process());
    let errno = ENOTCONN.unsigned_abs();
    // Once per connection, process and errno, until the agent has taken the counts.
    if count_in(&CALL_ERRORS, CallError { device, tgid: process.tgid, errno }, Loss::CallErrors) {
        send(Record::CallFailed { at: now(), device, process, errno, descriptor: None });
    }
    Some(())
}
