//! Which FUSE mounts there are, in every mount namespace that a process lives in.
//!
//! What this can't see: a namespace that only a bind mount or an open descriptor keeps alive, and one that only
//! a thread, not its process, has entered. Neither has an entry of its own in /proc's list of processes.
//!
//! Nothing here touches a FUSE file system: only /proc is read and no path of any mount is looked up.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::mountinfo::{self, ChildMount, LineProblem, Parsed};
use super::proc;
use super::unique::UniqueIds;
use crate::model::{Mount, NamespaceId};

/// All FUSE mounts, as far as they can be seen.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The caller's own namespace; `None` if even that can't be told ([`Problem::Own`]).
    pub own: Option<NamespaceId>,
    /// The mounts: those of the caller's own namespace first, with unique ids where the kernel has them; then namespace
    /// by namespace.
    pub mounts: Vec<Mount>,
    /// What hangs directly on them.
    pub children: Vec<ChildMount>,
    /// Every namespace that was looked into, with a process that lives in it.
    pub namespaces: BTreeMap<NamespaceId, u32>,
    /// What could not be seen, or not be understood.
    pub problems: Vec<Problem>,
}

/// The FUSE mounts of one namespace.
#[derive(Debug)]
pub struct NamespaceMounts {
    /// The namespace.
    pub namespace: NamespaceId,
    /// Its FUSE mounts, in the order of mountinfo.
    pub mounts: Vec<Mount>,
    /// What hangs directly on them.
    pub children: Vec<ChildMount>,
    /// What could not be understood.
    pub problems: Vec<Problem>,
}

/// Why a snapshot may be incomplete.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// /proc can't be listed.
    #[error("/proc can't be listed, so mounts of other namespaces are unknown: {0}")]
    Proc(#[source] io::Error),
    /// The caller's own mount namespace can't be looked into.
    #[error("the mount table of the own namespace can't be read: {0}")]
    Own(#[source] io::Error),
    /// The caller may not see the namespaces of some processes (CAP_SYS_PTRACE is missing).
    #[error(
        "no access to the mount namespaces of some processes ({processes}; one is {first}): what is mounted only there is not \
         seen. It takes CAP_SYS_PTRACE, and every capability that the process holds"
    )]
    Denied {
        /// How many.
        processes: usize,
        /// One of them.
        first: u32,
    },
    /// The namespace link of some processes can't be read for another reason.
    #[error("the mount namespace of process {pid} can't be told: {source}")]
    Namespace {
        /// The first such process; the others are not told of.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// A namespace is there, but its mount table can't be read through any of its processes.
    #[error("the mount table of namespace {namespace} can't be read through process {pid}: {source}")]
    MountTable {
        /// The namespace.
        namespace: NamespaceId,
        /// The last process that was tried.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// All processes of a namespace have a root of their own (chroot(2)): the mounts outside are not shown to them.
    #[error("namespace {namespace} is seen only through process {pid}, which is in a chroot: other mounts are hidden")]
    PartialView {
        /// The namespace.
        namespace: NamespaceId,
        /// The process through which it was read.
        pid: u32,
    },
    /// A line of a mount table.
    #[error("mount table of namespace {namespace}, {problem}")]
    Line {
        /// The namespace.
        namespace: NamespaceId,
        /// The line and what is wrong with it.
        problem: LineProblem,
    },
    /// The kernel refuses listmount(2): no unique ids.
    #[error("listmount(2) is refused, so reused mount ids can't be told apart: {0}")]
    UniqueIds(#[source] io::Error),
}

impl Problem {
    /// Not a lack of privileges, or of the kernel's, that every look meets.
    pub const fn is_of_the_moment(&self) -> bool {
        match self {
            Self::Proc(_) | Self::Own(_) | Self::Namespace { .. } | Self::MountTable { .. } | Self::Line { .. } => true,
            Self::Denied { .. } | Self::PartialView { .. } | Self::UniqueIds(_) => false,
        }
    }

    /// What [`Self::reason`] gives of those that are of the moment: the others are no losses.
    pub const REASONS: [&str; 5] =
        ["proc_unreadable", "own_table_unreadable", "namespace_unknown", "table_unreadable", "line_malformed"];

    /// As the metrics' label `reason` writes it.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Proc(_) => "proc_unreadable",
            Self::Own(_) => "own_table_unreadable",
            Self::Denied { .. } => "denied",
            Self::Namespace { .. } => "namespace_unknown",
            Self::MountTable { .. } => "table_unreadable",
            Self::PartialView { .. } => "partial_view",
            Self::Line { .. } => "line_malformed",
            Self::UniqueIds(_) => "unique_ids_refused",
        }
    }
}

/// The mount namespace of the calling thread.
///
/// # Errors
/// /proc is not mounted, or can't be read.
pub fn own_namespace() -> io::Result<NamespaceId> {
    proc::namespace("thread-self", "mnt").map(NamespaceId)
}

impl From<NamespaceMounts> for Snapshot {
    fn from(own: NamespaceMounts) -> Self {
        let NamespaceMounts { namespace, mounts, children, problems } = own;
        let namespaces = BTreeMap::from([(namespace, std::process::id())]);
        Self { own: Some(namespace), mounts, children, namespaces, problems }
    }
}

/// Takes snapshots. Keeps from one to the next what never changes: which mount has which unique id.
#[derive(Debug, Default)]
pub struct Scanner {
    unique_ids: UniqueIds,
}

