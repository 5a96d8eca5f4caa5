//! The launcher itself: between the worker and what it launches.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::mount::MountPropagationFlags;

use super::channel::{Channel, FromGuardian, ToGuardian};
use super::mark::Mark;
use super::shed::{self, Told};
use super::stderr::Stderr;
use super::watch::{Arrival, Arrivals, Watch};
use super::{allow_many_descriptors, child, descendants};
use crate::model::{DeviceNumber, Mount, MountId, NamespaceId};
use crate::mounts::{holders_of, mountinfo, own_namespace};
use crate::recovery::error::{RecoverError, Stage};
use crate::recovery::sys::{self, Looked, MountTarget, Seen};
use crate::recovery::{Bring, RecoverJob, heal, table};

/// The launcher's whole life. Ends the process.
pub(super) fn main(job: &RecoverJob, mark: &Mark, channel: Channel, deadline: Instant) -> ! {
    let deadline = match &job.bring {
        Bring::Command { timeout, .. } => deadline.min(Instant::now() + *timeout),
        Bring::Existing(_) | Bring::Respawn(_) => deadline,
    };
    if let Err(error) = launch(job, mark, &channel, deadline) {
        // The worker may have gone: nobody is left to be told.
        let _ = channel.send(&FromGuardian::Failed(error.to_string()), None);
    }
    // SAFETY: _exit(2) ends the process; nothing of the worker's, whose copy this is, is run or flushed.
    unsafe { libc::_exit(0) }
}

/// Launches, hands out clones, and ends what was launched unless it is in use.
fn launch(job: &RecoverJob, mark: &Mark, channel: &Channel, deadline: Instant) -> Result<(), RecoverError> {
    let mut host = HostTable::open().map_err(RecoverError::kernel(Stage::ReadMounts, "/proc/self/mountinfo"))?;
    let mut replacements = Vec::new();
    let done = launch_and_serve(job, mark, channel, deadline, &mut replacements);
    let visible = match &done {
        Ok(()) => replacements.iter().collect(),
        Err(_) => {
            // Ended in use, a daemon would take the mounts with it that are healed already; and where it can't be known, too.
            let visible = host.visible(&replacements);
            if visible.as_ref().is_ok_and(Vec::is_empty) && !host.has_a_commands_own(job) {
                descendants::end_all();
            }
            visible.unwrap_or_default()
        }
    };
    visible.into_iter().for_each(|replacement: &Held| detach_own(&replacement.mount));
    done
}

/// The mount table of the namespace that the worker heals, which this process leaves. A descriptor of mountinfo stays with the
/// namespace and the root that its process had when it was opened (`mounts_open_common` in fs/proc_namespace.c).
struct HostTable {
    file: File,
    namespace: NamespaceId,
    /// The FUSE devices that were mounted there before.
    before: HashSet<DeviceNumber>,
}

impl HostTable {
    fn open() -> io::Result<Self> {
        let (file, namespace) = (File::open("/proc/self/mountinfo")?, own_namespace()?);
        let mut table = Self { file, namespace, before: HashSet::new() };
        table.before = table.read()?.into_iter().map(|mount| mount.device).collect();
        Ok(table)
    }

    fn read(&mut self) -> io::Result<Vec<Mount>> {
        let mut text = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut text)?;
        Ok(mountinfo::parse(&text, self.namespace).mounts)
    }

    /// The replacements that are mounted there. Each is held by a descriptor, so its number is nobody else's.
    fn visible<'a>(&mut self, replacements: &'a [Held]) -> io::Result<Vec<&'a Held>> {
        let now = self.read()?;
        let is_there = |held: &&Held| now.iter().any(|mount| mount.device == held.mount.device);
        Ok(replacements.iter().filter(is_there).collect())
    }

    /// Whether a command has mounted a file system there by itself, and a process below this one serves it.
    fn has_a_commands_own(&mut self, job: &RecoverJob) -> bool {
        let Bring::Command { .. } = job.bring else { return false };
        let Ok(now) = self.read() else { return true };
        let holders = holders_of(&descendants::all());
        now.iter().filter(|mount| job.dead.iter().any(|dead| dead.mount_point == mount.mount_point)).any(|mount| {
            let new = !self.before.contains(&mount.device);
            // It can have the dead one's number, if that was unmounted meanwhile.
            let reused = job.dead.iter().any(|dead| dead.device == mount.device);
            let ours = holders.by_connection.contains_key(&mount.device);
            // Before Linux 6.18 nobody says what a descriptor serves.
            (new || reused) && ours || new && !holders.unattributed.is_empty()
        })
    }
}

