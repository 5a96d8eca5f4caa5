//! Which FUSE mounts a launched program can do without.
//!
//! The namespace made for it is a copy of the whole mount table. For as long as the daemon lives each copied FUSE mount is
//! one more entry for every path walk and every look at the machine, and where the original is private it keeps the
//! connection alive after the host has unmounted it. So all are detached that the program has no visible use for.
//!
//! A mount stays if the program's own path, an argument, the working directory, a value of the environment, or the
//! source or mount point of what died names its mount point or a path below it; or if an argument names a directory that
//! it lies in. Symbolic links in arguments are followed up to the first FUSE mount. What is mounted on a mount that stays
//! stays, too.
//!
//! The limit: a program that learns only from a file of its own (a configuration, a script) that it has to read from
//! another FUSE mount doesn't find that mount.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use crate::model::Mount;
use crate::recovery::{Bring, LaunchSpec, RecoverJob};

/// Links in one path. As many as the kernel follows (MAXSYMLINKS in include/linux/namei.h).
const MAX_LINKS: u32 = 40;

/// What a program was told, as far as it can be seen.
pub(super) struct Told {
    /// Texts that can name a mount point somewhere in them.
    texts: Vec<OsString>,
    /// The paths that the arguments can be meant as.
    paths: Vec<PathBuf>,
}

impl Told {
    /// Of the program that the job wants started. `mounts` are the FUSE mounts of the namespace: no link in one of them
    /// is read.
    pub fn of(job: &RecoverJob, mounts: &[Mount]) -> Self {
        let (mut texts, argv, cwd) = match &job.bring {
            Bring::Respawn(LaunchSpec { exe, argv, env, cwd, .. }) => {
                let texts = env.iter().cloned().chain([exe.into(), cwd.into()]).collect();
                (texts, argv.as_slice(), cwd.as_path())
            }
            // A worker's working directory.
            Bring::Command { argv, .. } => (Vec::new(), argv.as_slice(), Path::new("/")),
            Bring::Existing(_) => (Vec::new(), [].as_slice(), Path::new("/")),
        };
        texts.extend(argv.iter().cloned());
        texts.extend(job.dead.iter().flat_map(|dead| [dead.source.clone(), dead.mount_point.clone().into()]));
        let sources = job.dead.iter().map(|dead| &dead.source);
        let named = argv.iter().skip(1).chain(sources).flat_map(|text| paths_in(text));
        let paths: Vec<_> = named.map(|path| resolve(&cwd.join(path), mounts)).collect();
        Self { texts, paths }
    }

    /// Whether the program may need the mount.
    pub fn needs(&self, mount: &Mount) -> bool {
        let place = &mount.mount_point;
        self.texts.iter().any(|text| mentions(text, place))
            || self.paths.iter().any(|path| path.starts_with(place) || place.starts_with(path))
    }
}

/// The mounts that can be detached without a step into any FUSE mount: none of the others lies on the way to them.
/// What hangs on them goes with them.
pub(super) fn detachable<'m>(mounts: &'m [Mount], told: &Told) -> Vec<&'m Mount> {
    let is_below = |mount: &Mount| {
        let mut above = mount.mount_point.ancestors().skip(1);
        above.any(|path| mounts.iter().any(|other| other.mount_point == path))
    };
    mounts.iter().filter(|mount| !told.needs(mount) && !is_below(mount)).collect()
}

/// Whether a text contains the path as a whole or as the beginning of a longer one.
fn mentions(text: &OsStr, path: &Path) -> bool {
    let (text, path) = (text.as_bytes(), path.as_os_str().as_bytes());
    let mut starts = text.windows(path.len().max(1)).enumerate().filter(|(_, part)| *part == path);
    starts.any(|(start, _)| match text.get(start + path.len()) {
        // `/mnt/1` is not mentioned in `/mnt/12`.
        Some(next) => !next.is_ascii_alphanumeric() && !b"-_.".contains(next),
        None => true,
    })
}

/// The paths that an argument can consist of: itself (`/data`), a value (`--dir=/data`), items of lists
/// (`lowerdir=/a:/b`), and what follows a short option (`-d/data`).
fn paths_in(argument: &OsStr) -> Vec<&Path> {
    let bytes = argument.as_bytes();
    let pieces = bytes.split(|byte| b"=:,".contains(byte)).chain([bytes]);
    let with_attached = pieces.flat_map(|piece| {
        let slash = piece.iter().position(|&byte| byte == b'/');
        let attached = slash.and_then(|at| piece.get(at..)).filter(|_| piece.starts_with(b"-"));
        [Some(piece), attached]
    });
    // The root alone is a path where it is the whole argument or value, but not in `host:/`.
    let is_root = |piece: &[u8]| piece.iter().all(|&byte| byte == b'/');
    let meant = |piece: &&[u8]| {
        let value = bytes == *piece || bytes.strip_suffix(*piece).is_some_and(|name| name.ends_with(b"="));
        !piece.is_empty() && (!is_root(piece) || value)
    };
    with_attached.flatten().filter(meant).map(|piece| Path::new(OsStr::from_bytes(piece))).collect()
}

/// The path without links, dots and double dots, as far as no FUSE mount has to be asked.
fn resolve(path: &Path, mounts: &[Mount]) -> PathBuf {
    let mut links = 0;
    let mut resolved = PathBuf::from("/");
    let mut rest: Vec<OsString> = Vec::new();
    push_components(&mut rest, path);
    while let Some(name) = rest.pop() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let on_fuse = mounts.iter().any(|mount| resolved.starts_with(&mount.mount_point));
        resolved.push(&name);
        let is_mount_point = mounts.iter().any(|mount| mount.mount_point == resolved);
        if on_fuse || is_mount_point || links == MAX_LINKS {
            continue;
        }
        if let Ok(target) = std::fs::read_link(&resolved) {
            links += 1;
            resolved.pop();
            if target.is_absolute() {
                resolved = PathBuf::from("/");
            }
            push_components(&mut rest, &target);
        }
    }
    resolved
}

/// Puts a path's names on a stack, the first one on top.
fn push_components(stack: &mut Vec<OsString>, path: &Path) {
    let names = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    stack.extend(names);
}

#[cfg(test)]
mod tests;
