//! Loads the kernel object and attaches its programs: for each hook, the first program that really loads and attaches.

use std::borrow::Cow;
use std::io;

use aya::maps::{Map, MapError};
use aya::programs::{Program, ProgramError};
use aya::{Btf, BtfError, Ebpf, EbpfError, EbpfLoader};
use detector_common::layout::{CALLS_SYMBOL, CallTable, LAYOUT_SYMBOL, Layout};
use thiserror::Error;

use super::attach::Attachment;
use super::environment::Environment;
use super::hooks::{Candidate, Form, HOOKS, Hook, HookState, HookStatus};
use super::layout::{self, Kernel as KernelTypes};
use super::log;
use super::plain::Plain;
use crate::model::BackendKind;

/// Built from `detector-ebpf/` by `cargo xtask build-ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../detector-ebpf/object/fuse-detector.bpfel.o");

/// Why a program is not attached.
#[derive(Debug, Error)]
pub enum HookError {
    /// The kernel has no such tracepoint.
    #[error("this kernel has no tracepoint {tracepoint}")]
    NoTracepoint {
        /// Its name.
        tracepoint: &'static str,
    },
    /// The kernel's structures lack what the program reads.
    #[error("this kernel's BTF lacks {}", .members.join(", "))]
    NoMember {
        /// Which, as `structure.member`.
        members: Vec<&'static str>,
    },
    /// The kernel refused to load or attach a program.
    #[error("{program}: {action} failed: {error}{}{}", clause(.blame), clause(.log))]
    Refused {
        /// Which program of the kernel object.
        program: &'static str,
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        error: io::Error,
        /// What is to blame, where it can be told.
        blame: Option<String>,
        /// The end of the verifier's log.
        log: Option<String>,
    },
    /// Nothing was tried, because of what came before.
    #[error("{0}")]
    Earlier(String),
}

fn clause(text: &Option<String>) -> Cow<'_, str> {
    text.as_ref().map_or(Cow::Borrowed(""), |text| Cow::Owned(format!("; {text}")))
}

impl HookError {
    const fn state(&self) -> HookState {
        match self {
            Self::NoTracepoint { .. } | Self::NoMember { .. } => HookState::Unsupported,
            Self::Refused { .. } | Self::Earlier(_) => HookState::Refused,
        }
    }
}

/// The kernel object, loaded, and what became of each hook.
pub(super) struct Loaded {
    pub ebpf: Ebpf,
    pub hooks: Vec<HookStatus>,
    /// The program for system calls, ready to be attached.
    pub on_demand: Option<Candidate>,
}

/// Tries everything. `Err` holds the hooks' rows when not even the object could be loaded.
pub(super) fn load(environment: &Environment, kernel_log: bool) -> Result<Loaded, Vec<HookStatus>> {
    let types = match layout::read() {
        Ok(types) => types,
        Err(error) => {
            tracing::debug!(%error, "reading the kernel's types");
            return Err(refuse_all(&HookError::Earlier(error.to_string())));
        }
    };
    let earlier = |error: EbpfError| refuse_all(&HookError::Earlier(explain(&error, environment)));
    let mut ebpf = create(&types, kernel_log).map_err(earlier)?;
    let btf = Btf::from_sys_fs().map_err(|error| earlier(error.into()))?;
    let mut on_demand = None;
    let mut hooks = Vec::with_capacity(HOOKS.len());
    for hook in &HOOKS {
        let result = try_hook(&mut ebpf, &btf, hook, &types, environment);
        if let (Ok(candidate), true) = (&result, hook.on_demand) {
            on_demand = Some(*candidate);
        }
        hooks.push(row(hook, result));
    }
    Ok(Loaded { ebpf, hooks, on_demand })
}

/// Creates the maps. The programs are not loaded yet.
fn create(types: &KernelTypes, kernel_log: bool) -> Result<Ebpf, EbpfError> {
    let layout: Plain<Layout> = Plain(types.layout);
    let calls: Plain<CallTable> = Plain(layout::calls());
    let level = if kernel_log { log::LEVEL_ALL } else { log::LEVEL_NONE };
    let mut loader = EbpfLoader::new();
    loader.override_global(LAYOUT_SYMBOL, &layout, true).override_global(CALLS_SYMBOL, &calls, true).override_global(
        aya_log::LEVEL,
        &level,
        true,
    );
    if !kernel_log {
        // The map can't be left out; one page is the least there is.
        loader.map_max_entries(log::MAP, 4096);
    }
    loader.load(OBJECT)
}

