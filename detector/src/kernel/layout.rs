//! What the programs have to know about this kernel, read from its BTF.

use std::path::Path;
use std::{fs, io};

use detector_common::layout::{CallTable, Layout};
use thiserror::Error;

use super::btf::{Argument, Btf, BtfError};

/// The kernel's own types.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
/// FUSE's types where it is a module.
const MODULE_BTF: &str = "/sys/kernel/btf/fuse";

/// The kernel's types could not be read.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// The file is not there (`CONFIG_DEBUG_INFO_BTF` is off) or is not readable.
    #[error("cannot read the kernel's types from {path}: {error}")]
    Read {
        /// Which file.
        path: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Its content is not understood.
    #[error("{path}: {error}")]
    Parse {
        /// Which file.
        path: &'static str,
        /// Why.
        error: BtfError,
    },
}

/// What was found.
pub struct Kernel {
    /// Where the members lie; [`Layout::NOWHERE`] for those that are `missing`.
    pub layout: Layout,
    /// Members that this kernel does not have, written `structure.member`.
    pub missing: Vec<&'static str>,
    /// What `oom:mark_victim` passes first.
    pub victim: Option<Argument>,
    /// FUSE's members were taken from the table of kernels without BTF for modules: to be trusted only once a
    /// connection that is known has been seen through them.
    pub assumed: bool,
}

/// Reads the layout of the running kernel. Costs a few megabytes while it runs, and keeps none.
///
/// # Errors
/// When the kernel's BTF can't be read. Missing members are no error: they are listed.
pub fn read() -> Result<Kernel, LayoutError> {
    let kernel = read_file(KERNEL_BTF)?;
    let base = Btf::parse(&kernel, None).map_err(|error| LayoutError::Parse { path: KERNEL_BTF, error })?;
    if base.has_struct("fuse_req") {
        return Ok(resolve(&base));
    }
    if !Path::new(MODULE_BTF).exists() {
        return Ok(assume(resolve(&base)));
    }
    let module = read_file(MODULE_BTF)?;
    let module = Btf::parse(&module, Some(&base)).map_err(|error| LayoutError::Parse { path: MODULE_BTF, error })?;
    Ok(resolve(&module))
}

fn read_file(path: &'static str) -> Result<Vec<u8>, LayoutError> {
    fs::read(path).map_err(|error| LayoutError::Read { path, error })
}

/// The way to a member in one or more kernels: the first that exists counts.
type Ways = &'static [(&'static str, &'static [&'static str])];

fn resolve(btf: &Btf<'_>) -> Kernel {
    let mut missing = Vec::new();
    let mut find = |name: &'static str, ways: Ways| {
        ways.iter().find_map(|(structure, path)| btf.offset(structure, path)).unwrap_or_else(|| {
            missing.push(name);
            Layout::NOWHERE
        })
    };
    let has_chan = btf.offset("fuse_req", &["chan"]).is_some();
    let layout = Layout {
        request_owner: find("fuse_req.fm", &[("fuse_req", &["fm"]), ("fuse_req", &["chan"])]),
        owner_connection: if has_chan {
            find("fuse_chan.conn", &[("fuse_chan", &["conn"])])
        } else {
            find("fuse_mount.fc", &[("fuse_mount", &["fc"])])
        },
        connection_device: find("fuse_conn.dev", &[("fuse_conn", &["dev"])]),
        connected: find("fuse_conn.connected", &[("fuse_chan", &["connected"]), ("fuse_conn", &["connected"])]),
        has_chan: u32::from(has_chan),
        refused_argument: btf.argument_of("fuse_get_req", &["fuse_mount", "fuse_chan"]).unwrap_or(0),
        request_flags: find("fuse_req.flags", &[("fuse_req", &["flags"])]),
        request_opcode: find("fuse_req.in.h.opcode", &[("fuse_req", &["in", "h", "opcode"])]),
        request_pid: find("fuse_req.in.h.pid", &[("fuse_req", &["in", "h", "pid"])]),
        reply_error: find("fuse_req.out.h.error", &[("fuse_req", &["out", "h", "error"])]),
        reply_unique: find("fuse_req.out.h.unique", &[("fuse_req", &["out", "h", "unique"])]),
        task_tgid: find("task_struct.tgid", &[("task_struct", &["tgid"])]),
        task_flags: find("task_struct.flags", &[("task_struct", &["flags"])]),
        task_exit_code: find("task_struct.exit_code", &[("task_struct", &["exit_code"])]),
        task_signal: find("task_struct.signal", &[("task_struct", &["signal"])]),
        task_leader: find("task_struct.group_leader", &[("task_struct", &["group_leader"])]),
        task_comm: find("task_struct.comm", &[("task_struct", &["comm"])]),
        signal_live: find("signal_struct.live", &[("signal_struct", &["live", "counter"])]),
        signal_flags: find("signal_struct.flags", &[("signal_struct", &["flags"])]),
        signal_exit_code: find("signal_struct.group_exit_code", &[("signal_struct", &["group_exit_code"])]),
        siginfo_code: find("kernel_siginfo.si_code", &[("kernel_siginfo", &["si_code"])]),
        registers_call: find("pt_regs.orig_ax", &[("pt_regs", &["orig_ax"]), ("pt_regs", &["syscallno"])]),
        registers_first: find("pt_regs.di", &[("pt_regs", &["di"]), ("pt_regs", &["regs"])]),
        registers_second: match btf.offset("pt_regs", &["regs"]) {
            Some(registers) => registers + 8, // arm64: regs[1]
            None => find("pt_regs.si", &[("pt_regs", &["si"])]),
        },
    };
    let victim = btf.tracepoint("mark_victim").and_then(|arguments| arguments.first().copied());
    Kernel { layout, missing, victim, assumed: false }
}

