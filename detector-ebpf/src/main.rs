//! fuse-detector's kernel programs.
//!
//! | module | tracepoint | kernel | for |
//! |---|---|---|---|
//! | [`probes::request`] | `fuse:fuse_request_send`, `fuse:fuse_request_end` | 6.11 | who serves, readiness, aborts, ages of requests |
//! | [`probes::process`] | `sched:sched_process_exit`, `signal:signal_generate`, `oom:mark_victim` | 5.8 | how a daemon ended and who did it |
//! | [`probes::abort`] | no tracepoint: the functions that abort a connection, and `fuse_get_req` | 5.8 | deaths at the source, their cause, and applications that meet a dead connection |
//! | [`probes::call`] | `raw_syscalls:sys_exit` | 5.8 | applications that meet a dead connection |
//!
//! 5.8 is the ring buffer's version. Every program exists twice, over one body: typed by BTF (`tp_btf`, reads kernel
//! memory by plain loads that the verifier checks; works under `lockdown=confidentiality`), and untyped (`raw_tp`,
//! needs `bpf_probe_read_kernel`). Neither needs tracefs. Nothing is sent for a healthy connection at work.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod memory;
mod probes;
mod state;

/// The kernel gives the helpers that these programs call to GPL-compatible programs only (kernel/bpf/syscall.c,
/// `license_is_gpl_compatible`).
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Never reached: nothing here panics, and the verifier refuses a program with an endless loop in its reach.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
