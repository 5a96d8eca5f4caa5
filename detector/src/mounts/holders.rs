//! Who holds descriptors of `/dev/fuse`: the daemons, and whoever else keeps a connection alive.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

use super::proc;
use crate::model::DeviceNumber;

/// The processes that hold `/dev/fuse`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// The connections that the kernel names in fdinfo (`fuse_dev_show_fdinfo` in fs/fuse/dev.c, Linux 6.18), each with
    /// the processes that hold a descriptor of it, ascending. A connection that lost its last mount is still named, and
    /// its number may be another connection's by now.
    pub by_connection: BTreeMap<DeviceNumber, Vec<u32>>,
    /// Processes with a descriptor of which the kernel doesn't say what it serves: any descriptor on an older kernel,
    /// one that was not used for a mount yet on a newer one. Ascending, each as often as it has such descriptors.
    pub unattributed: Vec<u32>,
    /// Processes whose descriptors the caller may not see (CAP_SYS_PTRACE is missing).
    pub denied: usize,
}

/// Looks at every descriptor of every process: about 20 µs a process on an ordinary machine. A thread with a descriptor table of its own is not seen.
///
/// # Errors
/// /proc can't be listed.
pub fn holders() -> io::Result<Holders> {
    Ok(holders_of(&proc::pids()?))
}

/// The same for a few processes: much cheaper.
pub fn holders_of(pids: &[u32]) -> Holders {
    let mut holders = Holders::default();
    for &pid in pids {
        match descriptors(pid) {
            Ok(descriptors) => descriptors.into_iter().for_each(|connection| holders.add(pid, connection)),
            Err(error) if proc::is_denied(&error) => holders.denied += 1,
            // The process ended, or it is a zombie and has none any more.
            Err(_) => {}
        }
    }
    holders.by_connection.values_mut().for_each(|pids| {
        pids.sort_unstable();
        pids.dedup();
    });
    holders.unattributed.sort_unstable();
    holders
}

impl Holders {
    fn add(&mut self, pid: u32, connection: Option<DeviceNumber>) {
        match connection {
            Some(device) => self.by_connection.entry(device).or_default().push(pid),
            None => self.unattributed.push(pid),
        }
    }
}

/// What each `/dev/fuse` descriptor of the process serves, if the kernel tells.
fn descriptors(pid: u32) -> io::Result<Vec<Option<DeviceNumber>>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let link = entry.path();
        // readlink(2) here gives text made of what the kernel has in memory: no file system is asked.
        if std::fs::read_link(&link).is_ok_and(|target| could_be_fuse(&target)) && is_fuse_device(&link) {
            let info = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(entry.file_name());
            found.push(std::fs::read(info).ok().as_deref().and_then(connection));
        }
    }
    Ok(found)
}

/// By name, so that few descriptors are looked at closer. The directory varies: a container can have its device
/// elsewhere, and of a `/dev` that was lazily unmounted only `/fuse` is left.
fn could_be_fuse(target: &Path) -> bool {
    target.file_name().is_some_and(|name| name == "fuse")
}

/// Whether it is the device, not just any file of this name. The link leads straight to the open file; no path is walked.
/// `DONT_SYNC`, because a plain stat(2) of a file *in* a FUSE file system would ask its daemon, and wait for it.
fn is_fuse_device(link: &Path) -> bool {
    /// Documentation/admin-guide/devices.txt; MISC_MAJOR and FUSE_MINOR (include/linux/miscdevice.h).
    const FUSE_DEVICE: (u32, u32) = (10, 229);
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(CWD, link, flags, StatxFlags::TYPE).is_ok_and(|facts| {
        FileType::from_raw_mode(facts.stx_mode.into()) == FileType::CharacterDevice
            && (facts.stx_rdev_major, facts.stx_rdev_minor) == FUSE_DEVICE
    })
}

/// The connection that an fdinfo names, in the kernel's encoding of device numbers.
fn connection(fdinfo: &[u8]) -> Option<DeviceNumber> {
    let text = std::str::from_utf8(fdinfo).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    number.trim().parse().ok().map(DeviceNumber::from_kernel)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::mounts::testing::{FuseMount, in_private_namespace};

    fn own(holders: &Holders, device: DeviceNumber) -> bool {
        holders.by_connection.get(&device).is_some_and(|pids| pids.contains(&std::process::id()))
    }

    #[test]
    fn the_holder_of_a_connection_is_found_until_it_lets_go() {
        in_private_namespace(|directory| {
            let fuse = FuseMount::new(directory, "m");
            let device = fuse.device;
            assert!(own(&holders().unwrap(), device), "needs Linux 6.18");
            assert!(own(&holders_of(&[std::process::id()]), device));
            assert!(!own(&holders_of(&[1]), device));
            drop(fuse.descriptor);
            assert!(!own(&holders().unwrap(), device));
        });
    }

    #[test]
    fn a_descriptor_without_a_mount_is_held_but_attributed_to_nothing() {
        let _descriptor = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        assert!(holders_of(&[std::process::id()]).unattributed.contains(&std::process::id()));
    }

    #[test]
    fn another_file_of_that_name_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fuse");
        let file = File::create(&path).unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        assert!(could_be_fuse(&std::fs::read_link(&link).unwrap()));
        assert!(!is_fuse_device(Path::new(&link)));
    }

    /// Nobody answers the file system's requests, so whoever asks it anything waits.
    #[test]
    fn a_file_in_a_hung_file_system_is_looked_at_without_asking_it() {
        in_private_namespace(|directory| {
            let fuse = FuseMount::new(directory, "fuse");
            let _root =
                rustix::fs::open(&fuse.mount_point, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let looking = std::thread::spawn(move || tell.send(holders_of(&[std::process::id()])));
            let answer = told.recv_timeout(std::time::Duration::from_secs(5));
            let device = fuse.device;
            // Ends the connection, and with it a wait.
            drop(fuse);
            looking.join().unwrap().unwrap();
            assert!(own(&answer.expect("it waits for the file system"), device));
        });
    }

    #[test]
    fn fdinfo_is_read_in_the_kernels_encoding() {
        let text = b"pos:\t0\nflags:\t02\nmnt_id:\t26\nfuse_connection:\t8388609\n";
        assert_eq!(connection(text), Some(DeviceNumber { major: 8, minor: 1 }));
        assert_eq!(connection(b"pos:\t0\nflags:\t02\n"), None);
        assert_eq!(connection(b"fuse_connection:\tx\n"), None);
    }
}
