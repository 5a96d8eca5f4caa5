//! Loads the kernel object and attaches its programs: for each hook, the first program that really loads and attaches.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use aya::maps::{Map, MapData, MapError, RingBuf};
use aya::programs::{Program, ProgramError};
use aya::{Btf, BtfError, Ebpf, EbpfError, EbpfLoader};
use detector_common::layout::{CALLS_SYMBOL, CallTable, LAYOUT_SYMBOL, Layout};
use detector_common::verdict::FUSE_INIT;
use thiserror::Error;

use super::BackendChoice;
use super::attach::Attachment;
use super::btf::Place;
use super::environment::Environment;
use super::hooks::{
    ABORT, ANSWER, Candidate, Form, HOOKS, Hook, HookState, HookStatus, NO_TYPES, REFUSE, SEND, SYS_EXIT, When,
};
use super::layout::{self, Kernel as KernelTypes, Unfit};
use super::log;
use super::plain::Plain;
use super::prove::{self, Seen};
use crate::model::BackendKind;

/// Built from `detector-ebpf/` by `cargo xtask build-ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../detector-ebpf/object/fuse-detector.bpfel.o");

/// Why a program is not attached.
#[derive(Debug, Error)]
pub enum HookError {
    /// The kernel has no such tracepoint or function.
    #[error("this kernel has no {place} {name}")]
    Absent {
        /// Which of the two.
        place: Place,
        /// Its name.
        name: &'static str,
    },
    /// The backend that was asked for does without.
    #[error("{0}")]
    NotWanted(String),
    /// What it told of a connection made for a trial was not so.
    #[error("{program}: {why}")]
    Untrue {
        /// Which program of the kernel object.
        program: &'static str,
        /// What was seen.
        why: String,
    },
    /// By the kernel's own word, the program would read something else than it means to.
    #[error("this kernel is not as its programs take it to be: {}", .what.join("; "))]
    Unfit {
        /// What is not, and how it is instead.
        what: Vec<String>,
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
            Self::Absent { .. } | Self::Unfit { .. } => HookState::Unsupported,
            Self::NotWanted(_) => HookState::NotNeeded,
            Self::Refused { .. } | Self::Untrue { .. } | Self::Earlier(_) => HookState::Refused,
        }
    }
}

/// The kernel object, loaded, and what became of each hook.
pub(super) struct Loaded {
    pub ebpf: Ebpf,
    pub events: RingBuf<MapData>,
    pub hooks: Vec<HookStatus>,
    /// The program for system calls, ready to be attached, where nothing better tells the same.
    pub on_demand: Option<Candidate>,
    /// Whether errors that applications get are told by the connection that gives them.
    pub refusals: bool,
    /// What detection rests on.
    pub backend: BackendKind,
}

/// Tries everything. `Err` holds the hooks' rows when not even the object could be loaded.
pub(super) fn load(
    environment: &Environment,
    choice: BackendChoice,
    kernel_log: bool,
) -> Result<Loaded, Vec<HookStatus>> {
    let types = match layout::read() {
        Ok(types) => types,
        Err(error) => {
            tracing::debug!(%error, "reading the kernel's types");
            return Err(refuse_all(&HookError::Earlier(error.to_string())));
        }
    };
    attach(types, environment, choice, kernel_log)
}

/// The same, for types that were read.
fn attach(
    types: KernelTypes,
    environment: &Environment,
    choice: BackendChoice,
    kernel_log: bool,
) -> Result<Loaded, Vec<HookStatus>> {
    let earlier = |error: EbpfError| refuse_all(&HookError::Earlier(explain(&error, environment)));
    let mut ebpf = create(&types, kernel_log).map_err(earlier)?;
    let btf = Btf::from_sys_fs().map_err(|error| earlier(error.into()))?;
    let mut events = take_map(&mut ebpf, "EVENTS").map_err(|error| earlier(error.into()))?;
    let mut trial = Trial { ebpf, btf, types, environment, choice, found: BTreeMap::new() };
    for hook in &HOOKS {
        trial.try_hook(hook);
    }
    trial.prove(&mut events);
    let hooks = HOOKS.iter().filter_map(|hook| Some(row(hook, trial.found.get(hook.name)?))).collect();
    let (backend, refusals) = (trial.backend(), trial.serves(REFUSE).is_some());
    let on_demand = trial.serves(SYS_EXIT);
    Ok(Loaded { ebpf: trial.ebpf, events, hooks, on_demand, refusals, backend })
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

/// A hook that works: the program, and its attachment where it is attached for good.
struct Found {
    candidate: Candidate,
    attachment: Option<Attachment>,
}

/// The hooks, tried one after another.
struct Trial<'a> {
    ebpf: Ebpf,
    btf: Btf,
    types: KernelTypes,
    environment: &'a Environment,
    choice: BackendChoice,
    found: BTreeMap<&'static str, Result<Found, HookError>>,
}

