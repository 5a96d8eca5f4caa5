use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::DeviceNumber;

/// The inode number of a mount namespace: what `readlink /proc/PID/ns/mnt` shows in brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NamespaceId(pub u64);

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The mount id of mountinfo's first field. The kernel reuses it at once; it identifies a mount only within one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct MountId(pub u64);

/// Which of the kernel's FUSE file system types a mount has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FsKind {
    /// `fuse` or `fuse.<subtype>`: an anonymous device.
    Fuse,
    /// `fuseblk` or `fuseblk.<subtype>`: on a block device.
    FuseBlk,
}

impl FsKind {
    /// `None` for a file system type that is not FUSE (`fusectl` is not, `virtiofs` has no daemon on this machine).
    pub fn of(fs_type: &str) -> Option<Self> {
        match fs_type.split('.').next() {
            Some("fuse") => Some(Self::Fuse),
            Some("fuseblk") => Some(Self::FuseBlk),
            _ => None,
        }
    }
}

/// The per-mount flags that a replacement has to keep (mount_setattr(2)). They are those of the mount, not of the
/// superblock: two binds of one file system can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MountFlags {
    /// `ro`
    pub read_only: bool,
    /// `nosuid`
    pub no_suid: bool,
    /// `nodev`
    pub no_dev: bool,
    /// `noexec`
    pub no_exec: bool,
    /// `noatime`
    pub no_atime: bool,
    /// `relatime`
    pub rel_atime: bool,
    /// `nodiratime`
    pub no_dir_atime: bool,
    /// `nosymfollow`, Linux 5.10
    pub no_sym_follow: bool,
}

/// Mount propagation as mountinfo's optional fields show it (mount_namespaces(7)). A mount can be both shared and a
/// slave; one with neither is private.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Propagation {
    /// `shared:N`: the peer group.
    pub shared: Option<u32>,
    /// `master:N`: the peer group that it receives from.
    pub master: Option<u32>,
    /// `unbindable`
    pub unbindable: bool,
}

/// One entry of one mount namespace, as proc_pid_mountinfo(5) describes it, octal escapes decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The namespace it hangs in.
    pub namespace: NamespaceId,
    /// Mount id, reused by the kernel.
    pub id: MountId,
    /// The mount id, 64 bits, never reused (`STATX_MNT_ID_UNIQUE`, `statmount(2)`, Linux 6.8); where the kernel tells it.
    pub unique_id: Option<u64>,
    /// The mount it hangs on, within the same namespace; of a mount's own root, an id that the namespace doesn't list.
    pub parent: MountId,
    /// The device of its superblock: the connection's number.
    pub device: DeviceNumber,
    /// The part of the file system that is mounted: `/` or, for a bind of a part, its path within the file system.
    pub root: PathBuf,
    /// The root was deleted after it was mounted (mountinfo writes `//deleted` behind it; taken off `root` here).
    pub root_deleted: bool,
    /// Where it hangs, as seen from the namespace's root.
    pub mount_point: PathBuf,
    /// The mount's own flags.
    pub flags: MountFlags,
    /// Its propagation.
    pub propagation: Propagation,
    /// `fuse`, `fuse.<subtype>`, `fuseblk`, …
    pub fs_type: String,
    /// What the daemon calls its source. Any bytes.
    pub source: OsString,
    /// The superblock's options, as mountinfo writes them, escapes decoded.
    pub super_options: OsString,
}

impl Mount {
    /// Whether it is the whole file system, not a part of it.
    pub fn is_whole(&self) -> bool {
        self.root.as_os_str() == "/" && !self.root_deleted
    }

    /// Whose requests the file system serves: everybody's with `allow_other`, else only those of a process whose real,
    /// effective and saved ids are all this user's and group's (`fuse_allow_current_process` in fs/fuse/dir.c).
    pub fn owner_only(&self) -> Option<(u32, u32)> {
        let options = self.super_options.to_string_lossy();
        let number = |key: &str| {
            options.split(',').find_map(|option| option.strip_prefix(key)?.strip_prefix('=')?.parse::<u32>().ok())
        };
        if options.split(',').any(|option| option == "allow_other") {
            return None;
        }
        Some((number("user_id")?, number("group_id")?))
    }
}

#[cfg(test)]
mod tests {
    use super::FsKind;

    #[test]
    fn only_fuse_types_are_fuse() {
        assert_eq!(FsKind::of("fuse"), Some(FsKind::Fuse));
        assert_eq!(FsKind::of("fuse.sshfs"), Some(FsKind::Fuse));
        assert_eq!(FsKind::of("fuseblk"), Some(FsKind::FuseBlk));
        assert_eq!(FsKind::of("fuseblk.ntfs"), Some(FsKind::FuseBlk));
        for other in ["fusectl", "virtiofs", "ext4", "", "fusefs", ".fuse"] {
            assert_eq!(FsKind::of(other), None, "{other}");
        }
    }
}
