use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::{frame, serve};

/// Worker processes by what became of them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Started since the beginning.
    pub spawned: AtomicUsize,
    /// Killed because they did not answer in time.
    pub killed: AtomicUsize,
    /// Killed and still not gone: the kernel can't end them before the file system answers or is aborted.
    pub stuck: AtomicUsize,
    /// Not gone yet, whatever their state.
    pub alive: AtomicUsize,
}

/// One worker process. Dropped while idle, it ends by itself; dropped in the middle of a job, it is killed. Either way it is
/// reaped when it is gone, and nobody waits for it.
pub(super) struct WorkerProcess {
    stream: UnixStream,
    /// `None` once handed to the reaper.
    child: Option<Child>,
    busy: bool,
    counts: Arc<Counts>,
}

impl WorkerProcess {
    pub fn spawn(exe: &Path, counts: Arc<Counts>) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let stream = UnixStream::from_std(ours)?;
        let child = Command::new(exe)
            .arg(serve::ARGUMENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        counts.spawned.fetch_add(1, Ordering::Relaxed);
        counts.alive.fetch_add(1, Ordering::Relaxed);
        Ok(Self { stream, child: Some(child), busy: false, counts })
    }

    /// Sends a request. The worker counts as busy until [`Self::done`].
    pub async fn send(&mut self, request: &impl Serialize) -> io::Result<()> {
        self.busy = true;
        self.stream.write_all(&frame::encode(request)?).await
    }

    /// Receives a message.
    pub async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).await?;
        let mut bytes = vec![0; frame::length(header)?];
        self.stream.read_exact(&mut bytes).await?;
        frame::decode(&bytes)
    }

    /// The job is finished; the worker can have another one.
    pub fn done(&mut self) {
        self.busy = false;
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if self.busy {
            // Not reaped yet, so its process id is still its own. An error says that it has ended already.
            let _ = child.start_kill();
            self.counts.killed.fetch_add(1, Ordering::Relaxed);
            self.counts.stuck.fetch_add(1, Ordering::Relaxed);
        }
        // The socket closes with `self`, which ends an idle worker.
        let (counts, busy) = (Arc::clone(&self.counts), self.busy);
        let reaped = async move {
            // An error says that somebody else reaped it.
            let _ = child.wait().await;
            counts.alive.fetch_sub(1, Ordering::Relaxed);
            if busy {
                counts.stuck.fetch_sub(1, Ordering::Relaxed);
            }
        };
        // Without a runtime the agent itself ends, and init reaps.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(reaped));
        }
    }
}
