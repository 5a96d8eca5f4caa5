//! Mount ids that are never reused, for the caller's own mount namespace (listmount(2), statmount(2), Linux 6.8).

use std::collections::HashMap;
use std::io;

use rustix::io::Errno;

use super::sys::{self, MountFacts};
use crate::model::{DeviceNumber, Mount, MountId};

/// `FUSE_SUPER_MAGIC` (include/uapi/linux/magic.h): `fuse` and `fuseblk` alike.
const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;

/// The unique ids of the FUSE mounts of a namespace. Remembers what each id is, which never changes, so that each look
/// costs one listmount(2) and one statmount(2) per mount that is new.
#[derive(Debug, Default)]
pub struct UniqueIds {
    /// By unique id; `None`: a mount of another file system type.
    known: HashMap<u64, Option<(MountId, DeviceNumber)>>,
}

impl UniqueIds {
    /// Looks which mounts there are.
    ///
    /// Has to be done *before* the mountinfo is read that [`Self::assign`] completes. A mount that is taken away between
    /// the two, whose id a new one gets, then leaves the new one with the unique id of a mount that no longer exists,
    /// which no check will ever confirm. In the other order it would be the reverse: the old entry with the id of
    /// a living mount.
    ///
    /// # Errors
    /// The calls are not allowed. A kernel that doesn't have them is no error: there are no ids then.
    pub fn refresh(&mut self) -> io::Result<()> {
        let listed = match sys::listmount() {
            Ok(listed) => listed,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOSYS) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut known = HashMap::with_capacity(listed.len());
        for id in listed {
            let fact = match self.known.get(&id) {
                Some(fact) => *fact,
                None => match sys::statmount(id) {
                    Ok(facts) => fuse_only(facts),
                    // Gone since it was listed, or out of reach.
                    Err(_) => continue,
                },
            };
            known.insert(id, fact);
        }
        self.known = known;
        Ok(())
    }

    /// Fills in the unique ids of mounts of the namespace that was looked at.
    pub fn assign(&self, mounts: &mut [Mount]) {
        let by_reused_id: HashMap<(MountId, DeviceNumber), u64> =
            self.known.iter().filter_map(|(&id, fact)| fact.map(|fact| (fact, id))).collect();
        for mount in mounts {
            mount.unique_id = by_reused_id.get(&(mount.id, mount.device)).copied();
        }
    }
}

/// The unique id of the newest mount of the caller's namespace; `None` where the kernel doesn't tell. Ids grow with time
/// (`mnt_alloc_id` in fs/namespace.c), and come in ascending order.
pub(crate) fn newest_mount() -> Option<u64> {
    sys::listmount().ok()?.last().copied()
}

fn fuse_only(facts: MountFacts) -> Option<(MountId, DeviceNumber)> {
    let MountFacts { device, magic, reused_id } = facts;
    (magic == FUSE_SUPER_MAGIC).then_some((MountId(u64::from(reused_id)), device))
}
