//! Flags and propagation for a clone on kernels before 5.12, which have no mount_setattr(2).
//!
//! mount(2) changes only what is mounted in the caller's own namespace (`check_mnt` in fs/namespace.c). So the clone is
//! mounted for a moment in a namespace that only one thread is in, changed there, and cloned once more: a clone has the
//! flags and the propagation of its original (`clone_mnt`), and stays when the namespace goes with its thread. Nobody
//! else ever sees the clone before it is as it has to be.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use super::error::{RawErrno, Stage};
use crate::model::MountFlags;

/// What a clone of a directory and one of a file are mounted on in that namespace: they are there wherever the agent runs.
const DIRECTORY: &str = "/";
const FILE: &str = "/proc/version";

/// include/uapi/linux/mount.h, Linux 5.10.
const MS_NOSYMFOLLOW: libc::c_ulong = 0x100;

/// The clone anew, with the flags and the changes of propagation, `MS_PRIVATE` and the like, one after another.
pub(super) fn through_namespace(
    clone: BorrowedFd<'_>,
    is_directory: bool,
    flags: MountFlags,
    propagation: &[u64],
) -> Result<OwnedFd, (Stage, Errno)> {
    // The namespace is that thread's alone, and so is, from then on, its root and working directory (unshare(2)).
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter_namespace().map_err(|errno| (Stage::SetFlags, errno))?;
            dress(clone, if is_directory { DIRECTORY } else { FILE }, flags, propagation)
        });
        thread.join().unwrap_or(Err((Stage::SetFlags, Errno::EIO)))
    })
}

fn enter_namespace() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
}

fn dress(
    clone: BorrowedFd<'_>,
    place: &str,
    flags: MountFlags,
    propagation: &[u64],
) -> Result<OwnedFd, (Stage, Errno)> {
    let raw = |stage| move |errno| (stage, RawErrno::from(errno).0);
    let by_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(clone, "", CWD, place, by_descriptor).map_err(raw(Stage::SetFlags))?;
    change(clone, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | remount_flags(flags)).map_err(|e| (Stage::SetFlags, e))?;
    for how in propagation {
        set_propagation(clone, *how).map_err(|errno| (Stage::SetPropagation, errno))?;
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(clone.as_fd(), "", flags).map_err(raw(Stage::Clone))
}

/// Gives a mount of the caller's namespace another propagation: one of `MS_PRIVATE`, `MS_SHARED`, `MS_SLAVE`.
pub(super) fn set_propagation(mount: BorrowedFd<'_>, how: u64) -> nix::Result<()> {
    change(mount, MsFlags::from_bits_retain(how))
}

fn change(mounted: BorrowedFd<'_>, how: MsFlags) -> nix::Result<()> {
    let path = format!("/proc/self/fd/{}", mounted.as_raw_fd());
    mount(None::<&str>, path.as_str(), None::<&str>, how, None::<&str>)
}

/// As mount(2) names them for a remount, which clears those that are not named. Only access times are kept if none of their
/// flags is, so one always is.
fn remount_flags(flags: MountFlags) -> MsFlags {
    let MountFlags { read_only, no_suid, no_dev, no_exec, no_atime, rel_atime, no_dir_atime, no_sym_follow } = flags;
    [
        (read_only, MsFlags::MS_RDONLY),
        (no_suid, MsFlags::MS_NOSUID),
        (no_dev, MsFlags::MS_NODEV),
        (no_exec, MsFlags::MS_NOEXEC),
        (no_atime, MsFlags::MS_NOATIME),
        (rel_atime && !no_atime, MsFlags::MS_RELATIME),
        (!no_atime && !rel_atime, MsFlags::MS_STRICTATIME),
        (no_dir_atime, MsFlags::MS_NODIRATIME),
        (no_sym_follow, MsFlags::from_bits_retain(MS_NOSYMFOLLOW)),
    ]
    .into_iter()
    .filter_map(|(wanted, flag)| wanted.then_some(flag))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_times_are_always_named() {
        let atime = MsFlags::MS_NOATIME | MsFlags::MS_RELATIME | MsFlags::MS_STRICTATIME;
        let named = |flags| remount_flags(flags) & atime;
        assert_eq!(named(MountFlags::default()), MsFlags::MS_STRICTATIME);
        assert_eq!(named(MountFlags { rel_atime: true, ..MountFlags::default() }), MsFlags::MS_RELATIME);
        assert_eq!(named(MountFlags { no_atime: true, rel_atime: true, ..MountFlags::default() }), MsFlags::MS_NOATIME);
    }
}
