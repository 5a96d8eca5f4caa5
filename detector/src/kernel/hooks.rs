//! The hooks: what each is for, what it needs, and how it fared on this kernel.

use serde::Serialize;

use super::btf::Argument;
use super::layout::Kernel as KernelTypes;
use crate::model::BackendKind;
use crate::mounts::AbortWatch;

/// How a hook fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HookState {
    /// It is in use.
    Attached,
    /// The kernel does not have it.
    Unsupported,
    /// The kernel has it and would not let us.
    Refused,
    /// It would work, and is not in use.
    NotNeeded,
}

/// One row of the hook table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HookStatus {
    /// The kernel's name of the hook.
    pub name: &'static str,
    /// The backend it belongs to.
    pub backend: BackendKind,
    /// How it fared.
    pub status: HookState,
    /// Why it is not attached, or in which of two ways it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What is lost without it; only when it is not attached and something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<&'static str>,
}

/// How a program sees the kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `tp_btf`
    Typed,
    /// `raw_tp`
    Raw,
}

impl Form {
    /// What it is, why it matters, and what is lost.
    pub const fn explained(self) -> &'static str {
        match self {
            Self::Typed => {
                "typed tracepoint (tp_btf): the verifier knows the types, so it works under lockdown; nothing is lost"
            }
            Self::Raw => {
                "raw tracepoint (raw_tp): a helper reads kernel memory, which takes longer and which \
                 lockdown=confidentiality forbids; nothing is lost"
            }
        }
    }
}

/// A program of the kernel object that can serve a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub program: &'static str,
    pub form: Form,
}

/// A tracepoint that detection uses.
pub(super) struct Hook {
    /// Its name in the kernel, without the subsystem.
    pub tracepoint: &'static str,
    /// The structures whose members its programs read.
    structures: &'static [&'static str],
    /// In the order in which they are tried.
    candidates: fn(&KernelTypes) -> Vec<Candidate>,
    /// What is lost without it.
    pub lost: &'static str,
    /// Attached only while somebody asks for it.
    pub on_demand: bool,
}

impl Hook {
    /// The programs to try on this kernel.
    pub fn candidates(&self, types: &KernelTypes) -> Vec<Candidate> {
        (self.candidates)(types)
    }

    /// The members that its programs read and this kernel does not have.
    pub fn missing(&self, types: &KernelTypes) -> Vec<&'static str> {
        let reads = |member: &&str| {
            let structure = member.split('.').next().unwrap_or_default();
            self.structures.contains(&structure)
        };
        types.missing.iter().copied().filter(reads).collect()
    }
}

/// Typed first: it works under lockdown, and its reads cost nothing.
macro_rules! typed_then_raw {
    ($typed:literal, $raw:literal) => {
        |_| vec![Candidate { program: $typed, form: Form::Typed }, Candidate { program: $raw, form: Form::Raw }]
    };
}

/// The system call hook. It costs every system call of the machine some nanoseconds while it is attached.
pub const SYS_EXIT: &str = "sys_exit";

/// Every hook, in the order in which they are attached: ends before sends, so that no request is entered as on its way
/// whose end is missed.
pub(super) const HOOKS: [Hook; 6] = [
    Hook {
        tracepoint: "fuse_request_end",
        structures: &["fuse_req", "fuse_mount", "fuse_chan", "fuse_conn", "task_struct", "pt_regs"],
        candidates: typed_then_raw!("fuse_request_end", "fuse_request_end_raw"),
        lost: "readiness, daemons and aborts are learnt by probing and from /proc instead; who aborted is seen through \
               fanotify only; request errors are not counted",
        on_demand: false,
    },
    Hook {
        tracepoint: "fuse_request_send",
        structures: &["fuse_req", "fuse_mount", "fuse_chan", "fuse_conn"],
        candidates: typed_then_raw!("fuse_request_send", "fuse_request_send_raw"),
        lost: "the age and opcode of the oldest request are unknown",
        on_demand: false,
    },
    Hook {
        tracepoint: "sched_process_exit",
        structures: &["task_struct", "signal_struct"],
        candidates: typed_then_raw!("sched_process_exit", "sched_process_exit_raw"),
        lost: "a daemon's exit is learnt through its pidfd instead; how it ended may be unknown before Linux 6.15",
        on_demand: false,
    },
    Hook {
        tracepoint: "signal_generate",
        structures: &["task_struct", "kernel_siginfo"],
        candidates: typed_then_raw!("signal_generate", "signal_generate_raw"),
        lost: "who sent the signal that killed a daemon is unknown",
        on_demand: false,
    },
    Hook {
        tracepoint: "mark_victim",
        structures: &["task_struct"],
        candidates: victim,
        lost: "an out-of-memory kill looks like any other SIGKILL",
        on_demand: false,
    },
    Hook {
        tracepoint: SYS_EXIT,
        structures: &["pt_regs"],
        candidates: typed_then_raw!("sys_exit", "sys_exit_raw"),
        lost: "ENOTCONN that applications see, and forced unmounts of busy mounts, go unnoticed",
        on_demand: true,
    },
];

