//! Answers to those who ask: what is known, at the moment of the question.

use std::collections::HashMap;
use std::time::Duration;

use super::connection::{Connection, transition_mount};
use super::node::Setting;
use super::shell::Shell;
use crate::kernel::{ConnectionCounters, HookState, PendingRequest, VfsErrors};
use crate::model::{Boottime, DeviceNumber};
use crate::telemetry::query::Query;
use crate::telemetry::status::{
    ConnectionGauges, ConnectionReport, Gauges, HealingMode, Hook, Loss, Readiness, RequestErrors, Status,
};

/// What the kernel's maps say of requests, read once for an answer.
struct Requests {
    counters: HashMap<DeviceNumber, ConnectionCounters>,
    oldest: HashMap<DeviceNumber, PendingRequest>,
    now: Boottime,
}

impl Shell {
    pub(super) fn answer(&mut self, query: Query) {
        // A receiver that is gone has lost interest; that is its right.
        match query {
            Query::Readiness(reply) => drop(reply.send(self.readiness())),
            Query::Status(reply) => drop(reply.send(self.status())),
            Query::Gauges(reply) => {
                self.drain_vfs_errors();
                drop(reply.send(self.gauges()));
            }
        }
    }

    fn readiness(&self) -> Readiness {
        if self.kernel.is_some() && self.stream.is_none() {
            Readiness::NotDetecting("the kernel's events can't be read any more".to_owned())
        } else if self.node.looked {
            Readiness::Detecting(self.node.setting.backend, self.healing())
        } else {
            Readiness::NotDetecting("the mount tables have not been read yet".to_owned())
        }
    }

    fn healing(&self) -> HealingMode {
        match self.node.setting {
            Setting { heal: true, may_mount, .. } if self.node.policy.heals() => {
                if may_mount {
                    HealingMode::On
                } else {
                    HealingMode::NoPrivilege
                }
            }
            _ => HealingMode::Off,
        }
    }

    fn status(&self) -> Status {
        let requests = self.requests();
        let connections = self.node.connections.values().filter_map(|known| self.report(known, &requests)).collect();
        Status {
            version: env!("CARGO_PKG_VERSION"),
            backend: Some(self.node.setting.backend),
            healing: self.healing(),
            hooks: self.hooks(),
            connections,
            losses: self.losses(),
        }
    }

    fn gauges(&self) -> Gauges {
        let requests = self.requests();
        let connections = self.node.connections.values().filter_map(|known| {
            let requests_in_flight = self.in_flight(known, &requests);
            Some(ConnectionGauges {
                connection: known.id,
                fs_type: known.fs_type.clone()?,
                state: known.fares(requests_in_flight)?,
                requests_in_flight,
                oldest_request: age(known, &requests),
            })
        });
        Gauges {
            connections: connections.collect(),
            request_errors: self.request_errors(),
            losses: self.losses(),
            hooks: self.hooks(),
        }
    }

    fn report(&self, known: &Connection, requests: &Requests) -> Option<ConnectionReport> {
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let requests_in_flight = self.in_flight(known, requests);
        Some(ConnectionReport {
            connection: known.id.device,
            fs_type: known.fs_type.clone(),
            source: known.source.clone(),
            state: known.fares(requests_in_flight)?,
            daemon: known.daemon.clone(),
            requests_in_flight,
            oldest_request_millis: age(known, requests).map(millis),
            mounts: known.known_mounts().iter().map(transition_mount).collect(),
        })
    }

    /// The kernel programs' count, or else the control file system's `waiting`, which costs a read a connection.
    fn in_flight(&self, known: &Connection, requests: &Requests) -> Option<u64> {
        if self.node.setting.answers {
            let counted = requests.counters.get(&known.id.device);
            return counted.map(|counters| counters.in_flight);
        }
        self.control.as_ref()?.waiting(known.id.device).ok()?
    }

    fn requests(&self) -> Requests {
        let counters = self.counters.as_ref();
        Requests {
            counters: counters.map(|counters| counters.connections().into_iter().collect()).unwrap_or_default(),
            oldest: counters.map(crate::kernel::Counters::oldest_requests).unwrap_or_default(),
            now: Boottime::now(),
        }
    }

    fn request_errors(&self) -> Vec<RequestErrors> {
        let Some(counters) = &self.counters else { return Vec::new() };
        let totals = counters.request_errors().into_iter().filter_map(|(device, errno, total)| {
            let known = self.node.connections.get(&self.node.current(device)?)?;
            Some(RequestErrors { connection: known.id, fs_type: known.fs_type.clone()?, errno, total })
        });
        totals.collect()
    }

    /// Reads which processes got how many errors since the last time, and counts them under the file system type that
    /// each was attributed to. Those of sockets and of the agent's own workers are attributed to none, and not counted.
    pub(super) fn drain_vfs_errors(&mut self) {
        let Some(counters) = &self.counters else { return };
        let waiting = std::mem::take(&mut self.unattributed);
        let fresh = counters.drain_vfs_errors();
        for VfsErrors { device, pid, errno, count } in waiting {
            if let Some(fs_type) = self.attributed.get(&(pid, device)) {
                self.metrics.vfs_error(errno, fs_type.as_deref(), count);
            }
        }
        for errors in fresh {
            let VfsErrors { device, pid, errno, count } = errors;
            match self.attributed.get(&(pid, device)) {
                Some(fs_type) => self.metrics.vfs_error(errno, fs_type.as_deref(), count),
                None => self.unattributed.push(errors),
            }
        }
        self.attributed.clear();
    }

    fn losses(&self) -> Vec<Loss> {
        let lost = self.counters.as_ref().map(crate::kernel::Counters::lost).unwrap_or_default();
        let mut losses: Vec<_> = lost.into_iter().map(|(stage, reason, total)| Loss { stage, reason, total }).collect();
        losses.extend(self.unseen.iter().map(|(reason, total)| Loss { stage: "mounts", reason, total: *total }));
        losses.extend((self.output_losses)());
        losses
    }

    pub(super) fn hooks(&self) -> Vec<Hook> {
        let hooks = self.hooks.iter();
        hooks
            .map(|hook| Hook { name: hook.name, backend: hook.backend, attached: hook.status == HookState::Attached })
            .collect()
    }
}

fn age(known: &Connection, requests: &Requests) -> Option<Duration> {
    Some(requests.now.since(requests.oldest.get(&known.id.device)?.since))
}
