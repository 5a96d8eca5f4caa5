//! The kernel's side of detection: loads the kernel programs, tells what they tell, reads what they count, and says
//! which of them this kernel and these privileges allow.
//!
//! [`load`] chooses, hook by hook, by really loading and attaching, never by kernel version. Without BPF there is no
//! [`Kernel`], and detection rests on what [`crate::mounts`] watches: the portable backend.

mod attach;
mod btf;
mod counters;
mod doctor;
mod environment;
mod events;
mod hooks;
mod layout;
mod load;
mod log;
mod plain;
mod prove;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{MapData, MapError, RingBuf};
use thiserror::Error;

use self::attach::Attachment;
use self::counters::Maps;
use self::environment::Environment;
use self::hooks::Candidate;
use self::log::KernelLog;
use crate::model::{BackendKind, DeviceNumber};

pub use self::counters::{ConnectionCounters, Counters, PendingRequest, VfsErrors};
pub use self::doctor::{BtfState, Doctor, Verdict, examine, release};
pub use self::environment::{Capability, Healing, Lockdown, MOUNT_CAPABILITY};
pub use self::events::{EventStream, KernelEvent};
pub use self::hooks::{HookState, HookStatus, SYS_EXIT};
pub use self::layout::LayoutError;
pub use self::load::HookError;

/// What of a kernel's types, given as BTF, is not as the programs take it to be: they are not attached where they read it. With
/// `module`, FUSE's own types where it is a module.
///
/// # Errors
/// When the bytes are no BTF that is understood.
pub fn unfit_types(kernel: &[u8], module: Option<&[u8]>) -> Result<Vec<String>, LayoutError> {
    let described = layout::Described { kernel, module, modules: module.is_some() };
    Ok(layout::resolve(&described)?.unfit.iter().map(ToString::to_string).collect())
}

/// Which backend is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendChoice {
    /// The best that works.
    #[default]
    Auto,
    /// This one, or nothing. [`BackendKind::Portable`]: no BPF, even where it would work.
    Only(BackendKind),
}

/// What [`load`] is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// The backend.
    pub backend: BackendChoice,
    /// Whether the kernel programs say on the log what they do.
    pub kernel_log: bool,
}

/// What detection rests on.
pub struct Detection {
    /// The backend in use.
    pub backend: BackendKind,
    /// The kernel programs; `None` in the portable backend.
    pub kernel: Option<Kernel>,
    /// How each hook fared.
    pub hooks: Vec<HookStatus>,
}

impl Detection {
    /// Whether the answers to requests are seen, and with them which connection serves, and through whom.
    pub fn sees_answers(&self) -> bool {
        self.hooks.iter().any(|hook| hook.name == hooks::ANSWER && hook.status == HookState::Attached)
    }
}

/// There is no detection of the kind that was asked for.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A backend was asked for and its programs are not attached.
    #[error("the {} backend does not work here: {}", .wanted.as_str(), reasons(.hooks))]
    NotThis {
        /// Which backend.
        wanted: BackendKind,
        /// Every hook, with the reason.
        hooks: Vec<HookStatus>,
    },
    /// Not even the portable backend works.
    #[error("no detection is possible here: {}", reasons(.hooks))]
    Nothing {
        /// Every hook, with the reason.
        hooks: Vec<HookStatus>,
    },
}

impl LoadError {
    /// How each hook fared.
    pub fn hooks(&self) -> &[HookStatus] {
        match self {
            Self::NotThis { hooks, .. } | Self::Nothing { hooks } => hooks,
        }
    }
}

/// Each reason once: often they are all the same.
fn reasons(hooks: &[HookStatus]) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for hook in hooks.iter().filter(|hook| matches!(hook.status, HookState::Refused | HookState::Unsupported)) {
        if let Some(why) = hook.why.as_deref().filter(|why| !reasons.contains(why)) {
            reasons.push(why);
        }
    }
    reasons.join("; ")
}

/// Loads and attaches what works here.
///
/// # Errors
/// With [`BackendChoice::Auto`] only when not even the portable backend can work (no /proc); with
/// [`BackendChoice::Only`] when that backend does not.
pub fn load(options: &LoadOptions) -> Result<Detection, LoadError> {
    let (kernel, mut hooks) = match options.backend {
        BackendChoice::Only(BackendKind::Portable) => (None, load::not_wanted()),
        choice => try_kernel(choice, options.kernel_log),
    };
    give_back_memory();
    let backend = kernel.as_ref().map_or(BackendKind::Portable, |(_, backend)| *backend);
    if let BackendChoice::Only(wanted) = options.backend
        && wanted != backend
    {
        return Err(LoadError::NotThis { wanted, hooks });
    }
    if let Some((kernel, backend)) = kernel {
        hooks.extend(hooks::portable());
        return Ok(Detection { backend, kernel: Some(kernel), hooks });
    }
    let portable = hooks::portable();
    let works = portable.iter().any(|hook| hook.name == hooks::MOUNTINFO && hook.status == HookState::Attached);
    hooks.extend(portable);
    if works {
        Ok(Detection { backend: BackendKind::Portable, kernel: None, hooks })
    } else {
        Err(LoadError::Nothing { hooks })
    }
}

