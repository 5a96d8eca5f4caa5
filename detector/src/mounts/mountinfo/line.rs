//! One line of mountinfo: cheap to split, and taken apart completely only where it matters.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::ChildMount;
use super::fields::{self, Field};
use crate::model::{DeviceNumber, FsKind, Mount, MountFlags, MountId, NamespaceId, Propagation};

/// Why a line can't be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line feed is missing: the content ends within the line.
    #[error("the line is cut off")]
    Truncated,
    /// No ` - ` between the mount's fields and the superblock's.
    #[error("no separator \" - \"")]
    NoSeparator,
    /// The line ends before this field.
    #[error("no {0}")]
    Missing(Field),
    /// This field is not what it should be.
    #[error("the {0} can't be understood")]
    Malformed(Field),
}

/// A line whose two ids are understood and whose two halves are told apart. The rest is not looked at yet.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub id: MountId,
    pub parent: MountId,
    /// From the device number up to the separator.
    mount: &'a [u8],
    /// The file system type, with its escapes.
    fs_type: &'a [u8],
    /// The source and the superblock's options.
    superblock: &'a [u8],
}

/// The mount's first fields, paths as they are written.
struct Head<'a> {
    device: DeviceNumber,
    root: &'a [u8],
    mount_point: &'a [u8],
    /// The mount's options and the optional fields.
    rest: Option<&'a [u8]>,
}

/// What stands between a mount's fields and its superblock's. No field contains a space (it is written `\040`), and
/// only optional fields, which are never `-`, lie between the options and it.
const SEPARATOR: &[u8] = b" - ";

/// Finds the parts of a line without its line feed.
pub fn split(line: &[u8]) -> Result<Entry<'_>, LineError> {
    let (id, rest) = fields::next(line);
    let id = fields::decimal(id).ok_or(LineError::Malformed(Field::MountId))?;
    let (parent, rest) = fields::next(rest.ok_or(LineError::Missing(Field::Parent))?);
    let parent = fields::decimal(parent).ok_or(LineError::Malformed(Field::Parent))?;
    let rest = rest.ok_or(LineError::Missing(Field::Device))?;
    let at = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR).ok_or(LineError::NoSeparator)?;
    let (mount, superblock) = rest.split_at(at);
    let superblock = superblock.get(SEPARATOR.len()..).unwrap_or_default();
    let (fs_type, superblock) = fields::next(superblock);
    if fs_type.is_empty() {
        return Err(LineError::Missing(Field::FsType));
    }
    let superblock = superblock.ok_or(LineError::Missing(Field::Source))?;
    Ok(Entry { id: MountId(id), parent: MountId(parent), mount, fs_type, superblock })
}

impl Entry<'_> {
    /// Whether the file system is a FUSE one. No type that matters has an escape in its name before the subtype.
    pub fn is_fuse(&self) -> bool {
        let name = self.fs_type.split(|&byte| byte == b'.').next();
        name.and_then(|name| std::str::from_utf8(name).ok()).and_then(FsKind::of).is_some()
    }

    /// All fields of the line.
    pub fn mount(&self, namespace: NamespaceId) -> Result<Mount, LineError> {
        let Head { device, root, mount_point, rest } = self.head()?;
        let (options, rest) = fields::next(rest.ok_or(LineError::Missing(Field::Options))?);
        let (source, super_options) = fields::next(self.superblock);
        let (root, root_deleted) = without_deleted(path(root, Field::Root)?);
        if root.is_empty() {
            return Err(LineError::Malformed(Field::Root));
        }
        Ok(Mount {
            namespace,
            id: self.id,
            unique_id: None,
            parent: self.parent,
            device,
            root: OsString::from_vec(root).into(),
            root_deleted,
            mount_point: OsString::from_vec(path(mount_point, Field::MountPoint)?).into(),
            flags: flags(options),
            propagation: propagation(rest.unwrap_or_default())?,
            fs_type: self.fs_type()?,
            source: unescaped(source, Field::Source)?,
            super_options: unescaped(
                super_options.ok_or(LineError::Missing(Field::SuperOptions))?,
                Field::SuperOptions,
            )?,
        })
    }

    /// What is to know of a mount on a FUSE mount.
    pub fn child(&self, namespace: NamespaceId) -> Result<ChildMount, LineError> {
        let Head { mount_point, .. } = self.head()?;
        let mount_point = PathBuf::from(OsString::from_vec(path(mount_point, Field::MountPoint)?));
        Ok(ChildMount { namespace, id: self.id, parent: self.parent, mount_point, fs_type: self.fs_type()? })
    }

    fn head(&self) -> Result<Head<'_>, LineError> {
        let (device, rest) = fields::next(self.mount);
        let device = std::str::from_utf8(device).ok().and_then(|text| text.parse().ok());
        let device = device.ok_or(LineError::Malformed(Field::Device))?;
        let (root, rest) = fields::next(rest.ok_or(LineError::Missing(Field::Root))?);
        let (mount_point, rest) = fields::next(rest.ok_or(LineError::Missing(Field::MountPoint))?);
        Ok(Head { device, root, mount_point, rest })
    }

    fn fs_type(&self) -> Result<String, LineError> {
        let name: OsString = unescaped(self.fs_type, Field::FsType)?;
        Ok(OsStr::to_string_lossy(&name).into_owned())
    }
}

