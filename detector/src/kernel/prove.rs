//! Whether the hooks tell the truth: a FUSE connection that nobody sees is made and ended, and has to be told of.
//!
//! Its only request is FUSE_INIT, which the kernel queues while it mounts (`fuse_send_init`) and ends with ECONNABORTED when the
//! connection is aborted. So all that the programs read to know a connection, a request, its opcode and how it ended is
//! checked against what is known to be so.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, RingBuf};
use detector_common::maps::{Bucket, ConnectionState, InFlight};
use detector_common::record::Record;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::plain::Plain;
use crate::model::DeviceNumber;

/// What was told of the trial's connection, under its number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Its number.
    pub device: DeviceNumber,
    /// The opcode of the request that was sent: FUSE_INIT, or it was read from elsewhere.
    pub sent: Option<u32>,
    /// That the kernel ended it.
    pub answered: bool,
    /// That the connection was aborted.
    pub aborted: bool,
}

/// Makes a connection, ends it, and looks for it in the ring buffer, whose records are taken out, and in the maps.
///
/// # Errors
/// No connection could be made.
pub(super) fn run(ebpf: &mut Ebpf, events: &mut RingBuf<MapData>) -> io::Result<Seen> {
    let (daemon, mount) = connect()?;
    let device = number(&mount)?;
    let sent = in_flight(ebpf, device).map(|request| request.opcode);
    // The last descriptor: `fuse_dev_release` runs, and aborts, before close(2) returns (`task_work_run`).
    drop(daemon);
    let mut seen = Seen { device, sent, answered: false, aborted: false };
    while let Some(record) = events.next() {
        match Record::try_from(&*record) {
            Ok(Record::Aborted { device: found, .. }) => seen.aborted |= found == device.to_kernel(),
            Ok(Record::RequestsAborted { device: found, .. }) => seen.answered |= found == device.to_kernel(),
            _ => {}
        }
    }
    // Under the address by which it was entered.
    seen.answered &= in_flight(ebpf, device).is_none();
    if let Some(Ok(mut connections)) =
        ebpf.map_mut("CONNECTIONS").map(HashMap::<_, u32, Plain<ConnectionState>>::try_from)
    {
        // It is not there when nothing was told.
        let _ = connections.remove(&device.to_kernel());
    }
    Ok(seen)
}

/// The connection's only request, as long as it is on its way.
fn in_flight(ebpf: &Ebpf, device: DeviceNumber) -> Option<InFlight> {
    let buckets = Array::<_, Plain<Bucket>>::try_from(ebpf.map("IN_FLIGHT")?).ok()?;
    let is_it = |slot: &InFlight| slot.request != 0 && slot.since != 0 && slot.device == device.to_kernel();
    buckets.iter().filter_map(Result::ok).flat_map(|Plain(bucket)| bucket.slots).find(is_it)
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