/// Linux 5.10, where FUSE is a module, has no BTF for modules (`CONFIG_DEBUG_INFO_BTF_MODULES` came with 5.11). This is how
/// FUSE lies in memory there on x86-64 and, by the same rules of alignment, arm64, with `CONFIG_VIRTIO_FS` on or off.
fn assume(kernel: Kernel) -> Kernel {
    let Kernel { layout, mut missing, victim, assumed: _ } = kernel;
    missing.retain(|member| !member.starts_with("fuse_"));
    let layout = Layout {
        request_flags: 48,
        request_opcode: 60,
        request_pid: 88,
        reply_error: 100,
        reply_unique: 104,
        request_owner: 144,
        owner_connection: 0,
        connected: 296,
        connection_device: 336,
        has_chan: 0,
        refused_argument: 0,
        ..layout
    };
    Kernel { layout, missing, victim, assumed: true }
}

/// The system calls that can meet a dead connection, by this machine's numbers.
pub fn calls() -> CallTable {
    let mut table = CallTable { umount: number(libc::SYS_umount2), ..CallTable::UNKNOWN };
    for call in PATH_CALLS {
        CallTable::mark(&mut table.path, number(*call));
    }
    for call in DESCRIPTOR_CALLS {
        CallTable::mark(&mut table.descriptor, number(*call));
    }
    for call in SIGNAL_CALLS {
        CallTable::mark(&mut table.signal, number(*call));
    }
    table
}

/// Calls that send a signal to a process, or to one of its threads.
const SIGNAL_CALLS: &[libc::c_long] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
];

/// Numbers of system calls are positive; `libc` types them as signed.
fn number(call: libc::c_long) -> u64 {
    u64::try_from(call).unwrap_or(u64::MAX)
}

/// Calls that name a file by path. A socket bound to a path is connected to by none of them.
const PATH_CALLS: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_readlinkat,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_truncate,
    libc::SYS_chdir,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_renameat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
];

/// Calls on a descriptor. `read`, `write` and their kind are used on sockets too, so what they return is a hint that
/// whoever reads the event has to check; calls that only sockets have (`recvfrom`, `getpeername`, `shutdown`, …) are
/// left out.
const DESCRIPTOR_CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fsetxattr,
    libc::SYS_fremovexattr,
    libc::SYS_copy_file_range,
    libc::SYS_fadvise64,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getdents,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_only_sockets_have_are_in_no_set() {
        let table = calls();
        for call in [libc::SYS_recvfrom, libc::SYS_sendto, libc::SYS_getpeername, libc::SYS_shutdown, libc::SYS_accept4]
        {
            assert!(
                !CallTable::contains(&table.path, number(call))
                    && !CallTable::contains(&table.descriptor, number(call))
            );
        }
        assert!(CallTable::contains(&table.path, number(libc::SYS_openat)));
        assert!(CallTable::contains(&table.descriptor, number(libc::SYS_read)));
        assert_eq!(table.umount, number(libc::SYS_umount2));
    }

    #[test]
    fn this_kernels_types_give_a_layout() {
        if !Path::new(KERNEL_BTF).exists() {
            eprintln!("skipped: this kernel has no {KERNEL_BTF}");
            return;
        }
        let kernel = read().unwrap();
        let fuse: Vec<_> = kernel.missing.iter().filter(|name| !name.starts_with("fuse_")).collect();
        assert_eq!(fuse, Vec::<&&str>::new(), "only FUSE may be missing, in a kernel without it");
        assert_ne!(kernel.layout.task_tgid, Layout::NOWHERE);
    }
}
