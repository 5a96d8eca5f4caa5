//! Who serves which connection: learnt from replies, from fdinfo, forgotten at their end.

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::connection::Connection;
use super::event::{Action, Found};
use super::launch::{Launch, is_launched_for};
use super::node::Node;
use crate::health::{DaemonEnd, ExitSource, Input, Others};
use crate::model::{Boottime, ConnectionId, Daemon, ExitStatus, Process};
use crate::mounts::DaemonRecord;

/// Whether a look for the holders of descriptors is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldersAsked {
    No,
    Once,
    /// And another one is wanted, since it may have begun before what is looked for was there.
    Again,
}

/// A daemon that is watched.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Its connections.
    pub serves: HashSet<ConnectionId>,
    /// How it was started is being read.
    being_read: bool,
}

impl Node {
    pub(super) fn daemon_seen(&mut self, id: ConnectionId, process: Process) {
        let Process { pid, comm } = process;
        let known = self.known_of(pid);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let comm = comm.or_else(|| known.as_ref().and_then(|(comm, _)| comm.clone()));
        let daemon = Daemon { pid, comm, alive: true };
        connection.daemon = Some(daemon.clone());
        self.push(id, Input::DaemonSeen(daemon));
        if !self.processes.entry(pid).or_default().serves.insert(id) {
            return;
        }
        self.actions.push(Action::WatchProcess { pid, device: id.device });
        match known {
            Some((_, launch)) => self.launched_as(id, &launch),
            None => self.remember(pid),
        }
    }

    /// What another connection of the same process has told of it: a daemon with a thousand mounts is read once.
    fn known_of(&self, pid: u32) -> Option<(Option<String>, Arc<Launch>)> {
        let others = self.processes.get(&pid)?.serves.iter().filter_map(|other| self.connections.get(other));
        others.filter(|other| other.daemon.as_ref().is_some_and(|daemon| daemon.pid == pid)).find_map(|other| {
            let comm = other.daemon.as_ref().and_then(|daemon| daemon.comm.clone());
            Some((comm, Arc::clone(other.launch.as_ref()?)))
        })
    }

    fn remember(&mut self, pid: u32) {
        let asked = self.processes.get_mut(&pid).map(|watched| std::mem::replace(&mut watched.being_read, true));
        if asked == Some(false) {
            self.actions.push(Action::Remember(pid));
        }
    }

