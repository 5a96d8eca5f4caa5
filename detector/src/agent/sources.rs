//! What watches the machine for the agent: each a small task that waits for the kernel, and turns what it is told into
//! an [`Event`] on the one queue. None of them decides anything.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{AbortHandle, spawn_blocking};

use super::event::{Event, Found, Scope};
use crate::model::{Boottime, ConnectionId, DeviceNumber, Process};
use crate::mounts::{self, AbortNotice, AbortWatch, ControlFs, Holders, MountWatch, ProcessWatch, Scanner, Snapshot};
use crate::recovery::{self, Looked, MountTarget};

/// The queue's near end. Unbounded, because its length is bounded by those who fill it: one answer for each question
/// that the agent asked, one notice of each watch until it is handled.
pub(super) type Queue = UnboundedSender<Message>;

/// What comes through the queue.
#[derive(Debug)]
pub(super) enum Message {
    /// For the state.
    Event(Event),
    /// The agent's own mount table changed.
    MountsChanged,
    /// No change of the mount table has been followed by another for a while.
    Calm,
    /// A look at mount tables is over; its tools come back with what it saw, or why it saw nothing. One message: the next look
    /// begins when the tools are back, and must not be heard of before this one.
    LookOver(Scanner, Box<std::io::Result<Event>>),
    /// The wish to have the system call hook attached, or not, has lasted.
    VfsErrorsDue,
    /// It is time to look whether requests are answered.
    RequestsDue,
    /// It is time to have the kernel programs forget what is gone.
    ForgetDue,
    /// It is time to read which processes got how many errors.
    DrainVfsErrors,
}

impl From<Event> for Message {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

/// Mount tables of containers change together with the host's (their root file systems are mounted there), but they are
/// not watched: after a change here, the others are looked at once things have calmed down. A container start makes
/// dozens of changes within a second.
const CALM: Duration = Duration::from_secs(1);

/// After an error of a watch, which should not happen, it is tried again no sooner.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

/// Tells of each change in the agent's own mount table.
pub(super) async fn watch_mounts(mut watch: MountWatch, queue: Queue) {
    loop {
        match watch.changed().await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "the mount table can't be watched; looking at it once a second");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
        if queue.send(Message::MountsChanged).is_err() {
            return;
        }
    }
}

/// Tells of each write to a connection's `abort` file.
pub(super) async fn watch_aborts(mut watch: AbortWatch, queue: Queue) {
    loop {
        let event = match watch.next().await {
            Ok(AbortNotice::Written { device, process }) => {
                Event::AbortWritten { device, actor: process, at: Boottime::now() }
            }
            Ok(AbortNotice::Lost) => Event::Lost,
            Err(error) => {
                tracing::warn!(%error, "writes to abort files are not seen any more");
                return;
            }
        };
        if queue.send(event.into()).is_err() {
            return;
        }
    }
}

/// Tells of a process's end. A process that is gone already has ended now.
pub(super) fn watch_process(pid: u32, queue: Queue) -> AbortHandle {
    let task = tokio::spawn(async move {
        let status = match ProcessWatch::open(pid) {
            Ok(mut watch) => match watch.exited().await {
                Ok(status) => status,
                Err(error) => {
                    tracing::warn!(pid, %error, "the end of a daemon can't be watched");
                    None
                }
            },
            Err(error) => {
                tracing::debug!(pid, %error, "a daemon can't be watched");
                None
            }
        };
        let _ = queue.send(Event::ProcessEnded { pid, status, at: Boottime::now() }.into());
    });
    task.abort_handle()
}

/// Reads how a daemon was started, on a thread of its own: `/proc/PID/environ` waits for the process's memory lock.
pub(super) fn remember(pid: u32, queue: Queue) {
    spawn_blocking(move || {
        let record = mounts::remember(pid).inspect_err(|error| {
            tracing::debug!(pid, %error, "how a daemon was started can't be read");
        });
        let _ = queue.send(Event::Remembered { pid, record: record.ok().map(Box::new) }.into());
    });
}

