//! The hooks: what each is for, what it needs, and how it fared on this kernel.

use detector_common::layout::Layout;
use serde::Serialize;

use super::BackendChoice;
use super::btf::Place;
use super::layout::{Argument, Kernel as KernelTypes, Unfit};
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

/// How a program is attached, and thereby how it sees the kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `tp_btf`
    Typed,
    /// `raw_tp`
    Raw,
    /// `fentry`
    Fentry,
    /// `kprobe`
    Kprobe,
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
            Self::Fentry => {
                "trampoline at a function (fentry): the verifier knows the types, so it works under lockdown; nothing is lost"
            }
            Self::Kprobe => {
                "breakpoint at a function (kprobe): a helper reads kernel memory, which lockdown=confidentiality forbids; \
                 nothing is lost"
            }
        }
    }

    pub const fn backend(self) -> BackendKind {
        match self {
            Self::Typed | Self::Raw => BackendKind::Tracepoint,
            Self::Fentry => BackendKind::Fentry,
            Self::Kprobe => BackendKind::Kprobe,
        }
    }

    /// What the kernel calls such a place.
    pub const fn place(self) -> Place {
        match self {
            Self::Typed | Self::Raw => Place::Tracepoint,
            Self::Fentry | Self::Kprobe => Place::Function,
        }
    }
}

/// A program of the kernel object that can serve a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub program: &'static str,
    pub form: Form,
    /// The tracepoint or function.
    pub target: &'static str,
}

/// A place in the kernel that detection uses.
pub(super) struct Hook {
    /// Its name: that of the tracepoint, without the subsystem, or of the function.
    pub name: &'static str,
    /// The structures whose members its programs read, or single members.
    reads: &'static [&'static str],
    /// In the order in which they are tried.
    candidates: fn(&KernelTypes) -> Vec<Candidate>,
    /// What is lost without it.
    pub lost: &'static str,
    /// When it is wanted.
    pub when: When,
}

/// When a hook is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Wherever it works.
    Always,
    /// It only adds to [`ABORT`].
    WithAbort,
    /// As [`When::WithAbort`], for what some kernels don't do at all.
    WithAbortIfThere {
        /// What they don't.
        without: &'static str,
    },
    /// Attached only while somebody asks for it, and not at all where [`REFUSE`] tells the same.
    OnDemand,
}

impl Hook {
    /// The programs to try on this kernel for this choice. A backend that is asked for gets the hooks that it can serve; the
    /// others stay with tracepoints.
    pub fn candidates(&self, types: &KernelTypes, choice: BackendChoice) -> Vec<Candidate> {
        let all = (self.candidates)(types);
        let BackendChoice::Only(backend) = choice else { return all };
        let of = |backend| all.iter().copied().filter(move |candidate| candidate.form.backend() == backend);
        if of(backend).next().is_some() { of(backend).collect() } else { of(BackendKind::Tracepoint).collect() }
    }

    /// The members that its programs read and that are not as they take them to be.
    pub fn unfit<'a>(&self, types: &'a KernelTypes) -> Vec<&'a Unfit> {
        let reads = |unfit: &&Unfit| {
            let structure = unfit.name.split('.').next().unwrap_or_default();
            unfit.place.is_none() && (self.reads.contains(&structure) || self.reads.contains(&unfit.name))
        };
        types.unfit.iter().filter(reads).collect()
    }

    /// Whether it reads FUSE's structures.
    pub fn reads_fuse(&self) -> bool {
        self.reads.iter().any(|read| read.starts_with("fuse_"))
    }
}

impl Candidate {
    /// What is known against the place that it is attached to: it is given something else.
    pub fn unfit<'a>(&self, types: &'a KernelTypes) -> Vec<&'a Unfit> {
        let here = |unfit: &&Unfit| unfit.place == Some(self.form.place()) && unfit.name == self.target;
        types.unfit.iter().filter(here).collect()
    }
}

/// Typed first: it works under lockdown, and its reads cost nothing.
macro_rules! tracepoint {
    ($target:literal, $typed:literal, $raw:literal) => {
        [
            Candidate { program: $typed, form: Form::Typed, target: $target },
            Candidate { program: $raw, form: Form::Raw, target: $target },
        ]
    };
}

/// By trampoline first, for the same reasons, and for its cost. Each function in turn is one that some kernels have.
macro_rules! function {
    ($($target:literal),+; $fentry:literal, $kprobe:literal) => {
        [
            $(Candidate { program: $fentry, form: Form::Fentry, target: $target },)+
            $(Candidate { program: $kprobe, form: Form::Kprobe, target: $target },)+
        ]
    };
}

