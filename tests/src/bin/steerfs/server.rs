//! The running process: its connections, their threads, and how it ends.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use fuser::Session;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::cli::ExitMode;
use crate::device::{self, Connection};
use crate::faults::Faults;
use crate::filesystem::SteerFs;

/// A child that keeps the descriptors is gone after this, whatever happens to the tests around it.
const HOLD_SECONDS: &str = "600";

/// For how long the threads of the sessions are waited for when the devices are closed.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

pub struct Server {
    pub connections: Vec<Connection>,
    pub faults: Arc<Faults>,
    /// Sessions that still read from their device.
    serving: AtomicUsize,
    /// Somebody ends the process; the end of the sessions is not another reason to.
    ending: AtomicBool,
}

impl Server {
    /// Starts to answer requests.
    pub fn start(served: Vec<(Connection, Session<SteerFs>)>, faults: Arc<Faults>) -> io::Result<Arc<Self>> {
        let (connections, sessions): (Vec<_>, Vec<_>) = served.into_iter().unzip();
        let server = Arc::new(Self {
            serving: AtomicUsize::new(sessions.len()),
            connections,
            faults,
            ending: AtomicBool::new(false),
        });
        let main = thread::current();
        for session in sessions {
            let (server, main) = (Arc::clone(&server), main.clone());
            thread::Builder::new().name("session".into()).spawn(move || {
                // Whatever ended it, the device is not read any more.
                let _ = session.run();
                server.serving.fetch_sub(1, Ordering::SeqCst);
                main.unpark();
            })?;
        }
        Ok(server)
    }

    /// Waits, in the thread that called [`Self::start`], until every session has ended by itself, and returns then if
    /// the process should exit.
    pub fn wait(&self, mode: ExitMode) {
        loop {
            let over = self.serving.load(Ordering::SeqCst) == 0;
            if over && mode != ExitMode::StayOnAbort && !self.ending.load(Ordering::SeqCst) {
                return;
            }
            thread::park();
        }
    }

    /// Ends the process; in libfuse's order when it shall unmount: the device is closed first.
    pub fn end(&self, code: u8, unmount: bool) -> ! {
        self.ending.store(true, Ordering::SeqCst);
        if unmount {
            self.close_devices();
            for connection in &self.connections {
                // Gone already is as good.
                let _ = connection.unmount();
            }
        }
        exit(i32::from(code))
    }

    fn close_devices(&self) {
        for connection in &self.connections {
            if let Err(error) = connection.close() {
                eprintln!("steerfs: close the device: {error}");
            }
        }
        let deadline = Instant::now() + CLOSE_DEADLINE;
        while self.serving.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            interrupt_readers();
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A child that keeps the descriptors open as its standard input, output and further; its process id.
    pub fn hold_descriptors(&self) -> anyhow::Result<Vec<u32>> {
        let hold = |connection: &Connection| {
            let device = connection.device().try_clone_to_owned().context("dup")?;
            let child = Command::new("sleep")
                .arg(HOLD_SECONDS)
                .stdin(Stdio::from(device))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("sleep")?;
            Ok(child.id())
        };
        self.connections.iter().map(hold).collect()
    }

    pub fn pass_on(&self, socket: &Path) -> anyhow::Result<()> {
        device::pass_on(&self.connections, socket)
    }
}

/// The signal that ends a blocking read of the device. It does nothing else.
const INTERRUPT: Signal = Signal::SIGUSR1;

extern "C" fn ignore(_: libc::c_int) {}

/// Makes [`INTERRUPT`] end a system call with EINTR (no `SA_RESTART`), and keeps SIGTERM for [`end_on_term`]. Rust's
/// handlers for stack overflow go: they survive the first SIGSEGV that somebody sends, which here shall kill.
/// To be called before any thread is started: they inherit the mask.
pub fn prepare_signals(mode: ExitMode) -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler touches nothing, so it may run at any moment.
    unsafe { sigaction(INTERRUPT, &action) }?;
    for signal in [Signal::SIGSEGV, Signal::SIGBUS] {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action runs no code of ours.
        unsafe { sigaction(signal, &default) }?;
    }
    if mode == ExitMode::UnmountOnTerm {
        SigSet::from(Signal::SIGTERM).thread_block()?;
    }
    Ok(())
}

/// Waits for SIGTERM in a thread of its own and ends the process in good order.
pub fn end_on_term(server: Arc<Server>) -> io::Result<()> {
    thread::Builder::new().name("signals".into()).spawn(move || {
        if SigSet::from(Signal::SIGTERM).wait().is_ok() {
            server.end(0, true);
        }
    })?;
    Ok(())
}

/// Interrupts the threads that fuser reads with; it names them `fuser-N` and tells nobody their ids.
fn interrupt_readers() {
    let process = nix::unistd::getpid();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let is_reader = fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("fuser-"));
        let id: Option<libc::pid_t> = task.file_name().to_str().and_then(|name| name.parse().ok());
        if let (true, Some(id)) = (is_reader, id) {
            // SAFETY: tgkill(2) takes three numbers; a thread that is gone is ESRCH.
            unsafe { libc::syscall(libc::SYS_tgkill, process.as_raw(), id, INTERRUPT as libc::c_int) };
        }
    }
}
