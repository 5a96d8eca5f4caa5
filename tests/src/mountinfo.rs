//! The calling thread's own mount table. Read here with code of its own, so that the product's parser is not its own judge.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of mountinfo, escapes decoded (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Mount id, reused by the kernel.
    pub id: u64,
    /// The mount it hangs on.
    pub parent: u64,
    /// `major:minor`, as in an event's `connection`.
    pub device: String,
    /// What part of the file system is mounted.
    pub root: PathBuf,
    /// Where.
    pub mount_point: PathBuf,
    /// The mount's own options, sorted.
    pub options: Vec<String>,
    /// `shared`, `master`, `unbindable`: propagation without the numbers of the peer groups.
    pub propagation: Vec<String>,
    /// `fuse`, `fuse.subtype`, …
    pub fs_type: String,
}

impl Entry {
    /// What a replacement has to keep.
    pub fn shape(&self) -> (&Path, &Path, &[String], &[String]) {
        (&self.mount_point, &self.root, &self.options, &self.propagation)
    }

    /// Whether a daemon serves it.
    pub fn is_fuse(&self) -> bool {
        ["fuse", "fuseblk"].contains(&self.fs_type.split('.').next().unwrap_or_default())
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        let text = |index: usize| fields.get(index).map(|field| String::from_utf8_lossy(field).into_owned());
        let path = |index: usize| fields.get(index).map(|field| PathBuf::from(unescape(field)));
        let mut options: Vec<String> = text(5)?.split(',').map(str::to_owned).collect();
        options.sort();
        let propagation = fields.get(6..separator)?.iter();
        let kind = |field: &&[u8]| String::from_utf8_lossy(field).split(':').next().unwrap_or_default().to_owned();
        Some(Self {
            id: text(0)?.parse().ok()?,
            parent: text(1)?.parse().ok()?,
            device: text(2)?,
            root: path(3)?,
            mount_point: path(4)?,
            options,
            propagation: propagation.map(kind).collect(),
            fs_type: text(separator + 1)?,
        })
    }
}

fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        if let Some(digits) = octal {
            let value = digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            bytes.push(u8::try_from(value).unwrap_or(b'?'));
            rest = tail.get(3..).unwrap_or_default();
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    OsString::from_vec(bytes)
}

/// The mount table of the thread that asks; `/proc/self` would be the main thread's.
///
/// # Panics
/// If it can't be read.
pub fn read() -> Vec<Entry> {
    table("thread-self")
}

/// The mount table of another process.
///
/// # Panics
/// If it can't be read.
pub fn of(pid: u32) -> Vec<Entry> {
    table(&pid.to_string())
}

fn table(process: &str) -> Vec<Entry> {
    let path = format!("/proc/{process}/mountinfo");
    let content = fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    content.split(|byte| *byte == b'\n').filter_map(Entry::parse).collect()
}

/// Every mount at exactly this path, the lowest first.
pub fn at(path: &Path) -> Vec<Entry> {
    let mut stack: Vec<Entry> = read().into_iter().filter(|entry| entry.mount_point == path).collect();
    // Of mounts at one path, the upper hangs on the lower. The order of mountinfo says nothing about that since
    // MOVE_MOUNT_BENEATH.
    let mut ordered = Vec::with_capacity(stack.len());
    while let Some(index) = stack.iter().position(|entry| stack.iter().all(|other| other.id != entry.parent)) {
        ordered.push(stack.swap_remove(index));
    }
    ordered
}

/// Every mount at or below this path that no other covers.
pub fn uppermost_below(path: &Path) -> Vec<Entry> {
    let all = below(path);
    let covered: HashSet<(u64, PathBuf)> = all.iter().map(|mount| (mount.parent, mount.mount_point.clone())).collect();
    all.into_iter().filter(|mount| !covered.contains(&(mount.id, mount.mount_point.clone()))).collect()
}

/// Every mount at or below this path.
pub fn below(path: &Path) -> Vec<Entry> {
    read().into_iter().filter(|entry| entry.mount_point.starts_with(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = br"63 43 0:39 /sub /mnt/a\040b\134c ro,nosuid shared:7 master:3 - fuse.x src rw,allow_other";
        let entry = Entry::parse(line).unwrap();
        assert_eq!((entry.mount_point.as_path(), entry.root.as_path()), (Path::new(r"/mnt/a b\c"), Path::new("/sub")));
        assert_eq!(
            (entry.options, entry.propagation),
            (vec!["nosuid".into(), "ro".into()], vec!["shared".into(), "master".into()])
        );
        assert_eq!((entry.device.as_str(), entry.fs_type.as_str()), ("0:39", "fuse.x"));
    }
}
