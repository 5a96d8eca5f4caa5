//! What this kernel and these privileges allow, tried for real.

use serde::Serialize;

use super::environment::{Capability, Healing, Lockdown, capabilities};
use super::hooks::{HookState, HookStatus};
use super::layout::{self, LayoutError};
use super::{BackendChoice, Detection, LoadOptions};
use crate::model::BackendKind;

/// The answer to "will it work here?". Serialises as the contract says.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Doctor {
    /// The kernel's release: `uname -r`.
    pub kernel: String,
    /// Whether the kernel is locked down.
    pub lockdown: Lockdown,
    /// Whether the kernel describes its types.
    pub btf: BtfState,
    /// What detection would rest on; `None` when there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendKind>,
    /// Whether dead mounts can be healed. The verdict is on detection.
    pub healing: Healing,
    /// Each hook.
    pub hooks: Vec<HookStatus>,
    /// Each capability that matters.
    pub capabilities: Vec<Capability>,
}

/// Whether the kernel describes its types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum BtfState {
    /// Its own and FUSE's.
    Complete,
    /// Its own, and not FUSE's: a module without BTF, or not loaded.
    WithoutFuse,
    /// None, or none that can be read.
    Absent,
}

/// In one word; the exit code of `fuse-detector doctor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Full detection.
    Full = 0,
    /// Detection, with something lost.
    Degraded = 1,
    /// No detection.
    Impossible = 2,
}

impl Doctor {
    /// Whether detection works here, and how far.
    pub fn verdict(&self) -> Verdict {
        let lost = |hook: &HookStatus| matches!(hook.status, HookState::Unsupported | HookState::Refused);
        match self.backend {
            None => Verdict::Impossible,
            Some(BackendKind::Portable) => Verdict::Degraded,
            Some(_) if self.hooks.iter().any(lost) => Verdict::Degraded,
            Some(BackendKind::Fentry | BackendKind::Kprobe | BackendKind::Tracepoint) => Verdict::Full,
        }
    }
}

/// Loads and attaches everything, looks, and lets go of it again.
pub fn examine(backend: BackendChoice) -> Doctor {
    let options = LoadOptions { backend, kernel_log: false };
    let (backend, hooks) = match super::load(&options) {
        Ok(Detection { backend, hooks, kernel: _ }) => (Some(backend), hooks),
        Err(error) => (None, error.hooks().to_vec()),
    };
    Doctor {
        kernel: release(),
        lockdown: Lockdown::read(),
        btf: btf_state(&layout::read()),
        backend,
        healing: Healing::read(),
        hooks,
        capabilities: capabilities(),
    }
}

/// The running kernel's release. uname(2) fails only for a bad address.
pub fn release() -> String {
    nix::sys::utsname::uname().map_or_else(|_| String::new(), |name| name.release().to_string_lossy().into_owned())
}

fn btf_state(types: &Result<layout::Kernel, LayoutError>) -> BtfState {
    match types {
        Ok(types) if !types.described => BtfState::WithoutFuse,
        Ok(_) => BtfState::Complete,
        Err(_) => BtfState::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doctor(backend: Option<BackendKind>, statuses: &[HookState]) -> Doctor {
        let hook = |status: &HookState| HookStatus {
            name: "fuse_request_end",
            backend: BackendKind::Tracepoint,
            status: *status,
            why: None,
            lost: None,
        };
        Doctor {
            kernel: "6.18.0".into(),
            lockdown: Lockdown::Confidentiality,
            btf: BtfState::Complete,
            backend,
            healing: Healing::Possible,
            hooks: statuses.iter().map(hook).collect(),
            capabilities: Vec::new(),
        }
    }

    #[test]
    fn the_verdict_follows_from_the_backend_and_what_is_lost() {
        let tracepoint = Some(BackendKind::Tracepoint);
        let full = [HookState::Attached, HookState::NotNeeded];
        assert_eq!(doctor(tracepoint, &full).verdict(), Verdict::Full);
        assert_eq!(doctor(tracepoint, &[HookState::Attached, HookState::Refused]).verdict(), Verdict::Degraded);
        assert_eq!(doctor(Some(BackendKind::Portable), &[HookState::Attached]).verdict(), Verdict::Degraded);
        assert_eq!(doctor(None, &[]).verdict(), Verdict::Impossible);
    }

    #[test]
    fn it_has_the_contracts_shape() {
        let json = serde_json::to_value(doctor(Some(BackendKind::Tracepoint), &[])).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"kernel": "6.18.0", "lockdown": "confidentiality", "btf": "complete",
                "backend": "tracepoint", "healing": {"status": "possible"}, "hooks": [], "capabilities": []})
        );
    }
}
