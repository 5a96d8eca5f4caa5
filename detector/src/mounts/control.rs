//! The FUSE control file system: which connections there are, how many requests wait, and how to abort one.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::model::DeviceNumber;

/// Where the control file system is mounted, if it is (fuse(4), Documentation/filesystems/fuse.rst).
const USUAL_PLACE: &str = "/sys/fs/fuse/connections";

/// `FUSE_CTL_SUPER_MAGIC` (fs/fuse/control.c).
const FUSE_CTL_SUPER_MAGIC: i64 = 0x6573_5543;

const OPEN_ROOT: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A call on the control file system failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It can neither be mounted privately (fsopen(2): Linux 5.2, CAP_SYS_ADMIN) nor is it mounted at the usual place.
    #[error(
        "the FUSE control file system can't be mounted ({mount}), and {USUAL_PLACE} can't be used instead ({place})"
    )]
    Unavailable {
        /// Why it can't be mounted.
        mount: io::Error,
        /// Why the usual place is of no use.
        place: io::Error,
    },
    /// The connections can't be listed.
    #[error("the FUSE connections can't be listed: {0}")]
    List(#[source] io::Error),
    /// A file of a connection can't be used.
    #[error("{file} of FUSE connection {device}: {source}")]
    File {
        /// The connection.
        device: DeviceNumber,
        /// The file's name, or `directory`.
        file: &'static str,
        /// Why.
        source: io::Error,
    },
    /// There is no such connection (any more).
    #[error("there is no FUSE connection {device}")]
    NoConnection {
        /// The number that was asked for.
        device: DeviceNumber,
    },
    /// `waiting` doesn't hold a number.
    #[error("waiting of FUSE connection {device} holds no number: {content:?}")]
    NoNumber {
        /// The connection.
        device: DeviceNumber,
        /// What it holds.
        content: String,
    },
}

/// An open control file system. None of its calls asks a daemon for anything, so none can block on one.
///
/// The directory of a connection belongs to the user that mounted it and is closed to others (mode 0500), so that another
/// user needs CAP_DAC_READ_SEARCH to read `waiting`, and CAP_DAC_OVERRIDE to write `abort`.
#[derive(Debug)]
pub struct ControlFs {
    root: OwnedFd,
}

impl ControlFs {
    /// Mounts it where nobody sees it, so that nothing depends on whether and where it is mounted; where that is
    /// impossible, opens it at its usual place. There is one control file system, however often it is mounted
    /// (`get_tree_single` in fs/fuse/control.c).
    ///
    /// # Errors
    /// [`ControlError::Unavailable`].
    pub fn open() -> Result<Self, ControlError> {
        mount_privately().map(|root| Self { root }).or_else(|mount| match open_usual_place() {
            Ok(root) => Ok(Self { root }),
            Err(place) => Err(ControlError::Unavailable { mount: mount.into(), place }),
        })
    }

    /// The connections that exist, dead ones included: one stays as long as its last mount.
    ///
    /// # Errors
    /// [`ControlError::List`].
    pub fn connections(&self) -> Result<BTreeSet<DeviceNumber>, ControlError> {
        let list = |error: Errno| ControlError::List(error.into());
        let mut connections = BTreeSet::new();
        for entry in Dir::read_from(&self.root).map_err(list)? {
            let entry = entry.map_err(list)?;
            let number = entry.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok());
            connections.extend(number.map(DeviceNumber::from_kernel));
        }
        Ok(connections)
    }

    /// Whether the connection exists, dead or alive.
    ///
    /// # Errors
    /// [`ControlError::File`].
    pub fn contains(&self, device: DeviceNumber) -> Result<bool, ControlError> {
        let name = device.to_kernel().to_string();
        match rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(ControlError::File { device, file: "directory", source: error.into() }),
        }
    }

    /// How many requests wait for an answer, those included that were not handed to the daemon yet
    /// (`fuse_conn_waiting_read`). `None`: there is no such connection.
    ///
    /// # Errors
    /// [`ControlError::File`], [`ControlError::NoNumber`].
    pub fn waiting(&self, device: DeviceNumber) -> Result<Option<u64>, ControlError> {
        const FILE: &str = "waiting";
        let failed = |error: Errno| ControlError::File { device, file: FILE, source: error.into() };
        let file = match self.file(device, FILE, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        // A number of 32 bits and a line feed.
        let mut buffer = [0; 32];
        let length = match rustix::io::read(&file, &mut buffer) {
            Ok(length) => length,
            Err(error) => return Err(failed(error)),
        };
        let content = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        // The connection can go between the two calls: the file is then there, but empty.
        match content.trim() {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| ControlError::NoNumber { device, content: content.clone().into_owned() }),
        }
    }

    /// Ends the connection, for good: every request that waits fails, and so does every later one.
    ///
    /// The number is all there is to name a connection by, and the kernel gives it to the next mount at once: check right
    /// before that it is still the connection that is meant.
    ///
    /// # Errors
    /// [`ControlError::NoConnection`], [`ControlError::File`].
    pub fn abort(&self, device: DeviceNumber) -> Result<(), ControlError> {
        const FILE: &str = "abort";
        let write = || rustix::io::write(&self.file(device, FILE, OFlags::WRONLY)?, b"1");
        match write() {
            Ok(_) => Ok(()),
            Err(Errno::NOENT) => Err(ControlError::NoConnection { device }),
            Err(error) => Err(ControlError::File { device, file: FILE, source: error.into() }),
        }
    }

    fn file(&self, device: DeviceNumber, file: &str, access: OFlags) -> Result<OwnedFd, Errno> {
        let path = format!("{}/{file}", device.to_kernel());
        rustix::fs::openat(&self.root, path, access | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
    }
}