/// What a failure to create the maps means.
fn explain(error: &EbpfError, environment: &Environment) -> String {
    let cause = match error {
        EbpfError::MapError(MapError::CreateError { io_error, .. }) => Some(io_error),
        EbpfError::MapError(MapError::SyscallError(error)) => Some(&error.io_error),
        _ => None,
    };
    let Some(cause) = cause else { return error.to_string() };
    match environment.blame(cause, "") {
        Some(blame) => format!("{error}: {cause}; {blame}"),
        None => format!("{error}: {cause}"),
    }
}

fn try_hook(
    ebpf: &mut Ebpf,
    btf: &Btf,
    hook: &Hook,
    types: &KernelTypes,
    environment: &Environment,
) -> Result<Candidate, HookError> {
    let members = hook.missing(types);
    if !members.is_empty() {
        return Err(HookError::NoMember { members });
    }
    let mut first = None;
    for candidate in hook.candidates(types) {
        let attachment = attach(ebpf, btf, hook, candidate, environment);
        let detached = attachment.and_then(|attachment| {
            if !hook.on_demand {
                return Ok(());
            }
            attachment.detach(ebpf).map_err(|error| refused(candidate, "detaching", error, environment))
        });
        match detached {
            Ok(()) => return Ok(candidate),
            // The first refusal says most: the second candidate is the lesser one.
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or(HookError::NoTracepoint { tracepoint: hook.tracepoint }))
}

fn attach(
    ebpf: &mut Ebpf,
    btf: &Btf,
    hook: &Hook,
    candidate: Candidate,
    environment: &Environment,
) -> Result<Attachment, HookError> {
    let Candidate { program: name, form } = candidate;
    let refused = |action, error| match error {
        ProgramError::Btf(BtfError::UnknownBtfTypeName { .. }) => {
            HookError::NoTracepoint { tracepoint: hook.tracepoint }
        }
        ProgramError::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::ENOENT) => {
            HookError::NoTracepoint { tracepoint: hook.tracepoint }
        }
        error => refused(candidate, action, error, environment),
    };
    let program =
        ebpf.program_mut(name).ok_or_else(|| HookError::Earlier(format!("the kernel object lacks {name}")))?;
    let loaded = match (program, form) {
        (Program::BtfTracePoint(program), Form::Typed) => program.load(hook.tracepoint, btf),
        (Program::RawTracePoint(program), Form::Raw) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    loaded.map_err(|error| refused("loading", error))?;
    Attachment::new(ebpf, candidate, hook.tracepoint).map_err(|error| refused("attaching", error))
}

/// Lines of the verifier's log that are kept: its last ones say what is wrong.
const LOG_TAIL: usize = 4;

pub(super) fn refused(
    candidate: Candidate,
    action: &'static str,
    error: ProgramError,
    environment: &Environment,
) -> HookError {
    let (error, log) = match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let lines: Vec<_> = log.lines().filter(|line| !line.trim().is_empty()).collect();
            let tail = lines.split_at(lines.len().saturating_sub(LOG_TAIL)).1.join(" | ");
            (io_error, tail)
        }
        ProgramError::SyscallError(error) => (error.io_error, String::new()),
        error => (io::Error::other(error), String::new()),
    };
    let blame = environment.blame(&error, &log);
    let log = (!log.is_empty()).then_some(log);
    HookError::Refused { program: candidate.program, action, error, blame, log }
}

fn row(hook: &Hook, result: Result<Candidate, HookError>) -> HookStatus {
    let (status, why) = match result {
        Ok(Candidate { form, .. }) if hook.on_demand => {
            (HookState::NotNeeded, format!("attached only while it is asked for; {}", form.explained()))
        }
        Ok(Candidate { form, .. }) => (HookState::Attached, form.explained().to_owned()),
        Err(error) => (error.state(), error.to_string()),
    };
    let lost = matches!(status, HookState::Unsupported | HookState::Refused).then_some(hook.lost);
    HookStatus { name: hook.tracepoint, backend: BackendKind::Tracepoint, status, why: Some(why), lost }
}

/// The rows when nothing can be tried.
pub(super) fn refuse_all(error: &HookError) -> Vec<HookStatus> {
    HOOKS.iter().map(|hook| row(hook, Err(HookError::Earlier(error.to_string())))).collect()
}

/// The rows when BPF was not asked for.
pub(super) fn not_wanted() -> Vec<HookStatus> {
    let row = |hook: &Hook| HookStatus {
        name: hook.tracepoint,
        backend: BackendKind::Tracepoint,
        status: HookState::NotNeeded,
        why: Some("the portable backend was asked for".to_owned()),
        lost: Some(hook.lost),
    };
    HOOKS.iter().map(row).collect()
}

/// A map of the object, which has it: the object is part of this program.
pub(super) fn take_map<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, MapError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })?;
    T::try_from(map)
}
