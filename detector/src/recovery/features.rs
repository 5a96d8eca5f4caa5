use std::os::fd::AsFd;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::MoveMountFlags;
use serde::{Deserialize, Serialize};

use super::sys;

/// What recovery needs to know of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// `MOVE_MOUNT_BENEATH` (Linux 6.5): a mount can be put below the one that is visible. Without it the dead mount
    /// stays below its replacement as a guard.
    pub beneath: bool,
    /// `STATX_MNT_ID_UNIQUE` (Linux 6.8): mount ids that are never reused.
    pub unique_id: bool,
}

impl Features {
    /// Asks the kernel. Nothing is mounted.
    pub fn detect() -> Self {
        Self { beneath: knows_beneath(), unique_id: knows_unique_id() }
    }
}

/// `move_mount` refuses unknown flags with EINVAL before it looks at anything else, descriptors included
/// (`SYSCALL_DEFINE5(move_mount)` in fs/namespace.c). A file that is no mount's root is refused with EINVAL, too, but
/// an empty path without `MOVE_MOUNT_F_EMPTY_PATH` with ENOENT (fs/namei.c).
fn knows_beneath() -> bool {
    let flags = MoveMountFlags::from_bits_retain(sys::MOVE_MOUNT_BENEATH);
    matches!(rustix::mount::move_mount(CWD, "", CWD, "", flags), Err(Errno::NOENT))
}

fn knows_unique_id() -> bool {
    let mask = StatxFlags::from_bits_retain(sys::STATX_MNT_ID_UNIQUE);
    rustix::fs::statx(CWD.as_fd(), "/", AtFlags::from_bits_retain(sys::AT_STATX_DONT_SYNC), mask)
        .is_ok_and(|found| found.stx_mask & sys::STATX_MNT_ID_UNIQUE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_flag_is_told_from_an_unusable_path() {
        let unknown = MoveMountFlags::from_bits_retain(0x8000_0000);
        assert_eq!(rustix::mount::move_mount(CWD, "", CWD, "", unknown), Err(Errno::INVAL));
    }

    #[test]
    fn detection_agrees_with_the_kernel_version() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        let features = Features::detect();
        assert_eq!(features.beneath, version >= (6, 5), "{release}");
        assert_eq!(features.unique_id, version >= (6, 8), "{release}");
    }
}
