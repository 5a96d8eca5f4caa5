//! Reading kernel structures, in the two ways there are.

use aya_ebpf::helpers::generated::{
    bpf_get_current_comm, bpf_get_current_task, bpf_get_current_task_btf, bpf_task_pt_regs,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use aya_ebpf::{EbpfContext, programs::ProbeContext};
use detector_common::COMM_LEN;
use detector_common::layout::{CALL_LIMIT, CallTable, Layout};
use detector_common::maps::Task;
use detector_common::verdict::{PF_EXITING, PF_KTHREAD};

/// Filled in by the loader.
#[unsafe(no_mangle)]
pub static LAYOUT: Layout = Layout::UNKNOWN;

/// Filled in by the loader.
#[unsafe(no_mangle)]
pub static CALLS: CallTable = CallTable::UNKNOWN;

/// One of [`Layout`]'s offsets, as the loader left it.
macro_rules! offset {
    ($member:ident) => {
        // SAFETY: a static of this type. Volatile, or the compiler would put the initial value in its place.
        unsafe { core::ptr::read_volatile(&raw const $crate::memory::LAYOUT.$member) }
    };
}
pub(crate) use offset;

/// An address in the kernel.
pub type Address = *const u8;

/// How a program reads kernel memory.
pub trait Memory {
    /// Eight bytes at `base + offset`.
    fn u64(base: Address, offset: u32) -> Option<u64>;

    /// Four bytes at `base + offset`.
    fn u32(base: Address, offset: u32) -> Option<u32>;

    /// The running task's `task_struct`.
    fn current() -> Address;

    /// The pointer at `base + offset`.
    #[inline(always)]
    fn pointer(base: Address, offset: u32) -> Option<Address> {
        Self::u64(base, offset).map(|address| address as Address)
    }
}

/// Plain loads through pointers whose type the verifier knows (`tp_btf`). A load that faults gives zero.
pub enum Typed {}

impl Memory for Typed {
    #[inline(always)]
    fn u64(base: Address, offset: u32) -> Option<u64> {
        // SAFETY: the verifier admits the load only if it lies within the structure that `base` points to; the kernel
        // handles the fault if that structure is gone. Volatile, or it could be merged with another into one that
        // crosses members.
        Some(unsafe { base.add(offset as usize).cast::<u64>().read_volatile() })
    }

    #[inline(always)]
    fn u32(base: Address, offset: u32) -> Option<u32> {
        // SAFETY: as above.
        Some(unsafe { base.add(offset as usize).cast::<u32>().read_volatile() })
    }

    #[inline(always)]
    fn current() -> Address {
        // SAFETY: a helper without arguments (Linux 5.11).
        unsafe { bpf_get_current_task_btf() }.cast::<u8>()
    }
}

/// `bpf_probe_read_kernel`: for tracepoints without BTF types (FUSE built as a module). Refused under
/// `lockdown=confidentiality`.
pub enum Probed {}

impl Memory for Probed {
    #[inline(always)]
    fn u64(base: Address, offset: u32) -> Option<u64> {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast::<u64>()) }.ok()
    }

    #[inline(always)]
    fn u32(base: Address, offset: u32) -> Option<u32> {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(base.wrapping_add(offset as usize).cast::<u32>()) }.ok()
    }

    #[inline(always)]
    fn current() -> Address {
        // SAFETY: a helper without arguments.
        unsafe { bpf_get_current_task() as Address }
    }
}

/// The number of the system call that the running task is in, for a task that isn't a thread of the kernel. The helper
/// returns a typed pointer to programs of either form.
#[inline(always)]
pub fn current_call() -> Option<u32> {
    // SAFETY: a helper (Linux 5.15), given what it wants: a typed task.
    let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) };
    call_number(Typed::u64(registers as Address, offset!(registers_call))?)
}

/// Outside a system call x86 keeps -1 there (arch/x86/entry).
#[inline(always)]
const fn call_number(number: u64) -> Option<u32> {
    if number < CALL_LIMIT { Some(number as u32) } else { None }
}

/// The first argument of the function that a kprobe is on. Which register holds it is told by the layout, so that the object
/// fits every machine.
#[inline(always)]
pub fn first_argument(context: &ProbeContext) -> Option<Address> {
    Probed::pointer(context.as_ptr().cast(), offset!(registers_first))
}

/// Its second argument.
#[inline(always)]
pub fn second_argument(context: &ProbeContext) -> Option<Address> {
    Probed::pointer(context.as_ptr().cast(), offset!(registers_second))
}

/// The running thread's id.
#[inline(always)]
pub fn current_tid() -> u32 {
    bpf_get_current_pid_tgid() as u32
}

/// The running process: thread group id, and the running thread's name.
#[inline(always)]
pub fn current_process() -> Task {
    let mut task = Task { tgid: current_tgid(), comm: [0; COMM_LEN] };
    // SAFETY: the buffer is as long as said; on failure the helper fills it with zeroes.
    unsafe { bpf_get_current_comm(task.comm.as_mut_ptr().cast(), COMM_LEN as u32) };
    task
}

/// The running process's thread group id.
#[inline(always)]
pub fn current_tgid() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

/// A task's process: thread group id, and the thread group leader's name, which is what `ps` shows.
#[inline(always)]
pub fn process_of<M: Memory>(task: Address) -> Option<Task> {
    let leader = M::pointer(task, offset!(task_leader))?;
    let name = offset!(task_comm);
    let (low, high) = (M::u64(leader, name)?, M::u64(leader, name + 8)?);
    let mut comm = [0; COMM_LEN];
    let (first, second) = comm.split_at_mut(COMM_LEN / 2);
    first.copy_from_slice(&low.to_ne_bytes());
    second.copy_from_slice(&high.to_ne_bytes());
    Some(Task { tgid: M::u32(task, offset!(task_tgid))?, comm })
}

/// Whether a task with these `PF_*` flags can be in a system call.
#[inline(always)]
pub const fn makes_calls(flags: u32) -> bool {
    flags & (PF_EXITING | PF_KTHREAD) == 0
}
