//! Whether the hooks tell the truth: a FUSE connection that nobody sees is made and ended, and has to be told of.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use aya::maps::{MapData, RingBuf};
use detector_common::record::Record;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use thiserror::Error;

use crate::model::DeviceNumber;

/// What became of the trial.
#[derive(Debug, Error)]
pub(super) enum ProveError {
    /// No connection could be made to try the hooks on.
    #[error("what it reads can't be checked, since no FUSE connection could be made for a trial: {0}")]
    Impossible(#[source] io::Error),
    /// The connection was ended and not told of.
    #[error(
        "a FUSE connection made for a trial ({device}) was ended and not told of, so this kernel's structures are not what \
         they were taken for"
    )]
    Silent {
        /// Its device number.
        device: DeviceNumber,
    },
}

/// Makes a connection, ends it, and looks for it in the ring buffer, whose records are taken out.
pub(super) fn run(events: &mut RingBuf<MapData>) -> Result<(), ProveError> {
    let (daemon, mount) = connect().map_err(ProveError::Impossible)?;
    let device = number(&mount).map_err(ProveError::Impossible)?;
    // The last descriptor: `fuse_dev_release` runs, and aborts, before close(2) returns (`task_work_run`).
    drop(daemon);
    let mut told = false;
    while let Some(record) = events.next() {
        let record = Record::try_from(&*record);
        told |= matches!(record, Ok(Record::Aborted { device: found, .. }) if found == device.to_kernel());
    }
    if told { Ok(()) } else { Err(ProveError::Silent { device }) }
}

/// A connection whose mount hangs nowhere. Its INIT is never answered.
fn connect() -> io::Result<(File, OwnedFd)> {
    let daemon = File::options().read(true).write(true).open("/dev/fuse")?;
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let descriptor = daemon.as_raw_fd().to_string();
    for (name, value) in [("fd", descriptor.as_str()), ("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")] {
        rustix::mount::fsconfig_set_string(&context, name, value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok((daemon, mount))
}

/// The connection's number, without asking the daemon that is not there.
fn number(mount: &OwnedFd) -> io::Result<DeviceNumber> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(mount, "", flags, StatxFlags::empty())?;
    Ok(DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor })
}
