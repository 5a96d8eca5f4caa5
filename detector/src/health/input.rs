use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::model::{AbortCall, AbortCause, Boottime, Daemon, ExitStatus, Process, Reason, StallCause};

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Mounted; whether it serves is not known yet.
    Created,
    /// It serves.
    Ready,
    /// It was heard of, but answers nobody.
    Hung,
    /// It will never answer again.
    Dead,
    /// Dead, and a strategy is at work.
    Recovering,
    /// Dead, and recovery was given up.
    Failed,
    /// In no mount namespace any more, but still used through open descriptors (`umount -l`).
    Detached,
    /// Over. Final.
    Gone,
}

impl State {
    /// As it is written in JSON and in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Ready => "ready",
            Self::Hung => "hung",
            Self::Dead => "dead",
            Self::Recovering => "recovering",
            Self::Failed => "failed",
            Self::Detached => "detached",
            Self::Gone => "gone",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the agent came to know of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It appeared while the agent looked: what was not seen did not happen.
    Seen,
    /// It was there before: whether it was ever initialised is not known.
    Found,
}

/// Who tells of a daemon's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitSource {
    /// `sched_process_exit`: early. `do_exit` in kernel/exit.c runs it before the descriptors are closed, so a probe
    /// sent now can still block. It knows the cause.
    Hook,
    /// A pidfd became readable: late. The process's descriptors are closed. Also sent when no pidfd could be opened
    /// because the process was gone.
    Pidfd,
}

/// How a daemon ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonEnd {
    /// Exit code or deadly signal.
    pub status: ExitStatus,
    /// Who sent the signal; `None` if the kernel raised it or nobody saw it sent.
    pub sender: Option<Process>,
    /// The kernel chose it as a victim for want of memory (`oom:mark_victim`).
    pub oom: bool,
}

/// Processes with a descriptor of some connection, of which nobody knows which: before Linux 6.18 the kernel doesn't say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Others {
    /// There are none.
    Nobody,
    /// There is exactly one: if somebody holds the connection's descriptor, it is this one.
    One(Process),
    /// There are several, or can be.
    Several,
}

/// What asking the kernel for the connection's health (fstatfs(2) in a disposable process) gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeOutcome {
    /// The daemon answered, be it with an error of its own. A shell that can tell an error which the daemon answered
    /// from the kernel's (the connection's counter of replies moved) reports it here.
    Alive,
    /// The kernel refused, with one of [`is_of_the_dead`]. Any other number counts as [`ProbeOutcome::Failed`].
    Dead {
        /// Positive errno.
        errno: i32,
    },
    /// That mount is not there any more.
    Gone,
    /// No answer within the deadline. Says nothing about death.
    TimedOut,
    /// The mount serves its owner only, and the probe could not become that owner.
    Denied,
    /// The probe itself failed.
    Failed,
}

/// What every request on a dead connection is refused with. `ECONNREFUSED`: FUSE_INIT failed (`fuse_get_req` in
/// fs/fuse/dev.c).
pub const fn is_of_the_dead(errno: i32) -> bool {
    matches!(errno, libc::ENOTCONN | libc::ECONNABORTED | libc::ECONNREFUSED)
}

/// Something that the machine asked to be reminded of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// A death without a violent cause has been held back long enough.
    Grace,
    /// The control directory had time to follow its mounts: look at both again.
    Settle,
    /// A question that got no answer may be put again.
    Retry,
}

/// What the shell learnt. Moments named `at` are those of the event, not of its arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// FUSE_INIT was answered without error.
    Initialised,
    /// A process serves the connection: it answered a request, its fdinfo names the connection, or it was known before.
    DaemonSeen(Daemon),
    /// A process that served the connection, or held its descriptor, ended.
    DaemonExited {
        /// Which.
        pid: u32,
        /// When.
        at: Boottime,
        /// `at` is the kernel's timestamp.
        stamped: bool,
        /// How, where it is known.
        end: Option<DaemonEnd>,
        /// Who tells.
        source: ExitSource,
    },
    /// The kernel ended requests with `ECONNABORTED` by itself.
    RequestsAborted {
        /// When, by the kernel's timestamp.
        at: Boottime,
        /// In whose context.
        by: Process,
        /// That task was exiting.
        exiting: bool,
        /// Else, in which of the calls that abort on purpose.
        call: Option<AbortCall>,
    },
    /// The connection was connected and was aborted: no hint, but the death itself, or the end.
    Aborted {
        /// When, by the kernel's timestamp.
        at: Boottime,
        /// In whose context.
        by: Process,
        /// Why.
        cause: AbortCause,
    },
    /// Somebody wrote to the connection's `abort` file.
    AbortWritten {
        /// When it was learnt.
        at: Boottime,
        /// Who, where it was seen.
        actor: Option<Process>,
    },
    /// `umount -f` returned `EBUSY`, having aborted the connection all the same (`fuse_umount_begin`).
    ForcedUnmount {
        /// When, by the kernel's timestamp.
        at: Boottime,
        /// Who, where it was seen.
        actor: Option<Process>,
    },
    /// An application's system call returned `ENOTCONN` or `ECONNABORTED`. A hint: the daemon can answer so, too.
    AccessFailed {
        /// When.
        at: Boottime,
    },
    /// The answer to [`Effect::Probe`], or a look that the shell took by itself.
    Probed {
        /// What it gave.
        outcome: ProbeOutcome,
        /// When it was answered.
        at: Boottime,
        /// Part of the scan when the agent starts: what is dead now died before.
        first_look: bool,
    },
    /// Requests wait and none was answered for the threshold, confirmed by the connection's `waiting`.
    Stalled {
        /// What keeps the daemon from answering, where that can be seen.
        cause: Option<StallCause>,
    },
    /// The daemon answered a request.
    Progress,
    /// What is mounted now.
    Mounts {
        /// Entries in all mount namespaces.
        count: usize,
        /// The connection's directory in the control file system still exists.
        control: bool,
    },
    /// The answer to [`Effect::FindHolders`].
    Holders {
        /// Which processes hold the connection's descriptor, as the kernel names them.
        named: Vec<Process>,
        /// Who else may.
        others: Others,
    },
    /// A timer's time has passed.
    Timer(Timer),
    /// A strategy set to work on the dead connection.
    RecoveryStarted,
    /// Its mounts hang on another connection now, verified.
    Recovered,
    /// The attempt failed.
    RecoveryFailed {
        /// There will be no other.
        gave_up: bool,
    },
}

/// What the machine wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Probe one of the connection's mounts. Never asked again before the answer came.
    Probe,
    /// Find out who holds the connection's descriptor. Never asked again before the answer came.
    FindHolders,
    /// Set the timer anew.
    Arm(Timer, Duration),
    /// The timer is not wanted any more.
    Disarm(Timer),
    /// Something happened that people are told of.
    Tell(Verdict),
}

/// What happened to the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It serves, for the first time or again.
    Ready,
    /// It answers nobody.
    Hung(Reason),
    /// It is dead. At most once.
    Dead {
        /// Why.
        reason: Reason,
        /// The moment of the event that killed it, or of the first that told; `None` if it was found dead.
        since: Option<Boottime>,
        /// `since` is the kernel's timestamp.
        stamped: bool,
    },
    /// Its last mount was taken away.
    Unmounted,
    /// It has no mount left but is still in use.
    Detached,
}