impl Trial<'_> {
    /// The program that serves the hook, if one does.
    fn serves(&self, name: &str) -> Option<Candidate> {
        Some(self.found.get(name)?.as_ref().ok()?.candidate)
    }

    fn backend(&self) -> BackendKind {
        self.serves(ABORT).map_or(BackendKind::Tracepoint, |candidate| candidate.form.backend())
    }

    fn try_hook(&mut self, hook: &Hook) {
        let result = match self.unwanted(hook) {
            Some(why) => Err(HookError::NotWanted(why)),
            None => self.first_that_works(hook),
        };
        let result = match (result, hook.when) {
            (Err(HookError::Absent { .. }), When::WithAbortIfThere { without }) => {
                Err(HookError::NotWanted(without.to_owned()))
            }
            (result, _) => result,
        };
        self.found.insert(hook.name, result);
    }

    fn unwanted(&self, hook: &Hook) -> Option<String> {
        let served = |name| self.serves(name).is_some();
        match hook.when {
            When::WithAbort | When::WithAbortIfThere { .. } if !served(ABORT) => {
                Some(format!("of use only beside {ABORT}"))
            }
            When::OnDemand if served(REFUSE) && served(ABORT) => Some(format!("{REFUSE} and {ABORT} tell the same")),
            _ if hook.candidates(&self.types, self.choice).is_empty() => match self.choice {
                BackendChoice::Only(backend) => Some(format!("the {} backend was asked for", backend.as_str())),
                BackendChoice::Auto => None,
            },
            _ => None,
        }
    }

    fn first_that_works(&mut self, hook: &Hook) -> Result<Found, HookError> {
        check(hook.unfit(&self.types))?;
        let mut first: Option<HookError> = None;
        for candidate in hook.candidates(&self.types, self.choice) {
            let attached = check(candidate.unfit(&self.types)).and_then(|()| self.attach(candidate));
            if let Err(error) = &attached {
                tracing::debug!(program = candidate.program, %error, "a kernel program does not work here");
            }
            match attached {
                Ok(attachment) if hook.when == When::OnDemand => {
                    let detached = attachment.detach(&mut self.ebpf);
                    let refused = |error| refused(candidate, "detaching", error, self.environment);
                    return detached.map_err(refused).map(|()| Found { candidate, attachment: None });
                }
                Ok(attachment) => return Ok(Found { candidate, attachment: Some(attachment) }),
                // The first refusal says most: later candidates are the lesser ones. That one of a function's names is
                // absent says least.
                Err(error) if first.as_ref().is_none_or(|first| matches!(first, HookError::Absent { .. })) => {
                    first = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(first.unwrap_or(HookError::Absent { place: Place::Tracepoint, name: hook.name }))
    }

    fn attach(&mut self, candidate: Candidate) -> Result<Attachment, HookError> {
        let Candidate { program: name, form, target } = candidate;
        let refused = |action, error: ProgramError| match missing(&error) {
            true => HookError::Absent { place: form.place(), name: target },
            false => refused(candidate, action, error, self.environment),
        };
        let program = self.ebpf.program_mut(name);
        let program = program.ok_or_else(|| HookError::Earlier(format!("the kernel object lacks {name}")))?;
        let loaded = match (&mut *program, form) {
            (Program::BtfTracePoint(program), Form::Typed) => program.load(target, &self.btf),
            (Program::RawTracePoint(program), Form::Raw) => program.load(),
            (Program::FEntry(program), Form::Fentry) => program.load(target, &self.btf),
            (Program::KProbe(program), Form::Kprobe) => program.load(),
            _ => Err(ProgramError::UnexpectedProgramType),
        };
        loaded.map_err(|error| refused("loading", error))?;
        Attachment::new(&mut self.ebpf, candidate).map_err(|error| {
            // It may be tried on another place.
            let _ = self.ebpf.program_mut(name).map(unload);
            refused("attaching", error)
        })
    }

    /// Has the kernel make and end a connection that nobody sees, and looks whether the hooks tell of it, under the number
    /// that it has. What they read is not trusted otherwise.
    fn prove(&mut self, events: &mut RingBuf<MapData>) {
        if [ABORT, SEND, ANSWER].into_iter().all(|name| self.serves(name).is_none()) {
            return;
        }
        match prove::run(&mut self.ebpf, events) {
            Ok(seen) => self.refuse_untrue(&seen),
            Err(error) if self.types.assumed => {
                let why = format!(
                    "what it reads can't be checked, since no FUSE connection could be made for a trial: {error}"
                );
                self.refuse(|hook, candidate| hook.reads_fuse() || candidate.form.place() == Place::Function, &why);
            }
            Err(error) => tracing::debug!(%error, "the hooks were not tried on a connection"),
        }
        // What was refused may have stood in its stead. One that serves is loaded, and can't be loaded twice.
        if self.serves(SYS_EXIT).is_none() {
            HOOKS.iter().filter(|hook| hook.when == When::OnDemand).for_each(|hook| self.try_hook(hook));
        }
    }

    fn refuse_untrue(&mut self, seen: &Seen) {
        let untrue = |what| {
            let device = seen.device;
            format!(
                "a FUSE connection made for a trial ({device}) {what} and this was not told, so this kernel's structures are not \
                 what they were taken for"
            )
        };
        if !seen.aborted && self.serves(ABORT).is_some() {
            self.refuse(|_, candidate| candidate.form.place() == Place::Function, &untrue("was ended"));
        }
        if seen.sent != Some(FUSE_INIT) {
            self.refuse(|hook, _| hook.name == SEND, &untrue("was sent FUSE_INIT"));
        }
        if !seen.answered || seen.sent.is_some_and(|opcode| opcode != FUSE_INIT) {
            self.refuse(|hook, _| hook.name == ANSWER, &untrue("had FUSE_INIT ended"));
        }
    }

    /// Takes the hooks off that are chosen and serve: what is attached tells of things that mean nothing.
    fn refuse(&mut self, chosen: impl Fn(&Hook, Candidate) -> bool, why: &str) {
        for hook in &HOOKS {
            let Some(candidate) = self.serves(hook.name).filter(|candidate| chosen(hook, *candidate)) else { continue };
            let untrue = Err(HookError::Untrue { program: candidate.program, why: why.to_owned() });
            if let Some(Ok(Found { attachment: Some(attachment), .. })) = self.found.insert(hook.name, untrue) {
                let _ = attachment.detach(&mut self.ebpf);
            }
        }
    }
}

fn check(unfit: Vec<&Unfit>) -> Result<(), HookError> {
    if unfit.is_empty() {
        Ok(())
    } else {
        Err(HookError::Unfit { what: unfit.into_iter().map(Unfit::to_string).collect() })
    }
}

fn unload(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::BtfTracePoint(program) => program.unload(),
        Program::RawTracePoint(program) => program.unload(),
        Program::FEntry(program) => program.unload(),
        Program::KProbe(program) => program.unload(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// Whether the error says that the kernel has no such place.
fn missing(error: &ProgramError) -> bool {
    match error {
        ProgramError::Btf(BtfError::UnknownBtfTypeName { .. }) => true,
        ProgramError::SyscallError(error) => error.io_error.raw_os_error() == Some(libc::ENOENT),
        _ => false,
    }
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

fn row(hook: &Hook, found: &Result<Found, HookError>) -> HookStatus {
    let (status, why) = match found {
        Ok(Found { candidate, attachment: None }) => {
            (HookState::NotNeeded, format!("attached only while it is asked for; {}", candidate.form.explained()))
        }
        Ok(Found { candidate, attachment: Some(_) }) => (HookState::Attached, candidate.form.explained().to_owned()),
        Err(error) => (error.state(), error.to_string()),
    };
    let serving = found.as_ref().ok().map(|found| found.candidate);
    let name = serving.filter(|_| hook.name == ABORT).map_or(hook.name, |candidate| candidate.target);
    let best = || hook.candidates(&NO_TYPES, BackendChoice::Auto).first().map(|best| best.form.backend());
    let backend = serving.map(|candidate| candidate.form.backend()).or_else(best).unwrap_or(BackendKind::Tracepoint);
    let lost = matches!(status, HookState::Unsupported | HookState::Refused).then_some(hook.lost);
    HookStatus { name, backend, status, why: Some(why), lost }
}

/// The rows when nothing can be tried.
pub(super) fn refuse_all(error: &HookError) -> Vec<HookStatus> {
    let all = HOOKS.iter().filter(|hook| matches!(hook.when, When::Always | When::OnDemand));
    all.map(|hook| row(hook, &Err(HookError::Earlier(error.to_string())))).collect()
}

/// The rows when BPF was not asked for.
pub(super) fn not_wanted() -> Vec<HookStatus> {
    let why = || Err(HookError::NotWanted("the portable backend was asked for".to_owned()));
    let all = HOOKS.iter().filter(|hook| matches!(hook.when, When::Always | When::OnDemand));
    all.map(|hook| HookStatus { lost: Some(hook.lost), ..row(hook, &why()) }).collect()
}

/// A map of the object, which has it: the object is part of this program.
pub(super) fn take_map<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, MapError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = ebpf.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })?;
    T::try_from(map)
}

#[cfg(test)]
mod tests;
