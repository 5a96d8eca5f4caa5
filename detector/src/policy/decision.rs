use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

/// What a policy is asked about: one mount, as mountinfo shows it, escapes decoded.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Where it hangs, as seen from its namespace. Any bytes.
    pub mount_point: &'a Path,
    /// `fuse`, `fuse.<subtype>`, `fuseblk`.
    pub fs_type: &'a str,
    /// What the daemon calls its source. Any bytes.
    pub source: &'a OsStr,
}

/// What is to be done about one mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Which rule decided, counted from 1; `None`: no rule matched, the defaults hold.
    pub rule: Option<usize>,
    /// Heal, report, or not even that.
    pub mode: Mode,
    /// Who brings the new daemon.
    pub strategy: StrategyChoice,
    /// Which mounts are healed.
    pub access: Access,
    /// What happens to a hung connection.
    pub on_hung: OnHung,
    /// What happens to a connection that somebody aborted on purpose.
    pub on_abort: OnAbort,
    /// How long requests may wait, with none answered, before the connection counts as hung.
    pub hung_after: Duration,
    /// When a failed recovery is tried again.
    pub backoff: Backoff,
}

/// Key `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Report, heal nothing.
    Observe,
    /// Report and heal.
    Heal,
    /// Neither.
    Ignore,
}

/// Keys `strategy`, `command`, `commandTimeout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StrategyChoice {
    /// Whatever the facts allow.
    Auto,
    /// Somebody else brings the new daemon; attach everything to it.
    Rebind,
    /// Start the daemon again as it was.
    Respawn,
    /// Run this.
    Command(Command),
}

/// A program that brings the mount back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments, not empty. No shell is involved.
    pub argv: Vec<OsString>,
    /// After this time it has failed.
    pub timeout: Duration,
}

/// Key `access`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Heal all mounts.
    Any,
    /// Heal read-only mounts only.
    ReadOnly,
}

/// Key `onHung`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnHung {
    /// Report it.
    Report,
    /// Abort its connection, which frees whoever waits for it, and heal it.
    Abort,
}

/// Key `onAbort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnAbort {
    /// Report it: an administrator who aborted a connection wanted it gone.
    Report,
    /// Heal it like any other.
    Heal,
}

/// Key `backoff`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Backoff {
    /// The wait before the second attempt; each further wait is longer.
    pub initial: Duration,
    /// The longest wait.
    pub max: Duration,
    /// After this time without success no attempt follows.
    pub give_up_after: Duration,
}
