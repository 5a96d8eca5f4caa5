//! The agent's lines on standard output, read back: the contract for machines, as anybody's program would read it.
//! Fields that nothing here needs are not read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// It serves.
    Ready,
    /// It answers nothing.
    Hung,
    /// It will never answer again.
    Dead,
    /// A strategy is at work.
    Recovering,
    /// Its mounts are healed, verified.
    Recovered,
    /// An attempt failed.
    RecoveryFailed,
    /// Taken away in good order.
    Unmounted,
    /// Taken away while in use.
    Detached,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Wall-clock time of the decision.
    #[serde(deserialize_with = "timestamp")]
    pub time: Timestamp,
    /// What happened.
    pub event: Event,
    /// To which device number, `major:minor`.
    pub connection: String,
    /// Which of the connections with this number.
    pub epoch: u64,
    /// Seen by which hooks.
    pub backend: String,
    /// Who served it.
    pub daemon: Option<Daemon>,
    /// Why it died or hangs.
    pub reason: Option<Why>,
    /// From the kernel's event to the decision.
    pub detection_micros: Option<u64>,
    /// Requests that the kernel ended when the connection died.
    pub aborted_requests: Option<u64>,
    /// Which strategy healed or heals it.
    pub strategy: Option<String>,
    /// From the replacement being ready to the verified heal.
    pub recovery_micros: Option<u64>,
    /// From the death to the verified heal.
    pub outage_micros: Option<u64>,
    /// Who serves now.
    pub replacement: Option<Replacement>,
    /// What failed.
    pub error: Option<String>,
    /// There will be no further attempt.
    #[serde(default)]
    pub gave_up: bool,
    /// Its mounts.
    pub mounts: Vec<MountLine>,
}

/// The process that serves a connection.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Daemon {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub comm: Option<String>,
}

/// Why a connection died. Only what a killed daemon's line holds is told in words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Why {
    /// The contract's `reason.kind`.
    pub kind: String,
    /// The signal's name.
    pub signal: Option<String>,
    /// Who sent it.
    pub sender: Option<Daemon>,
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.comm {
            Some(comm) => write!(f, "{comm} ({})", self.pid),
            None => write!(f, "process {}", self.pid),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.signal.as_deref(), &self.sender) {
            (Some(signal), Some(sender)) => write!(f, "killed by {signal} from {sender}"),
            (Some(signal), None) => write!(f, "killed by {signal}"),
            (None, _) => f.write_str(&self.kind),
        }
    }
}

/// The connection that took a dead one's place.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Replacement {
    /// Its device number.
    pub connection: String,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountLine {
    /// Where it hangs.
    pub mount_point: PathBuf,
}

impl Line {
    /// Whether it is about a mount on `path`.
    pub fn is_about(&self, path: &Path) -> bool {
        self.mounts.iter().any(|mount| mount.mount_point == path)
    }
}

/// From one moment to a later one; zero where the clock was set back in between.
pub fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

fn timestamp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// Lines as the agent writes them, for the tests of what reads them.
#[cfg(test)]
pub mod samples {
    use super::Line;

    pub const READY: &str = r#"{"time":"2026-11-30T02:40:10.900000Z","event":"ready","connection":"0:45","epoch":1,"backend":"tracepoint","fsType":"fuse","source":"demo","daemon":{"pid":812,"comm":"steerfs","alive":true},"mounts":[{"namespace":4026532200,"mountPoint":"/tmp/x/data","root":"/","readOnly":false}]}"#;
    pub const DEAD: &str = r#"{"time":"2026-11-30T02:40:11.000486Z","event":"dead","connection":"0:45","epoch":1,"backend":"tracepoint","fsType":"fuse","source":"demo","daemon":{"pid":812,"comm":"steerfs","alive":false},"reason":{"kind":"signal","signal":"SIGKILL","sender":{"pid":900,"comm":"xtask"}},"detectionMicros":74,"abortedRequests":1,"mounts":[{"namespace":4026532200,"mountPoint":"/tmp/x/data","root":"/","readOnly":false}]}"#;
    pub const RECOVERING: &str = r#"{"time":"2026-11-30T02:40:11.000600Z","event":"recovering","connection":"0:45","epoch":1,"backend":"tracepoint","strategy":"respawn","mounts":[{"namespace":4026532200,"mountPoint":"/tmp/x/data","root":"/","readOnly":false}]}"#;
    pub const RECOVERED: &str = r#"{"time":"2026-11-30T02:40:11.021000Z","event":"recovered","connection":"0:45","epoch":1,"backend":"tracepoint","strategy":"respawn","recoveryMicros":900,"outageMicros":20588,"replacement":{"connection":"0:46","epoch":1},"mounts":[{"namespace":4026532200,"mountPoint":"/tmp/x/data","root":"/","readOnly":false}]}"#;

    pub fn line(text: &str) -> Line {
        serde_json::from_str(text).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{DEAD, READY, RECOVERED, RECOVERING, line};
    use super::*;

    #[test]
    fn the_agents_lines_are_read_back() {
        let dead = line(DEAD);
        assert_eq!((dead.event, dead.connection.as_str(), dead.detection_micros), (Event::Dead, "0:45", Some(74)));
        assert_eq!(dead.reason.clone().unwrap().to_string(), "killed by SIGKILL from xtask (900)");
        assert!(dead.is_about(Path::new("/tmp/x/data")) && !dead.is_about(Path::new("/tmp/x")));
        assert_eq!(line(READY).event, Event::Ready);
        assert_eq!(line(RECOVERING).strategy.as_deref(), Some("respawn"));
        assert_eq!(line(RECOVERED).replacement.unwrap().connection, "0:46");
    }

    #[test]
    fn what_the_contract_does_not_know_is_an_error() {
        assert!(serde_json::from_str::<Line>(&DEAD.replace("\"dead\"", "\"died\"")).is_err());
        assert!(serde_json::from_str::<Line>(&DEAD.replace("2026-11-30T", "yesterday ")).is_err());
    }

    #[test]
    fn reasons_without_a_signal_are_named() {
        let why = |json: &str| serde_json::from_str::<Why>(json).unwrap().to_string();
        assert_eq!(why(r#"{"kind":"unknown"}"#), "unknown");
        assert_eq!(why(r#"{"kind":"signal","signal":"SIGKILL"}"#), "killed by SIGKILL");
    }
}