    fn launched_as(&mut self, id: ConnectionId, launch: &Arc<Launch>) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.launch.get_or_insert_with(|| Arc::clone(launch));
        }
        self.introduce(id);
        if launch.mark.is_some() {
            // It may have been launched for one that died and is not healed to the end.
            self.replacement_ready(id);
        }
    }

    pub(super) fn exited(&mut self, pid: u32, at: Boottime, source: ExitSource, end: Option<&DaemonEnd>) {
        let Some(watched) = self.processes.get(&pid) else { return };
        let connections: Vec<_> = watched.serves.iter().copied().collect();
        for id in connections {
            if let Some(daemon) = self.connections.get_mut(&id).and_then(|known| known.daemon.as_mut()) {
                daemon.alive &= daemon.pid != pid;
            }
            let stamped = source == ExitSource::Hook;
            self.push(id, Input::DaemonExited { pid, at, stamped, source, end: end.cloned() });
        }
    }

    pub(super) fn process_ended(&mut self, pid: u32, status: Option<ExitStatus>, at: Boottime) {
        let end = status.map(|status| DaemonEnd { status, sender: None, oom: false });
        self.exited(pid, at, ExitSource::Pidfd, end.as_ref());
        self.processes.remove(&pid);
        self.actions.push(Action::ForgetProcess(pid));
        if self.candidates.remove(&pid).is_some() {
            for id in self.without_daemon() {
                self.push(id, Input::AccessFailed { at });
            }
        }
    }

    pub(super) fn remembered(&mut self, pid: u32, record: Option<&DaemonRecord>) {
        let launch = record.map(|record| Arc::new(Launch::of(record, self.setting.own)));
        if let Some(record) = record.filter(|record| is_launched_for(record, self.setting.own)) {
            self.disown(record.mount_namespace);
        }
        self.candidate_known(pid, record);
        let Some(watched) = self.processes.get_mut(&pid) else { return };
        watched.being_read = false;
        let served: Vec<_> = watched.serves.iter().copied().collect();
        for id in served {
            let daemon = self.connections.get_mut(&id).and_then(|known| known.daemon.as_mut());
            if let (Some(daemon), Some(record)) = (daemon.filter(|daemon| daemon.pid == pid), record) {
                daemon.comm.get_or_insert_with(|| record.comm.clone());
            }
            match &launch {
                Some(launch) => self.launched_as(id, launch),
                None => self.introduce(id),
            }
        }
    }

    pub(super) fn holders_found(&mut self, holders: Found) {
        let again = std::mem::replace(&mut self.holders, HoldersAsked::No) == HoldersAsked::Again;
        let lonely = self.without_daemon();
        let others = self.others(&holders);
        let mut inconclusive = false;
        let ids: Vec<_> = self.connections.keys().copied().filter(|id| self.is_current(*id)).collect();
        for id in ids {
            let found = holders.by_connection.get(&id.device).cloned().unwrap_or_default();
            let asked = self.connections.get_mut(&id).is_some_and(|known| std::mem::take(&mut known.asks_holders));
            if asked {
                self.push(id, Input::Holders { named: found.clone(), others: others.clone() });
            }
            // Who else holds the descriptor of a connection whose daemon is known may be a child that merely inherited it.
            if lonely.contains(&id) {
                inconclusive |= !self.found_daemons(id, found, holders.began, holders.unattributed.is_empty());
            }
        }
        if again || inconclusive {
            self.ask_for_holders();
        }
        let unattributed = holders.unattributed;
        if let Some(device) = self.without_daemon().first().map(|id| id.device) {
            for Process { pid, .. } in unattributed {
                if let Entry::Vacant(unknown) = self.candidates.entry(pid) {
                    unknown.insert(None);
                    self.actions.extend([Action::WatchProcess { pid, device }, Action::Remember(pid)]);
                }
            }
            self.attribute();
        }
    }

    /// Who has more descriptors than connections that it is known to serve, where the kernel doesn't say what for.
    fn others(&mut self, holders: &Found) -> Others {
        self.names_holders |= !holders.by_connection.is_empty();
        if self.names_holders {
            return Others::Nobody;
        }
        let serves = |pid| {
            let served = self.processes.get(&pid).into_iter().flat_map(|watched| &watched.serves);
            served.filter(|id| self.connections.get(*id).is_some_and(Connection::is_up)).count()
        };
        let has = |pid| holders.unattributed.iter().filter(|other| other.pid == pid).count();
        let mut unexplained = holders.unattributed.iter().filter(|holder| has(holder.pid) > serves(holder.pid));
        match unexplained.next() {
            None if holders.denied == 0 => Others::Nobody,
            Some(one) if holders.denied == 0 && unexplained.all(|other| other.pid == one.pid) => {
                Others::One(one.clone())
            }
            Some(_) | None => Others::Several,
        }
    }

    /// Nobody at all holds the descriptor of a connection that is mounted: its daemon died before it was found, or it
    /// can't be seen from here. One probe tells. `false` if the look began before the mount was known: then it says nothing,
    /// and has to be repeated.
    fn found_daemons(&mut self, id: ConnectionId, found: Vec<Process>, began: Boottime, complete: bool) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        if found.is_empty() {
            match connection.mounted {
                // Nowhere yet: the look at the mounts asks again.
                None => return true,
                Some(mounted) if began < mounted => return false,
                Some(_) => {}
            }
            if complete && !std::mem::replace(&mut connection.sought, true) {
                self.push(id, Input::AccessFailed { at: self.now });
            }
            self.introduce(id);
        }
        for process in found {
            self.daemon_seen(id, process);
        }
        true
    }

    pub(super) fn ask_for_holders(&mut self) {
        self.holders = match self.holders {
            HoldersAsked::No => {
                self.actions.push(Action::FindHolders);
                HoldersAsked::Once
            }
            HoldersAsked::Once | HoldersAsked::Again => HoldersAsked::Again,
        };
    }

    pub(super) fn without_daemon(&self) -> Vec<ConnectionId> {
        let lonely = |known: &&Connection| {
            known.is_up() && !known.ignored && !known.machine.daemons().any(|daemon| daemon.alive)
        };
        self.connections.values().filter(lonely).map(|known| known.id).collect()
    }
}
