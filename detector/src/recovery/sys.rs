//! The system calls of recovery, one function each, without any decision.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::dress;
use super::error::{RawErrno, RecoverError, Stage};
use crate::health;
use crate::model::{DeviceNumber, Mount, MountFlags, MountId, NamespaceId, Propagation};
use crate::mounts::mountinfo;

/// include/uapi/linux/mount.h, Linux 6.5.
pub(super) const MOVE_MOUNT_BENEATH: u32 = 0x200;
/// include/uapi/linux/stat.h, Linux 6.8. Asked for, `stx_mnt_id` holds the unique id instead of the reused one.
pub(super) const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
/// include/uapi/linux/fcntl.h: answer from the cache, never ask the daemon.
pub(super) const AT_STATX_DONT_SYNC: u32 = 0x4000;

/// A mount and where it hangs, as far as is needed to find it again and to be sure that it is the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountTarget {
    /// Where it hangs, as seen from the root of the caller's namespace.
    pub mount_point: PathBuf,
    /// The device of its superblock.
    pub device: DeviceNumber,
    /// Its mount id, which the kernel reuses.
    pub id: MountId,
    /// Its unique id, where the kernel told it: then this one decides.
    pub unique_id: Option<u64>,
}

impl From<&Mount> for MountTarget {
    fn from(mount: &Mount) -> Self {
        let Mount { mount_point, device, id, unique_id, .. } = mount;
        Self { mount_point: mount_point.clone(), device: *device, id: *id, unique_id: *unique_id }
    }
}

/// What is visible at a path.
#[derive(Debug)]
pub(crate) struct Seen {
    /// An `O_PATH` descriptor of it.
    pub fd: OwnedFd,
    /// The device of its superblock.
    pub device: DeviceNumber,
    /// Its mount id.
    pub id: MountId,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// The result of looking for a mount at its path.
#[derive(Debug)]
pub(crate) enum Looked {
    /// It is there, visible.
    Same(Seen),
    /// The path, or the mount, or both are gone, or another mount hides it.
    Gone,
}

/// Opens what is visible at an absolute path, without asking its file system anything.
///
/// `RESOLVE_NO_SYMLINKS` without `O_NOFOLLOW`: with both, a link as the last component is opened itself (openat2(2)).
/// A mount point's path is resolved without symbolic links: mountinfo shows names that have none, so one that is found
/// there was put there since, by somebody who wants another place to be mounted on. `O_PATH` on the root of a dead or
/// hung FUSE mount succeeds at once, and so does `statx` with `AT_STATX_DONT_SYNC` (fs/fuse/dir.c:
/// `fuse_update_get_attr` asks the daemon only if it may). Directories above it are walked, in the name cache alone where
/// that suffices. Where one of them lies in another FUSE file system that hangs, this can hang, too, which is why only
/// worker processes call it; and where that one is dead, it is not walked at all: the lookup would fail, and the kernel then
/// takes away what is mounted below (`fuse_dentry_revalidate`, `d_invalidate` in fs/dcache.c).
pub(crate) fn see(path: &Path) -> Result<Seen, (Stage, Errno)> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let elsewhere = match other_root(path) {
        Some((root, inner)) => {
            let opened = rustix::fs::open(&root, flags | OFlags::DIRECTORY, Mode::empty());
            Some((opened.map_err(|e| (Stage::OpenMountPoint, raw(e)))?, inner))
        }
        None => None,
    };
    let open_by = |resolve, more| match &elsewhere {
        Some((root, inner)) => {
            rustix::fs::openat2(root, inner, flags | more, Mode::empty(), resolve | ResolveFlags::IN_ROOT)
        }
        None => rustix::fs::openat2(CWD, path, flags | more, Mode::empty(), resolve),
    };
    let open = |more| match open_by(resolve | ResolveFlags::CACHED, more) {
        // Not all of it is in the cache; or the kernel is older than 5.12 and doesn't know the flag.
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INVAL) => {
            if is_dead_above(path) {
                return Err(rustix::io::Errno::NOTCONN);
            }
            open_by(resolve, more)
        }
        opened => opened,
    };
    // Whether it is a directory is asked of the name cache, not of the file system, which may refuse to say.
    let (opened, is_directory) = match open(OFlags::DIRECTORY) {
        Err(rustix::io::Errno::NOTDIR) => (open(OFlags::empty()), false),
        opened => (opened, true),
    };
    let fd = opened.map_err(|e| (Stage::OpenMountPoint, raw(e)))?;
    // Asked for nothing, FUSE answers even those whom it doesn't serve (`fuse_getattr` in fs/fuse/dir.c); the device and
    // the mount id come with every answer (`vfs_statx_path` in fs/stat.c).
    let found = stat(fd.as_fd(), StatxFlags::empty()).map_err(|e| (Stage::Identify, raw(e)))?;
    let device = DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor };
    Ok(Seen { fd, device, id: MountId(found.stx_mnt_id), is_directory })
}

