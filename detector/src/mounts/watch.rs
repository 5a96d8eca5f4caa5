//! Notification of changes of a mount table.

use std::fs::File;
use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::ready::register;

/// Tells that something was mounted, unmounted, moved or remounted in the caller's own mount namespace: the kernel
/// raises POLLPRI on an open mountinfo (`mounts_poll` in fs/proc_namespace.c). Nothing is told of other namespaces, nor
/// of a connection's death, which changes no mount.
#[derive(Debug)]
pub struct MountWatch {
    mountinfo: AsyncFd<File>,
}

impl MountWatch {
    /// Starts watching: whatever changes from now on is told. So open it before the first scan, and scan after each
    /// [`Self::changed`]; no change is lost between the two.
    ///
    /// Needs a tokio runtime with I/O enabled. The namespace is that of the calling thread, and stays that.
    ///
    /// # Errors
    /// /proc is not mounted, or no descriptor is left.
    pub fn open() -> io::Result<Self> {
        let mountinfo = File::open("/proc/thread-self/mountinfo")?;
        Ok(Self { mountinfo: register(mountinfo, Interest::PRIORITY)? })
    }

    /// Waits for the next change. Several changes between two calls are told as one. Cancel-safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn changed(&mut self) -> io::Result<()> {
        let mut ready = self.mountinfo.ready(Interest::PRIORITY).await?;
        // Being polled is what makes the kernel note how far the caller has seen; there is nothing to read.
        ready.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::mount::{MntFlags, umount2};
    use tokio::time::timeout;

    use super::*;
    use crate::mounts::testing::{FuseMount, in_private_namespace_async};

    const DEADLINE: Duration = Duration::from_secs(5);

    async fn quiet(watch: &mut MountWatch) -> bool {
        timeout(Duration::from_millis(50), watch.changed()).await.is_err()
    }

    #[test]
    fn mount_and_unmount_are_told_and_a_death_is_not() {
        in_private_namespace_async(|directory| async move {
            let mut watch = MountWatch::open().unwrap();
            assert!(quiet(&mut watch).await);
            let fuse = FuseMount::new(&directory, "m");
            timeout(DEADLINE, watch.changed()).await.expect("a mount").unwrap();
            let FuseMount { descriptor, mount_point, .. } = fuse;
            drop(descriptor);
            assert!(quiet(&mut watch).await, "the end of a connection is no change of the mount table");
            umount2(&mount_point, MntFlags::MNT_DETACH).unwrap();
            timeout(DEADLINE, watch.changed()).await.expect("an unmount").unwrap();
            assert!(quiet(&mut watch).await);
        });
    }

    #[test]
    fn a_change_before_the_first_wait_is_told() {
        in_private_namespace_async(|directory| async move {
            let mut watch = MountWatch::open().unwrap();
            let _fuse = FuseMount::new(&directory, "m");
            timeout(DEADLINE, watch.changed()).await.expect("a mount").unwrap();
        });
    }
}
