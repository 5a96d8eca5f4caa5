use std::ops::{Add, Sub};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{ConnectionId, Daemon, DeviceNumber, MountFlags, NamespaceId, Reason, WaitingRequest};
use crate::text;

/// A moment on CLOCK_BOOTTIME: nanoseconds since boot, suspend included. The kernel programs stamp with it
/// (`bpf_ktime_get_boot_ns`), so their moments and the agent's compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Boottime(pub u64);

impl Boottime {
    /// The moment, now.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
        Self(u64::try_from(nanos).unwrap_or(0))
    }

    /// Time since `earlier`; zero when `earlier` is not earlier (events of two CPUs can arrive in either order).
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Boottime {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Boottime {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// Which set of kernel hooks detection rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// Trampolines at the entry of FUSE's own functions (`fentry`), beside tracepoints.
    Fentry,
    /// Breakpoints there (`kprobe`), beside tracepoints.
    Kprobe,
    /// BTF-typed or raw tracepoints.
    Tracepoint,
    /// No BPF: pidfd and mountinfo notification.
    Portable,
}

impl BackendKind {
    /// As it is written in JSON, labels and options.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
            Self::Tracepoint => "tracepoint",
            Self::Portable => "portable",
        }
    }

    /// Whether the end of a connection is seen at its source: the function of the kernel that aborts it.
    pub const fn sees_aborts(self) -> bool {
        match self {
            Self::Fentry | Self::Kprobe => true,
            Self::Tracepoint | Self::Portable => false,
        }
    }
}

/// What happened to a connection: the contract's `event`.
#[derive(Debug, Clone, PartialEq)]
pub enum TransitionKind {
    /// It serves.
    Ready,
    /// Requests are outstanding and none is answered.
    Hung(Reason),
    /// It will never answer again.
    Dead(Reason),
    /// A strategy is at work.
    Recovering {
        /// Its name in the policy.
        strategy: &'static str,
        /// The daemon keeps dying soon after each recovery: the attempt waits for a while.
        flapping: bool,
    },
    /// Its mounts hang on a living connection, verified.
    Recovered(Recovery),
    /// An attempt failed.
    RecoveryFailed {
        /// The strategy that was tried.
        strategy: &'static str,
        /// What failed, with its errno.
        error: String,
        /// When the next attempt starts; `None`: given up.
        retry_in: Option<Duration>,
        /// The daemon keeps dying soon after each recovery.
        flapping: bool,
    },
    /// Its last mount was taken away in good order.
    Unmounted,
    /// Its last mount is gone from every namespace, but processes still use it (`umount -l`).
    Detached,
}

/// What a successful recovery reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Recovery {
    /// The strategy's name in the policy.
    pub strategy: &'static str,
    /// From the replacement being ready to the last mount verified.
    pub recovery: Duration,
    /// From the death to the last mount verified; unknown when nobody saw the death.
    pub outage: Option<Duration>,
    /// The connection that serves now.
    pub replacement: ConnectionId,
}

/// One mount of a transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransitionMount {
    /// Its mount namespace.
    pub namespace: NamespaceId,
    /// Where it hangs, as seen from there.
    pub mount_point: PathBuf,
    /// The part of the file system that is mounted.
    pub root: PathBuf,
    /// Its flags.
    pub flags: MountFlags,
}

/// A change of a connection's state that somebody is told of: one line on standard output, one in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// What happened.
    pub kind: TransitionKind,
    /// To which connection.
    pub connection: ConnectionId,
    /// By which hooks it was seen.
    pub backend: BackendKind,
    /// `fuse`, `fuse.<subtype>`, `fuseblk`.
    pub fs_type: Option<String>,
    /// What the daemon calls its source.
    pub source: Option<std::ffi::OsString>,
    /// Who serves, or served, it.
    pub daemon: Option<Daemon>,
    /// From the kernel's timestamp of the event to the decision. `None` where no kernel event told of it.
    pub detection: Option<Duration>,
    /// Requests that the kernel ended when the connection was aborted; `None` where nobody counted.
    pub aborted_requests: Option<u64>,
    /// What waits longest, where it hangs.
    pub oldest_request: Option<WaitingRequest>,
    /// Its mounts, in every namespace.
    pub mounts: Vec<TransitionMount>,
}

