//! What it takes to start a daemon again as it was: taken down while it lives.

mod text;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::proc::{self, Stat};
use crate::model::NamespaceId;

pub(crate) use text::environment;
pub use text::{CgroupMembership, Credentials, Limit, Privileges};

/// A daemon as it was when it was looked at. Kept in memory only: arguments and environment can hold secrets, so `Debug`
/// shows how many there are and nothing of them.
#[derive(Clone, PartialEq, Eq)]
pub struct DaemonRecord {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// When it started, in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_time: u64,
    /// The program, as seen from its own root. Without the ` (deleted)` that the kernel adds: see `exe_deleted`.
    pub exe: PathBuf,
    /// The program's file was deleted or replaced since (by an upgrade, for instance). What is at `exe` now, if anything,
    /// is another file.
    pub exe_deleted: bool,
    /// Its arguments, the first one included. A program can overwrite them.
    pub argv: Vec<OsString>,
    /// The environment that it was started with, `NAME=value` each. A program can overwrite it, too.
    pub env: Vec<OsString>,
    /// Its working directory, as seen from its own root, or with a ` (deleted)` behind it.
    pub cwd: PathBuf,
    /// Its root directory; `/` unless it is in a chroot.
    pub root: PathBuf,
    /// User and groups.
    pub credentials: Credentials,
    /// File mode creation mask; unknown before Linux 4.7.
    pub umask: Option<u32>,
    /// Where it is in each cgroup hierarchy.
    pub cgroups: Vec<CgroupMembership>,
    /// The mount namespace that it lives in.
    pub mount_namespace: NamespaceId,
    /// Its other namespaces (`user`, `pid`, `net`, `ipc`, `uts`, `cgroup`) by inode number: a new process has to be in the
    /// same ones to be the same.
    pub namespaces: BTreeMap<&'static str, u64>,
    /// What the OOM killer adds to its score, −1000 to 1000.
    pub oom_score_adj: i32,
    /// Its resource limits.
    pub limits: Vec<Limit>,
    /// What it may do.
    pub privileges: Privileges,
    /// Of user, pid, network and IPC namespace, those that it doesn't share with the caller.
    pub foreign_namespaces: Vec<&'static str>,
    /// Capabilities that it had and the caller can't pass on.
    pub out_of_reach: u64,
}

impl fmt::Debug for DaemonRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Taken apart, so that a new field doesn't get past unseen.
        let Self {
            pid,
            comm,
            start_time,
            exe,
            exe_deleted,
            argv,
            env,
            cwd,
            root,
            credentials,
            umask,
            cgroups,
            mount_namespace,
            namespaces,
            oom_score_adj,
            limits,
            privileges,
            foreign_namespaces,
            out_of_reach,
        } = self;
        f.debug_struct("DaemonRecord")
            .field("pid", pid)
            .field("comm", comm)
            .field("start_time", start_time)
            .field("exe", exe)
            .field("exe_deleted", exe_deleted)
            .field("argv", &format_args!("<{} hidden>", argv.len()))
            .field("env", &format_args!("<{} hidden>", env.len()))
            .field("cwd", cwd)
            .field("root", root)
            .field("credentials", credentials)
            .field("umask", umask)
            .field("cgroups", cgroups)
            .field("mount_namespace", mount_namespace)
            .field("namespaces", namespaces)
            .field("oom_score_adj", oom_score_adj)
            .field("limits", limits)
            .field("privileges", privileges)
            .field("foreign_namespaces", foreign_namespaces)
            .field("out_of_reach", out_of_reach)
            .finish()
    }
}

/// Why a process can't be taken down.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It ended, before or meanwhile.
    #[error("process {pid} is gone")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// It ended and waits to be reaped: it has no memory, files or namespaces any more.
    #[error("process {pid} is a zombie")]
    Zombie {
        /// The process.
        pid: u32,
    },
    /// It is a thread of the kernel, which has no program.
    #[error("process {pid} is a kernel thread")]
    KernelThread {
        /// The process.
        pid: u32,
    },
    /// A file of /proc can't be read.
    #[error("/proc/{pid}/{file}: {source}")]
    Read {
        /// The process.
        pid: u32,
        /// The file.
        file: &'static str,
        /// Why. Permission denied: CAP_SYS_PTRACE is missing.
        source: io::Error,
    },
    /// A file of /proc is not what its manual page describes.
    #[error("/proc/{pid}/{file} can't be understood")]
    Malformed {
        /// The process.
        pid: u32,
        /// The file.
        file: &'static str,
    },
}