/// Whether the path leads through another FUSE file system that is dead. Each of them is asked, the outermost first, so that
/// none is reached through a dead one.
fn is_dead_above(path: &Path) -> bool {
    let (process, inner) = match other_root(path) {
        Some((root, inner)) => (root.parent().map(Path::to_owned).unwrap_or_default(), inner),
        None => (PathBuf::from("/proc/thread-self"), path.to_owned()),
    };
    // Without a mount table nothing is known of the way; the walk itself will say what is wrong.
    let Ok(table) = std::fs::read(process.join("mountinfo")) else { return false };
    let mounts = mountinfo::parse(&table, NamespaceId(0)).mounts.into_iter().map(|mount| mount.mount_point);
    let mut above: Vec<_> = mounts.filter(|place| inner != *place && inner.starts_with(place)).collect();
    above.sort_by_key(|place| place.as_os_str().len());
    above.dedup();
    let root = (path != inner).then(|| process.join("root"));
    above.iter().any(|place| {
        let place = match &root {
            Some(root) => root.join(place.strip_prefix("/").unwrap_or(place)),
            None => place.clone(),
        };
        let opened = rustix::fs::open(&place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        opened.is_ok_and(|fd| rustix::fs::fstatfs(fd).is_err_and(is_of_the_dead))
    })
}

/// As [`health::is_of_the_dead`].
pub(crate) fn is_of_the_dead(errno: rustix::io::Errno) -> bool {
    health::is_of_the_dead(errno.raw_os_error())
}

/// Of a path through `/proc/PID/root`, which leads into another mount namespace (proc_pid_root(5)): that link, which has to
/// be followed, and the path below it, which is resolved within that root and without links.
fn other_root(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut parts = path.strip_prefix("/proc").ok()?.components();
    let pid = parts.next()?.as_os_str().to_str()?.parse::<u32>().ok()?;
    let below = parts.as_path().strip_prefix("root").ok()?;
    Some((PathBuf::from(format!("/proc/{pid}/root")), Path::new("/").join(below)))
}

/// Looks whether the mount is still the visible one at its path.
pub(crate) fn look_at(target: &MountTarget) -> Result<Looked, RecoverError> {
    let kernel = |(stage, errno)| RecoverError::Kernel { stage, path: target.mount_point.clone(), errno };
    let seen = match see(&target.mount_point) {
        Ok(seen) => seen,
        Err((_, Errno::ENOENT | Errno::ENOTDIR)) => return Ok(Looked::Gone),
        Err(error) => return Err(kernel(error)),
    };
    let same_id = match target.unique_id.map(|wanted| (wanted, unique_id(seen.fd.as_fd()))) {
        Some((wanted, Ok(Some(found)))) => wanted == found,
        // An owner's mount refuses others this one answer: what is left is the id that is reused.
        None | Some((_, Ok(None) | Err(rustix::io::Errno::ACCESS))) => seen.id == target.id,
        Some((_, Err(errno))) => return Err(kernel((Stage::Identify, raw(errno)))),
    };
    Ok(if same_id && seen.device == target.device { Looked::Same(seen) } else { Looked::Gone })
}

/// The unique mount id; `None` before Linux 6.8.
pub(crate) fn unique_id(fd: BorrowedFd<'_>) -> rustix::io::Result<Option<u64>> {
    let found = stat(fd, StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE))?;
    Ok((found.stx_mask & STATX_MNT_ID_UNIQUE != 0).then_some(found.stx_mnt_id))
}

fn stat(fd: BorrowedFd<'_>, mask: StatxFlags) -> rustix::io::Result<rustix::fs::Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::from_bits_retain(AT_STATX_DONT_SYNC);
    rustix::fs::statx(fd, "", flags, mask)
}

