//! The control protocol of `steerfs`: one JSON object a line on a Unix stream socket, one answer a line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A FUSE request kind, by its name in include/uapi/linux/fuse.h without the prefix `FUSE_`. Only those that `steerfs`
/// answers: the kernel stops sending the others once it was told ENOSYS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub enum Opcode {
    Lookup,
    Getattr,
    Setattr,
    Open,
    Read,
    Write,
    Flush,
    Release,
    Fsync,
    Statfs,
    Opendir,
    Readdir,
    Releasedir,
    Access,
    /// Every request that has no fault of its own.
    #[serde(rename = "*")]
    Any,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Command {
    /// Answer requests of this kind after so many milliseconds. Others are answered meanwhile.
    Delay {
        /// Which requests.
        opcode: Opcode,
        /// For how long each of them is held.
        millis: u64,
    },
    /// Never answer requests of this kind.
    Never {
        /// Which requests.
        opcode: Opcode,
    },
    /// Answer requests of this kind with an error.
    Errno {
        /// Which requests.
        opcode: Opcode,
        /// The error, as a positive number (errno(3)).
        errno: i32,
    },
    /// Answer everything properly again. What was held by [`Command::Never`] stays unanswered.
    Reset(bool),
    /// End the process by exit(3).
    Exit {
        /// The exit code.
        code: u8,
        /// First close the device, then unmount, in libfuse's order; otherwise the mount is left behind.
        unmount: bool,
    },
    /// Start a child that keeps the `/dev/fuse` descriptors open and outlives the daemon. The answer names its pid.
    HoldDescriptor(bool),
    /// Send the `/dev/fuse` descriptors to the `steerfs --receive` that listens on this socket (`SCM_RIGHTS`).
    PassDescriptor(PathBuf),
    /// What was served so far.
    Stats(bool),
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The command was carried out.
    pub ok: bool,
    /// Why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The process that [`Command::HoldDescriptor`] started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The answer to [`Command::Stats`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
}

/// What a `steerfs` process served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// Requests received, by kind.
    pub requests: BTreeMap<Opcode, u64>,
    /// Requests that are being held: delayed, or never to be answered.
    pub held: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_documented() {
        for (text, command) in [
            (r#"{"delay":{"opcode":"LOOKUP","millis":8000}}"#, Command::Delay { opcode: Opcode::Lookup, millis: 8000 }),
            (r#"{"never":{"opcode":"*"}}"#, Command::Never { opcode: Opcode::Any }),
            (r#"{"errno":{"opcode":"GETATTR","errno":107}}"#, Command::Errno { opcode: Opcode::Getattr, errno: 107 }),
            (r#"{"reset":true}"#, Command::Reset(true)),
            (r#"{"exit":{"code":0,"unmount":false}}"#, Command::Exit { code: 0, unmount: false }),
            (r#"{"holdDescriptor":true}"#, Command::HoldDescriptor(true)),
            (r#"{"passDescriptor":"/s"}"#, Command::PassDescriptor("/s".into())),
        ] {
            assert_eq!(serde_json::from_str::<Command>(text).unwrap(), command);
            assert_eq!(serde_json::to_string(&command).unwrap(), text);
        }
    }

    #[test]
    fn an_unknown_opcode_is_refused() {
        assert!(serde_json::from_str::<Command>(r#"{"never":{"opcode":"LOKUP"}}"#).is_err());
    }
}