impl Scanner {
    /// The mounts of the caller's own namespace: what to do at each change that [`super::MountWatch`] tells of.
    /// Costs about 2 ms per 1,000 mounts of any type, most of it the kernel's writing of mountinfo.
    ///
    /// # Errors
    /// /proc is not mounted, or can't be read.
    pub fn scan_own(&mut self) -> io::Result<NamespaceMounts> {
        // The calling thread's namespace, which is the process's unless somebody unshared it: the one that
        // listmount(2) is about, too.
        let namespace = own_namespace()?;
        let refused = self.unique_ids.refresh().err().map(Problem::UniqueIds);
        let parsed = mountinfo::parse(&read_mountinfo("thread-self")?, namespace);
        let mut own = NamespaceMounts::new(namespace, parsed);
        own.problems.extend(refused);
        self.unique_ids.assign(&mut own.mounts);
        Ok(own)
    }

    /// The mounts of every namespace. Takes two readlink(2) per process and a mountinfo per namespace: keep it off
    /// a thread that has to answer soon.
    pub fn scan(&mut self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        match self.scan_own() {
            Ok(own) => {
                snapshot.own = Some(own.namespace);
                snapshot.namespaces.insert(own.namespace, std::process::id());
                snapshot.add(own);
            }
            Err(error) => snapshot.problems.push(Problem::Own(error)),
        }
        let mut inhabited = inhabitants(&mut snapshot.problems);
        if let Some(own) = snapshot.own {
            inhabited.remove(&own);
        }
        for (namespace, pids) in inhabited {
            match look_into(namespace, &pids) {
                Ok(Some((pid, mounts))) => {
                    snapshot.namespaces.insert(namespace, pid);
                    snapshot.add(mounts);
                }
                // Its last process ended.
                Ok(None) => {}
                Err(problem) => snapshot.problems.push(problem),
            }
        }
        snapshot
    }
}

impl Snapshot {
    fn add(&mut self, namespace: NamespaceMounts) {
        let NamespaceMounts { namespace: _, mounts, children, problems } = namespace;
        self.mounts.extend(mounts);
        self.children.extend(children);
        self.problems.extend(problems);
    }
}

impl NamespaceMounts {
    fn new(namespace: NamespaceId, parsed: Parsed) -> Self {
        let Parsed { mounts, children, entries: _, problems } = parsed;
        let problems = problems.into_iter().map(|problem| Problem::Line { namespace, problem }).collect();
        Self { namespace, mounts, children, problems }
    }
}

/// The processes of every mount namespace.
fn inhabitants(problems: &mut Vec<Problem>) -> BTreeMap<NamespaceId, Vec<u32>> {
    let pids = match proc::pids() {
        Ok(pids) => pids,
        Err(error) => {
            problems.push(Problem::Proc(error));
            return BTreeMap::new();
        }
    };
    let mut inhabitants: BTreeMap<NamespaceId, Vec<u32>> = BTreeMap::new();
    let mut denied = Vec::new();
    let mut failed = None;
    for pid in pids {
        match proc::namespace(pid, "mnt") {
            Ok(namespace) => inhabitants.entry(NamespaceId(namespace)).or_default().push(pid),
            Err(error) if proc::is_gone(&error) => {}
            Err(error) if proc::is_denied(&error) => denied.push(pid),
            Err(source) => failed = failed.or(Some(Problem::Namespace { pid, source })),
        }
    }
    if let Some(&first) = denied.first() {
        problems.push(Problem::Denied { processes: denied.len(), first });
    }
    problems.extend(failed);
    inhabitants
}

/// The mounts of a namespace, read through one of its processes: through one whose root is the namespace's own if there
/// is any, since mountinfo shows a process only what lies below its root. `None` when they are all gone.
fn look_into(namespace: NamespaceId, pids: &[u32]) -> Result<Option<(u32, NamespaceMounts)>, Problem> {
    let (whole, confined): (Vec<u32>, Vec<u32>) = pids.iter().copied().partition(|&pid| sees_all(pid));
    let mut problem = None;
    for (pid, partial) in whole.into_iter().map(|pid| (pid, false)).chain(confined.into_iter().map(|pid| (pid, true))) {
        // The process may have entered another namespace since, or its pid be another process's: look again afterwards.
        let content = read_mountinfo(pid).and_then(|content| Ok((content, proc::namespace(pid, "mnt")?)));
        match content {
            Ok((content, still)) if still == namespace.0 => {
                let mut mounts = NamespaceMounts::new(namespace, mountinfo::parse(&content, namespace));
                mounts.problems.extend(partial.then_some(Problem::PartialView { namespace, pid }));
                return Ok(Some((pid, mounts)));
            }
            Ok(_) => {}
            Err(error) if proc::is_gone(&error) || is_without_namespaces(&error) => {}
            Err(source) => problem = Some(Problem::MountTable { namespace, pid, source }),
        }
    }
    problem.map_or(Ok(None), Err)
}

/// The process is a zombie that gave up its namespaces since: so says `mounts_open_common` (fs/proc_namespace.c), where
/// the links below /proc/PID/ns say ENOENT.
fn is_without_namespaces(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::INVAL)
}

/// Whether the process's root is that of its namespace. The link is text that the kernel makes from what it has in
/// memory; nothing is looked up.
fn sees_all(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/root")).is_ok_and(|root| root == Path::new("/"))
}

/// The whole mount table of a process. One read(2) gives a page at most, so it takes many, and the table can change
/// between two of them. Reading again until nothing changes would be no better: the kernel goes on where it was
/// (`mounts_cursor` up to 6.7, the unique id of the next mount since), so that a mount that was there before and after is
/// shown exactly once; and whatever changed meanwhile raises [`super::MountWatch`] and with it the next look.
fn read_mountinfo(process: impl std::fmt::Display) -> io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/{process}/mountinfo"))
}

#[cfg(test)]
mod tests;
