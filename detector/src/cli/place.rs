//! A path as somebody types it, made the path that the mount table shows, without asking a FUSE file system anything.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use crate::text;

/// The kernel's limit (`MAXSYMLINKS` in include/linux/namei.h).
const MAX_LINKS: usize = 40;

/// Why a path can't be resolved.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The working directory is gone, or unreachable.
    #[error("{}: the working directory can't be told: {source}; give the whole path", text::printable(path.as_os_str()))]
    Directory {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Only the file system knows where `..` leads there: what precedes it can be a symbolic link.
    #[error(
        "{}: `..` below the FUSE mount {} can't be resolved without asking that file system; give the path without it",
        text::printable(path.as_os_str()),
        text::printable(mount.as_os_str())
    )]
    UpWithin {
        /// The path.
        path: PathBuf,
        /// The mount point.
        mount: PathBuf,
    },
    /// They lead in a circle, or nearly.
    #[error("{}: more than {MAX_LINKS} symbolic links", text::printable(path.as_os_str()))]
    Links {
        /// The path.
        path: PathBuf,
    },
}

/// The path without links, dots and double dots, as the kernel would walk it (path_resolution(7)). What lies below a FUSE
/// mount point is not looked at: its names are taken as they are.
pub fn resolve(path: &Path, is_fuse: impl Fn(&Path) -> bool) -> Result<PathBuf, PlaceError> {
    let mut resolved = PathBuf::from("/");
    let mut rest = VecDeque::new();
    if path.is_relative() {
        // Without links (getcwd(2)), but perhaps on a FUSE mount.
        let directory =
            std::env::current_dir().map_err(|source| PlaceError::Directory { path: path.to_owned(), source })?;
        push_front(&mut rest, &directory);
    }
    let (mut mount, mut links) = (None::<PathBuf>, 0);
    rest.extend(names(path));
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            match mount.take() {
                Some(mount) if mount != resolved => return Err(PlaceError::UpWithin { path: path.to_owned(), mount }),
                // From the root of a mount `..` leads to where it hangs, whatever the file system says.
                Some(_) | None => resolved.pop(),
            };
            continue;
        }
        resolved.push(&name);
        if mount.is_some() {
            continue;
        }
        if is_fuse(&resolved) {
            mount = Some(resolved.clone());
        } else if let Ok(target) = std::fs::read_link(&resolved) {
            links += 1;
            if links > MAX_LINKS {
                return Err(PlaceError::Links { path: path.to_owned() });
            }
            resolved.pop();
            if target.is_absolute() {
                resolved = PathBuf::from("/");
            }
            push_front(&mut rest, &target);
        }
    }
    Ok(resolved)
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn push_front(rest: &mut VecDeque<OsString>, path: &Path) {
    names(path).rev().for_each(|name| rest.push_front(name));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_is_what_the_kernel_would_make_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("deep/er")).unwrap();
        symlink(base.join("deep/er"), base.join("link")).unwrap();
        symlink("dead", base.join("to-dead")).unwrap();
        symlink("circle", base.join("circle")).unwrap();
        // A link below a mount point must not be read: here it would be found.
        std::fs::create_dir(base.join("dead")).unwrap();
        symlink("/", base.join("dead/link")).unwrap();
        let dead = base.join("dead");
        let resolved = |path: &str| resolve(&base.join(path), |place| place == dead);
        for (path, expected) in [
            ("dead", "dead"),
            ("./dead/", "dead"),
            ("dead/../other", "other"),
            ("dead/..", ""),
            // `..` behind a link is beside what it leads to.
            ("link/../x", "deep/x"),
            ("to-dead", "dead"),
            ("to-dead/below/./it", "dead/below/it"),
            ("dead/link", "dead/link"),
            ("missing/x", "missing/x"),
        ] {
            assert_eq!(resolved(path).unwrap(), base.join(expected), "{path}");
        }
        assert!(matches!(resolved("dead/x/../y"), Err(PlaceError::UpWithin { mount, .. }) if mount == dead));
        assert!(matches!(resolved("circle/x"), Err(PlaceError::Links { .. })));
        assert_eq!(resolve(Path::new("/../.."), |_| false).unwrap(), Path::new("/"));
    }
}
