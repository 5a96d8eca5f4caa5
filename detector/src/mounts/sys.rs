//! System calls that neither `rustix` nor `nix` wraps, with the kernel's structures.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};

use crate::model::DeviceNumber;

/// System call numbers of Linux 6.8; the same on every architecture with the unified table
/// (include/uapi/asm-generic/unistd.h), which libc lists for few.
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;

/// `struct mnt_id_req`, first version (`MNT_ID_REQ_SIZE_VER0`, include/uapi/linux/mount.h).
#[repr(C)]
struct MntIdReq {
    size: u32,
    spare: u32,
    mnt_id: u64,
    /// statmount: what is asked for; listmount: the last id of the call before.
    param: u64,
}

const _: () = assert!(size_of::<MntIdReq>() == 24);

impl MntIdReq {
    fn new(mnt_id: u64, param: u64) -> Self {
        // The structure's size is asserted above.
        Self { size: 24, spare: 0, mnt_id, param }
    }
}

/// The fields of `struct statmount` (include/uapi/linux/mount.h) up to the last one that is used here; the kernel copies
/// as much as the buffer holds when no string is asked for (`copy_statmount_to_user` in fs/namespace.c).
#[repr(C)]
#[derive(Default)]
struct RawStatmount {
    size: u32,
    mnt_opts: u32,
    mask: u64,
    sb_dev_major: u32,
    sb_dev_minor: u32,
    sb_magic: u64,
    sb_flags: u32,
    fs_type: u32,
    mnt_id: u64,
    mnt_parent_id: u64,
    mnt_id_old: u32,
    mnt_parent_id_old: u32,
}

const _: () = assert!(offset_of!(RawStatmount, sb_magic) == 24 && offset_of!(RawStatmount, mnt_id_old) == 56);

/// What a mount is, as statmount(2) tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountFacts {
    /// The device of the superblock.
    pub device: DeviceNumber,
    /// The superblock's magic number (statfs(2), `f_type`).
    pub magic: u64,
    /// The mount id that mountinfo shows.
    pub reused_id: u32,
}

/// statmount(2), Linux 6.8: facts of the mount with this unique id in the caller's mount namespace. Walks no path.
///
/// # Errors
/// ENOENT: no such mount. ENOSYS: the kernel is older. EPERM: not reachable from the caller's root, without
/// CAP_SYS_ADMIN.
pub fn statmount(unique_id: u64) -> io::Result<MountFacts> {
    const STATMOUNT_SB_BASIC: u64 = 1;
    const STATMOUNT_MNT_BASIC: u64 = 2;
    let request = MntIdReq::new(unique_id, STATMOUNT_SB_BASIC | STATMOUNT_MNT_BASIC);
    let mut answer = RawStatmount::default();
    // SAFETY: both pointers are to live structures of the kernel's layout, and the size given is the second one's.
    let result =
        unsafe { libc::syscall(SYS_STATMOUNT, &raw const request, &raw mut answer, size_of::<RawStatmount>(), 0_u32) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(MountFacts {
        device: DeviceNumber { major: answer.sb_dev_major, minor: answer.sb_dev_minor },
        magic: answer.sb_magic,
        reused_id: answer.mnt_id_old,
    })
}

/// listmount(2), Linux 6.8: the unique ids of all mounts of the caller's mount namespace, in ascending order, that are
/// reachable from its root. Walks no path.
///
/// # Errors
/// ENOSYS: the kernel is older. EPERM: a seccomp filter that doesn't know the call.
pub fn listmount() -> io::Result<Vec<u64>> {
    /// "The root of the caller's namespace" (include/uapi/linux/mount.h).
    const LSMT_ROOT: u64 = u64::MAX;
    /// Ids per call: most machines need one call, and 8 KiB of stack are little.
    const BATCH: usize = 1024;
    let mut ids = Vec::new();
    loop {
        let request = MntIdReq::new(LSMT_ROOT, ids.last().copied().unwrap_or(0));
        let mut batch = [0_u64; BATCH];
        // SAFETY: the request is a live structure of the kernel's layout; the buffer has the number of elements given.
        let result = unsafe { libc::syscall(SYS_LISTMOUNT, &raw const request, batch.as_mut_ptr(), BATCH, 0_u32) };
        let count = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
        ids.extend(batch.iter().take(count));
        if count < BATCH {
            return Ok(ids);
        }
    }
}

/// `struct pidfd_info`, first version (`PIDFD_INFO_SIZE_VER0`, include/uapi/linux/pidfd.h).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroupid: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ruid: u32,
    rgid: u32,
    euid: u32,
    egid: u32,
    suid: u32,
    sgid: u32,
    fsuid: u32,
    fsgid: u32,
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64 && offset_of!(PidfdInfo, exit_code) == 60);

nix::ioctl_readwrite!(
    /// `PIDFD_GET_INFO`, `_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`.
    pidfd_get_info,
    0xff,
    11,
    PidfdInfo
);

/// The wait status of the process behind a pidfd: ioctl(2) `PIDFD_GET_INFO` (Linux 6.13) with `PIDFD_INFO_EXIT` (6.15).
/// `None` while the process exists, be it as a zombie: the kernel notes the status when the process is reaped
/// (`pidfs_exit` in fs/pidfs.c).
///
/// # Errors
/// ENOTTY or EINVAL: the kernel is older. ESRCH: it is between the two versions and the process is reaped, or the
/// process is of another pid namespace.
pub fn pidfd_exit_status(pidfd: impl AsFd) -> io::Result<Option<u32>> {
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..Default::default() };
    // SAFETY: the number encodes the structure's size, and the pointer is to a live one.
    unsafe { pidfd_get_info(pidfd.as_fd().as_raw_fd(), &raw mut info) }?;
    Ok((info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code.cast_unsigned()))
}

/// Whether the process behind a pidfd is reaped: not even signal 0, which does nothing, can be sent
/// (pidfd_send_signal(2), Linux 5.1).
pub fn is_reaped(pidfd: impl AsFd) -> bool {
    // SAFETY: no memory is passed; the descriptor is open for the length of the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_fd().as_raw_fd(),
            0,
            std::ptr::null::<libc::siginfo_t>(),
            0_u32,
        )
    };
    result != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}
