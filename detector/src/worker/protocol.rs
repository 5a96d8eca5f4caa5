use serde::{Deserialize, Serialize};

use super::probe::{ProbeOutcome, ProbeTarget};
use crate::recovery::wire::{JobForm, ProgressForm, TargetForm};

/// What the agent asks of a worker.
#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    Probe { mount: TargetForm, owner: Option<(u32, u32)> },
    Recover(Box<JobForm>),
}

impl From<&ProbeTarget> for Request {
    fn from(target: &ProbeTarget) -> Self {
        let ProbeTarget { mount, owner } = target;
        Self::Probe { mount: mount.into(), owner: *owner }
    }
}

/// What a worker answers: one `Probe`, or progress until `Finished`.
#[derive(Serialize, Deserialize)]
pub(super) enum Reply {
    Probe(ProbeForm),
    Progress(ProgressForm),
    /// The request could not be understood.
    Malformed(String),
}

/// The outcomes of a probe that a worker can see; that it came too late only the agent sees.
#[derive(Serialize, Deserialize)]
pub(super) enum ProbeForm {
    Alive,
    Dead { errno: i32 },
    Gone,
    Denied,
    Failed(String),
}

impl From<ProbeForm> for ProbeOutcome {
    fn from(form: ProbeForm) -> Self {
        match form {
            ProbeForm::Alive => Self::Alive,
            ProbeForm::Dead { errno } => Self::Dead { errno },
            ProbeForm::Gone => Self::Gone,
            ProbeForm::Denied => Self::Denied,
            ProbeForm::Failed(why) => Self::Failed(why),
        }
    }
}