impl TransitionKind {
    /// The contract's `event`.
    pub const fn event(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Hung(_) => "hung",
            Self::Dead(_) => "dead",
            Self::Recovering { .. } => "recovering",
            Self::Recovered(_) => "recovered",
            Self::RecoveryFailed { .. } => "recoveryFailed",
            Self::Unmounted => "unmounted",
            Self::Detached => "detached",
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn path_text(path: &Path) -> (String, bool) {
    text::escape(path.as_os_str())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MountJson {
    namespace: NamespaceId,
    mount_point: String,
    root: String,
    read_only: bool,
    /// Present and true when `mountPoint` or `root` held bytes that are not UTF-8: both are then escaped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    escaped: bool,
}

impl From<&TransitionMount> for MountJson {
    fn from(mount: &TransitionMount) -> Self {
        let TransitionMount { namespace, mount_point, root, flags } = mount;
        let escaped = text::needs_escape(mount_point.as_os_str()) || text::needs_escape(root.as_os_str());
        let of = |path: &Path| if escaped { text::escape_always(path.as_os_str()) } else { path_text(path).0 };
        Self {
            namespace: *namespace,
            mount_point: of(mount_point),
            root: of(root),
            read_only: flags.read_only,
            escaped,
        }
    }
}

impl Serialize for TransitionMount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        MountJson::from(self).serialize(serializer)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplacementJson {
    connection: DeviceNumber,
    epoch: u64,
}

/// The contract's line. Field order is the contract's; what is unknown is left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TransitionJson<'a> {
    time: String,
    event: &'static str,
    connection: DeviceNumber,
    epoch: u64,
    backend: BackendKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon: Option<&'a Daemon>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detection_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aborted_requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_request: Option<&'a WaitingRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outage_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replacement: Option<ReplacementJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in_millis: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    gave_up: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    flapping: bool,
    mounts: &'a [TransitionMount],
}

impl Transition {
    /// The contract's JSON object on one line, without the line feed. `time` is the wall-clock time of the telling.
    ///
    /// # Errors
    /// None that can happen: every field is plain data; the error is serde_json's own type.
    pub fn to_json(&self, time: jiff::Timestamp) -> serde_json::Result<String> {
        let (mut strategy, mut reason, mut recovery, mut failure) = (None, None, None, None);
        let mut flaps = false;
        match &self.kind {
            TransitionKind::Ready | TransitionKind::Unmounted | TransitionKind::Detached => {}
            TransitionKind::Hung(why) | TransitionKind::Dead(why) => reason = Some(why),
            TransitionKind::Recovering { strategy: name, flapping } => (strategy, flaps) = (Some(*name), *flapping),
            TransitionKind::Recovered(done) => {
                strategy = Some(done.strategy);
                recovery = Some(done);
            }
            TransitionKind::RecoveryFailed { strategy: name, error, retry_in, flapping } => {
                strategy = Some(*name);
                failure = Some((error.as_str(), *retry_in));
                flaps = *flapping;
            }
        }
        let line = TransitionJson {
            time: format!("{time:.6}"),
            event: self.kind.event(),
            connection: self.connection.device,
            epoch: self.connection.epoch,
            backend: self.backend,
            fs_type: self.fs_type.as_deref(),
            source: self.source.as_deref().map(|source| text::escape(source).0),
            daemon: self.daemon.as_ref(),
            reason,
            detection_micros: self.detection.map(micros),
            aborted_requests: self.aborted_requests,
            oldest_request: self.oldest_request.as_ref(),
            strategy,
            recovery_micros: recovery.map(|done| micros(done.recovery)),
            outage_micros: recovery.and_then(|done| done.outage).map(micros),
            replacement: recovery
                .map(|done| ReplacementJson { connection: done.replacement.device, epoch: done.replacement.epoch }),
            error: failure.map(|(error, _)| error),
            retry_in_millis: failure
                .and_then(|(_, retry_in)| retry_in)
                .map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
            gave_up: failure.is_some_and(|(_, retry_in)| retry_in.is_none()),
            flapping: flaps,
            mounts: &self.mounts,
        };
        serde_json::to_string(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Process, Signal};
    use super::*;

    #[test]
    fn a_death_has_the_contracts_shape() {
        let transition = Transition {
            kind: TransitionKind::Dead(Reason::Signal {
                signal: Signal::KILL,
                sender: Some(Process { pid: 900, comm: Some("bash".into()) }),
            }),
            connection: ConnectionId { device: DeviceNumber { major: 0, minor: 45 }, epoch: 3 },
            backend: BackendKind::Tracepoint,
            fs_type: Some("fuse.bindfs".into()),
            source: Some("/srv/data".into()),
            daemon: Some(Daemon { pid: 812, comm: Some("bindfs".into()), alive: false }),
            detection: Some(Duration::from_micros(74)),
            aborted_requests: Some(1),
            oldest_request: None,
            mounts: vec![TransitionMount {
                namespace: NamespaceId(4026531841),
                mount_point: "/mnt/a b".into(),
                root: "/".into(),
                flags: MountFlags::default(),
            }],
        };
        let time = "2026-11-30T02:40:11.123456Z".parse().unwrap();
        assert_eq!(
            transition.to_json(time).unwrap(),
            concat!(
                r#"{"time":"2026-11-30T02:40:11.123456Z","event":"dead","connection":"0:45","epoch":3,"#,
                r#""backend":"tracepoint","fsType":"fuse.bindfs","source":"/srv/data","#,
                r#""daemon":{"pid":812,"comm":"bindfs","alive":false},"#,
                r#""reason":{"kind":"signal","signal":"SIGKILL","sender":{"pid":900,"comm":"bash"}},"#,
                r#""detectionMicros":74,"abortedRequests":1,"#,
                r#""mounts":[{"namespace":4026531841,"mountPoint":"/mnt/a b","root":"/","readOnly":false}]}"#
            )
        );
    }
}