/// The end of a connection at its source.
pub(super) const ABORT: &str = "fuse_abort_conn";
/// A dead connection refuses a request.
pub(super) const REFUSE: &str = "fuse_get_req";
/// A request is sent.
pub(super) const SEND: &str = "fuse_request_send";
/// A request ends.
pub(super) const ANSWER: &str = "fuse_request_end";
/// The system call hook. It costs every system call of the machine some nanoseconds while it is attached.
pub const SYS_EXIT: &str = "sys_exit";

const CAUSE: &str = "why a connection was aborted is inferred from what else was seen";

/// Every hook, in the order in which they are attached: ends before sends, so that no request is entered as on its way
/// whose end is missed.
pub(super) const HOOKS: [Hook; 13] = [
    Hook {
        name: ABORT,
        reads: &["fuse_chan", "fuse_conn", "task_struct", "pt_regs"],
        candidates: |_| function!("fuse_abort_conn", "fuse_chan_abort"; "abort", "abort_probe").to_vec(),
        lost: "the death of a connection is learnt from its requests, or from its daemon's exit and a question to the \
               kernel, instead of from the abort itself; `requestTimeout` is not told",
        when: When::Always,
    },
    Hook {
        name: "fuse_dev_release",
        reads: &[],
        candidates: |_| function!("fuse_dev_release"; "release", "release_probe").to_vec(),
        lost: CAUSE,
        when: When::WithAbort,
    },
    Hook {
        name: "fuse_conn_abort_write",
        reads: &[],
        candidates: |_| function!("fuse_conn_abort_write"; "write", "write_probe").to_vec(),
        lost: CAUSE,
        when: When::WithAbort,
    },
    Hook {
        name: "fuse_umount_begin",
        reads: &[],
        candidates: |_| function!("fuse_umount_begin"; "force", "force_probe").to_vec(),
        lost: CAUSE,
        when: When::WithAbort,
    },
    Hook {
        name: "fuse_conn_destroy",
        reads: &[],
        candidates: |_| function!("fuse_conn_destroy"; "destroy", "destroy_probe").to_vec(),
        lost: CAUSE,
        when: When::WithAbort,
    },
    Hook {
        name: "fuse_check_timeout",
        reads: &[],
        candidates: |_| function!("fuse_check_timeout"; "timeout", "timeout_probe").to_vec(),
        lost: CAUSE,
        when: When::WithAbortIfThere { without: "this kernel has no limit for a request's age (Linux 6.15)" },
    },
    Hook {
        name: REFUSE,
        reads: &["fuse_mount", "fuse_chan", "fuse_conn", "task_struct", "pt_regs"],
        candidates: |_| function!("fuse_get_req"; "refuse", "refuse_probe").to_vec(),
        lost: "ENOTCONN that applications see is counted at the price of a hook on every system call, and of which \
               connection it comes is guessed",
        when: When::Always,
    },
    Hook {
        name: ANSWER,
        reads: &["fuse_req", "fuse_mount", "fuse_chan", "fuse_conn.dev", "task_struct", "pt_regs"],
        candidates: |_| {
            let mut all = tracepoint!("fuse_request_end", "fuse_request_end", "fuse_request_end_raw").to_vec();
            all.extend(function!("fuse_request_end"; "request_end", "request_end_probe"));
            all
        },
        lost: "readiness, daemons and aborts are learnt by probing and from /proc instead; who aborted is seen through \
               fanotify only; request errors are not counted",
        when: When::Always,
    },
    Hook {
        name: SEND,
        reads: &["fuse_req", "fuse_mount", "fuse_chan", "fuse_conn.dev"],
        candidates: |_| {
            let mut all = tracepoint!("fuse_request_send", "fuse_request_send", "fuse_request_send_raw").to_vec();
            all.extend(
                function!("queue_request_and_unlock", "fuse_dev_queue_req"; "request_queued", "request_queued_probe"),
            );
            all
        },
        lost: "the age and opcode of the oldest request are unknown",
        when: When::Always,
    },
    Hook {
        name: "sched_process_exit",
        reads: &["task_struct", "signal_struct"],
        candidates: |_| tracepoint!("sched_process_exit", "sched_process_exit", "sched_process_exit_raw").to_vec(),
        lost: "a daemon's exit is learnt through its pidfd instead; how it ended may be unknown before Linux 6.15",
        when: When::Always,
    },
    Hook {
        name: "signal_generate",
        reads: &["task_struct", "kernel_siginfo"],
        candidates: |_| {
            let in_call =
                Candidate { program: "signal_generate_in_call", form: Form::Typed, target: "signal_generate" };
            let [typed, raw] = tracepoint!("signal_generate", "signal_generate", "signal_generate_raw");
            vec![typed, raw, in_call]
        },
        lost: "who sent the signal that killed a daemon is unknown",
        when: When::Always,
    },
    Hook {
        name: "mark_victim",
        reads: &["task_struct"],
        candidates: victim,
        lost: "an out-of-memory kill looks like any other SIGKILL",
        when: When::Always,
    },
    Hook {
        name: SYS_EXIT,
        reads: &["pt_regs"],
        candidates: |_| tracepoint!("sys_exit", "sys_exit", "sys_exit_raw").to_vec(),
        lost: "ENOTCONN that applications see, and forced unmounts of busy mounts, go unnoticed",
        when: When::OnDemand,
    },
];

