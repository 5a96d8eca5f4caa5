//! The FUSE mounts of the calling process's own mount namespace.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use crate::model::NamespaceId;
use crate::mounts::mountinfo::{self, Parsed};

/// Reads the mount table. Lines that nobody understands are left out: what they describe is not touched then.
pub(super) fn own() -> io::Result<Parsed> {
    // The inode number of the namespace's file is its id; stat follows the link (namespaces(7)).
    let namespace = NamespaceId(fs::metadata("/proc/self/ns/mnt")?.ino());
    Ok(mountinfo::parse(&fs::read("/proc/self/mountinfo")?, namespace))
}
