//! Carries out a plan in the caller's own mount namespace. Everything here can block: worker processes only.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;

use super::error::{RecoverError, Stage};
use super::plan::{Placement, Replacement, Step};
use super::sys::{self, Looked, MountTarget, Seen};
use crate::model::{Boottime, DeviceNumber, Mount, Propagation};
use crate::worker::{AskError, ask};

/// Where clones of the replacement come from.
pub(crate) trait CloneSource {
    /// A detached clone of the part of the replacement at `relative`, and whether that is a directory.
    fn clone_part(&mut self, relative: &Path, mount_point: &Path) -> Result<(OwnedFd, bool), RecoverError>;
}

/// A replacement that is mounted in the caller's own namespace.
pub(crate) struct MountedHere<'a> {
    mount: &'a Mount,
    seen: Option<Seen>,
}

impl<'a> MountedHere<'a> {
    pub fn new(mount: &'a Mount) -> Self {
        Self { mount, seen: None }
    }
}

impl CloneSource for MountedHere<'_> {
    fn clone_part(&mut self, relative: &Path, mount_point: &Path) -> Result<(OwnedFd, bool), RecoverError> {
        let seen = match self.seen.take() {
            Some(seen) => seen,
            None => match sys::look_at(&MountTarget::from(self.mount))? {
                Looked::Same(seen) => seen,
                Looked::Gone => return Err(RecoverError::ReplacementGone { path: self.mount.mount_point.clone() }),
            },
        };
        let owner = self.mount.owner_only();
        clone_part(self.seen.insert(seen), owner, relative, mount_point)
    }
}

/// Clones a part of what was seen. A file system that serves its owner only lets nobody else look names up in it.
pub(crate) fn clone_part(
    seen: &Seen,
    owner: Option<(u32, u32)>,
    relative: &Path,
    mount_point: &Path,
) -> Result<(OwnedFd, bool), RecoverError> {
    let clone = || sys::clone_mount(seen.fd.as_fd(), relative);
    let cloned = match owner {
        Some(owner) => {
            crate::worker::as_owner(owner, clone).map_err(RecoverError::kernel(Stage::BecomeOwner, mount_point))?
        }
        None => clone(),
    };
    cloned.map_err(|(stage, errno)| {
        // What is missing in the replacement is named, not the place where it would have been mounted.
        let path = if stage == Stage::OpenRoot { Path::new("/").join(relative) } else { mount_point.to_owned() };
        RecoverError::Kernel { stage, path, errno }
    })
}

/// How a step ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The file system answered through the path.
    Healed { device: DeviceNumber, at: Boottime },
    /// The dead mount was gone before it was touched.
    Gone,
}

/// Carries out one step.
///
/// Killed at any moment it leaves either the dead mount or the replacement visible, never what is below them.
pub(crate) fn heal(
    step: &Step,
    replacement: &Replacement,
    source: &mut dyn CloneSource,
) -> Result<Outcome, RecoverError> {
    let Step { dead, above, placement } = step;
    let path = &dead.mount_point;
    let done = match placement {
        Placement::Served { device } => return verify(path, *device, replacement.owner),
        Placement::Uncover => uncover(dead, above)?,
        Placement::Beneath { relative } => {
            let clone = dressed_clone(source, relative, dead)?;
            put_beneath(&clone, dead, above)?
        }
        Placement::BecomeGuard { relative } => {
            let clone = dressed_clone(source, relative, dead)?;
            put_over(&clone, dead, above.iter())?
        }
        Placement::OnGuard { relative, guard } => {
            let clone = dressed_clone(source, relative, dead)?;
            put_over(&clone, guard, above.iter().chain([dead]))?
        }
    };
    match done {
        Done::Yes => verify(path, replacement.device, replacement.owner),
        Done::Gone => Ok(Outcome::Gone),
    }
}

/// Whether the dead mount was still there.
enum Done {
    Yes,
    Gone,
}

struct Clone {
    fd: OwnedFd,
    is_directory: bool,
    /// What it is to have once it is in its place.
    propagation: Propagation,
}

fn dressed_clone(source: &mut dyn CloneSource, relative: &Path, dead: &Mount) -> Result<Clone, RecoverError> {
    let path = &dead.mount_point;
    let (fd, is_directory) = source.clone_part(relative, path)?;
    let fd = sys::dress(fd, is_directory, dead).map_err(|(stage, errno)| RecoverError::Kernel {
        stage,
        path: path.clone(),
        errno,
    })?;
    Ok(Clone { fd, is_directory, propagation: dead.propagation })
}