/// Takes a process down.
///
/// To be called while the daemon is healthy. Its arguments and environment lie in its own memory, so that the kernel takes
/// the lock of that memory to read them (`access_remote_vm`), and a thread of it that waits in a page fault for a FUSE
/// file system, its own perhaps, can hold that lock for ever.
///
/// # Errors
/// [`RecordError`].
pub fn remember(pid: u32) -> Result<DaemonRecord, RecordError> {
    let proc = ProcessFiles { pid };
    let stat = proc.living()?;
    let (exe, exe_deleted) = without_deleted(proc.link("exe")?);
    let text::Status { credentials, umask, privileges } =
        text::status(&proc.read("status")?).ok_or(proc.malformed("status"))?;
    let namespaces = proc.other_namespaces()?;
    let foreign = |kind: &&str| {
        let own = proc::namespace("self", kind).ok();
        own.is_some_and(|own| namespaces.get(kind).is_some_and(|its| *its != own))
    };
    let foreign_namespaces = ["user", "pid", "net", "ipc"].into_iter().filter(foreign).collect();
    let record = DaemonRecord {
        pid,
        comm: proc::comm(pid).ok_or(RecordError::Gone { pid })?,
        start_time: stat.start_time,
        exe,
        exe_deleted,
        argv: text::arguments(&proc.read("cmdline")?),
        env: text::environment(&proc.read("environ")?),
        cwd: proc.link("cwd")?,
        root: proc.link("root")?,
        credentials,
        umask,
        cgroups: text::cgroups(&proc.read("cgroup")?).ok_or(proc.malformed("cgroup"))?,
        mount_namespace: NamespaceId(proc.namespace("mnt", "ns/mnt")?),
        namespaces,
        oom_score_adj: text::number(&proc.read("oom_score_adj")?).ok_or(proc.malformed("oom_score_adj"))?,
        limits: text::limits(&proc.read("limits")?).ok_or(proc.malformed("limits"))?,
        privileges: Privileges { nice: stat.nice, ..privileges },
        foreign_namespaces,
        out_of_reach: privileges.permitted & !own_bounding_set(),
    };
    // Files of one process, not of two that had the number one after the other; and a process that died meanwhile has an
    // empty environment.
    if proc.living()?.start_time == record.start_time { Ok(record) } else { Err(RecordError::Gone { pid }) }
}

/// Every program that the caller starts is within this set. Everything, where it can't be known.
fn own_bounding_set() -> u64 {
    let own = std::fs::read("/proc/self/status").ok().and_then(|text| text::status(&text));
    own.map_or(u64::MAX, |status| status.privileges.bounding)
}

/// /proc/PID, with errors that say which file it was.
struct ProcessFiles {
    pid: u32,
}

impl ProcessFiles {
    fn living(&self) -> Result<Stat, RecordError> {
        let pid = self.pid;
        let stat = Stat::read(pid).map_err(|source| self.failed("stat", source))?;
        if stat.is_zombie() {
            Err(RecordError::Zombie { pid })
        } else if stat.is_kernel_thread() {
            Err(RecordError::KernelThread { pid })
        } else {
            Ok(stat)
        }
    }

    fn read(&self, file: &'static str) -> Result<Vec<u8>, RecordError> {
        std::fs::read(format!("/proc/{}/{file}", self.pid)).map_err(|source| self.failed(file, source))
    }

    /// Only the link's text: what it leads to may be on a file system that doesn't answer.
    fn link(&self, file: &'static str) -> Result<PathBuf, RecordError> {
        std::fs::read_link(format!("/proc/{}/{file}", self.pid)).map_err(|source| self.failed(file, source))
    }

    fn namespace(&self, kind: &str, file: &'static str) -> Result<u64, RecordError> {
        proc::namespace(self.pid, kind).map_err(|source| self.failed(file, source))
    }

    fn other_namespaces(&self) -> Result<BTreeMap<&'static str, u64>, RecordError> {
        let mut namespaces = BTreeMap::new();
        for (kind, file) in [
            ("user", "ns/user"),
            ("pid", "ns/pid"),
            ("net", "ns/net"),
            ("ipc", "ns/ipc"),
            ("uts", "ns/uts"),
            ("cgroup", "ns/cgroup"),
        ] {
            match self.namespace(kind, file) {
                Ok(inode) => {
                    namespaces.insert(kind, inode);
                }
                // A kind that the kernel was built without; if it is the process that is gone, that shows at the end.
                Err(RecordError::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(namespaces)
    }

    fn failed(&self, file: &'static str, source: io::Error) -> RecordError {
        let pid = self.pid;
        if proc::is_gone(&source) { RecordError::Gone { pid } } else { RecordError::Read { pid, file, source } }
    }

    fn malformed(&self, file: &'static str) -> RecordError {
        RecordError::Malformed { pid: self.pid, file }
    }
}

/// `d_path` (fs/d_path.c) adds ` (deleted)` to the path of a file that has no name any more. A file whose name ends like
/// that is taken for a deleted one; to ask the file itself could block.
fn without_deleted(path: PathBuf) -> (PathBuf, bool) {
    let mut bytes = path.into_os_string().into_vec();
    const DELETED: &[u8] = b" (deleted)";
    let deleted = bytes.ends_with(DELETED);
    if deleted {
        bytes.truncate(bytes.len() - DELETED.len());
    }
    (OsString::from_vec(bytes).into(), deleted)
}

#[cfg(test)]
mod tests;
