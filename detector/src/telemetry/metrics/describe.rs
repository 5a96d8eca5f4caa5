//! Every metric by name, type, unit, labels and help: the source of the registry and of `docs/metrics.md`.

/// Before every name.
pub const PREFIX: &str = "fuse_detector";

/// The OpenMetrics type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; the sample's name ends in `_total`.
    Counter,
    /// A value of the moment.
    Gauge,
    /// A distribution: `_bucket`, `_sum`, `_count`.
    Histogram,
    /// Constant text; the sample's name ends in `_info`.
    Info,
}

impl Kind {
    /// As OpenMetrics writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// What the name of a sample ends in.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge | Self::Histogram => "",
            Self::Info => "_info",
        }
    }
}

/// One metric.
#[derive(Debug)]
pub struct Description {
    /// Without prefix, unit and suffix.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// `seconds`, or none.
    pub unit: Option<&'static str>,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// One clause, without the full stop.
    pub help: &'static str,
    /// What the reference adds.
    pub note: &'static str,
}

impl Description {
    /// The name of the family: prefix, name and unit.
    pub fn family(&self) -> String {
        let unit = self.unit.map(|unit| format!("_{unit}")).unwrap_or_default();
        format!("{PREFIX}_{}{unit}", self.name)
    }

    /// The name by which queries ask for it.
    pub fn sample(&self) -> String {
        self.family() + self.kind.suffix()
    }
}

/// From 10 µs (a kernel event on an idle machine takes some tens) to 10 s (a loaded one).
pub const DETECTION_BUCKETS: [f64; 19] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 5.0, 10.0,
];

/// From 100 µs (a mount call takes some tens) to a minute (hundreds of namespaces on a loaded machine).
pub const RECOVERY_BUCKETS: [f64; 18] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];

/// From 1 ms (a re-attached mount) to an hour (somebody had to come).
pub const OUTAGE_BUCKETS: [f64; 19] = [
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1800.0,
    3600.0,
];

/// Every value of the label `reason`: [`crate::model::Reason::kind`] of those that a connection dies of.
pub const REASONS: [&str; 9] = [
    "signal",
    "exit",
    "oom",
    "adminAbort",
    "forcedUnmount",
    "requestTimeout",
    "descriptorHeld",
    "neverInitialised",
    "unknown",
];

/// Every value of the label `outcome`.
pub const OUTCOMES: [&str; 3] = ["recovered", "failed", "gaveUp"];

/// The errors of applications that are counted.
pub const VFS_ERRNOS: [i32; 2] = [libc::ENOTCONN, libc::ECONNABORTED];

const fn metric(
    name: &'static str,
    kind: Kind,
    unit: Option<&'static str>,
    labels: &'static [&'static str],
    help: &'static str,
    note: &'static str,
) -> Description {
    Description { name, kind, unit, labels, help, note }
}

const SECONDS: Option<&str> = Some("seconds");
const PER_CONNECTION: &[&str] = &["connection", "fs_type"];

