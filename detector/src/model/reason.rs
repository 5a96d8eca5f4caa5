use std::fmt;

use serde::Serialize;

use super::{Process, Signal, StallCause};

/// Why a connection died or hangs. What is not known is left out, never invented.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Reason {
    /// A signal ended the daemon.
    Signal {
        /// Which.
        signal: Signal,
        /// Who sent it. Left out when the kernel itself raised it (a real segmentation fault) or nobody saw it sent.
        #[serde(skip_serializing_if = "Option::is_none")]
        sender: Option<Process>,
    },
    /// The daemon exited by itself and left its mount behind.
    Exit {
        /// Its exit code.
        code: u8,
    },
    /// The kernel killed the daemon for want of memory.
    Oom {
        /// The daemon's memory cgroup, where it is known. The limit that was hit can be that of one above.
        #[serde(skip_serializing_if = "Option::is_none")]
        cgroup: Option<String>,
    },
    /// Somebody wrote to the connection's `abort` file.
    AdminAbort {
        /// Who, where it was seen.
        #[serde(skip_serializing_if = "Option::is_none")]
        actor: Option<Process>,
    },
    /// `umount -f`.
    ForcedUnmount {
        /// Who, where it was seen.
        #[serde(skip_serializing_if = "Option::is_none")]
        actor: Option<Process>,
    },
    /// The kernel's own limit for a request's age (`/proc/sys/fs/fuse/*_request_timeout`, Linux 6.15).
    RequestTimeout,
    /// The daemon is gone, but another process keeps its `/dev/fuse` descriptor open, so nothing was aborted.
    DescriptorHeld {
        /// Who.
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<Process>,
    },
    /// The daemon never answered FUSE_INIT.
    NeverInitialised {
        /// How the daemon ended, where that was seen.
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<Box<Reason>>,
    },
    /// It serves nobody: requests wait and none is answered.
    Stalled {
        /// What keeps the daemon from answering, where that can be seen.
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<StallCause>,
    },
    /// Found dead, nobody saw it die.
    Unknown,
}

impl Reason {
    /// The contract's `reason.kind`, and the value of the metrics' label `reason`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Signal { .. } => "signal",
            Self::Exit { .. } => "exit",
            Self::Oom { .. } => "oom",
            Self::AdminAbort { .. } => "adminAbort",
            Self::ForcedUnmount { .. } => "forcedUnmount",
            Self::RequestTimeout => "requestTimeout",
            Self::DescriptorHeld { .. } => "descriptorHeld",
            Self::NeverInitialised { .. } => "neverInitialised",
            Self::Stalled { .. } => "stalled",
            Self::Unknown => "unknown",
        }
    }

    /// Whether a person made it so on purpose. Such a connection is healed only if the policy says so.
    pub const fn is_deliberate(&self) -> bool {
        matches!(self, Self::AdminAbort { .. } | Self::ForcedUnmount { .. })
    }
}

/// One clause for people: "killed by SIGKILL from bash (900)".
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = |f: &mut fmt::Formatter<'_>, word: &str, who: &Option<Process>| match who {
            Some(Process { pid, comm: Some(comm) }) => write!(f, " {word} {comm} ({pid})"),
            Some(Process { pid, comm: None }) => write!(f, " {word} process {pid}"),
            None => Ok(()),
        };
        match self {
            Self::Signal { signal, sender } => {
                write!(f, "killed by {signal}")?;
                by(f, "from", sender)
            }
            Self::Exit { code } => write!(f, "exited with code {code}"),
            Self::Oom { cgroup: Some(cgroup) } => write!(f, "killed for want of memory in cgroup {cgroup}"),
            Self::Oom { cgroup: None } => f.write_str("killed for want of memory"),
            Self::AdminAbort { actor } => {
                f.write_str("connection aborted")?;
                by(f, "by", actor)
            }
            Self::ForcedUnmount { actor } => {
                f.write_str("forced unmount")?;
                by(f, "by", actor)
            }
            Self::RequestTimeout => f.write_str("a request exceeded the kernel's time limit"),
            Self::DescriptorHeld { holder } => {
                f.write_str("daemon gone, its descriptor held")?;
                by(f, "by", holder)
            }
            Self::NeverInitialised { end: None } => f.write_str("the daemon never answered FUSE_INIT"),
            Self::NeverInitialised { end: Some(end) } => write!(f, "the daemon never answered FUSE_INIT: {end}"),
            Self::Stalled { cause: None } => f.write_str("requests wait and none is answered"),
            Self::Stalled { cause: Some(cause) } => write!(f, "requests wait and none is answered: {}", cause.words()),
            Self::Unknown => f.write_str("nobody saw it die"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_contracts_shape() {
        let reason =
            Reason::Signal { signal: Signal::KILL, sender: Some(Process { pid: 900, comm: Some("bash".into()) }) };
        assert_eq!(
            serde_json::to_value(&reason).unwrap(),
            serde_json::json!({"kind": "signal", "signal": "SIGKILL", "sender": {"pid": 900, "comm": "bash"}})
        );
        assert_eq!(serde_json::to_value(Reason::Unknown).unwrap(), serde_json::json!({"kind": "unknown"}));
        assert_eq!(
            serde_json::to_value(Reason::AdminAbort { actor: None }).unwrap(),
            serde_json::json!({"kind": "adminAbort"})
        );
    }

    #[test]
    fn the_tag_is_the_kind() {
        for reason in [
            Reason::Signal { signal: Signal::KILL, sender: None },
            Reason::Exit { code: 1 },
            Reason::Oom { cgroup: None },
            Reason::AdminAbort { actor: None },
            Reason::ForcedUnmount { actor: None },
            Reason::RequestTimeout,
            Reason::DescriptorHeld { holder: None },
            Reason::NeverInitialised { end: None },
            Reason::Stalled { cause: None },
            Reason::Unknown,
        ] {
            assert_eq!(serde_json::to_value(&reason).unwrap()["kind"], reason.kind());
        }
    }

    #[test]
    fn people_read_who_did_it() {
        let sender = Some(Process { pid: 900, comm: Some("bash".into()) });
        assert_eq!(Reason::Signal { signal: Signal::KILL, sender }.to_string(), "killed by SIGKILL from bash (900)");
    }
}