impl Clone {
    /// It is in its place, and keeps the propagation of the mount that it replaces.
    fn settle(&self, path: &Path) -> Result<(), RecoverError> {
        sys::settle(self.fd.as_fd(), self.propagation).map_err(RecoverError::kernel(Stage::SetPropagation, path))
    }
}

/// Below a shared parent, the kernel does to each of the parent's peers and slaves what is done here: it moves a copy of the
/// clone beneath what hangs at the same place there (`attach_recursive_mnt` in fs/namespace.c). It takes the dead copies on
/// top of those away again only if the clone is still the one that they were copied from, in one group with them, when the
/// dead mount is detached (`propagate_umount` in fs/pnode.c goes by the parent, which is the clone now). So the clone gets
/// its own propagation last: before, the peers' namespaces kept one more dead layer each time.
fn put_beneath(clone: &Clone, dead: &Mount, above: &[Mount]) -> Result<Done, RecoverError> {
    let path = &dead.mount_point;
    if let Done::Gone = detach_all(above.iter())? {
        return Ok(Done::Gone);
    }
    let Some(seen) = dead_at(dead)? else { return Ok(Done::Gone) };
    same_kind(clone, &seen, path)?;
    sys::move_beneath(clone.fd.as_fd(), seen.fd.as_fd()).map_err(RecoverError::kernel(Stage::Move, path))?;
    drop(seen);
    let done = detach_all([dead]);
    clone.settle(path)?;
    done
}

/// An earlier attempt ended right before the dead mount was detached: what it left undone is done now.
fn uncover(dead: &Mount, above: &[Mount]) -> Result<Done, RecoverError> {
    let path = &dead.mount_point;
    let done = detach_all(above.iter().chain([dead]))?;
    if let (Done::Yes, Ok(seen)) = (&done, sys::see(path)) {
        sys::settle(seen.fd.as_fd(), dead.propagation).map_err(RecoverError::kernel(Stage::SetPropagation, path))?;
    }
    Ok(done)
}

/// The mount, if it is the visible one, and dead by the kernel's own word now. Who believes it dead looked some time ago, and
/// can have been mistaken: numbers are reused at once. A mount that serves is never replaced or taken away.
fn dead_at(mount: &Mount) -> Result<Option<Seen>, RecoverError> {
    let path = &mount.mount_point;
    let Looked::Same(seen) = sys::look_at(&mount.into())? else { return Ok(None) };
    match ask(seen.fd.as_fd(), mount.owner_only()) {
        Err(AskError::Dead(_)) => Ok(Some(seen)),
        Err(AskError::Owner(errno)) => {
            Err(RecoverError::Kernel { stage: Stage::BecomeOwner, path: path.clone(), errno })
        }
        Ok(()) | Err(AskError::Answer(_)) => Err(RecoverError::Alive { path: path.clone() }),
    }
}

/// Detaches `layers`, the topmost first, which shows `guard`, and puts the clone on that.
fn put_over<'m>(
    clone: &Clone,
    guard: &Mount,
    layers: impl Iterator<Item = &'m Mount> + std::clone::Clone,
) -> Result<Done, RecoverError> {
    let path = &guard.mount_point;
    // A clone of the wrong kind can't be mounted there: found out before anything is detached.
    if let Some(top) = layers.clone().next() {
        let Some(seen) = dead_at(top)? else { return Ok(Done::Gone) };
        same_kind(clone, &seen, path)?;
    }
    if let Done::Gone = detach_all(layers)? {
        return Ok(Done::Gone);
    }
    let Some(seen) = dead_at(guard)? else { return Ok(Done::Gone) };
    same_kind(clone, &seen, path)?;
    // What is mounted on a shared mount appears on every peer and slave of it at once, and the unmount of one of them
    // then takes it from all.
    sys::make_private(seen.fd.as_fd()).map_err(RecoverError::kernel(Stage::SetPropagation, path))?;
    sys::move_over(clone.fd.as_fd(), seen.fd.as_fd()).map_err(RecoverError::kernel(Stage::Move, path))?;
    clone.settle(path)?;
    Ok(Done::Yes)
}

