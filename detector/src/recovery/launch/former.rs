//! What former launches for the same dead connections have left: daemons that serve visible mounts already, such whose
//! launcher was killed before anybody saw what they serve, and such whose connection was aborted while they live on.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::mark::Mark;
use super::{ready, remaining};
use crate::model::{DeviceNumber, Mount, NamespaceId};
use crate::mounts::mountinfo::{self, Parsed};
use crate::mounts::{environment, holders_of, own_namespace, pids};
use crate::recovery::sys::{self, Looked, MountTarget};
use crate::worker::{AskError, ask};

/// How long a daemon whose connection was aborted may take to save what it has.
const LAST_WISH: Duration = Duration::from_secs(2);
/// How long a killed one is waited for: what it holds is its successor's then.
const PATIENCE: Duration = Duration::from_secs(1);
/// A chain of parents longer than this is none.
const GENERATIONS: usize = 64;

/// A process with a mark for the caller's namespace.
pub(in crate::recovery) struct Former {
    pub pid: u32,
    /// Opened before anything was read of it: a signal reaches that process or nobody.
    handle: OwnedFd,
    namespace: NamespaceId,
    mark: Mark,
    /// The connections that it serves: as the kernel tells (Linux 6.18), or else, for one that was launched for a single
    /// connection, what is mounted at that one's places where the daemon lives.
    serves: Vec<DeviceNumber>,
}

/// Those that hold `/dev/fuse`. Who lives in the caller's own mount namespace is looked at only if a file system like a dead
/// one is mounted there.
///
/// The environment lies in the process's own memory, and to read it can wait for a process that is stuck while it changes its
/// mappings. So it is asked of few, and the job's deadline holds.
///
/// # Errors
/// The process table can't be read.
pub(in crate::recovery) fn find(dead: &[Mount], table: &Parsed) -> io::Result<Vec<Former>> {
    let own = own_namespace()?;
    let somebody_is_alike = table.mounts.iter().any(|mount| dead.iter().any(|dead| is_like(mount, dead)));
    let elsewhere = |pid: &u32| namespace_of(*pid).is_some_and(|namespace| somebody_is_alike || namespace != own);
    let holders = holders_of(&pids()?.into_iter().filter(elsewhere).collect::<Vec<_>>());
    let mut found: Vec<u32> =
        holders.by_connection.values().chain([&holders.unattributed]).flatten().copied().collect();
    found.sort_unstable();
    found.dedup();
    let former = |pid: u32| {
        let handle = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        let (mark, namespace) = (mark_of(pid, own)?, namespace_of(pid)?);
        let holds = |(device, pids): (&DeviceNumber, &Vec<u32>)| pids.contains(&pid).then_some(*device);
        let mut serves: Vec<_> = holders.by_connection.iter().filter_map(holds).collect();
        if serves.is_empty() && namespace != own && mark.is_for_one() {
            // Of the dead ones, copies can hang there.
            serves = mounted_at(pid, namespace, dead).into_iter().filter(|device| !mark.names(*device)).collect();
        }
        Some(Former { pid, handle, namespace, mark, serves })
    };
    Ok(found.into_iter().filter_map(former).collect())
}

/// Another file system than the dead one, of its type and source, that was mounted by whom it was mounted: an ordinary user
/// can give a daemon any environment, but no other `user_id` than his own.
fn is_like(mount: &Mount, dead: &Mount) -> bool {
    let owner = |mount: &Mount| {
        let options = mount.super_options.to_string_lossy().into_owned();
        let ids = options.split(',').filter(|option| option.starts_with("user_id=") || option.starts_with("group_id="));
        ids.map(str::to_owned).collect::<Vec<_>>()
    };
    mount.device != dead.device
        && (&mount.fs_type, &mount.source) == (&dead.fs_type, &dead.source)
        && owner(mount) == owner(dead)
}

/// A mount from which all mounts of the dead connection can be healed, of a daemon that was launched for that, and the daemon's
/// process id. It answers, or the cut came right after it was moved beneath a dead one: nobody can ask it before that is
/// taken away.
pub(in crate::recovery) fn serving(dead: &[Mount], table: &Parsed, formers: &[Former]) -> Option<(Mount, u32)> {
    let marked: Vec<&Former> = formers.iter().filter(|former| former.mark.is_for(dead)).collect();
    let server = |mount: &Mount| marked.iter().find(|former| former.serves.contains(&mount.device));
    let fits = |mount: &&Mount| dead.iter().all(|dead| is_like(mount, dead) && dead.root.starts_with(&mount.root));
    let mut mounts = table.mounts.iter().filter(fits).filter_map(|mount| Some((mount, server(mount)?.pid)));
    let is_beneath = |mount: &Mount| {
        let on_it = |other: &&Mount| other.parent == mount.id && other.mount_point == mount.mount_point;
        table.mounts.iter().filter(on_it).any(|other| dead.iter().any(|dead| dead.device == other.device))
    };
    mounts.find(|(mount, _)| is_beneath(mount) || ready::answers(mount)).map(|(mount, pid)| (mount.clone(), pid))
}

