//! The kernel programs on the running kernel, with real FUSE connections. Needs root and `/dev/fuse`.
#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::fs;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fuse_detector::kernel::{
    BackendChoice, EventStream, HookState, Kernel, KernelEvent, LoadOptions, PendingRequest, load,
};
use fuse_detector::model::{AbortCall, BackendKind, Boottime, ExitStatus, Signal};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::sys::statfs::statfs;

use support::{FileSystem, NEVER, PRETENDER, private_namespace};

/// Far longer than anything takes, on a loaded machine too.
const DEADLINE: Duration = Duration::from_secs(10);

/// The kernel programs and their events, those of other connections and processes included.
struct Watch {
    kernel: Kernel,
    events: EventStream,
    seen: Vec<KernelEvent>,
}

impl Watch {
    fn start() -> Self {
        let options = LoadOptions { backend: BackendChoice::Only(BackendKind::Tracepoint), kernel_log: false };
        let mut kernel = load(&options).unwrap_or_else(|error| panic!("{error}")).kernel.unwrap();
        let events = kernel.take_events().unwrap().unwrap();
        Self { kernel, events, seen: Vec::new() }
    }

    /// Waits for an event, also among those that came before, and returns it.
    async fn until(&mut self, wanted: impl Fn(&KernelEvent) -> bool) -> KernelEvent {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            if let Some(found) = self.seen.iter().find(|event| wanted(event)) {
                return found.clone();
            }
            let batch = self.events.next_batch(&mut self.seen);
            match tokio::time::timeout_at(deadline, batch).await {
                Ok(result) => result.unwrap(),
                Err(_) => panic!("not among {:#?}", self.seen),
            }
        }
    }

    /// Forgets what came before: another test's connection may have had the same device number.
    async fn ready(&mut self, fs: &FileSystem) {
        let pid = fs.daemon.as_raw().unsigned_abs();
        let is_ready = |event: &KernelEvent| matches!(event, KernelEvent::Ready { device, daemon, .. } if *device == fs.device && daemon.pid == pid);
        self.until(is_ready).await;
        let position = self.seen.iter().position(is_ready).unwrap();
        self.seen.drain(..position);
    }

    async fn exited(&mut self, fs: &FileSystem) -> KernelEvent {
        let pid = fs.daemon.as_raw().unsigned_abs();
        self.until(|event| matches!(event, KernelEvent::DaemonExited { daemon, .. } if daemon.pid == pid)).await
    }

    async fn aborted(&mut self, fs: &FileSystem) -> KernelEvent {
        self.until(|event| matches!(event, KernelEvent::RequestsAborted { device, .. } if *device == fs.device)).await
    }

    fn oldest(&self, fs: &FileSystem) -> Option<PendingRequest> {
        self.kernel.counters().oldest_requests().get(&fs.device).copied()
    }

    /// Starts a client whose LOOKUP is never answered, and waits until it is on its way.
    fn stuck_client(&self, fs: &FileSystem) -> Child {
        let client = Command::new("stat")
            .arg(fs.path().join(NEVER))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("the request on its way", || self.oldest(fs).is_some());
        client
    }
}

/// For what no event tells.
fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills the daemon from another process, which is who the event has to name.
fn kill_from_shell(fs: &FileSystem, signal: &str) -> u32 {
    let mut shell = Command::new("sh").args(["-c", &format!("kill -{signal} {}; :", fs.daemon)]).spawn().unwrap();
    let pid = shell.id();
    shell.wait().unwrap();
    pid
}

#[tokio::test]
async fn an_idle_daemon_that_is_killed_is_told_with_who_did_it() {
    private_namespace();
    let mut watch = Watch::start();
    let fs = FileSystem::mount();
    watch.ready(&fs).await;
    statfs(fs.path()).unwrap();

    let before = Boottime::now();
    let shell = kill_from_shell(&fs, "KILL");
    let KernelEvent::DaemonExited { at, status, sender, oom, .. } = watch.exited(&fs).await else { unreachable!() };
    assert_eq!(status, ExitStatus::Signal(Signal::KILL));
    let sender = sender.unwrap();
    assert_eq!((sender.pid, sender.comm.as_deref()), (shell, Some("sh")));
    assert!(!oom && at >= before && at <= Boottime::now());
}

#[tokio::test]
async fn a_signal_that_only_looks_like_the_kernels_has_its_sender() {
    private_namespace();
    let mut watch = Watch::start();
    let fs = FileSystem::mount();
    watch.ready(&fs).await;
    let shell = kill_from_shell(&fs, "SEGV");
    let KernelEvent::DaemonExited { status, sender, .. } = watch.exited(&fs).await else { unreachable!() };
    assert_eq!((status, sender.map(|sender| sender.pid)), (ExitStatus::Signal(Signal(11)), Some(shell)));
}

