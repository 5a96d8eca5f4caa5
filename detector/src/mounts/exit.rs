//! The end of a process: when, and how.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::proc::{self, Stat};
use super::ready::register;
use super::sys;
use crate::model::ExitStatus;

/// A process can't be watched.
#[derive(Debug, thiserror::Error)]
pub enum ProcessWatchError {
    /// There is no process of this number, or it is a thread that is not its process's first.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The number that was asked for.
        pid: u32,
    },
    /// The kernel refused.
    #[error("pidfd_open of process {pid}: {source}")]
    Open {
        /// The process.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// When it started can't be told.
    #[error("/proc/{pid}/stat: {source}")]
    Stat {
        /// The process.
        pid: u32,
        /// Why.
        source: io::Error,
    },
    /// The descriptor can't be registered with the runtime, or the runtime is shutting down.
    #[error("waiting for the end of process {pid}: {source}")]
    Wait {
        /// The process.
        pid: u32,
        /// Why.
        source: io::Error,
    },
}

/// Watches one process through a pidfd: a number that is given to another process later doesn't confuse it.
#[derive(Debug)]
pub struct ProcessWatch {
    pid: u32,
    start_time: u64,
    pidfd: AsyncFd<OwnedFd>,
}

impl ProcessWatch {
    /// Starts watching. Needs a tokio runtime with I/O enabled, and Linux 5.3; no privilege. A process that ended
    /// already, and is a zombie now, is told of at once.
    ///
    /// Compare [`Self::start_time`] with what was known of the process before, if it matters that it is still the same.
    ///
    /// # Errors
    /// [`ProcessWatchError`].
    pub fn open(pid: u32) -> Result<Self, ProcessWatchError> {
        let gone = || ProcessWatchError::NoProcess { pid };
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let pidfd = pidfd_open(number, PidfdFlags::NONBLOCK).map_err(|errno| match io::Error::from(errno) {
            // The number of a thread that is not the first: EINVAL on older kernels, ENOENT on newer ones (6.18).
            source if proc::is_gone(&source) || source.kind() == io::ErrorKind::InvalidInput => gone(),
            source => ProcessWatchError::Open { pid, source },
        })?;
        let start_time = match Stat::read(pid) {
            Ok(stat) => stat.start_time,
            Err(source) if proc::is_gone(&source) => return Err(gone()),
            Err(source) => return Err(ProcessWatchError::Stat { pid, source }),
        };
        // The number could have become another process's between the two calls, but only after the one behind the pidfd
        // was reaped.
        if sys::is_reaped(&pidfd) {
            return Err(gone());
        }
        let pidfd = register(pidfd, Interest::READABLE).map_err(|source| ProcessWatchError::Wait { pid, source })?;
        Ok(Self { pid, start_time, pidfd })
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When it started, in clock ticks since boot (field 22 of /proc/PID/stat): with its number, its identity.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Waits until the last thread of the process has ended (`pidfd_poll` in fs/pidfs.c), which is when its descriptors
    /// are closed as far as no other process has them, and tells how it ended. `None`: it ended, but it was reaped
    /// before it could be asked, and the kernel is older than 6.15; or the caller may not trace it. Cancel-safe, and
    /// ready at once when it is called again.
    ///
    /// # Errors
    /// [`ProcessWatchError::Wait`].
    pub async fn exited(&mut self) -> Result<Option<ExitStatus>, ProcessWatchError> {
        // The readiness is left as it is: a process doesn't end twice.
        let ended = self.pidfd.readable().await.map(|mut guard| guard.retain_ready());
        ended.map_err(|source| ProcessWatchError::Wait { pid: self.pid, source })?;
        // Whichever of the two knows depends on whether the parent has reaped it, which can happen between two looks.
        let status = self.reaped_status().or_else(|| self.zombie_status()).or_else(|| self.reaped_status());
        Ok(status.map(ExitStatus::from_wait_status))
    }

    fn reaped_status(&self) -> Option<u32> {
        sys::pidfd_exit_status(&self.pidfd).ok().flatten()
    }

    /// From the zombie's entry in /proc. The number is not given away before the zombie is reaped, so what was read is
    /// about this very process if it isn't reaped afterwards.
    fn zombie_status(&self) -> Option<u32> {
        let stat = Stat::read(self.pid).ok()?;
        if !stat.is_zombie() || sys::is_reaped(&self.pidfd) {
            return None;
        }
        // Who may not trace the process is shown 0 (`do_task_stat` in fs/proc/array.c), which would look like a clean
        // exit. Its namespaces tell whether that is so: they are denied to such a reader, and gone for any other.
        let hidden = || proc::namespace(self.pid, "mnt").is_err_and(|error| proc::is_denied(&error));
        (stat.exit_code != 0 || !hidden()).then_some(stat.exit_code)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::model::Signal;

    const DEADLINE: Duration = Duration::from_secs(5);

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    fn kill(pid: u32, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    }

    async fn status(watch: &mut ProcessWatch) -> Option<ExitStatus> {
        tokio::time::timeout(DEADLINE, watch.exited()).await.expect("not told of the end").unwrap()
    }

    #[tokio::test]
    async fn a_killed_child_is_told_before_and_after_it_is_reaped() {
        for signal in [nix::sys::signal::Signal::SIGKILL, nix::sys::signal::Signal::SIGSEGV] {
            let mut child = sleeper();
            let mut watch = ProcessWatch::open(child.id()).unwrap();
            let early = tokio::time::timeout(Duration::from_millis(20), watch.exited()).await;
            assert!(early.is_err(), "told of the end of a living process");
            kill(child.id(), signal);
            let expected = Some(ExitStatus::Signal(Signal(u8::try_from(signal as i32).unwrap())));
            assert_eq!(status(&mut watch).await, expected, "zombie, {signal}");
            child.wait().unwrap();
            assert_eq!(status(&mut watch).await, expected, "reaped, {signal} (needs Linux 6.15)");
        }
    }

    #[tokio::test]
    async fn exit_codes_are_told_zero_included() {
        for code in [0, 3, 255] {
            let mut child =
                Command::new("sh").args(["-c", &format!("read x; exit {code}")]).stdin(Stdio::piped()).spawn().unwrap();
            let mut watch = ProcessWatch::open(child.id()).unwrap();
            drop(child.stdin.take());
            assert_eq!(status(&mut watch).await, Some(ExitStatus::Code(code)), "zombie");
            child.wait().unwrap();
            assert_eq!(status(&mut watch).await, Some(ExitStatus::Code(code)), "reaped (needs Linux 6.15)");
        }
    }

    /// A daemon is no child of the watcher, and somebody else reaps it at once.
    #[tokio::test]
    async fn a_process_that_is_no_child_is_told() {
        let mut shell =
            Command::new("sh").args(["-c", "(sleep 600 >/dev/null & echo $!)"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        shell.wait().unwrap();
        let pid = line.trim().parse().unwrap();
        let mut watch = ProcessWatch::open(pid).unwrap();
        kill(pid, nix::sys::signal::Signal::SIGKILL);
        assert_eq!(status(&mut watch).await, Some(ExitStatus::Signal(Signal::KILL)));
    }

    #[tokio::test]
    async fn a_zombie_is_told_at_once_and_a_reaped_process_is_not_found() {
        let mut child = sleeper();
        let mut first = ProcessWatch::open(child.id()).unwrap();
        kill(child.id(), nix::sys::signal::Signal::SIGKILL);
        status(&mut first).await;
        let mut second = ProcessWatch::open(child.id()).unwrap();
        assert_eq!((second.pid(), second.start_time()), (first.pid(), first.start_time()));
        assert_eq!(status(&mut second).await, Some(ExitStatus::Signal(Signal::KILL)));
        child.wait().unwrap();
        for pid in [child.id(), 0, u32::MAX] {
            assert!(matches!(ProcessWatch::open(pid), Err(ProcessWatchError::NoProcess { pid: told }) if told == pid));
        }
    }

    #[tokio::test]
    async fn a_thread_that_is_not_the_first_is_no_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = stopped.recv();
        });
        let id = u32::try_from(told.recv().unwrap()).unwrap();
        assert!(matches!(ProcessWatch::open(id), Err(ProcessWatchError::NoProcess { .. })));
        drop(stop);
        thread.join().unwrap();
    }

    /// Who may not trace a process is shown 0 for its exit code.
    #[test]
    fn what_is_hidden_is_not_taken_for_a_clean_exit() {
        let mut child = sleeper();
        kill(child.id(), nix::sys::signal::Signal::SIGKILL);
        let told = std::thread::scope(|scope| {
            let without_privilege = || {
                let nobody = rustix::process::Uid::from_raw(65534);
                // Of this thread alone.
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async { status(&mut ProcessWatch::open(child.id()).unwrap()).await })
            };
            scope.spawn(without_privilege).join().unwrap()
        });
        child.wait().unwrap();
        assert_eq!(told, None);
    }
}