/// The kernel programs, if any of them is attached, and the backend that they are.
fn try_kernel(choice: BackendChoice, kernel_log: bool) -> (Option<(Kernel, BackendKind)>, Vec<HookStatus>) {
    // FUSE as a module is loaded by the first who opens its device; its functions are there from then on.
    let _ = std::fs::File::open("/dev/fuse");
    let environment = Environment::read();
    let mut loaded = match load::load(&environment, choice, kernel_log) {
        Ok(loaded) => loaded,
        Err(hooks) => return (None, hooks),
    };
    let hooks = std::mem::take(&mut loaded.hooks);
    if !hooks.iter().any(|hook| hook.status == HookState::Attached) {
        return (None, hooks);
    }
    let backend = loaded.backend;
    match Kernel::new(loaded, kernel_log) {
        Ok(kernel) => (Some((kernel, backend)), hooks),
        Err(error) => (None, load::refuse_all(&HookError::Earlier(format!("opening the maps: {error}")))),
    }
}

/// Reading the kernel's types took tens of megabytes, now free, that the allocator would keep.
fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) is thread-safe and has no other precondition.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The kernel programs, attached. They are detached when it is dropped.
pub struct Kernel {
    ebpf: Ebpf,
    maps: Arc<Maps>,
    events: Option<RingBuf<MapData>>,
    kernel_log: bool,
    on_demand: Option<Candidate>,
    refusals: bool,
    calls: Option<Attachment>,
}

impl Kernel {
    fn new(loaded: load::Loaded, kernel_log: bool) -> Result<Self, MapError> {
        let load::Loaded { mut ebpf, events, on_demand, refusals, .. } = loaded;
        let maps = Arc::new(Maps::open(&mut ebpf)?);
        // The trial's own request was told to nobody.
        counters::lock(&maps.told_busy).set(0, 0, 0)?;
        Ok(Self { ebpf, maps, events: Some(events), kernel_log, on_demand, refusals, calls: None })
    }

    /// Reads what the programs count.
    pub fn counters(&self) -> Counters {
        Counters(Arc::clone(&self.maps))
    }

    /// The events; `None` when they were taken before.
    ///
    /// # Errors
    /// When the ring buffer can't be registered with the tokio runtime, within which this has to be called.
    pub fn take_events(&mut self) -> io::Result<Option<EventStream>> {
        let Some(ring) = self.events.take() else { return Ok(None) };
        let log = if self.kernel_log { Some(KernelLog::open(&mut self.ebpf)?) } else { None };
        EventStream::new(ring, log, Arc::clone(&self.maps.malformed)).map(Some)
    }

    /// Makes a process a known daemon, whose end is told: one learnt otherwise than by its answers. With a device, its
    /// answers there are no news either.
    ///
    /// # Errors
    /// When the map is full.
    pub fn watch_daemon(&mut self, pid: u32, device: Option<DeviceNumber>) -> io::Result<()> {
        self.maps.watch(pid, device.map(DeviceNumber::to_kernel)).map_err(io::Error::other)
    }

    /// Forgets daemons that are gone or serve nothing any more, and what was counted for connections that are gone. Costs a
    /// walk through the maps, so it is better called once for many.
    pub fn forget(&mut self, daemons: &HashSet<u32>, connections: &HashSet<DeviceNumber>) {
        self.maps.forget(daemons, &connections.iter().map(|device| device.to_kernel()).collect());
    }

    /// Has the next request that is sent to any daemon told, once.
    ///
    /// # Errors
    /// When the map can't be written, which is a fault of this program.
    pub fn tell_when_busy(&self) -> io::Result<()> {
        counters::lock(&self.maps.told_busy).set(0, 0, 0).map_err(io::Error::other)
    }

    /// Attaches or detaches the program that watches every system call's result. Does nothing when it is so already, or when
    /// dead connections tell themselves whom they refuse. A
    /// detached program may still see some calls: the kernel takes it off the tracepoint in a work queue.
    ///
    /// # Errors
    /// When the kernel did not allow that program in the first place, or refuses now.
    pub fn set_vfs_errors(&mut self, attached: bool) -> Result<(), HookError> {
        if self.refusals && self.on_demand.is_none() {
            return Ok(());
        }
        let candidate = self.on_demand.ok_or(HookError::Absent { place: btf::Place::Tracepoint, name: SYS_EXIT })?;
        let refused = |action, error| load::refused(candidate, action, error, &Environment::read());
        match (attached, self.calls.take()) {
            (true, None) => {
                let attachment = Attachment::new(&mut self.ebpf, candidate);
                self.calls = Some(attachment.map_err(|error| refused("attaching", error))?);
            }
            (false, Some(attachment)) => {
                attachment.detach(&mut self.ebpf).map_err(|error| refused("detaching", error))?;
            }
            (true, attachment @ Some(_)) => self.calls = attachment,
            (false, None) => {}
        }
        Ok(())
    }
}