/// A kernel of which nothing is known.
pub(super) const NO_TYPES: KernelTypes =
    KernelTypes { layout: Layout::UNKNOWN, unfit: Vec::new(), victim: None, described: false, assumed: false };

/// What `oom:mark_victim` passes changed in Linux 6.9 from a pid to a task.
fn victim(types: &KernelTypes) -> Vec<Candidate> {
    match types.victim {
        Some(Argument::Number) => {
            vec![Candidate { program: "mark_victim_pid", form: Form::Raw, target: "mark_victim" }]
        }
        Some(Argument::Pointer) | None => tracepoint!("mark_victim", "mark_victim", "mark_victim_raw").to_vec(),
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
    use super::*;

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
        let hindered = |name| -> Vec<_> {
            let types = KernelTypes { unfit: vec![Unfit { name, place: None, why: "is missing".into() }], ..NO_TYPES };
            HOOKS.iter().filter(|hook| !hook.unfit(&types).is_empty()).map(|hook| hook.name).collect()
        };
        assert_eq!(hindered("fuse_req.out.h.error"), ["fuse_request_end", "fuse_request_send"]);
        assert_eq!(hindered("fuse_conn.connected"), [ABORT, REFUSE]);
        assert_eq!(hindered("fuse_conn.dev"), [ABORT, REFUSE, "fuse_request_end", "fuse_request_send"]);
    }

    #[test]
    fn a_place_that_is_given_something_else_matters_to_those_attached_there() {
        let unfit = Unfit { name: "fuse_request_end", place: Some(Place::Function), why: "is given a number".into() };
        let types = KernelTypes { unfit: vec![unfit], ..NO_TYPES };
        let hook = HOOKS.iter().find(|hook| hook.name == ANSWER).unwrap();
        assert_eq!(hook.unfit(&types), Vec::<&Unfit>::new());
        let candidates = hook.candidates(&types, BackendChoice::Auto);
        let fit = candidates.iter().filter(|candidate| candidate.unfit(&types).is_empty());
        assert_eq!(
            fit.map(|candidate| candidate.program).collect::<Vec<_>>(),
            ["fuse_request_end", "fuse_request_end_raw"]
        );
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

    #[test]
    fn a_backend_that_is_asked_for_serves_what_it_can() {
        let programs = |name, choice| -> Vec<_> {
            let hook = HOOKS.iter().find(|hook| hook.name == name).unwrap();
            hook.candidates(&NO_TYPES, choice).iter().map(|candidate| candidate.program).collect()
        };
        let only = BackendChoice::Only;
        let end = ["fuse_request_end", "fuse_request_end_raw", "request_end", "request_end_probe"];
        assert_eq!(programs("fuse_request_end", BackendChoice::Auto), end);
        assert_eq!(programs("fuse_request_end", only(BackendKind::Tracepoint)), end[..2]);
        assert_eq!(programs("fuse_request_end", only(BackendKind::Fentry)), end[2..3]);
        assert_eq!(programs("fuse_request_end", only(BackendKind::Kprobe)), end[3..]);
        assert_eq!(programs(SYS_EXIT, only(BackendKind::Kprobe)), ["sys_exit", "sys_exit_raw"]);
        assert!(programs(ABORT, only(BackendKind::Tracepoint)).is_empty());
    }
}