/// Looks for the holders of `/dev/fuse` descriptors.
pub(super) fn find_holders(queue: Queue) {
    spawn_blocking(move || {
        let began = Boottime::now();
        let found = match mounts::holders() {
            Ok(holders) => {
                let Holders { by_connection, unattributed, denied } = holders;
                let unattributed = unattributed.into_iter().map(process).collect();
                Found { began, by_connection: named(by_connection), unattributed, denied }
            }
            Err(error) => {
                tracing::warn!(%error, "/proc can't be searched for FUSE daemons");
                Found { began, ..Found::default() }
            }
        };
        let _ = queue.send(Event::HoldersFound(found).into());
    });
}

/// Aborts a connection that hangs, on a thread of its own. The number is all there is to name a connection by, and is given to
/// the next mount at once: so right before, the mount has to be still the one that was seen to hang.
pub(super) fn free(connection: ConnectionId, target: MountTarget, queue: Queue) {
    spawn_blocking(move || {
        let is_there = matches!(recovery::look_at(&target), Ok(Looked::Same(_)));
        let result = match ControlFs::open() {
            _ if !is_there => Err("its mount is gone, or can't be recognised".to_owned()),
            Ok(control) => control.abort(connection.device).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let _ = queue.send(Event::Freed { connection, result, at: Boottime::now() }.into());
    });
}

fn process(pid: u32) -> Process {
    Process { pid, comm: mounts::comm(pid) }
}

fn named(holders: BTreeMap<DeviceNumber, Vec<u32>>) -> BTreeMap<DeviceNumber, Vec<Process>> {
    holders.into_iter().map(|(device, pids)| (device, pids.into_iter().map(process).collect())).collect()
}

/// Looks at mount tables, one look at a time, and once more if something changed meanwhile.
#[derive(Debug)]
pub(super) struct Looker {
    queue: Queue,
    /// `None` while a look is under way.
    scanner: Option<Scanner>,
    wanted: Option<Scope>,
    /// What the look under way covers.
    under_way: Option<Scope>,
    calming: bool,
}

impl Looker {
    pub fn new(queue: Queue) -> Self {
        Self { queue, scanner: Some(Scanner::default()), wanted: None, under_way: None, calming: false }
    }

    /// A look that was caused by a change here is under way or about to be. One at everything takes longer than anybody
    /// should wait for.
    pub fn is_looking_here(&self) -> bool {
        self.under_way == Some(Scope::Own) || self.wanted == Some(Scope::Own)
    }

    /// A look is wanted now.
    pub fn look(&mut self, scope: Scope) {
        self.wanted = Some(match self.wanted {
            Some(Scope::Everything) => Scope::Everything,
            Some(Scope::Own) | None => scope,
        });
        self.go();
    }

    /// The mount table changed: look here now, and elsewhere when it has calmed down.
    pub fn changed(&mut self) {
        self.look(Scope::Own);
        if !std::mem::replace(&mut self.calming, true) {
            let queue = self.queue.clone();
            tokio::spawn(async move {
                tokio::time::sleep(CALM).await;
                let _ = queue.send(Message::Calm);
            });
        }
    }

    /// It has calmed down.
    pub fn calm(&mut self) {
        self.calming = false;
        self.look(Scope::Everything);
    }

    /// The look that was under way is over.
    pub fn over(&mut self, scanner: Scanner) {
        self.scanner = Some(scanner);
        self.under_way = None;
        self.go();
    }

    fn go(&mut self) {
        let Some(scope) = self.wanted else { return };
        let Some(mut scanner) = self.scanner.take() else { return };
        self.wanted = None;
        self.under_way = Some(scope);
        let queue = self.queue.clone();
        spawn_blocking(move || {
            let began = Boottime::now();
            let snapshot = match scope {
                Scope::Everything => Ok(scanner.scan()),
                Scope::Own => scanner.scan_own().map(Snapshot::from),
            };
            let seen = snapshot.map(|snapshot| Event::Scanned { snapshot: Box::new(snapshot), scope, began });
            let _ = queue.send(Message::LookOver(scanner, Box::new(seen)));
        });
    }
}
