//! What the one task that owns the state tells those who ask: plain values, read at the moment of the question.

use std::ffi::OsString;

use serde::{Serialize, Serializer};

use crate::health::State;
use crate::model::{BackendKind, ConnectionId, Daemon, DeviceNumber, TransitionMount};
use crate::text;

/// The contract's `state` of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ConnectionState {
    /// Mounted, FUSE_INIT not answered yet.
    Created,
    /// It serves.
    Ready,
    /// Requests are outstanding and none is answered.
    Hung,
    /// It will never answer again.
    Dead,
    /// A strategy is at work.
    Recovering,
    /// Dead, and no strategy is left to try.
    Failed,
    /// Nobody could ask, or was to: the policy says to ignore it, say.
    Unknown,
}

impl ConnectionState {
    /// Every state, in the order of a connection's life.
    pub const ALL: [Self; 7] =
        [Self::Created, Self::Ready, Self::Hung, Self::Dead, Self::Recovering, Self::Failed, Self::Unknown];

    /// What the contract calls a state of the health machine; `None` for a connection that is mounted nowhere any more.
    pub const fn of(state: State) -> Option<Self> {
        match state {
            State::Created => Some(Self::Created),
            State::Ready => Some(Self::Ready),
            State::Hung => Some(Self::Hung),
            State::Dead => Some(Self::Dead),
            State::Recovering => Some(Self::Recovering),
            State::Failed => Some(Self::Failed),
            State::Detached | State::Gone => None,
        }
    }

    /// As it is written in JSON and in the label `state`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Ready => "ready",
            Self::Hung => "hung",
            Self::Dead => "dead",
            Self::Recovering => "recovering",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// One connection as `mounts` and `/status` show it. What is unknown is left out.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionReport {
    /// Its device number.
    pub connection: DeviceNumber,
    /// `fuse`, `fuse.<subtype>`, `fuseblk`. Only a mount tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<String>,
    /// What the daemon calls its source; escaped when it isn't UTF-8, as in a transition. Only a mount tells.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "source_text")]
    pub source: Option<OsString>,
    /// How it fares.
    pub state: ConnectionState,
    /// Who serves, or served, it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon: Option<Daemon>,
    /// Requests sent and not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_in_flight: Option<u64>,
    /// Age of the oldest of them, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_request_millis: Option<u64>,
    /// Its mounts, in every namespace.
    pub mounts: Vec<TransitionMount>,
}

fn source_text<S: Serializer>(source: &Option<OsString>, serializer: S) -> Result<S::Ok, S::Error> {
    source.as_deref().map(|source| text::escape(source).0).serialize(serializer)
}

/// One kernel hook, as far as `/status` and the metrics tell of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// Its name.
    pub name: &'static str,
    /// The backend it belongs to.
    pub backend: BackendKind,
    /// Whether it is attached.
    pub attached: bool,
}

/// Events or lines that were lost, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Where: `kernel`, `ring`, `output`, `log`, …
    pub stage: &'static str,
    /// Why: `ring_full`, `malformed`, `full`, `closed`, …
    pub reason: &'static str,
    /// How many.
    pub total: u64,
}

/// What becomes of dead mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HealingMode {
    /// Nothing: the policy heals none, or the agent only tells.
    Off,
    /// Those that the policy names are healed.
    On,
    /// The policy names some, but the agent may not mount: each recovery is given up at once.
    NoPrivilege,
}

/// Whether detection works: what `/readyz` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It does, in this backend.
    Detecting(BackendKind, HealingMode),
    /// It does not (yet), for this reason.
    NotDetecting(String),
}

/// What `/status` tells.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The agent's version.
    pub version: &'static str,
    /// The backend in use; left out when none works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendKind>,
    /// What becomes of dead mounts.
    pub healing: HealingMode,
    /// The hooks of that backend.
    pub hooks: Vec<Hook>,
    /// Every connection.
    pub connections: Vec<ConnectionReport>,
    /// What was lost, where anything was.
    pub losses: Vec<Loss>,
}

/// A connection's part of the values read at a scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionGauges {
    /// Which.
    pub connection: ConnectionId,
    /// Its file system type.
    pub fs_type: String,
    /// How it fares.
    pub state: ConnectionState,
    /// Requests sent and not answered, where somebody counts.
    pub requests_in_flight: Option<u64>,
    /// Age of the oldest of them.
    pub oldest_request: Option<std::time::Duration>,
}

/// Errors that a daemon answered to requests of one connection, as the kernel side counted them since the connection
/// was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestErrors {
    /// Which connection.
    pub connection: ConnectionId,
    /// Its file system type.
    pub fs_type: String,
    /// The error, positive.
    pub errno: i32,
    /// How often.
    pub total: u64,
}

/// The values read at a scrape.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Every connection.
    pub connections: Vec<ConnectionGauges>,
    /// Errors answered by daemons.
    pub request_errors: Vec<RequestErrors>,
    /// Losses, as totals.
    pub losses: Vec<Loss>,
    /// The hooks.
    pub hooks: Vec<Hook>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MountFlags, NamespaceId};

    #[test]
    fn a_connection_has_the_contracts_shape() {
        let report = ConnectionReport {
            connection: DeviceNumber { major: 0, minor: 45 },
            fs_type: Some("fuse.bindfs".into()),
            source: Some("/srv/data".into()),
            state: ConnectionState::Dead,
            daemon: Some(Daemon { pid: 812, comm: None, alive: false }),
            requests_in_flight: None,
            oldest_request_millis: Some(1200),
            mounts: vec![TransitionMount {
                namespace: NamespaceId(1),
                mount_point: "/mnt/a b".into(),
                root: "/".into(),
                flags: MountFlags::default(),
            }],
        };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            concat!(
                r#"{"connection":"0:45","fsType":"fuse.bindfs","source":"/srv/data","state":"dead","#,
                r#""daemon":{"pid":812,"alive":false},"oldestRequestMillis":1200,"#,
                r#""mounts":[{"namespace":1,"mountPoint":"/mnt/a b","root":"/","readOnly":false}]}"#
            )
        );
    }

    #[test]
    fn states_are_written_the_same_everywhere() {
        for state in ConnectionState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
