use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};

use super::probe::{ProbeOutcome, ProbeTarget};
use super::process::{Counts, WorkerProcess};
use super::protocol::{Reply, Request};
use crate::model::{Boottime, DeviceNumber, Mount, NamespaceId};
use crate::recovery::wire::{JobForm, ProgressForm};
use crate::recovery::{Bring, Progress, RecoverJob};

/// How many worker processes there may be.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The program to run as a worker: the agent's own.
    pub exe: PathBuf,
    /// Probes at once; further ones wait for their turn.
    pub probes: usize,
    /// Recoveries at once; further ones wait for their turn.
    pub recoveries: usize,
    /// Idle workers that are kept for the next job; one is always started ahead.
    pub keep_idle: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            exe: "/proc/self/exe".into(),
            // Healthy mounts answer in microseconds, so this many are busy only when that many mounts hang at once.
            probes: 64,
            // A recovery can take as long as a daemon needs to start or a command to time out: one mount's trouble must not
            // delay another's. A worker takes about 3 MiB, most of it shared with the agent.
            recoveries: 64,
            keep_idle: 2,
        }
    }
}

/// How the workers fare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Waiting for a job.
    pub idle: usize,
    /// Processes that exist, idle, busy and stuck ones.
    pub alive: usize,
    /// Killed, but in a system call that even SIGKILL doesn't end.
    pub stuck: usize,
    /// Started since the beginning.
    pub spawned: usize,
    /// Killed since the beginning because they did not answer in time.
    pub killed: usize,
}

/// The agent's worker processes. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    config: PoolConfig,
    idle: Mutex<Vec<WorkerProcess>>,
    /// Somebody may find an idle worker now.
    returned: Notify,
    /// How often the number of workers that answer grew: one came back, or was started because none did.
    progress: AtomicU64,
    /// One is about to be started for jobs to come.
    starting_ahead: AtomicBool,
    probes: Semaphore,
    recoveries: Semaphore,
    counts: Arc<Counts>,
}

/// How long a worker may take beyond its job's deadline to end what it launched and to say so.
const GRACE: Duration = Duration::from_secs(2);

/// A probe starts a worker of its own only if none has come back for so long: most answer in microseconds, and starting one
/// stops the event loop for a millisecond or two.
const PROBE_PATIENCE: Duration = Duration::from_millis(5);

/// How long after the last idle worker was taken another one is started, for the same reason: by then the job that took it
/// is most likely done.
const START_AHEAD_AFTER: Duration = Duration::from_millis(20);

/// Messages of a recovery that wait for the agent to read them. A worker that is ahead waits, too.
const PROGRESS_QUEUE: usize = 64;

