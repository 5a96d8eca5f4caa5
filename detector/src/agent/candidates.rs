//! Whose descriptor is it? Before Linux 6.18 fdinfo does not name a descriptor's connection. A daemon is told by the mount
//! point among its arguments then, and by nothing less: who is taken for a daemon may be started again.

use std::ffi::OsString;

use super::launch::is_launched_for;
use super::node::Node;
use crate::model::{ConnectionId, Mount, NamespaceId, Process};
use crate::mounts::DaemonRecord;

/// What is known of a process that holds a descriptor of some connection.
#[derive(Debug)]
pub(super) struct Candidate {
    process: Process,
    argv: Vec<OsString>,
    /// Where the paths among its arguments lead to.
    namespace: NamespaceId,
}

impl Candidate {
    fn new(record: &DaemonRecord, own: NamespaceId) -> Self {
        // One that the agent started lives apart, and was told the path of the agent's own namespace.
        let namespace = if is_launched_for(record, own) { own } else { record.mount_namespace };
        let process = Process { pid: record.pid, comm: Some(record.comm.clone()) };
        Self { process, argv: record.argv.clone(), namespace }
    }

    fn unreadable(pid: u32, namespace: NamespaceId) -> Self {
        Self { process: Process { pid, comm: None }, argv: Vec::new(), namespace }
    }

    fn names(&self, mount: &Mount) -> bool {
        // The program's own name is no argument.
        mount.namespace == self.namespace && self.argv.iter().skip(1).any(|argument| mount.mount_point == *argument)
    }
}

impl Node {
    /// How a process was started has been read, or could not be.
    pub(super) fn candidate_known(&mut self, pid: u32, record: Option<&DaemonRecord>) {
        if let Some(candidate) = self.candidates.get_mut(&pid) {
            *candidate = Some(record.map_or_else(
                || Candidate::unreadable(pid, self.setting.own),
                |record| Candidate::new(record, self.setting.own),
            ));
            self.attribute();
        }
    }

    /// Gives each connection without a daemon the candidate that names a mount point of it, if only one does: of a child
    /// that inherited both the descriptor and the arguments, nobody knows which of the two serves.
    pub(super) fn attribute(&mut self) {
        if self.candidates.values().any(Option::is_none) {
            // One of whom nothing is known yet can be another that names the same.
            return;
        }
        let found: Vec<(ConnectionId, Process)> = self
            .without_daemon()
            .into_iter()
            .filter_map(|id| {
                let mounts = &self.connections.get(&id)?.mounts;
                let named = |candidate: &&Candidate| mounts.iter().any(|mount| candidate.names(mount));
                let mut naming = self.candidates.values().flatten().filter(named);
                let process = naming.next()?.process.clone();
                naming.next().is_none().then_some((id, process))
            })
            .collect();
        for (id, process) in found {
            self.daemon_seen(id, process);
        }
    }
}
