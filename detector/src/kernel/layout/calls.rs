//! The system calls that matter, by this machine's numbers.

use detector_common::layout::CallTable;

/// The system calls that can meet a dead connection, as data for the programs.
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
}
