//! The policy: which mounts are healed, and how. One YAML file, checked strictly; `docs/policy.md` is its reference.
//!
//! [`Policy::parse`] reports everything that is wrong with a text, each with line and column. [`Policy::decide`] is total:
//! the first rule that matches decides, else the defaults.

mod decision;
mod document;
mod error;
mod pattern;
mod reader;
mod settings;
#[cfg(test)]
mod tests;
mod yaml;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use self::pattern::Pattern;

pub use self::decision::{Access, Backoff, Command, Decision, Mode, OnAbort, OnHung, StrategyChoice, Subject};
pub use self::error::{PolicyError, Position, Problem};

/// A ConfigMap holds no more (1 MiB, the API server's limit), and no policy comes near it.
const MAX_BYTES: usize = 1 << 20;

/// What is to be done about each mount.
#[derive(Debug, Clone)]
pub struct Policy {
    defaults: Decision,
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
struct Rule {
    matches: Match,
    decision: Decision,
}

/// All patterns that are there must match.
#[derive(Debug, Clone)]
struct Match {
    mount_point: Option<Pattern>,
    fs_type: Option<Pattern>,
    source: Option<Pattern>,
}

impl Policy {
    /// What holds without a file: everything is observed, nothing healed.
    pub const fn builtin() -> Self {
        Self { defaults: settings::BUILTIN, rules: Vec::new() }
    }

    /// Reads a policy file.
    ///
    /// # Errors
    /// When the file can't be read, is no regular file, too large or no text, and for everything that [`Policy::parse`]
    /// refuses.
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let name = path.display().to_string();
        let unreadable = |source| PolicyError::Read { path: path.to_owned(), source };
        let file = open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(PolicyError::NotRegular { name });
        }
        let bytes = read_limited(file).map_err(unreadable)?;
        if bytes.len() > MAX_BYTES {
            return Err(PolicyError::TooLarge { name, limit: MAX_BYTES });
        }
        match str::from_utf8(&bytes) {
            Ok(text) => Self::parse(text, &name),
            Err(error) => {
                let valid = bytes.iter().take(error.valid_up_to());
                Err(PolicyError::NotText { name, line: 1 + valid.filter(|byte| **byte == b'\n').count() })
            }
        }
    }

    /// Reads a policy. `name` is what errors call it.
    ///
    /// # Errors
    /// When the text is too large, no YAML, or anything in it is not what `docs/policy.md` describes. All problems are
    /// listed; a mistake in the YAML itself hides those behind it.
    pub fn parse(text: &str, name: &str) -> Result<Self, PolicyError> {
        if text.len() > MAX_BYTES {
            return Err(PolicyError::TooLarge { name: name.to_owned(), limit: MAX_BYTES });
        }
        document::read(text, name)
    }

    /// What is to be done about this mount.
    pub fn decide(&self, subject: &Subject<'_>) -> &Decision {
        let rule = self.rules.iter().find(|rule| rule.matches.matches(subject));
        rule.map_or(&self.defaults, |rule| &rule.decision)
    }

    /// Whether anything can be healed by it.
    pub fn heals(&self) -> bool {
        let decisions = self.rules.iter().map(|rule| &rule.decision).chain([&self.defaults]);
        decisions.into_iter().any(|decision| decision.mode == Mode::Heal)
    }

    /// The shortest time after which anything is said to hang.
    pub fn shortest_hung_after(&self) -> Duration {
        let rules = self.rules.iter().map(|rule| rule.decision.hung_after);
        rules.fold(self.defaults.hung_after, Duration::min)
    }

    /// How many rules there are.
    pub const fn rule_count(&self) -> usize {
        self.rules.len()
    }
}

/// Links are followed: a ConfigMap's files are such. Without waiting: to open a FIFO waits for a writer (fifo(7)).
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// One byte more than is allowed, so that too much is noticed; the file can grow meanwhile.
fn read_limited(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Match {
    fn matches(&self, subject: &Subject<'_>) -> bool {
        let Self { mount_point, fs_type, source } = self;
        let matches = |pattern: &Option<Pattern>, text: &OsStr| pattern.as_ref().is_none_or(|it| it.matches(text));
        matches(mount_point, subject.mount_point.as_os_str())
            && matches(fs_type, OsStr::new(subject.fs_type))
            && matches(source, subject.source)
    }

    /// Whether everything that `other` matches is certain to match `self`.
    fn covers(&self, other: &Self) -> bool {
        let covers = |wide: &Option<Pattern>, narrow: &Option<Pattern>, subject| match (wide, narrow) {
            (None, _) => true,
            (Some(wide), Some(narrow)) => wide.covers(narrow, subject),
            (Some(wide), None) => wide.matches_all(subject),
        };
        covers(&self.mount_point, &other.mount_point, pattern::Subject::MountPoint)
            && covers(&self.fs_type, &other.fs_type, pattern::Subject::FsType)
            && covers(&self.source, &other.source, pattern::Subject::Source)
    }
}