/// Ends those that serve nothing that anybody can see. What was done, for the log.
/// `launched`: those that are known to serve a dead one.
pub(in crate::recovery) fn make_way(
    dead: &[Mount],
    table: &Parsed,
    formers: &[Former],
    launched: &[u32],
) -> Vec<String> {
    let mut done = Vec::new();
    for former in formers {
        let pid = former.pid;
        if former.is_orphan(dead, table) {
            former.end(Duration::ZERO);
            done.push(format!("ended process {pid}: it was launched before, and nobody sees what it serves"));
        } else if former.is_aborted(dead, launched) {
            former.end(LAST_WISH);
            done.push(format!(
                "ended process {pid}: it was launched before, and lived on when its connection was aborted"
            ));
        }
    }
    done
}

impl Former {
    /// Launched for one of these; its launcher is gone, and what it serves is not mounted in the caller's namespace.
    fn is_orphan(&self, dead: &[Mount], table: &Parsed) -> bool {
        let unseen = |device: &DeviceNumber| table.mounts.iter().all(|mount| mount.device != *device);
        let serves_unseen = !self.serves.is_empty() && self.serves.iter().all(unseen);
        let own = table.mounts.first().map(|mount| mount.namespace);
        own != Some(self.namespace) && self.mark.is_for(dead) && serves_unseen && !self.has_launcher()
    }

    /// A process above it in its mount namespace, which was made by the launcher, has no mark: the launcher itself.
    fn has_launcher(&self) -> bool {
        let above = |pid: &u32| parent_of(*pid).filter(|parent| namespace_of(*parent) == Some(self.namespace));
        std::iter::successors(above(&self.pid), above).take(GENERATIONS).any(|pid| !is_marked(pid))
    }

    /// All that it serves is dead by the kernel's word.
    fn is_aborted(&self, dead: &[Mount], launched: &[u32]) -> bool {
        let is_dead = |device: &DeviceNumber| dead.iter().filter(|dead| dead.device == *device).any(is_dead_now);
        match self.serves.as_slice() {
            [] => self.mark.is_for_one() && launched.contains(&self.pid) && dead.iter().any(is_dead_now),
            devices => devices.iter().all(is_dead),
        }
    }

    fn end(&self, patience: Duration) {
        // An error says that it has ended.
        if !patience.is_zero() {
            let _ = pidfd_send_signal(&self.handle, Signal::TERM);
            if self.ends_within(patience) {
                return;
            }
        }
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        self.ends_within(PATIENCE);
    }

    fn ends_within(&self, patience: Duration) -> bool {
        let mut events = [PollFd::from_borrowed_fd(self.handle.as_fd(), PollFlags::IN)];
        poll(&mut events, Some(&remaining(Instant::now() + patience))).is_ok_and(|ready| ready > 0)
    }
}

/// What is seen where one of these is mounted, in the process's namespace.
fn mounted_at(pid: u32, namespace: NamespaceId, dead: &[Mount]) -> Vec<DeviceNumber> {
    let text = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    visible_at(&mountinfo::parse(&text, namespace).mounts, dead)
}

fn visible_at(table: &[Mount], dead: &[Mount]) -> Vec<DeviceNumber> {
    let at_a_place = |mount: &&Mount| dead.iter().any(|dead| dead.mount_point == mount.mount_point);
    let covers = |other: &Mount, mount: &Mount| other.parent == mount.id && other.mount_point == mount.mount_point;
    let is_seen = |mount: &&Mount| !table.iter().any(|other| covers(other, mount));
    let mut found: Vec<_> = table.iter().filter(at_a_place).filter(is_seen).map(|mount| mount.device).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn is_dead_now(mount: &Mount) -> bool {
    matches!(sys::look_at(&MountTarget::from(mount)), Ok(Looked::Same(seen))
        if matches!(ask(seen.fd.as_fd(), mount.owner_only()), Err(AskError::Dead(_))))
}

fn environment_of(pid: u32) -> Option<Vec<std::ffi::OsString>> {
    Some(environment(&fs::read(format!("/proc/{pid}/environ")).ok()?))
}

fn mark_of(pid: u32, own: NamespaceId) -> Option<Mark> {
    Mark::of(&environment_of(pid)?, own)
}

fn is_marked(pid: u32) -> bool {
    environment_of(pid).is_some_and(|env| env.iter().any(Mark::is_part))
}

fn namespace_of(pid: u32) -> Option<NamespaceId> {
    // The inode number of the namespace's file is its id; stat follows the link (namespaces(7)).
    Some(NamespaceId(fs::metadata(PathBuf::from(format!("/proc/{pid}/ns/mnt"))).ok()?.ino()))
}

/// Field 4 of proc_pid_stat(5); the name before it can contain anything.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_layers_the_one_on_top_is_seen() {
        let table = mountinfo::parse(
            b"30 1 0:50 / /m rw - fuse a rw\n31 30 0:51 / /m rw - fuse a rw\n32 1 0:52 / /other rw - fuse a rw\n",
            NamespaceId(1),
        );
        let dead = &table.mounts[..1];
        assert_eq!(visible_at(&table.mounts, dead), [DeviceNumber { major: 0, minor: 51 }]);
        assert_eq!(visible_at(&table.mounts[..1], dead), [DeviceNumber { major: 0, minor: 50 }]);
        assert_eq!(visible_at(&table.mounts[2..], dead), []);
    }
}
