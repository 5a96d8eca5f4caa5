//! What a look at the mounts changes: connections appear, their mounts come and go, numbers are taken over.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::connection::Connection;
use super::event::{Action, Scope};
use super::healing::Healing;
use super::node::Node;
use crate::health::{Input, State};
use crate::model::{Boottime, ConnectionId, DeviceNumber, Mount, MountId, NamespaceId};
use crate::mounts::{ChildMount, Problem, Snapshot};

impl Node {
    pub(super) fn scanned(&mut self, snapshot: Snapshot, scope: Scope, began: Boottime) {
        let Snapshot { mounts, children, mut namespaces, problems, own: _ } = snapshot;
        let unseen = Unseen::of(&problems);
        let listed = !problems.iter().any(|problem| matches!(problem, Problem::UniqueIds(_)));
        if !problems.is_empty() {
            self.actions.push(Action::Report(problems));
        }
        if unseen.own {
            // It says nothing; what is known stays, and another look follows.
            return;
        }
        let mounts = if listed { self.identified(mounts) } else { mounts };
        let of_today = |mount: &Mount| mount.unique_id.is_none_or(|id| !self.former.contains_key(&id));
        let mounts: Vec<_> = mounts.into_iter().filter(of_today).collect();
        self.former.retain(|_, since| *since >= began);
        let own = self.setting.own;
        let nobodys = self.nobodys(&namespaces, scope, began);
        namespaces.retain(|namespace, _| !nobodys.contains(namespace));
        let looked_at = |namespace| scope == Scope::Everything && !unseen.covers(namespace);
        let kept = |namespace| namespace != own && !nobodys.contains(&namespace) && !looked_at(namespace);
        namespaces.extend(self.namespaces.iter().filter(|(namespace, _)| kept(**namespace)));
        let mut children = children;
        children.extend(self.children.iter().filter(|child| kept(child.namespace)).cloned());
        let mut by_device: HashMap<DeviceNumber, Vec<Mount>> = HashMap::new();
        for mount in mounts.into_iter().filter(|mount| !nobodys.contains(&mount.namespace)) {
            by_device.entry(mount.device).or_default().push(mount);
        }
        for device in self.supersede_reused(&by_device, scope) {
            // As it is known, until a look has seen the other namespaces, too.
            by_device.remove(&device);
        }
        for connection in self.connections.values().filter(|known| self.is_current(known.id)) {
            let others = connection.mounts.iter().filter(|mount| kept(mount.namespace)).cloned();
            let all = by_device.entry(connection.id.device).or_default();
            all.extend(others);
        }
        let covered = covered(by_device.values().flatten(), &children);
        self.set_places((scope == Scope::Everything).then_some(namespaces), covered, children);
        for (device, mounts) in by_device {
            self.update_mounts(device, mounts);
        }
        let lost: Vec<_> = self.connections.values().filter(|known| known.lost).map(|known| known.id).collect();
        for id in lost {
            self.ask_elsewhere(id);
        }
        self.drain();
        self.tell_untold(scope, began);
        self.check_healed(began);
        let first = !std::mem::replace(&mut self.looked, true);
        self.look_closer(first);
    }

    /// Namespaces that were made for daemons which the agent started, and those that may be: one is about to be made.
    fn nobodys(&mut self, found: &BTreeMap<NamespaceId, u32>, scope: Scope, began: Boottime) -> HashSet<NamespaceId> {
        if scope == Scope::Everything {
            // One that was made since this look began is not missing from it.
            self.private.retain(|namespace, made| found.contains_key(namespace) || *made >= began);
        }
        let mut nobodys: HashSet<_> = self.private.keys().copied().collect();
        if !self.isolating.is_empty() {
            let known = |namespace| namespace == self.setting.own || self.namespaces.contains_key(&namespace);
            let before = nobodys.len();
            nobodys.extend(found.keys().copied().filter(|namespace| !known(*namespace)));
            self.strangers |= nobodys.len() > before;
        }
        nobodys
    }

