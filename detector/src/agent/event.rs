//! What reaches the one task that owns the state, and what it asks for in return.

use std::collections::BTreeMap;
use std::time::Duration;

use super::stall::Requests;
use crate::health::Timer;
use crate::kernel::KernelEvent;
use crate::model::{Boottime, ConnectionId, DeviceNumber, ExitStatus, Process, Transition};
use crate::mounts::{DaemonRecord, Problem, Snapshot};
use crate::recovery::{MountTarget, Progress, RecoverJob};
use crate::worker::{ProbeOutcome, ProbeTarget};

/// How much of the machine a look at the mounts covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every mount namespace.
    Everything,
    /// The agent's own only; what is known of the others stays.
    Own,
}

/// Who holds `/dev/fuse` descriptors.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// When the look began: a descriptor belongs to no connection before it is mounted, so it says nothing of later ones.
    pub began: Boottime,
    /// Of which connection (fdinfo tells it since Linux 6.18).
    pub by_connection: BTreeMap<DeviceNumber, Vec<Process>>,
    /// Those of whom it is not known, each as often as it has such a descriptor.
    pub unattributed: Vec<Process>,
    /// Processes whose descriptors can't be seen.
    pub denied: usize,
}

/// Everything that can happen to the agent. Each is a fact or an answer; none is a decision.
#[derive(Debug)]
pub enum Event {
    /// A kernel program reported.
    Kernel(KernelEvent),
    /// Events were lost between the kernel and here: what is known may be wrong.
    Lost,
    /// A look at the mounts was completed.
    Scanned {
        /// What it saw.
        snapshot: Box<Snapshot>,
        /// What it covered.
        scope: Scope,
        /// When it began: it says nothing of what came later.
        began: Boottime,
    },
    /// A look at who holds `/dev/fuse` descriptors was completed.
    HoldersFound(Found),
    /// What the kernel programs say of requests on their way.
    Requests(Vec<Requests>),
    /// Somebody wrote to a connection's `abort` file.
    AbortWritten {
        /// Whose.
        device: DeviceNumber,
        /// Who wrote, if the process can be seen from here.
        actor: Option<Process>,
        /// When it was noticed.
        at: Boottime,
    },
    /// A watched process is gone with all its threads, its descriptors closed.
    ProcessEnded {
        /// Which.
        pid: u32,
        /// How, where somebody still knows.
        status: Option<ExitStatus>,
        /// When it was noticed.
        at: Boottime,
    },
    /// What is needed to start a daemon again was read from `/proc` while it ran.
    Remembered {
        /// Of whom.
        pid: u32,
        /// The record; `None` where it can't be read.
        record: Option<Box<DaemonRecord>>,
    },
    /// A probe ended.
    Probed {
        /// Of which connection.
        connection: ConnectionId,
        /// With what.
        outcome: ProbeOutcome,
        /// When the answer came.
        at: Boottime,
    },
    /// Whether the connection's directory in the FUSE control file system is there.
    Control {
        /// Whose.
        connection: ConnectionId,
        /// Whether.
        present: bool,
    },
    /// The agent aborted a connection that hung, or could not.
    Freed {
        /// Which.
        connection: ConnectionId,
        /// Why it could not.
        result: Result<(), String>,
        /// When.
        at: Boottime,
    },
    /// A timer of a connection's machine ran out.
    Timer {
        /// Whose.
        connection: ConnectionId,
        /// Which.
        timer: Timer,
    },
    /// The pause before the next attempt to recover is over.
    Retry {
        /// Of which connection.
        connection: ConnectionId,
    },
    /// A recovery goes on.
    Progress {
        /// Of which connection.
        connection: ConnectionId,
        /// How.
        progress: Progress,
    },
}

/// What the state asks the shell to do. Every answer comes back as an [`Event`].
#[derive(Debug)]
pub enum Action {
    /// Print, log, count.
    Tell(Box<Transition>),
    /// Ask the file system for a sign of life, in a worker. At most one a connection is outstanding.
    Probe {
        /// Which connection.
        connection: ConnectionId,
        /// Through which mount.
        target: ProbeTarget,
    },
    /// Abort the connection, if the mount is still its.
    Free {
        /// Which.
        connection: ConnectionId,
        /// By which mount it is recognised.
        target: MountTarget,
    },
    /// Requests are on their way: look after a while whether they were answered, until none is left.
    WatchRequests,
    /// Look at who holds `/dev/fuse` descriptors.
    FindHolders,
    /// Look at the mounts.
    Scan(Scope),
    /// Some of it could not be seen, or not be understood.
    Report(Vec<Problem>),
    /// Tell whether the connection's directory in the control file system is there.
    CheckControl(ConnectionId),
    /// Read how this daemon was started, while it runs.
    Remember(u32),
    /// Learn of this daemon's end.
    WatchProcess {
        /// The daemon.
        pid: u32,
        /// Whose.
        device: DeviceNumber,
    },
    /// This process is nobody's daemon any more.
    ForgetProcess(u32),
    /// This connection is gone: drop its entries in the kernel's maps.
    ForgetConnection(DeviceNumber),
    /// Start a timer of a connection's machine.
    Arm {
        /// Whose.
        connection: ConnectionId,
        /// Which.
        timer: Timer,
        /// How long.
        after: Duration,
    },
    /// Stop it.
    Disarm {
        /// Whose.
        connection: ConnectionId,
        /// Which.
        timer: Timer,
    },
    /// Recover, in a worker.
    Recover {
        /// Which dead connection.
        connection: ConnectionId,
        /// How.
        job: Box<RecoverJob>,
    },
    /// Try again later.
    RetryAfter {
        /// Which dead connection.
        connection: ConnectionId,
        /// The pause.
        after: Duration,
    },
    /// Whether the system call hook is wanted has changed: follow it, if the wish lasts.
    VfsErrorsWishChanged,
    /// Errors that an application got were attributed: count them.
    CountVfsErrors {
        /// The applications' process id.
        pid: u32,
        /// Of which connection, where that is known.
        device: Option<DeviceNumber>,
        /// The file system type, where only one can be meant.
        fs_type: Option<String>,
    },
}