impl Pool {
    /// Starts one worker ahead. Must be called within a runtime, on the thread that outlives all others: a worker is killed
    /// by the kernel when the thread that started it ends (PR_SET_PDEATHSIG in prctl(2)).
    ///
    /// # Errors
    /// No worker can be started.
    pub fn start(config: PoolConfig) -> io::Result<Self> {
        let shared = Shared {
            probes: Semaphore::new(config.probes.max(1)),
            recoveries: Semaphore::new(config.recoveries.max(1)),
            idle: Mutex::default(),
            returned: Notify::new(),
            progress: AtomicU64::new(0),
            starting_ahead: AtomicBool::new(false),
            counts: Arc::default(),
            config,
        };
        let first = shared.spawn()?;
        shared.idle().push(first);
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Asks a mount's daemon whether it answers. The time spent waiting for a free worker is not counted.
    ///
    /// Dropping the future gives the worker up. At most one probe of a mount should be outstanding: each one that hangs
    /// costs a process until the mount is aborted or answers.
    pub async fn probe(&self, target: ProbeTarget, deadline: Duration) -> ProbeOutcome {
        let Ok(_turn) = self.shared.probes.acquire().await else {
            return ProbeOutcome::Failed("the pool of workers is closed".to_owned());
        };
        let request = Request::from(&target);
        let outcome = match self.take_or_wait().await {
            Ok(worker) => self.probe_by(worker, &request, deadline).await,
            Err(error) => Err(error),
        };
        // An idle worker can have been killed (by the OOM killer, say) since it was last used: a fresh one is tried.
        let outcome = match outcome {
            Ok(outcome) => return outcome,
            Err(_) => match self.shared.spawn() {
                Ok(worker) => self.probe_by(worker, &request, deadline).await,
                Err(error) => Err(error),
            },
        };
        outcome.unwrap_or_else(|error| ProbeOutcome::Failed(format!("no worker answers: {error}")))
    }

    async fn probe_by(
        &self,
        mut worker: WorkerProcess,
        request: &Request,
        deadline: Duration,
    ) -> io::Result<ProbeOutcome> {
        let exchange = async {
            worker.send(request).await?;
            worker.receive::<Reply>().await
        };
        let Ok(reply) = tokio::time::timeout(deadline, exchange).await else { return Ok(ProbeOutcome::TimedOut) };
        match reply? {
            Reply::Probe(form) => {
                self.give_back(worker);
                Ok(form.into())
            }
            Reply::Malformed(why) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
            Reply::Progress(_) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "progress instead of a probe's outcome"))
            }
        }
    }

    /// Starts a recovery. It goes on when the receiver is dropped. The last message is always [`Progress::Finished`].
    pub fn recover(&self, job: RecoverJob) -> mpsc::Receiver<Progress> {
        let (sender, receiver) = mpsc::channel(PROGRESS_QUEUE);
        let pool = self.clone();
        tokio::spawn(async move {
            if let Err(error) = pool.recover_now(&job, &sender).await {
                let error = format!("the worker did not finish: {error}");
                // A receiver that is gone doesn't want to know.
                let _ = sender.send(Progress::Failed { mount: None, error, refused: false }).await;
            }
            let _ = sender.send(Progress::Finished).await;
        });
        receiver
    }

    async fn recover_now(&self, job: &RecoverJob, sender: &mpsc::Sender<Progress>) -> io::Result<()> {
        let _turn = self.shared.recoveries.acquire().await.map_err(io::Error::other)?;
        let mut worker = self.take()?;
        let exchange = async {
            worker.send(&Request::Recover(Box::new(JobForm::from(job)))).await?;
            loop {
                let form = match worker.receive::<Reply>().await? {
                    Reply::Progress(ProgressForm::Finished) => return Ok(()),
                    Reply::Progress(form) => form,
                    Reply::Malformed(why) => return Err(io::Error::new(io::ErrorKind::InvalidData, why)),
                    Reply::Probe(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "a probe's outcome")),
                };
                if let Some(progress) = progress(form, &job.dead) {
                    let _ = sender.send(progress).await;
                }
            }
        };
        match tokio::time::timeout(job.deadline.saturating_add(GRACE), exchange).await {
            Ok(Ok(())) => {
                match job.bring {
                    Bring::Existing(_) => self.give_back(worker),
                    // It has had children and may have to reap them: it ends instead.
                    Bring::Respawn(_) | Bring::Command { .. } => worker.done(),
                }
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// How the workers fare.
    pub fn stats(&self) -> PoolStats {
        let Counts { spawned, killed, stuck, alive } = &*self.shared.counts;
        PoolStats {
            idle: self.shared.idle().len(),
            alive: alive.load(Ordering::Relaxed),
            stuck: stuck.load(Ordering::Relaxed),
            spawned: spawned.load(Ordering::Relaxed),
            killed: killed.load(Ordering::Relaxed),
        }
    }

    /// An idle worker, or a new one.
    fn take(&self) -> io::Result<WorkerProcess> {
        self.take_idle().map_or_else(|| self.shared.spawn(), Ok)
    }

    /// An idle worker, now or soon; a new one only if none comes back.
    async fn take_or_wait(&self) -> io::Result<WorkerProcess> {
        let Shared { returned, progress, .. } = &*self.shared;
        loop {
            if let Some(worker) = self.take_idle() {
                return Ok(worker);
            }
            let before = progress.load(Ordering::Relaxed);
            let waited = tokio::time::timeout(PROBE_PATIENCE, returned.notified()).await;
            // One of those that wait starts one, whose return the others wait for.
            let alone = || progress.compare_exchange(before, before + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if waited.is_err() && alone() {
                return self.shared.spawn();
            }
        }
    }

    fn take_idle(&self) -> Option<WorkerProcess> {
        let mut idle = self.shared.idle();
        let worker = idle.pop();
        let last = idle.is_empty();
        drop(idle);
        if last && !self.shared.starting_ahead.swap(true, Ordering::Relaxed) {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                tokio::time::sleep(START_AHEAD_AFTER).await;
                shared.starting_ahead.store(false, Ordering::Relaxed);
                shared.start_ahead();
            });
        }
        worker
    }

    fn give_back(&self, mut worker: WorkerProcess) {
        worker.done();
        let mut idle = self.shared.idle();
        idle.push(worker);
        // As long as others wait for their turn none is dismissed: the next one would have to start one.
        if self.shared.probes.available_permits() > 0 {
            idle.truncate(self.shared.config.keep_idle.max(1));
        }
        drop(idle);
        self.shared.came_back();
    }
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Vec<WorkerProcess>> {
        // Nothing that panics is done under the lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self) -> io::Result<WorkerProcess> {
        WorkerProcess::spawn(&self.config.exe, Arc::clone(&self.counts))
    }

    fn start_ahead(&self) {
        if !self.idle().is_empty() {
            return;
        }
        // If none can be started now, the next job tries, and reports why.
        if let Ok(worker) = self.spawn() {
            self.idle().push(worker);
            self.came_back();
        }
    }

    fn came_back(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.returned.notify_one();
    }
}

/// The agent's form of what a worker tells; `None` for a mount that the job doesn't have.
fn progress(form: ProgressForm, dead: &[Mount]) -> Option<Progress> {
    let device = DeviceNumber::from_kernel;
    Some(match form {
        ProgressForm::Isolated { namespace } => Progress::Isolated { namespace: NamespaceId(namespace) },
        ProgressForm::Noted { what } => Progress::Noted { what },
        ProgressForm::Launched { pid } => Progress::Launched { pid },
        ProgressForm::Ready { dead, device: number, at, pid } => {
            Progress::Ready { dead: device(dead), device: device(number), at: Boottime(at), pid }
        }
        ProgressForm::Healed { mount, device: number, at } => {
            Progress::Healed { mount: dead.get(mount)?.clone(), device: device(number), at: Boottime(at) }
        }
        ProgressForm::Gone { mount } => Progress::Gone { mount: dead.get(mount)?.clone() },
        ProgressForm::Failed { mount, error, refused } => {
            let mount = match mount {
                Some(index) => Some(dead.get(index)?.clone()),
                None => None,
            };
            Progress::Failed { mount, error, refused }
        }
        ProgressForm::Finished => Progress::Finished,
    })
}
