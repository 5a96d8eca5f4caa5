//! What `mounts` shows, put together from what the kernel says at this moment. Needs no agent.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Daemon, DeviceNumber, Mount, NamespaceId, TransitionMount};
use crate::mounts::{ChildMount, Holders, Snapshot};
use crate::telemetry::status::{ConnectionReport, ConnectionState};
use crate::worker::ProbeTarget;

/// What asking a connection's daemon for a sign of life gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It answered.
    Answered,
    /// The kernel answered for it: ENOTCONN and the like.
    Dead,
    /// Nothing came in time.
    Silent,
    /// It could not be asked.
    NotAsked,
}

/// What was found out.
#[derive(Debug)]
pub struct Facts {
    /// The mounts of every namespace.
    pub snapshot: Snapshot,
    /// Connections that the control file system lists, with their requests in flight where it tells.
    pub control: BTreeMap<DeviceNumber, Option<u64>>,
    /// Who holds the descriptors of the daemons.
    pub holders: Holders,
    /// Signs of life.
    pub lives: BTreeMap<DeviceNumber, Life>,
}

/// One mount of each connection to ask it through: in the own namespace if there is one, and of the whole file system. The
/// others are reached through a process that lives in their namespace.
pub fn to_ask(snapshot: &Snapshot) -> BTreeMap<DeviceNumber, ProbeTarget> {
    let is_own = |mount: &Mount| Some(mount.namespace) == snapshot.own;
    let covered = |mount: &Mount| {
        let here = |child: &&ChildMount| child.namespace == mount.namespace;
        snapshot.children.iter().filter(here).any(|child| child.covers(mount))
    };
    let mut mounts: Vec<_> = snapshot.mounts.iter().filter(|mount| !mount.root_deleted && !covered(mount)).collect();
    mounts.sort_by_key(|mount| (!is_own(mount), !mount.is_whole()));
    let mut chosen = BTreeMap::new();
    for mount in mounts {
        let target = match snapshot.namespaces.get(&mount.namespace) {
            _ if is_own(mount) => ProbeTarget::from(mount),
            Some(pid) => ProbeTarget::through(*pid, mount),
            None => continue,
        };
        chosen.entry(mount.device).or_insert(target);
    }
    chosen
}

/// The reports, by device number. `comm` names a process.
pub fn reports(facts: &Facts, comm: impl Fn(u32) -> Option<String>) -> Vec<ConnectionReport> {
    let mut mounts: BTreeMap<DeviceNumber, Vec<&Mount>> = BTreeMap::new();
    for mount in &facts.snapshot.mounts {
        mounts.entry(mount.device).or_default().push(mount);
    }
    let devices: BTreeSet<_> = mounts.keys().chain(facts.control.keys()).copied().collect();
    devices
        .into_iter()
        .map(|device| {
            let mounts = mounts.get(&device).map(Vec::as_slice).unwrap_or_default();
            report(device, mounts, facts, &comm)
        })
        .collect()
}

fn report(
    device: DeviceNumber,
    mounts: &[&Mount],
    facts: &Facts,
    comm: impl Fn(u32) -> Option<String>,
) -> ConnectionReport {
    let holder = facts.holders.by_connection.get(&device).and_then(|pids| pids.first()).copied();
    let requests = facts.control.get(&device).copied().flatten();
    let life = facts.lives.get(&device).copied().unwrap_or(Life::NotAsked);
    let first = mounts.first();
    ConnectionReport {
        connection: device,
        fs_type: first.map(|mount| mount.fs_type.clone()),
        source: first.map(|mount| mount.source.clone()),
        state: state(life, Evidence { held: holder.is_some(), attributes: attributes(&facts.holders), requests }),
        daemon: holder.map(|pid| Daemon { pid, comm: comm(pid), alive: true }),
        requests_in_flight: requests,
        oldest_request_millis: None,
        mounts: in_order(mounts, facts.snapshot.own),
    }
}

/// The own namespace's mounts first; those are the paths that the reader can use.
fn in_order(mounts: &[&Mount], own: Option<NamespaceId>) -> Vec<TransitionMount> {
    let mut mounts: Vec<&Mount> = mounts.to_vec();
    mounts.sort_by_key(|mount| Some(mount.namespace) != own);
    let listed = |mount: &Mount| TransitionMount {
        namespace: mount.namespace,
        mount_point: mount.mount_point.clone(),
        root: mount.root.clone(),
        flags: mount.flags,
    };
    mounts.into_iter().map(listed).collect()
}

/// Whether a connection without a known holder has none: the kernel says of every descriptor whose it is (Linux 6.18),
/// and no process could hide its own.
fn attributes(Holders { by_connection: _, unattributed, denied }: &Holders) -> bool {
    unattributed.is_empty() && *denied == 0
}

/// What is known beside the daemon's answer.
#[derive(Debug, Clone, Copy)]
struct Evidence {
    /// A process holds the daemon's descriptor.
    held: bool,
    /// If none is known to, there is none.
    attributes: bool,
    /// Requests in flight.
    requests: Option<u64>,
}

/// How the connection fares.
fn state(life: Life, evidence: Evidence) -> ConnectionState {
    match (life, evidence) {
        (Life::Answered, _) => ConnectionState::Ready,
        (Life::Dead, _) => ConnectionState::Dead,
        (Life::Silent, _) => ConnectionState::Hung,
        // The last descriptor is closed: `fuse_dev_release` has aborted the connection.
        (Life::NotAsked, Evidence { held: false, attributes: true, .. }) => ConnectionState::Dead,
        // Nothing waits, not even FUSE_INIT, so it was initialised.
        (Life::NotAsked, Evidence { held: true, requests: Some(0), .. }) => ConnectionState::Ready,
        // FUSE_INIT may be on its way: what is in flight may be that.
        (Life::NotAsked, _) => ConnectionState::Unknown,
    }
}

#[cfg(test)]
mod tests;
