//! Real mounts for tests, in a mount namespace that ends with the test's thread.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::{NamespaceMounts, Scanner};
use crate::model::{DeviceNumber, Mount};

/// Runs the test in a thread with a private mount namespace and an empty tmpfs directory in it. Whatever the test mounts,
/// also when it panics, is gone when the thread ends. Child processes that it starts live in that namespace.
pub fn in_private_namespace<T: Send>(test: impl FnOnce(&Path) -> T + Send) -> T {
    let directory = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("unshare(CLONE_NEWNS): these tests need root");
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            mount(Some("none"), directory.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            test(directory.path())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// As [`in_private_namespace`], for a test that waits: with a runtime in that thread.
pub fn in_private_namespace_async<F: Future<Output = ()>>(test: impl FnOnce(PathBuf) -> F + Send) {
    in_private_namespace(|directory| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(directory.to_owned()));
    });
}

/// A FUSE file system that nobody serves: the kernel's side is complete, INIT is never answered. Dropping it closes the
/// descriptor, which ends the connection; the mount stays.
pub struct FuseMount {
    pub descriptor: File,
    pub mount_point: PathBuf,
    pub device: DeviceNumber,
}

impl FuseMount {
    /// Mounts one at a new directory.
    pub fn new(directory: &Path, name: &str) -> Self {
        let mount_point = directory.join(name);
        std::fs::create_dir(&mount_point).unwrap();
        Self::over(mount_point, "fuse.test")
    }

    /// Mounts one at a directory that is there.
    pub fn over(mount_point: PathBuf, fs_type: &str) -> Self {
        let descriptor = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", descriptor.as_raw_fd());
        mount(Some("nobody"), &mount_point, Some(fs_type), MsFlags::MS_NOSUID, Some(options.as_str())).unwrap();
        let device = own_mounts().mounts.iter().rfind(|mount| mount.mount_point == mount_point).unwrap().device;
        Self { descriptor, mount_point, device }
    }
}

/// What there is in the thread's namespace.
pub fn own_mounts() -> NamespaceMounts {
    Scanner::default().scan_own().unwrap()
}

/// The mounts at a mount point of the thread's namespace.
pub fn mounts_at(mount_point: &Path) -> Vec<Mount> {
    own_mounts().mounts.into_iter().filter(|mount| mount.mount_point == mount_point).collect()
}