/// Detaches mounts that lie on top of each other, each only if it is the visible one.
///
/// umount2(2) with MNT_DETACH takes along whatever hangs on the mount, so a lower one is never detached before the ones
/// above it.
fn detach_all<'m>(layers: impl IntoIterator<Item = &'m Mount>) -> Result<Done, RecoverError> {
    for layer in layers {
        if dead_at(layer)?.is_none() {
            return Ok(Done::Gone);
        }
        // To ask took a while, with another user's ids a process's life: looked at again right before.
        let target = MountTarget::from(layer);
        let Looked::Same(seen) = sys::look_at(&target)? else { return Ok(Done::Gone) };
        detach_seen(&target, &seen)?;
    }
    Ok(Done::Yes)
}

/// Detaches a mount that was looked at just now. What somebody mounted on it in between would be taken instead
/// ([`sys::detach`]): that can't be undone, but it is told, and the attempt ends.
fn detach_seen(target: &MountTarget, seen: &Seen) -> Result<(), RecoverError> {
    let path = &target.mount_point;
    sys::detach(seen.fd.as_fd()).map_err(RecoverError::kernel(Stage::Detach, path))?;
    match sys::look_at(target) {
        Ok(Looked::Same(_)) => Err(RecoverError::AnotherDetached { path: path.clone() }),
        Ok(Looked::Gone) | Err(_) => Ok(()),
    }
}

fn same_kind(clone: &Clone, seen: &Seen, path: &Path) -> Result<(), RecoverError> {
    if clone.is_directory == seen.is_directory {
        return Ok(());
    }
    Err(RecoverError::KindDiffers { path: path.to_owned(), replacement_is_directory: clone.is_directory })
}

/// Success is what the file system answers through the very path that applications use.
fn verify(path: &Path, expected: DeviceNumber, owner: Option<(u32, u32)>) -> Result<Outcome, RecoverError> {
    let seen = match sys::see(path) {
        Ok(seen) => seen,
        Err((_, Errno::ENOENT | Errno::ENOTDIR)) => return Ok(Outcome::Gone),
        Err((stage, errno)) => return Err(RecoverError::Kernel { stage, path: path.to_owned(), errno }),
    };
    if seen.device != expected {
        return Err(RecoverError::WrongDevice { path: path.to_owned(), found: seen.device, expected });
    }
    match ask(seen.fd.as_fd(), owner) {
        Ok(()) => Ok(Outcome::Healed { device: seen.device, at: Boottime::now() }),
        Err(AskError::Dead(errno) | AskError::Answer(errno)) => {
            Err(RecoverError::Kernel { stage: Stage::Verify, path: path.to_owned(), errno })
        }
        Err(AskError::Owner(errno)) => {
            Err(RecoverError::Kernel { stage: Stage::BecomeOwner, path: path.to_owned(), errno })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::testing::{FuseMount, in_private_namespace, mounts_at};

    /// The look and the detachment in the wrong order by hand: somebody mounts in between.
    #[test]
    fn a_mount_that_came_in_between_is_told_if_it_is_taken() {
        in_private_namespace(|directory| {
            let FuseMount { mount_point, descriptor, .. } = FuseMount::new(directory, "m");
            drop(descriptor);
            let dead = mounts_at(&mount_point).remove(0);
            let target = MountTarget::from(&dead);
            let Ok(Looked::Same(seen)) = sys::look_at(&target) else { panic!("it is not there") };
            let over = FuseMount::over(mount_point.clone(), "fuse.other");
            let error = detach_seen(&target, &seen).unwrap_err();
            assert_eq!(error, RecoverError::AnotherDetached { path: mount_point.clone() });
            assert!(mounts_at(&mount_point).iter().all(|mount| mount.device != over.device), "it was taken");

            // With the look in its place, what came in between is left alone.
            let over = FuseMount::over(mount_point.clone(), "fuse.other");
            assert!(matches!(detach_all([&dead]), Ok(Done::Gone)));
            assert_eq!(mounts_at(&mount_point).len(), 2);
            nix::mount::umount2(&mount_point, nix::mount::MntFlags::MNT_DETACH).unwrap();
            drop(over);
            assert!(matches!(detach_all([&dead]), Ok(Done::Yes)));
            assert!(mounts_at(&mount_point).is_empty());
        });
    }
}