    /// Without those that were made while the look was under way: they are in the mount table, but not yet in the list of
    /// unique ids, and might be taken for a mount of the connection that had their number before. Another look tells. One
    /// that still has no id then never gets one.
    fn identified(&mut self, mounts: Vec<Mount>) -> Vec<Mount> {
        if !self.setting.features.unique_id {
            return mounts;
        }
        let own = self.setting.own;
        let key = |mount: &Mount| (mount.device, mount.id);
        let (nameless, mut rest): (Vec<_>, Vec<_>) =
            mounts.into_iter().partition(|mount| mount.namespace == own && mount.unique_id.is_none());
        let before = std::mem::replace(&mut self.nameless, nameless.iter().map(key).collect());
        let (known, new): (Vec<_>, Vec<_>) = nameless.into_iter().partition(|mount| before.contains(&key(mount)));
        if !new.is_empty() {
            self.actions.push(Action::Scan(Scope::Own));
        }
        rest.extend(known);
        rest
    }

    /// A number whose mounts in the agent's namespace are all others than before belongs to another connection: the
    /// last mount was taken away and the next took over the number, all between two looks. Numbers of which only a look at
    /// everything can tell are returned.
    fn supersede_reused(&mut self, by_device: &HashMap<DeviceNumber, Vec<Mount>>, scope: Scope) -> Vec<DeviceNumber> {
        let own = self.setting.own;
        let mut unsure = Vec::new();
        let ids = |mounts: &[Mount]| -> HashSet<u64> {
            mounts.iter().filter(|mount| mount.namespace == own).filter_map(|mount| mount.unique_id).collect()
        };
        for (device, mounts) in by_device {
            let Some(id) = self.current(*device) else { continue };
            let Some(connection) = self.connections.get(&id) else { continue };
            let (before, after) = (ids(connection.known_mounts()), ids(mounts));
            // What was last seen in other namespaces only can have gone unnoticed. Or this is another of its mounts, made
            // while the namespaces were looked at one after another.
            let elsewhere = connection.is_elsewhere(own) && mounts.iter().any(|mount| mount.namespace == own);
            let abandoned = elsewhere && !connection.machine.daemons().any(|daemon| daemon.alive);
            if abandoned && scope == Scope::Own {
                unsure.push(*device);
                self.actions.push(Action::Scan(Scope::Everything));
                continue;
            }
            let place = |mount: &Mount| (mount.namespace, mount.id);
            let known: HashSet<_> = connection.mounts.iter().map(place).collect();
            let orphaned = abandoned && !mounts.iter().any(|mount| known.contains(&place(mount)));
            let others = !before.is_empty() && !after.is_empty() && before.is_disjoint(&after);
            if orphaned || others && !self.were_made_before_healed(connection, &after, by_device) {
                self.supersede(id);
                let heir = self.create(*device);
                if let Some(connection) = self.connections.get_mut(&heir) {
                    connection.unheard = true;
                }
            }
        }
        unsure
    }

    /// Whether all these ids are older than what a worker put in the place of one of the connection's mounts. Ids grow with
    /// time, and a replacement is made before the dead mount is taken away: they are further mounts of the dead connection.
    fn were_made_before_healed(
        &self,
        connection: &Connection,
        ids: &HashSet<u64>,
        by_device: &HashMap<DeviceNumber, Vec<Mount>>,
    ) -> bool {
        let Some((replacement, healed)) = connection.healing.as_ref().and_then(Healing::healed) else { return false };
        let own = |mount: &&Mount| mount.namespace == self.setting.own;
        let clones: Vec<_> = by_device.get(&replacement).into_iter().flatten().filter(own).collect();
        // The clone is the next that came to that place.
        let clone_of = |dead: &Mount| {
            let there = clones.iter().filter(|mount| mount.mount_point == dead.mount_point);
            there.filter_map(|mount| mount.unique_id).filter(|id| Some(*id) > dead.unique_id).min()
        };
        let mut seen = healed.iter().filter(|dead| connection.known_mounts().contains(dead));
        seen.any(|dead| clone_of(dead).is_some_and(|clone| ids.iter().all(|id| *id < clone)))
    }

