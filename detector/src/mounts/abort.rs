//! Who aborts a connection through the control file system, without a kernel program.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sys::fanotify::{EventFFlags, Fanotify, FanotifyEvent, InitFlags, MarkFlags, MaskFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::control::ControlFs;
use super::proc;
use super::ready::register;
use crate::model::{DeviceNumber, Process};

/// Watching the control file system failed.
#[derive(Debug, thiserror::Error)]
pub enum AbortWatchError {
    /// No fanotify group: CAP_SYS_ADMIN is missing, or the kernel has no fanotify.
    #[error("fanotify_init: {0}")]
    Init(#[source] io::Error),
    /// The control file system can't be marked.
    #[error("fanotify_mark on the FUSE control file system: {0}")]
    Mark(#[source] io::Error),
    /// The descriptor can't be registered with the runtime.
    #[error("registering the fanotify descriptor: {0}")]
    Register(#[source] io::Error),
    /// Events can't be read.
    #[error("reading fanotify events: {0}")]
    Read(#[source] io::Error),
}

/// What the watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AbortNotice {
    /// Somebody wrote to a connection's `abort`, which ends it whatever is written.
    Written {
        /// The connection of that number. By now the number may be another's.
        device: DeviceNumber,
        /// Who wrote; `None` if the process is not visible from the agent's pid namespace. The name is missing if it
        /// ended before it could be asked for. The agent's own aborts are told, too.
        process: Option<Process>,
    },
    /// The kernel's queue ran over (fanotify(7), `FAN_Q_OVERFLOW`): some notices are lost.
    Lost,
}

/// Watches all writes to the control file system, through whichever mount of it they are made: the mark is on the
/// superblock, of which there is one. It costs other processes nothing, since no other file is marked.
#[derive(Debug)]
pub struct AbortWatch {
    group: AsyncFd<Fanotify>,
    /// Events that were read together with the last one that was told, first one last.
    pending: Vec<FanotifyEvent>,
}

impl AbortWatch {
    /// Starts watching. Needs a tokio runtime with I/O enabled, CAP_SYS_ADMIN, and CAP_DAC_READ_SEARCH: with each event
    /// the kernel opens the file, which belongs to the user that mounted and nobody may read.
    ///
    /// # Errors
    /// [`AbortWatchError`], all but `Read`.
    pub fn open(control: &ControlFs) -> Result<Self, AbortWatchError> {
        let group = mark(control)?;
        Ok(Self { group: register(group, Interest::READABLE).map_err(AbortWatchError::Register)?, pending: Vec::new() })
    }

    /// Tries it, without a runtime.
    ///
    /// # Errors
    /// Why it does not work here.
    pub fn check() -> Result<(), String> {
        let control = ControlFs::open().map_err(|error| error.to_string())?;
        mark(&control).map(drop).map_err(|error| error.to_string())
    }

    /// Waits for the next notice. Cancel-safe.
    ///
    /// # Errors
    /// [`AbortWatchError::Read`].
    pub async fn next(&mut self) -> Result<AbortNotice, AbortWatchError> {
        loop {
            while let Some(event) = self.pending.pop() {
                if let Some(notice) = notice(&event) {
                    return Ok(notice);
                }
            }
            let mut ready = self.group.readable().await.map_err(AbortWatchError::Read)?;
            match ready.try_io(|group| group.get_ref().read_events().map_err(io::Error::from)) {
                Ok(Ok(mut events)) => {
                    events.reverse();
                    self.pending = events;
                }
                Ok(Err(error)) => return Err(AbortWatchError::Read(error)),
                // Nothing there after all.
                Err(_) => {}
            }
        }
    }
}

/// A group that hears of all writes to the control file system.
fn mark(control: &ControlFs) -> Result<Fanotify, AbortWatchError> {
    let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
    let group = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)
        .map_err(|error| AbortWatchError::Init(error.into()))?;
    let whole = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
    group
        .mark(whole, MaskFlags::FAN_MODIFY, control, None::<&Path>)
        .map_err(|error| AbortWatchError::Mark(error.into()))?;
    Ok(group)
}

/// `None` for a write to another file of the control file system (`max_background`, `congestion_threshold`).
fn notice(event: &FanotifyEvent) -> Option<AbortNotice> {
    let Some(descriptor) = event.fd() else {
        return Some(AbortNotice::Lost);
    };
    // 0: the writer has no pid here.
    let pid = u32::try_from(event.pid()).ok().filter(|&pid| pid != 0);
    // At once: a shell that did nothing but this is soon gone.
    let process = pid.map(|pid| Process { pid, comm: proc::comm(pid) });
    let path = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()?;
    Some(AbortNotice::Written { device: aborted(&path)?, process })
}

/// The connection whose `abort` the path names, whatever comes before `NUMBER/abort`: it depends on the mount through
/// which it was opened. If the connection is gone, the kernel adds ` (deleted)`.
fn aborted(path: &Path) -> Option<DeviceNumber> {
    let name = path.file_name()?.to_str()?;
    if name.strip_suffix(" (deleted)").unwrap_or(name) != "abort" {
        return None;
    }
    let number = path.parent()?.file_name()?.to_str()?;
    number.parse().ok().map(DeviceNumber::from_kernel)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use nix::mount::{MsFlags, mount};
    use tokio::time::timeout;

    use super::*;
    use crate::mounts::testing::{FuseMount, in_private_namespace_async};

    const DEADLINE: Duration = Duration::from_secs(5);

    /// The next notice about this connection: other tests abort connections of theirs meanwhile.
    async fn next_about(watch: &mut AbortWatch, device: DeviceNumber) -> Option<Process> {
        timeout(DEADLINE, async {
            loop {
                match watch.next().await.unwrap() {
                    AbortNotice::Written { device: told, process } if told == device => return process,
                    AbortNotice::Written { .. } => {}
                    AbortNotice::Lost => panic!("the queue ran over"),
                }
            }
        })
        .await
        .expect("no notice")
    }

    #[test]
    fn a_write_through_another_mount_tells_who_did_it() {
        in_private_namespace_async(|directory| async move {
            let control = ControlFs::open().unwrap();
            let mut watch = AbortWatch::open(&control).unwrap();
            let fuse = FuseMount::new(&directory, "m");
            let place = directory.join("connections");
            std::fs::create_dir(&place).unwrap();
            mount(Some("none"), &place, Some("fusectl"), MsFlags::empty(), None::<&str>).unwrap();

            let number = fuse.device.to_kernel();
            // Written to before `abort`, so that its notice would come first.
            std::fs::write(place.join(format!("{number}/max_background")), "5").unwrap();
            let script = format!("echo 1 > {}/{number}/abort; read wait", place.display());
            let mut shell =
                Command::new("sh").args(["-c", &script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
            let process = next_about(&mut watch, fuse.device).await;
            assert_eq!(process, Some(Process { pid: shell.id(), comm: Some("sh".into()) }));
            drop(shell.stdin.take());
            shell.wait().unwrap();
        });
    }

    #[test]
    fn the_own_abort_is_told_as_the_own() {
        in_private_namespace_async(|directory| async move {
            let control = ControlFs::open().unwrap();
            let mut watch = AbortWatch::open(&control).unwrap();
            let fuse = FuseMount::new(&directory, "m");
            control.abort(fuse.device).unwrap();
            let process = next_about(&mut watch, fuse.device).await.unwrap();
            assert_eq!(process.pid, std::process::id());
        });
    }

    #[test]
    fn only_abort_is_an_abort() {
        let device = DeviceNumber { major: 0, minor: 45 };
        assert_eq!(aborted(Path::new("/sys/fs/fuse/connections/45/abort")), Some(device));
        assert_eq!(aborted(Path::new("/45/abort (deleted)")), Some(device));
        for other in ["/45/max_background", "/x/abort", "/abort", "abort", "/", "/45/abort/x"] {
            assert_eq!(aborted(Path::new(other)), None, "{other}");
        }
    }
}