fn launch_and_serve(
    job: &RecoverJob,
    mark: &Mark,
    channel: &Channel,
    deadline: Instant,
    replacements: &mut Vec<Held>,
) -> Result<(), RecoverError> {
    let place = job.dead.first().map(|mount| mount.mount_point.clone()).unwrap_or_default();
    isolate(&place)?;
    let own = own_namespace().map_err(RecoverError::kernel(Stage::MakeNamespace, "/proc/thread-self/ns/mnt"));
    let NamespaceId(namespace) = own?;
    tell(channel, &FromGuardian::Isolated { namespace }, &place)?;
    clear_away(job)?;
    let known = shed_others(job)?;
    let before = known.clone();
    let children = watch_children(&place)?;
    let stderr = Stderr::new().map_err(RecoverError::kernel(Stage::Launch, &place))?;
    let child::Started { child, name, notes } =
        child::start(job, mark, &stderr).map_err(RecoverError::kernel(Stage::Launch, &place))?;
    for what in notes {
        tell(channel, &FromGuardian::Noted { what }, &place)?;
    }
    tell(channel, &FromGuardian::Launched { pid: child.id() }, &place)?;

    // After the start: the program's limit stays.
    allow_many_descriptors();
    let Arrivals { arrived, missing } = Watch {
        job,
        channel,
        deadline,
        known,
        children,
        stderr,
        name,
        program: Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)),
        ended: None,
        waiting: job.connections(),
    }
    .until_ready()?;
    tell_arrivals(channel, arrived, replacements, &place)?;
    for (dead, error) in missing {
        tell_missing(channel, dead, &error, &place)?;
    }
    serve(channel, replacements, &before)
}

fn tell_arrivals(
    channel: &Channel,
    arrived: Vec<Arrival>,
    replacements: &mut Vec<Held>,
    place: &Path,
) -> Result<(), RecoverError> {
    let pid = descendants::serving();
    for Arrival { dead, mount, at } in arrived {
        let number = dead.to_kernel();
        match hold(dead, mount) {
            Ok(replacement) => {
                let mount = Box::new((&replacement.mount).into());
                tell(channel, &FromGuardian::Ready { dead: number, mount, at, pid }, place)?;
                replacements.push(replacement);
            }
            Err(error) => tell_missing(channel, dead, &error, place)?,
        }
    }
    Ok(())
}

/// A replacement, and its root held by a descriptor.
struct Held {
    dead: DeviceNumber,
    mount: Mount,
    seen: Seen,
}

fn hold(dead: DeviceNumber, mount: Mount) -> Result<Held, RecoverError> {
    match sys::look_at(&MountTarget::from(&mount))? {
        Looked::Same(seen) => Ok(Held { dead, mount, seen }),
        Looked::Gone => Err(RecoverError::ReplacementGone { path: mount.mount_point }),
    }
}

fn tell_missing(channel: &Channel, dead: DeviceNumber, error: &RecoverError, place: &Path) -> Result<(), RecoverError> {
    tell(channel, &FromGuardian::Missing { dead: dead.to_kernel(), error: error.to_string() }, place)
}

/// A mount namespace in which nothing that is done shows elsewhere, but which follows what is mounted and unmounted on the
/// host: a private one would keep every file system busy that the host unmounts while the daemon lives.
fn isolate(place: &Path) -> Result<(), RecoverError> {
    // An error says that the process leads a session already.
    let _ = nix::unistd::setsid();
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).map_err(RecoverError::kernel(Stage::Launch, place))?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(RecoverError::kernel(Stage::MakeNamespace, place))?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", slave).map_err(RecoverError::kernel(Stage::MakeNamespace, place))
}

fn own_mounts() -> Result<Vec<Mount>, RecoverError> {
    let table = table::own().map_err(RecoverError::kernel(Stage::ReadMounts, "/proc/self/mountinfo"))?;
    Ok(table.mounts)
}

/// Detaches the dead mounts in this namespace, guards below them included.
fn clear_away(job: &RecoverJob) -> Result<(), RecoverError> {
    let before = own_mounts()?;
    for dead in &job.dead {
        let path = &dead.mount_point;
        let is_layer = |seen: &Seen| {
            before.iter().any(|mount| {
                mount.id == seen.id
                    && mount.mount_point == *path
                    && (&mount.fs_type, &mount.source) == (&dead.fs_type, &dead.source)
            })
        };
        // Each round takes away one of the mounts that were there.
        for _ in 0..before.len() {
            match sys::see(path) {
                Ok(seen) if is_layer(&seen) => {
                    sys::detach(seen.fd.as_fd()).map_err(RecoverError::kernel(Stage::Detach, path))?;
                }
                // Below a dead mount that was not cleared away yet, or gone: it is no obstacle then.
                Ok(_) | Err(_) => break,
            }
        }
    }
    Ok(())
}

