//! The FUSE mounts of a `/proc/PID/mountinfo` (proc_pid_mountinfo(5)), and what hangs on them.
//!
//! A parser of its own, because the available ones fit neither the input nor the use: mount points are any bytes, so it
//! works on bytes; it runs at each change of a mount table that can have 10,000 entries of which a handful are FUSE, so
//! lines of other file systems cost two numbers and a search for the separator; and a line that nobody expected must
//! not hide the others, so problems are values beside the result.

mod fields;
mod line;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::PathBuf;

use crate::model::{Mount, MountId, NamespaceId};

pub use fields::Field;
pub use line::LineError;

/// What a mountinfo says about FUSE.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The FUSE mounts, in the order of the file. Their `unique_id` is `None`: mountinfo doesn't tell it.
    pub mounts: Vec<Mount>,
    /// The mounts of any type whose parent is one of `mounts`.
    pub children: Vec<ChildMount>,
    /// Number of lines, of whatever file system.
    pub entries: usize,
    /// The lines that were left out, and why.
    pub problems: Vec<LineProblem>,
}

/// A mount, of any file system type, that hangs directly on a FUSE mount. Who takes that mount away hides it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildMount {
    /// The namespace of both.
    pub namespace: NamespaceId,
    /// Its own mount id.
    pub id: MountId,
    /// The FUSE mount that it hangs on. A mount stacked on another one at the same place hangs on it, too.
    pub parent: MountId,
    /// Where it hangs, as seen from the namespace's root.
    pub mount_point: PathBuf,
    /// Its file system type, bytes that are not UTF-8 replaced.
    pub fs_type: String,
}

impl ChildMount {
    /// Whether it hangs on the very place of the mount, whose path then leads to it.
    pub fn covers(&self, mount: &Mount) -> bool {
        (self.namespace, self.parent) == (mount.namespace, mount.id) && self.mount_point == mount.mount_point
    }
}

/// A line that says something about a mount that can't be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {error}")]
pub struct LineProblem {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub error: LineError,
}

/// Parses the whole content of a mountinfo. Never fails: what can't be understood is in [`Parsed::problems`].
///
/// A last line without its line feed is incomplete, hence left out: the end of the superblock options may be missing,
/// and with it `allow_other`.
pub fn parse(content: &[u8], namespace: NamespaceId) -> Parsed {
    let mut parsed = Parsed::default();
    let mut entries = Vec::new();
    for (index, text) in content.split_inclusive(|&byte| byte == b'\n').enumerate() {
        parsed.entries += 1;
        let outcome = match text.split_last() {
            Some((b'\n', text)) => line::split(text),
            _ => Err(LineError::Truncated),
        };
        match outcome {
            Ok(entry) => entries.push((index + 1, entry)),
            Err(error) => parsed.problems.push(LineProblem { line: index + 1, error }),
        }
    }

    let mut problem = |line, error| parsed.problems.push(LineProblem { line, error });
    for (number, entry) in entries.iter().filter(|(_, entry)| entry.is_fuse()) {
        match entry.mount(namespace) {
            Ok(mount) => parsed.mounts.push(mount),
            Err(error) => problem(*number, error),
        }
    }
    // A second pass, because a child can come before its parent: since Linux 6.8 the order is that of creation, and a
    // mount can be moved beneath an older one.
    let parents: HashSet<MountId> = parsed.mounts.iter().map(|mount| mount.id).collect();
    if !parents.is_empty() {
        for (number, entry) in entries.iter().filter(|(_, entry)| parents.contains(&entry.parent)) {
            match entry.child(namespace) {
                Ok(child) => parsed.children.push(child),
                // A FUSE mount's line was complained of above.
                Err(_) if entry.is_fuse() => {}
                Err(error) => problem(*number, error),
            }
        }
    }
    parsed.problems.sort_by_key(|problem| problem.line);
    parsed
}
