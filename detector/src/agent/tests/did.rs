//! What a node asked for, in a form to compare.

use std::time::Duration;

use super::super::{Action, Scope};
use crate::model::{ConnectionId, TransitionKind};
use crate::recovery::{Bring, RecoverJob};

/// The actions of one event, or of several in a row.
#[derive(Debug, Default)]
pub struct Did(pub Vec<Action>);

impl Did {
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Each as `0:45#1 dead`.
    pub fn told(&self) -> Vec<String> {
        self.transitions().map(|told| format!("{} {}", told.connection, told.kind.event())).collect()
    }

    /// Each as `dead /mnt/a /mnt/b`.
    pub fn told_of(&self) -> Vec<String> {
        let line = |told: &crate::model::Transition| {
            let places = told.mounts.iter().map(|mount| mount.mount_point.to_str().unwrap());
            [told.kind.event()].into_iter().chain(places).collect::<Vec<_>>().join(" ")
        };
        self.transitions().map(line).collect()
    }

    fn transitions(&self) -> impl Iterator<Item = &crate::model::Transition> {
        self.0.iter().filter_map(|action| if let Action::Tell(told) = action { Some(&**told) } else { None })
    }

    /// The failed attempts, each with what failed and when the next one follows.
    pub fn failures(&self) -> Vec<(&str, Option<Duration>)> {
        let failure = |kind| match kind {
            &TransitionKind::RecoveryFailed { ref error, retry_in, .. } => Some((error.as_str(), retry_in)),
            _ => None,
        };
        self.transitions().filter_map(|told| failure(&told.kind)).collect()
    }

    pub fn probed(&self) -> Vec<ConnectionId> {
        let probe =
            |action: &Action| if let Action::Probe { connection, .. } = action { Some(*connection) } else { None };
        self.0.iter().filter_map(probe).collect()
    }

    pub fn jobs(&self) -> Vec<(ConnectionId, &RecoverJob)> {
        let job = |action| match action {
            &Action::Recover { connection, ref job } => Some((connection, &**job)),
            _ => None,
        };
        self.0.iter().filter_map(job).collect()
    }

    /// The one job.
    #[track_caller]
    pub fn job(&self) -> RecoverJob {
        match self.jobs()[..] {
            [(_, job)] => job.clone(),
            ref other => panic!("not one job but {other:?}"),
        }
    }

    /// How the jobs come by a replacement.
    pub fn brought(&self) -> Vec<&'static str> {
        let how = |bring: &Bring| match bring {
            Bring::Existing(_) => "existing",
            Bring::Respawn(_) => "respawn",
            Bring::Command { .. } => "command",
        };
        self.jobs().iter().map(|(_, job)| how(&job.bring)).collect()
    }

    pub fn pauses(&self) -> Vec<Duration> {
        let pause = |action: &Action| if let Action::RetryAfter { after, .. } = action { Some(*after) } else { None };
        self.0.iter().filter_map(pause).collect()
    }

    pub fn looks(&self, wanted: Scope) -> bool {
        self.0.iter().any(|action| matches!(action, Action::Scan(scope) if *scope == wanted))
    }

    pub fn looks_for_holders(&self) -> bool {
        self.0.iter().any(|action| matches!(action, Action::FindHolders))
    }

    pub fn checks_control(&self) -> bool {
        self.0.iter().any(|action| matches!(action, Action::CheckControl(_)))
    }

    pub fn watched(&self) -> Vec<u32> {
        let watch = |action: &Action| if let Action::WatchProcess { pid, .. } = action { Some(*pid) } else { None };
        self.0.iter().filter_map(watch).collect()
    }

    pub fn forgets_process(&self, wanted: u32) -> bool {
        self.0.iter().any(|action| matches!(action, Action::ForgetProcess(pid) if *pid == wanted))
    }

    pub fn forgets_connection(&self, minor: u32) -> bool {
        self.0.iter().any(|action| matches!(action, Action::ForgetConnection(device) if device.minor == minor))
    }
}
