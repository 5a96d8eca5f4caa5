use std::ffi::OsStr;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::model::FsKind;

/// No pattern is longer than a path can be (PATH_MAX); keeps the compiled matcher small.
const MAX_LENGTH: usize = 4096;

/// What a pattern is matched against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// An absolute path.
    MountPoint,
    /// `fuse`, `fuse.<subtype>`, `fuseblk`.
    FsType,
    /// Whatever the daemon calls it.
    Source,
}

/// A glob over bytes. In mount points and sources `*` and `?` stop at `/`, and `**` as a whole component crosses
/// directories; a file system type is no path, there they stop at nothing.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    text: String,
    matcher: GlobSet,
}

impl Pattern {
    /// Compiles the pattern. The error says what is wrong, and what to write instead.
    pub fn new(text: &str, subject: Subject) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("a pattern must not be longer than {MAX_LENGTH} bytes"));
        }
        if let Some(why) = never_matches(text, subject) {
            return Err(format!("{text:?} never matches: {why}"));
        }
        if !double_stars_stand_alone(text) {
            return Err(format!("{text:?}: ** must stand between slashes, as in /mnt/**; a single * stops at a slash"));
        }
        let bad = |error: globset::Error| format!("{text:?} is no valid pattern: {}", error.kind());
        let glob = GlobBuilder::new(text)
            .literal_separator(subject != Subject::FsType)
            .backslash_escape(true)
            .empty_alternates(true)
            .build()
            .map_err(bad)?;
        // A set, though of one: unlike `Glob::compile_matcher` it reports a pattern that compiles to too much.
        let matcher = GlobSetBuilder::new().add(glob).build().map_err(bad)?;
        Ok(Self { text: text.to_owned(), matcher })
    }

    pub fn matches(&self, subject: &OsStr) -> bool {
        self.matcher.is_match(Path::new(subject))
    }

    /// Whether everything that `other` matches is certain to match `self`: the same text, everything, all below a
    /// directory, or a literal that `self` matches. `false` is no proof of the contrary.
    pub fn covers(&self, other: &Self, subject: Subject) -> bool {
        self.text == other.text
            || self.matches_all(subject)
            || other.is_literal() && self.matches(OsStr::new(&other.text))
            || self.directory().is_some_and(|directory| {
                subject != Subject::FsType
                    && other.text.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
            })
    }

    /// Whether nothing escapes it.
    pub fn matches_all(&self, subject: Subject) -> bool {
        match subject {
            Subject::MountPoint | Subject::Source => self.text == "**",
            // Only FUSE mounts are ever asked about, and all their types begin so.
            Subject::FsType => matches!(self.text.as_str(), "**" | "*" | "fuse*"),
        }
    }

    /// `/a/b` of `/a/b/**`.
    fn directory(&self) -> Option<&str> {
        self.text.strip_suffix("/**").filter(|directory| !directory.contains(META))
    }

    fn is_literal(&self) -> bool {
        !self.text.contains(META)
    }
}

/// The characters that mean something in a glob.
const META: [char; 7] = ['*', '?', '[', ']', '{', '}', '\\'];

/// Mistakes that would silently make a rule useless.
fn never_matches(text: &str, subject: Subject) -> Option<&'static str> {
    match subject {
        Subject::MountPoint if text != "/" && text.ends_with('/') => Some("a mount point has no slash at its end"),
        Subject::MountPoint if text.starts_with("**") => None,
        Subject::MountPoint if text.starts_with(['*', '?']) => {
            Some("a mount point begins with a slash, which only ** crosses")
        }
        Subject::MountPoint if !text.starts_with(['/', '[', '{', '\\']) => Some("a mount point is an absolute path"),
        Subject::FsType if !text.contains(META) && FsKind::of(text).is_none() => {
            Some("only fuse, fuse.SUBTYPE and fuseblk are watched")
        }
        Subject::MountPoint | Subject::FsType | Subject::Source => None,
    }
}

/// `a**` would be taken for `a*`, which surprises.
fn double_stars_stand_alone(text: &str) -> bool {
    text.match_indices("**").all(|(at, stars)| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let after = text.get(at + stars.len()..).and_then(|after| after.chars().next());
        matches!(before, None | Some('/' | '{' | ',')) && matches!(after, None | Some('/' | '}' | ','))
    })
}