impl AsFd for ControlFs {
    /// Its root directory.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

fn mount_privately() -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // That one is an O_PATH descriptor, of no use for readdir(2) and fanotify_mark(2). The directory keeps the mount in
    // existence when it is closed, as after `umount -l`.
    rustix::fs::openat(mount, c".", OPEN_ROOT, Mode::empty())
}

fn open_usual_place() -> io::Result<OwnedFd> {
    let root = rustix::fs::openat(CWD, USUAL_PLACE, OPEN_ROOT, Mode::empty())?;
    if rustix::fs::fstatfs(&root)?.f_type == FUSE_CTL_SUPER_MAGIC {
        Ok(root)
    } else {
        Err(io::Error::new(io::ErrorKind::NotFound, "the control file system is not mounted there"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::path::Path;

    use nix::mount::{MntFlags, MsFlags, mount, umount2};

    use super::*;
    use crate::mounts::testing::{FuseMount, in_private_namespace};

    fn has_died(fuse: &mut FuseMount) -> bool {
        // INIT was never read by anybody, so it would be there on a living connection.
        let mut request = [0; 1 << 16];
        fuse.descriptor.read(&mut request).is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
    }

    #[test]
    fn a_connection_is_listed_counted_and_aborted() {
        in_private_namespace(|directory| {
            let control = ControlFs::open().unwrap();
            let mut fuse = FuseMount::new(directory, "m");
            let mut other = FuseMount::new(directory, "other");
            let device = fuse.device;
            assert!(control.connections().unwrap().is_superset(&BTreeSet::from([device, other.device])));
            assert!(control.contains(device).unwrap());
            // INIT.
            assert_eq!(control.waiting(device).unwrap(), Some(1));
            control.abort(device).unwrap();
            assert!(has_died(&mut fuse));
            assert!(!has_died(&mut other), "a connection that was not meant has died");
            assert!(control.contains(device).unwrap(), "a dead connection stays with its mount");
            assert_eq!(control.waiting(device).unwrap(), Some(0));

            umount2(&fuse.mount_point, MntFlags::MNT_DETACH).unwrap();
            assert!(!control.contains(device).unwrap());
            assert_eq!(control.waiting(device).unwrap(), None);
            assert!(
                matches!(control.abort(device), Err(ControlError::NoConnection { device: told }) if told == device)
            );
        });
    }

    #[test]
    fn the_private_mount_is_in_no_mount_table() {
        in_private_namespace(|_| {
            let before = std::fs::read("/proc/thread-self/mountinfo").unwrap();
            let _control = ControlFs::open().unwrap();
            assert_eq!(std::fs::read("/proc/thread-self/mountinfo").unwrap(), before);
        });
    }

    #[test]
    fn the_usual_place_is_taken_only_for_what_it_is() {
        in_private_namespace(|directory| {
            let fuse = FuseMount::new(directory, "m");
            let place = Path::new("/sys/fs/fuse/connections");
            mount(Some("none"), place, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            assert_eq!(open_usual_place().unwrap_err().kind(), io::ErrorKind::NotFound);
            mount(Some("none"), place, Some("fusectl"), MsFlags::empty(), None::<&str>).unwrap();
            let control = ControlFs { root: open_usual_place().unwrap() };
            assert!(control.contains(fuse.device).unwrap());
        });
    }
}
