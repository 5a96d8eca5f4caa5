use std::fmt;
use std::io;
use std::path::PathBuf;

/// More problems than these are not listed: whoever has so many mends the first and looks again.
const MAX_PROBLEMS: usize = 50;

/// A place in the policy file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
}

/// One thing that is wrong with a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub at: Position,
    /// What, and what to write instead.
    pub message: String,
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file can't be read.
    #[error("{}: can't read the policy: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A directory, a FIFO, a device: reading it could wait for ever, or never end.
    #[error("{name}: not a regular file; is it the right path?")]
    NotRegular {
        /// The file.
        name: String,
    },
    /// The file is larger than a policy can be.
    #[error(
        "{name}: larger than {limit} bytes, which no policy needs (a ConfigMap holds no more); is it the right file?"
    )]
    TooLarge {
        /// The file.
        name: String,
        /// Bytes.
        limit: usize,
    },
    /// The file is no text.
    #[error("{name}:{line}: not UTF-8 text; is it the right file?")]
    NotText {
        /// The file.
        name: String,
        /// The line of the first wrong byte, counted from 1.
        line: usize,
    },
    /// The file is text, but no policy.
    #[error("{}", Listing { name, problems, more: *more })]
    Invalid {
        /// The file.
        name: String,
        /// What is wrong, in the order of the file; not empty.
        problems: Vec<Problem>,
        /// How many more problems were found.
        more: usize,
    },
}

impl PolicyError {
    /// What is wrong with the text; empty if it could not even be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } | Self::NotRegular { .. } | Self::TooLarge { .. } | Self::NotText { .. } => &[],
            Self::Invalid { problems, .. } => problems,
        }
    }
}

struct Listing<'a> {
    name: &'a str,
    problems: &'a [Problem],
    more: usize,
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { at: Position { line, column }, message }) in self.problems.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{line}:{column}: {message}", self.name)?;
        }
        if self.more > 0 {
            write!(f, "\n{}: and {} more", self.name, self.more)?;
        }
        Ok(())
    }
}

/// Problems found so far.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<Problem>,
}

impl Problems {
    pub fn add(&mut self, at: Position, message: impl Into<String>) {
        self.found.push(Problem { at, message: message.into() });
    }

    /// What was made of the text, if nothing was wrong with it.
    pub fn into_result<T>(mut self, made: T, name: &str) -> Result<T, PolicyError> {
        if self.found.is_empty() {
            return Ok(made);
        }
        self.found.sort_by_key(|problem| problem.at);
        let more = self.found.len().saturating_sub(MAX_PROBLEMS);
        self.found.truncate(MAX_PROBLEMS);
        Err(PolicyError::Invalid { name: name.to_owned(), problems: self.found, more })
    }
}