/// Connections by state.
pub const CONNECTIONS: Description = metric(
    "connections",
    Kind::Gauge,
    None,
    &["state"],
    "FUSE connections by state",
    "`state` is `created`, `ready`, `hung`, `dead`, `recovering`, `failed` or `unknown`; all seven are always there. Alert \
     on `hung`, `dead` and `failed` above 0. Those that the policy ignores are asked by nobody: most of them are `unknown`.",
);
/// Deaths.
pub const FAILURES: Description = metric(
    "failures",
    Kind::Counter,
    None,
    &["reason", "fs_type"],
    "Connections that died while something was mounted from them",
    "`reason` is the contract's `reason.kind`; all begin at 0 when a file system type is first met, those of `fuse` with the agent. Clean unmounts are not counted, nor is the death of a connection whose \
     last mount was detached before.",
);
/// Attempts at recovery.
pub const RECOVERIES: Description = metric(
    "recoveries",
    Kind::Counter,
    None,
    &["strategy", "outcome"],
    "Attempts to recover a dead connection",
    "`outcome` is `recovered` (verified), `failed` (will be tried again) or `gaveUp`; all begin at 0 with the agent.",
);
/// Kernel event to decision.
pub const DETECTION: Description = metric(
    "detection",
    Kind::Histogram,
    SECONDS,
    &[],
    "Time from the kernel's timestamp of a death to the decision",
    "Only deaths that a kernel event told of.",
);
/// Replacement ready to verified.
pub const RECOVERY: Description = metric(
    "recovery",
    Kind::Histogram,
    SECONDS,
    &[],
    "Time from the replacement being ready to the last mount healed and verified",
    "",
);
/// Death to verified.
pub const OUTAGE: Description = metric(
    "outage",
    Kind::Histogram,
    SECONDS,
    &[],
    "Time from a death to the last mount healed and verified",
    "Only deaths that were seen: not those found at the agent's start.",
);
/// Errors that applications saw.
pub const VFS_ERRORS: Description = metric(
    "vfs_errors",
    Kind::Counter,
    None,
    &["errno", "fs_type"],
    "System calls that returned ENOTCONN or ECONNABORTED to an application on a FUSE file system",
    "Counted only while the hook on system calls is attached (`--vfs-errors`).",
);
/// Requests outstanding.
pub const REQUESTS_IN_FLIGHT: Description = metric(
    "requests_in_flight",
    Kind::Gauge,
    None,
    PER_CONNECTION,
    "Requests sent to the daemon and not answered",
    "`connection` is the device number as mountinfo writes it. Absent where nobody counts (backend `portable`).",
);
/// Their oldest.
pub const OLDEST_REQUEST: Description = metric(
    "oldest_request",
    Kind::Gauge,
    SECONDS,
    PER_CONNECTION,
    "Age of the oldest request that is not answered",
    "Absent while none is outstanding.",
);
/// Errors that daemons answered.
pub const REQUEST_ERRORS: Description = metric(
    "request_errors",
    Kind::Counter,
    None,
    &["errno", "fs_type"],
    "Requests that the daemon itself answered with an error",
    "Says nothing about the connection's health: ENOENT is the commonest and means no harm. What \
     is answered between the last scrape and the end of a connection is not counted.",
);
/// What was lost.
pub const EVENTS_LOST: Description = metric(
    "events_lost",
    Kind::Counter,
    None,
    &["stage", "reason"],
    "Events and lines of output that were lost",
    "Stage `kernel` is what the kernel programs could not hand over (a full ring or table), `ring` what could not be \
     read from the ring; the state is then rebuilt from the kernel's own tables. Stage `mounts` \
     is what a look at the mount tables could not read or not understand, each time: what was known of it stays. \
     Stages `output` and `log` are lines that the reader of standard output or standard error did not take in time \
     (`full`) or at all (`closed`).",
);
/// Hooks.
pub const HOOK_ATTACHED: Description = metric(
    "hook_attached",
    Kind::Gauge,
    None,
    &["hook", "backend"],
    "Whether a kernel hook is attached (1) or not (0)",
    "`fuse-detector doctor` says why one is not, and what is lost without it.",
);
/// Connections without series.
pub const SERIES_OMITTED: Description = metric(
    "connection_series_omitted",
    Kind::Gauge,
    None,
    &[],
    "Connections that have no series of their own because there are too many",
    "The connections with the oldest and the most requests are kept.",
);
/// The build.
pub const BUILD: Description =
    metric("build", Kind::Info, None, &["version", "arch"], "Version and architecture of the agent", "Always 1.");

/// All of them, in the order of the reference.
pub const ALL: [&Description; 14] = [
    &CONNECTIONS,
    &FAILURES,
    &RECOVERIES,
    &DETECTION,
    &RECOVERY,
    &OUTAGE,
    &VFS_ERRORS,
    &REQUESTS_IN_FLIGHT,
    &OLDEST_REQUEST,
    &REQUEST_ERRORS,
    &EVENTS_LOST,
    &HOOK_ATTACHED,
    &SERIES_OMITTED,
    &BUILD,
];