/// Detaches the FUSE mounts that the program doesn't need. Those that are left.
fn shed_others(job: &RecoverJob) -> Result<HashSet<MountId>, RecoverError> {
    let mut mounts = own_mounts()?;
    let told = Told::of(job, &mounts);
    // Each round takes the topmost layer of every place, until one finds nothing more that can be seen.
    for _ in 0..mounts.len() {
        let detachable = shed::detachable(&mounts, &told);
        let visible = detachable.into_iter().filter_map(|mount| match sys::look_at(&MountTarget::from(mount)) {
            Ok(Looked::Same(seen)) => Some(seen),
            // Another mount hides it. One that can't be told apart is left as well: it is in nobody's way.
            Ok(Looked::Gone) | Err(_) => None,
        });
        let mut progress = false;
        for seen in visible {
            progress |= sys::detach(seen.fd.as_fd()).is_ok();
        }
        if !progress {
            break;
        }
        mounts = own_mounts()?;
    }
    Ok(mounts.into_iter().map(|mount| mount.id).collect())
}

fn watch_children(place: &Path) -> Result<SignalFd, RecoverError> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    // The launched program starts with an empty mask: the standard library resets it.
    mask.thread_block().map_err(RecoverError::kernel(Stage::Launch, place))?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(RecoverError::kernel(Stage::Launch, place))
}

fn tell(channel: &Channel, message: &FromGuardian, place: &Path) -> Result<(), RecoverError> {
    channel.send(message, None).map_err(RecoverError::kernel(Stage::Talk, place))
}

/// Hands out clones until the worker has done its part.
fn serve(channel: &Channel, replacements: &[Held], before: &HashSet<MountId>) -> Result<(), RecoverError> {
    loop {
        // The end of the worker, in whatever way, is the end of what was launched for it, unless that is in use.
        let (request, _) = channel.receive::<ToGuardian>().map_err(|_| RecoverError::GivenUp)?;
        match request {
            ToGuardian::Clone { dead, relative, mount_point } => {
                let (relative, mount_point) = (PathBuf::from(relative), PathBuf::from(mount_point));
                match clone_part(replacements, DeviceNumber::from_kernel(dead), &relative, &mount_point) {
                    Ok((fd, is_directory)) => channel.send(&FromGuardian::Cloned { is_directory }, Some(fd.as_fd())),
                    Err(error) => channel.send(&FromGuardian::Failed(error.to_string()), None),
                }
                .map_err(|_| RecoverError::GivenUp)?;
            }
            ToGuardian::Release => {
                unwanted(before).iter().for_each(detach_own);
                return Ok(());
            }
        }
    }
}

fn clone_part(
    replacements: &[Held],
    dead: DeviceNumber,
    relative: &Path,
    mount_point: &Path,
) -> Result<(OwnedFd, bool), RecoverError> {
    match replacements.iter().find(|replacement| replacement.dead == dead) {
        Some(Held { mount, seen, .. }) => heal::clone_part(seen, mount.owner_only(), relative, mount_point),
        None => Err(RecoverError::ReplacementGone { path: mount_point.to_owned() }),
    }
}

/// What the program mounted in nobody's place: somebody unmounted that one before the daemon died, and wants none. It would
/// stay here, unseen, for as long as the daemon lives. What came from the host is a slave of the host's, and follows it.
fn unwanted(before: &HashSet<MountId>) -> Vec<Mount> {
    // An unreadable table costs nothing but what has been so far: the mounts stay.
    let now = own_mounts().unwrap_or_default();
    now.into_iter().filter(|mount| !before.contains(&mount.id) && mount.propagation.master.is_none()).collect()
}

/// Takes away the mount that the daemon made in this namespace, so that an unmount on the host is the last one and ends the
/// connection. Where propagation took it away already, a slave of the host's may hang there: that one follows the host.
fn detach_own(mount: &Mount) {
    if let Ok(Looked::Same(seen)) = sys::look_at(&MountTarget::from(mount)) {
        // What could not be detached outlives the unmount on the host; to end a daemon that is in use would be worse.
        let _ = sys::detach(seen.fd.as_fd());
    }
}