/// Clones the mount that the descriptor's file lies in, with that file as its root, into a mount that hangs nowhere.
/// Whether its root is a directory is returned with it. `relative` is walked without symbolic links and within the mount.
pub(crate) fn clone_mount(root: BorrowedFd<'_>, relative: &Path) -> Result<(OwnedFd, bool), (Stage, Errno)> {
    let inner;
    let from = if relative.as_os_str().is_empty() {
        root
    } else {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        inner = rustix::fs::openat2(root, relative, flags, Mode::empty(), resolve)
            .map_err(|e| (Stage::OpenRoot, raw(e)))?;
        inner.as_fd()
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let clone = rustix::mount::open_tree(from, "", flags).map_err(|e| (Stage::Clone, raw(e)))?;
    let found = stat(clone.as_fd(), StatxFlags::TYPE).map_err(|e| (Stage::Identify, raw(e)))?;
    Ok((clone, FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory))
}

/// Moves a detached mount beneath the one that is visible at `target`. The kernel puts it below the topmost mount there,
/// whichever mount of the stack the descriptor names (`where_to_mount` in fs/namespace.c).
pub(crate) fn move_beneath(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> rustix::io::Result<()> {
    move_mount(mount, target, MoveMountFlags::from_bits_retain(MOVE_MOUNT_BENEATH))
}

/// Moves a detached mount on top of what is visible at `target`.
pub(crate) fn move_over(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> rustix::io::Result<()> {
    move_mount(mount, target, MoveMountFlags::empty())
}

fn move_mount(mount: BorrowedFd<'_>, target: BorrowedFd<'_>, how: MoveMountFlags) -> rustix::io::Result<()> {
    let by_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", target, "", by_descriptor | how)
}

/// Detaches the mount whose root the descriptor names; files that are open in it stay so.
///
/// umount2(2) takes a path only, so it goes through `/proc/self/fd`, which leads to that very mount without walking.
/// If somebody mounted over it since, the kernel goes on to the topmost mount (`LOOKUP_MOUNTPOINT` in fs/namei.c; measured on
/// Linux 6.18): look right before, and see afterwards whether it is still there. Nothing names one mount and does the same:
/// move_mount(2) does name it, but refuses what hangs below a shared mount, and takes along what lies on top;
/// `MNT_EXPIRE`, which would notice the newcomer, refuses a mount that is in use.
pub(crate) fn detach(mount: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::mount::unmount(format!("/proc/self/fd/{}", mount.as_raw_fd()), UnmountFlags::DETACH)
}

/// The mount flags as mount_setattr(2) wants them: those to clear and those to set.
fn attributes(flags: MountFlags) -> (u64, u64) {
    let MountFlags { read_only, no_suid, no_dev, no_exec, no_atime, rel_atime, no_dir_atime, no_sym_follow } = flags;
    let mut set = 0;
    for (wanted, attribute) in [
        (read_only, libc::MOUNT_ATTR_RDONLY),
        (no_suid, libc::MOUNT_ATTR_NOSUID),
        (no_dev, libc::MOUNT_ATTR_NODEV),
        (no_exec, libc::MOUNT_ATTR_NOEXEC),
        (no_atime, libc::MOUNT_ATTR_NOATIME),
        // Access times are one field with three values: relatime is 0, and what is neither is strictatime.
        (!no_atime && !rel_atime, libc::MOUNT_ATTR_STRICTATIME),
        (no_dir_atime, libc::MOUNT_ATTR_NODIRATIME),
        (no_sym_follow, libc::MOUNT_ATTR_NOSYMFOLLOW),
    ] {
        if wanted {
            set |= attribute;
        }
    }
    let mut clear = libc::MOUNT_ATTR_RDONLY
        | libc::MOUNT_ATTR_NOSUID
        | libc::MOUNT_ATTR_NODEV
        | libc::MOUNT_ATTR_NOEXEC
        | libc::MOUNT_ATTR__ATIME
        | libc::MOUNT_ATTR_NODIRATIME;
    if no_sym_follow {
        // Linux 5.14; a kernel without it refuses to clear it, too, so it is named only where a mount has it. FUSE
        // replacements come without it.
        clear |= libc::MOUNT_ATTR_NOSYMFOLLOW;
    }
    (clear, set)
}

/// The changes, one after another, that give a fresh clone the propagation of the mount that it replaces.
///
/// A clone of a shared mount joins its peer group: what is mounted in it later would appear at the original. So a shared
/// one becomes private before it is shared anew, in a group of its own; a slave's master is the clone's original, where
/// that is shared (mount_namespaces(7)).
fn propagation_changes(propagation: Propagation) -> &'static [u64] {
    const PRIVATE: u64 = libc::MS_PRIVATE;
    const SHARED: u64 = libc::MS_SHARED;
    const SLAVE: u64 = libc::MS_SLAVE;
    const UNBINDABLE: u64 = libc::MS_UNBINDABLE;
    match propagation {
        Propagation { unbindable: true, .. } => &[UNBINDABLE],
        Propagation { shared: None, master: None, .. } => &[PRIVATE],
        Propagation { shared: Some(_), master: None, .. } => &[PRIVATE, SHARED],
        Propagation { shared: None, master: Some(_), .. } => &[SLAVE],
        Propagation { shared: Some(_), master: Some(_), .. } => &[SLAVE, SHARED],
    }
}

/// Gives a clone the flags and the propagation of the mount that it replaces: the same clone or, before Linux 5.12, another.
/// An unbindable one stays private until it is in its place ([`settle`]): below a shared parent the kernel accepts no
/// unbindable mount (`do_move_mount` in fs/namespace.c: EINVAL), although one that hangs there already can be made so.
pub(crate) fn dress(clone: OwnedFd, is_directory: bool, like: &Mount) -> Result<OwnedFd, (Stage, Errno)> {
    let (clear, set) = attributes(like.flags);
    let changes = propagation_changes(Propagation { unbindable: false, ..like.propagation });
    match set_attributes(clone.as_fd(), clear, set, 0) {
        Err(RawErrno(Errno::ENOSYS)) => {
            return dress::through_namespace(clone.as_fd(), is_directory, like.flags, changes);
        }
        done => done.map_err(|e| (Stage::SetFlags, e.0))?,
    }
    for change in changes {
        set_attributes(clone.as_fd(), 0, 0, *change).map_err(|e| (Stage::SetPropagation, e.0))?;
    }
    Ok(clone)
}

/// A mount that is moved below a shared parent becomes shared itself (`attach_recursive_mnt` in fs/namespace.c; measured on
/// Linux 6.18), whatever it was before. This gives a mount that was not shared its propagation back; one that was is left in
/// the group that it now forms with its copies below the parent's peers.
pub(crate) fn settle(mount: BorrowedFd<'_>, propagation: Propagation) -> Result<(), RawErrno> {
    if propagation.shared.is_some() {
        return Ok(());
    }
    propagation_changes(propagation).iter().try_for_each(|change| set_propagation(mount, *change))
}

/// Takes a mount out of its peer group, so that what is mounted on it appears nowhere else.
pub(crate) fn make_private(mount: BorrowedFd<'_>) -> Result<(), RawErrno> {
    set_propagation(mount, libc::MS_PRIVATE)
}

/// Of a mount that hangs in its place.
fn set_propagation(mount: BorrowedFd<'_>, change: u64) -> Result<(), RawErrno> {
    match set_attributes(mount, 0, 0, change) {
        // Before Linux 5.12.
        Err(RawErrno(Errno::ENOSYS)) => Ok(dress::set_propagation(mount, change)?),
        done => done,
    }
}

fn set_attributes(mount: BorrowedFd<'_>, clear: u64, set: u64, propagation: u64) -> Result<(), RawErrno> {
    let attributes = libc::mount_attr { attr_set: set, attr_clr: clear, propagation, userns_fd: 0 };
    // SAFETY: mount_setattr(2) reads one empty C string and one `mount_attr` of the size given; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
}

fn raw(errno: rustix::io::Errno) -> Errno {
    RawErrno::from(errno).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_times_are_one_of_three() {
        let atime = |flags| attributes(flags).1 & libc::MOUNT_ATTR__ATIME;
        assert_eq!(atime(MountFlags { rel_atime: true, ..MountFlags::default() }), libc::MOUNT_ATTR_RELATIME);
        assert_eq!(atime(MountFlags { no_atime: true, ..MountFlags::default() }), libc::MOUNT_ATTR_NOATIME);
        assert_eq!(atime(MountFlags::default()), libc::MOUNT_ATTR_STRICTATIME);
    }

    #[test]
    fn a_private_mount_leaves_the_group_of_the_original() {
        assert_eq!(propagation_changes(Propagation::default()), [libc::MS_PRIVATE]);
        let slave = Propagation { master: Some(3), ..Propagation::default() };
        assert_eq!(propagation_changes(slave), [libc::MS_SLAVE]);
        let both = Propagation { shared: Some(1), ..slave };
        assert_eq!(propagation_changes(both), [libc::MS_SLAVE, libc::MS_SHARED]);
    }

    #[test]
    fn a_symbolic_link_in_a_mount_points_path_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("link")).unwrap();
        assert_eq!(see(&directory.path().join("link")).unwrap_err(), (Stage::OpenMountPoint, Errno::ELOOP));
        assert_eq!(see(&directory.path().join("link/tmp")).unwrap_err(), (Stage::OpenMountPoint, Errno::ELOOP));
    }
}