/// What `oom:mark_victim` passes changed in Linux 6.9 from a pid to a task.
fn victim(types: &KernelTypes) -> Vec<Candidate> {
    match types.victim {
        Some(Argument::Number) => vec![Candidate { program: "mark_victim_pid", form: Form::Raw }],
        Some(Argument::Pointer) | None => vec![
            Candidate { program: "mark_victim", form: Form::Typed },
            Candidate { program: "mark_victim_raw", form: Form::Raw },
        ],
    }
}

/// Without it nothing works.
pub(super) const MOUNTINFO: &str = "mountinfo";

/// The rows of the portable backend: what it stands on.
pub(super) fn portable() -> Vec<HookStatus> {
    let row = |name, works: Result<(), String>, lost| {
        let (status, why) = match works {
            Ok(()) => (HookState::Attached, None),
            Err(why) => (HookState::Unsupported, Some(why)),
        };
        let lost = (status != HookState::Attached).then_some(lost);
        HookStatus { name, backend: BackendKind::Portable, status, why, lost }
    };
    let own = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).map(drop);
    let mountinfo = std::fs::File::open("/proc/self/mountinfo").map(drop);
    vec![
        row(
            "pidfd_open",
            pidfd.map_err(|errno| format!("pidfd_open(2): {errno}")),
            "a daemon's exit is noticed only when its mount is probed",
        ),
        row(
            MOUNTINFO,
            mountinfo.map_err(|error| format!("cannot open /proc/self/mountinfo: {error}")),
            "mounts are not seen at all",
        ),
        row(
            "fanotify",
            AbortWatch::check(),
            "who writes to a connection's `abort` file is unknown, and a connection that is aborted so while it is idle is \
             found dead only when it is probed",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use detector_common::layout::Layout;

    use super::*;

    const NO_TYPES: KernelTypes = KernelTypes { layout: Layout::UNKNOWN, missing: Vec::new(), victim: None };

    #[test]
    fn a_row_has_the_contracts_shape() {
        let row = HookStatus {
            name: "sys_exit",
            backend: BackendKind::Tracepoint,
            status: HookState::NotNeeded,
            why: Some("attached while asked for".into()),
            lost: None,
        };
        assert_eq!(
            serde_json::to_value(row).unwrap(),
            serde_json::json!({"name": "sys_exit", "backend": "tracepoint", "status": "notNeeded", "why": "attached while asked for"})
        );
    }

    #[test]
    fn a_missing_member_matters_to_the_hooks_that_read_it() {
        let types = KernelTypes { missing: vec!["fuse_req.out.h.error"], ..NO_TYPES };
        let hindered: Vec<_> =
            HOOKS.iter().filter(|hook| !hook.missing(&types).is_empty()).map(|hook| hook.tracepoint).collect();
        assert_eq!(hindered, ["fuse_request_end", "fuse_request_send"]);
    }

    #[test]
    fn the_victims_argument_chooses_the_program() {
        let program = |victim| victim_programs(Some(victim));
        assert_eq!(program(Argument::Number), ["mark_victim_pid"]);
        assert_eq!(program(Argument::Pointer), ["mark_victim", "mark_victim_raw"]);
    }

    fn victim_programs(victim: Option<Argument>) -> Vec<&'static str> {
        let types = KernelTypes { victim, ..NO_TYPES };
        super::victim(&types).iter().map(|candidate| candidate.program).collect()
    }
}