#[tokio::test]
async fn a_daemon_from_before_is_learnt_from_its_first_answer() {
    private_namespace();
    let fs = FileSystem::mount();
    statfs(fs.path()).unwrap();
    let mut watch = Watch::start();
    statfs(fs.path()).unwrap();
    statfs(fs.path()).unwrap();
    let pid = fs.daemon.as_raw().unsigned_abs();
    let is_seen = |event: &KernelEvent| matches!(event, KernelEvent::DaemonSeen { device, daemon, .. } if *device == fs.device && daemon.pid == pid);
    watch.until(is_seen).await;
    kill_from_shell(&fs, "TERM");
    watch.exited(&fs).await;
    assert_eq!(watch.seen.iter().filter(|event| is_seen(event)).count(), 1, "told once");
}

#[tokio::test]
async fn a_daemon_learnt_otherwise_is_watched_too() {
    private_namespace();
    let fs = FileSystem::mount();
    statfs(fs.path()).unwrap();
    let mut watch = Watch::start();
    let pid = fs.daemon.as_raw().unsigned_abs();
    watch.kernel.watch_daemon(pid, Some(fs.device)).unwrap();
    watch.kernel.watch_daemon(pid, Some(fs.device)).unwrap();
    kill_from_shell(&fs, "KILL");
    let KernelEvent::DaemonExited { sender, .. } = watch.exited(&fs).await else { unreachable!() };
    assert!(sender.is_some());
}

#[tokio::test]
async fn requests_of_a_dying_daemon_are_told_once_and_counted() {
    private_namespace();
    let mut watch = Watch::start();
    let fs = FileSystem::mount();
    watch.ready(&fs).await;
    let mut clients = [watch.stuck_client(&fs), watch.stuck_client(&fs)];
    let oldest = watch.oldest(&fs).unwrap();
    assert_eq!((oldest.opcode, oldest.pid), (1, clients[0].id()), "LOOKUP");
    assert!(oldest.since <= Boottime::now() && Boottime::now().since(oldest.since) < DEADLINE);

    kill_from_shell(&fs, "KILL");
    let KernelEvent::RequestsAborted { by, exiting, kernel_thread, syscall, .. } = watch.aborted(&fs).await else {
        unreachable!()
    };
    assert_eq!((by.pid, exiting, kernel_thread, syscall), (fs.daemon.as_raw().unsigned_abs(), true, false, None));
    for client in &mut clients {
        assert!(!client.wait().unwrap().success());
    }
    watch.exited(&fs).await;
    assert!(watch.kernel.counters().aborted(fs.device).unwrap() >= 1);
    assert_eq!(watch.oldest(&fs), None);
    let told =
        |event: &&KernelEvent| matches!(event, KernelEvent::RequestsAborted { device, .. } if *device == fs.device);
    assert_eq!(watch.seen.iter().filter(told).count(), 1);
}

#[tokio::test]
async fn whoever_writes_to_the_abort_file_is_told() {
    private_namespace();
    let control = tempfile::tempdir().unwrap();
    mount(Some("fusectl"), control.path(), Some("fusectl"), MsFlags::empty(), None::<&str>).unwrap();
    let mut watch = Watch::start();
    let fs = FileSystem::mount();
    watch.ready(&fs).await;
    let mut client = watch.stuck_client(&fs);

    fs::write(control.path().join(fs.device.to_kernel().to_string()).join("abort"), "1").unwrap();
    let aborted = watch.aborted(&fs).await;
    umount2(control.path(), MntFlags::MNT_DETACH).unwrap();
    client.wait().unwrap();
    let KernelEvent::RequestsAborted { by, exiting, syscall, .. } = aborted else { unreachable!() };
    assert_eq!((by.pid, exiting, syscall), (std::process::id(), false, Some(AbortCall::Write)));
}

#[tokio::test]
async fn a_forced_unmount_of_a_busy_mount_is_told() {
    private_namespace();
    let mut watch = Watch::start();
    watch.kernel.set_vfs_errors(true).unwrap();
    let fs = FileSystem::mount();
    watch.ready(&fs).await;
    let mut client = watch.stuck_client(&fs);
    let _busy = open(fs.path(), OFlag::O_PATH, Mode::empty()).unwrap();

    assert_eq!(umount2(fs.path(), MntFlags::MNT_FORCE), Err(Errno::EBUSY));
    let KernelEvent::RequestsAborted { by, syscall, .. } = watch.aborted(&fs).await else { unreachable!() };
    assert_eq!((by.pid, syscall), (std::process::id(), Some(AbortCall::Umount)));
    let own = |event: &KernelEvent| matches!(event, KernelEvent::ForcedUnmount { process, .. } if process.pid == std::process::id());
    watch.until(own).await;
    client.wait().unwrap();
}

