//! What crosses the boundary between fuse-detector's kernel programs and its agent, and the verdicts that both sides
//! share.
//!
//! Everything here is `no_std` and plain: [`record`] is the ring buffer's content, [`maps`] the maps' keys and values,
//! [`layout`] what the loader tells the programs about the running kernel, and [`verdict`] what an observed fact means.
//! The kernel programs only fetch values and act; what they decide is decided by functions that are tested on the host.
#![no_std]

pub mod layout;
pub mod maps;
pub mod record;
pub mod verdict;

/// Length of a process name, its final zero byte included: the kernel's `TASK_COMM_LEN` (include/linux/sched.h).
pub const COMM_LEN: usize = 16;