fn unescaped(field: &[u8], name: Field) -> Result<OsString, LineError> {
    fields::unescape(field).map(OsString::from_vec).ok_or(LineError::Malformed(name))
}

/// An absolute path: the kernel leaves out a mount that can't be reached from the reader's root (`show_mountinfo` in
/// fs/proc_namespace.c), and a root within a FUSE file system always starts at that file system's root.
fn path(field: &[u8], name: Field) -> Result<Vec<u8>, LineError> {
    fields::unescape(field).filter(|path| path.starts_with(b"/")).ok_or(LineError::Malformed(name))
}

/// `dentry_path` (fs/d_path.c) writes `//deleted` behind a root that was deleted. No path has two slashes in a row
/// elsewhere, and no file name has a slash, so the suffix means nothing else.
fn without_deleted(mut root: Vec<u8>) -> (Vec<u8>, bool) {
    const DELETED: &[u8] = b"//deleted";
    let deleted = root.ends_with(DELETED);
    if deleted {
        root.truncate(root.len() - DELETED.len());
    }
    (root, deleted)
}

/// The flags of the mount. Options that this version doesn't know are none that it could keep, and no reason to ignore
/// the mount.
fn flags(options: &[u8]) -> MountFlags {
    let mut flags = MountFlags::default();
    for option in options.split(|&byte| byte == b',') {
        match option {
            b"ro" => flags.read_only = true,
            b"nosuid" => flags.no_suid = true,
            b"nodev" => flags.no_dev = true,
            b"noexec" => flags.no_exec = true,
            b"noatime" => flags.no_atime = true,
            b"relatime" => flags.rel_atime = true,
            b"nodiratime" => flags.no_dir_atime = true,
            b"nosymfollow" => flags.no_sym_follow = true,
            _ => {}
        }
    }
    flags
}

/// The optional fields. Unknown ones are to be ignored (proc_pid_mountinfo(5)); a known one without its number would
/// make a shared mount look private, so it spoils the line.
fn propagation(optional: &[u8]) -> Result<Propagation, LineError> {
    let mut propagation = Propagation::default();
    let group = |number: &[u8]| {
        fields::decimal(number)
            .and_then(|number| u32::try_from(number).ok())
            .map(Some)
            .ok_or(LineError::Malformed(Field::Optional))
    };
    for field in optional.split(|&byte| byte == b' ') {
        if let Some(number) = field.strip_prefix(b"shared:") {
            propagation.shared = group(number)?;
        } else if let Some(number) = field.strip_prefix(b"master:") {
            propagation.master = group(number)?;
        } else if field == b"unbindable" {
            propagation.unbindable = true;
        }
    }
    Ok(propagation)
}