#[tokio::test]
async fn a_daemons_own_errors_are_counted_and_no_abort() {
    private_namespace();
    let mut watch = Watch::start();
    let fs = FileSystem::mount();
    watch.ready(&fs).await;
    assert!(fs::metadata(fs.path().join(PRETENDER)).is_err());
    assert!(fs::metadata(fs.path().join("absent")).is_err());

    let counters = watch.kernel.counters();
    let errors = counters.request_errors();
    let count =
        |errno| errors.iter().find(|(device, found, _)| *device == fs.device && *found == errno).map(|entry| entry.2);
    assert!(count(libc::ECONNABORTED).unwrap() >= 1 && count(libc::ENOENT).unwrap() >= 1);
    assert_eq!(counters.aborted(fs.device), Some(0));
    let (_, connection) = counters.connections().into_iter().find(|(device, _)| *device == fs.device).unwrap();
    assert!(connection.sent >= 3 && connection.ended == connection.sent && connection.last_end.is_some());
    assert_eq!(connection.in_flight, 0);

    watch.kernel.forget(&[].into(), &[fs.device].into());
    assert_eq!(watch.kernel.counters().aborted(fs.device), None);
    assert!(counters.request_errors().iter().all(|(device, ..)| *device != fs.device));
    kill_from_shell(&fs, "KILL");
    watch.exited(&fs).await;
    let aborted =
        |event: &&KernelEvent| matches!(event, KernelEvent::RequestsAborted { device, .. } if *device == fs.device);
    assert_eq!(watch.seen.iter().find(aborted), None);
}

#[tokio::test]
async fn applications_that_meet_a_dead_connection_are_told_while_asked_for() {
    private_namespace();
    let mut watch = Watch::start();
    let fs = FileSystem::mount();
    watch.ready(&fs).await;
    kill_from_shell(&fs, "KILL");
    watch.exited(&fs).await;
    nix::sys::wait::waitpid(fs.daemon, None).unwrap();

    watch.kernel.set_vfs_errors(true).unwrap();
    // ENOTCONN that has nothing to do with a file.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    // SAFETY: null is not written to, the call fails before.
    let unconnected = unsafe { libc::getpeername(socket.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
    assert_eq!((unconnected, Errno::last()), (-1, Errno::ENOTCONN));

    let stat = |name: &str| {
        let mut child = Command::new("stat").arg(fs.path().join(name)).stderr(Stdio::null()).spawn().unwrap();
        child.wait().unwrap();
        child.id()
    };
    let pid = stat("x");
    let of = |event: &KernelEvent, pid| matches!(event, KernelEvent::VfsError { process, .. } if process.pid == pid);
    let KernelEvent::VfsError { process, errno, descriptor, .. } = watch.until(|event| of(event, pid)).await else {
        unreachable!()
    };
    assert_eq!((process.comm.as_deref(), errno, descriptor), (Some("stat"), libc::ENOTCONN, None));
    let drained = watch.kernel.counters().drain_vfs_errors();
    assert!(drained.iter().any(|found| found.pid == pid && found.errno == libc::ENOTCONN && found.count >= 1));
    assert!(drained.iter().all(|found| found.pid != std::process::id()), "the socket's error does not count");
    assert!(watch.kernel.counters().drain_vfs_errors().iter().all(|found| found.pid != pid), "taken");

    watch.kernel.set_vfs_errors(false).unwrap();
    // The kernel takes a program off its tracepoint a moment after its link was closed, in a work queue.
    wait_for("an error that is not counted", || {
        let unseen = stat("y");
        watch.kernel.counters().drain_vfs_errors().iter().all(|found| found.pid != unseen)
    });
}

#[test]
fn the_portable_backend_can_be_forced_and_says_what_is_lost() {
    let options = LoadOptions { backend: BackendChoice::Only(BackendKind::Portable), kernel_log: false };
    let detection = load(&options).unwrap();
    assert_eq!(detection.backend, BackendKind::Portable);
    assert!(detection.kernel.is_none());
    let tracepoints = detection.hooks.iter().filter(|hook| hook.backend == BackendKind::Tracepoint);
    assert!(tracepoints.clone().count() == 6 && tracepoints.clone().all(|hook| hook.lost.is_some()));
}

#[tokio::test]
async fn debug_output_is_passed_on_and_nothing_is_lost() {
    private_namespace();
    let options = LoadOptions { backend: BackendChoice::Only(BackendKind::Tracepoint), kernel_log: true };
    let detection = load(&options).unwrap();
    assert!(detection.hooks.iter().all(|hook| matches!(hook.status, HookState::Attached | HookState::NotNeeded)));
    let mut kernel = detection.kernel.unwrap();
    let mut watch = Watch { events: kernel.take_events().unwrap().unwrap(), kernel, seen: Vec::new() };
    let fs = FileSystem::mount();
    watch.ready(&fs).await;
    assert_eq!(watch.kernel.counters().lost().iter().map(|(.., count)| count).sum::<u64>(), 0);
}