    /// The namespace was made for a daemon: what a look has seen there is nobody's.
    pub(super) fn disown(&mut self, namespace: NamespaceId) {
        self.private.insert(namespace, self.now);
        let there = |mount: &Mount| mount.namespace == namespace;
        let seen = self.connections.values().filter(|known| known.mounts.iter().any(there));
        let kept = |known: &Connection| known.mounts.iter().filter(|mount| !there(mount)).cloned().collect();
        let left: Vec<(DeviceNumber, Vec<Mount>)> = seen.map(|known| (known.id.device, kept(known))).collect();
        for (device, mounts) in left {
            self.update_mounts(device, mounts);
        }
    }

    fn update_mounts(&mut self, device: DeviceNumber, mounts: Vec<Mount>) {
        if mounts.is_empty() && self.current(device).is_none() {
            return;
        }
        let ignored = self.is_ignored(&mounts);
        let hidden = !mounts.is_empty() && mounts.iter().all(|mount| self.is_covered(mount));
        let id = self.current_or_new(device);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (own, seen) = (self.setting.own, self.now);
        let was_here = connection.is_here(own);
        let before = connection.mounts.len();
        let count = mounts.len();
        if count > 0 {
            connection.ignored = ignored;
            connection.hidden = hidden;
        }
        connection.set_mounts(mounts);
        if count > 0 {
            connection.mounted.get_or_insert(seen);
        }
        if was_here && connection.is_elsewhere(own) {
            // Gone from here; whether it is still elsewhere was looked at some time ago.
            self.actions.push(Action::Scan(Scope::Everything));
        }
        if count == 0 && before > 0 {
            self.actions.push(Action::CheckControl(id));
        } else if count != before {
            self.push(id, Input::Mounts { count, control: true });
        }
    }

    /// Those of which nothing more is known than that they are mounted: are they alive, who serves them? Where kernel
    /// hooks report each INIT, a connection that appears later needs no question: its INIT is on the way, unless it was
    /// taken for that of the one before.
    fn look_closer(&mut self, first: bool) {
        let told_by_hooks = self.setting.answers && !first;
        let ids: Vec<ConnectionId> = self
            .connections
            .values_mut()
            .filter(|known| {
                known.machine.state() == State::Created && !known.mounts.is_empty() && !known.ignored && !known.hidden
            })
            .filter(|known| !told_by_hooks || known.unheard)
            .filter_map(|known| (!std::mem::replace(&mut known.looked_at, true)).then_some(known.id))
            .collect();
        for id in ids {
            self.push(id, Input::AccessFailed { at: self.now });
        }
        if !self.without_daemon().is_empty() {
            self.ask_for_holders();
        }
    }
}

/// Of what a look could not see: that is not to be taken for gone.
struct Unseen {
    own: bool,
    all: bool,
    namespaces: HashSet<NamespaceId>,
}

impl Unseen {
    fn of(problems: &[Problem]) -> Self {
        let namespace = |problem: &Problem| match problem {
            Problem::MountTable { namespace, .. } => Some(*namespace),
            _ => None,
        };
        Self {
            own: problems.iter().any(|problem| matches!(problem, Problem::Own(_))),
            all: problems.iter().any(|problem| matches!(problem, Problem::Proc(_))),
            namespaces: problems.iter().filter_map(namespace).collect(),
        }
    }

    fn covers(&self, namespace: NamespaceId) -> bool {
        self.all || self.namespaces.contains(&namespace)
    }
}

/// Mounts that can't be reached by their path, because another one hangs on the very same place.
fn covered<'a>(mounts: impl Iterator<Item = &'a Mount>, children: &[ChildMount]) -> HashSet<(NamespaceId, MountId)> {
    let mut hanging: BTreeMap<(NamespaceId, MountId), Vec<&ChildMount>> = BTreeMap::new();
    for child in children {
        hanging.entry((child.namespace, child.parent)).or_default().push(child);
    }
    let covers = |mount: &Mount| {
        let on_it = hanging.get(&(mount.namespace, mount.id));
        on_it.is_some_and(|children| children.iter().any(|child| child.covers(mount)))
    };
    mounts.filter(|mount| covers(mount)).map(|mount| (mount.namespace, mount.id)).collect()
}
