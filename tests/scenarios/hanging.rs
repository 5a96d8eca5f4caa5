//! A daemon that answers nobody: it hangs, which is no death (S11).

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fuse_detector_tests::heal::Before;
use fuse_detector_tests::steer::{Command, Opcode};
use fuse_detector_tests::{Agent, Event, Options, Sandbox, Steerfs, backend, process, scenarios, wait};
use nix::sys::signal::Signal;
use serde_json::json;

scenarios!(
    a_stopped_daemon,
    a_request_that_is_never_answered,
    answers_that_take_their_time,
    ended_for_those_who_wait,
    never_initialised,
    a_request_beyond_the_kernels_limit,
    descriptor_handed_to_one_who_does_not_serve,
);

/// Not more than a test can wait for.
const THRESHOLD: Duration = Duration::from_secs(2);

fn options(sandbox: &Sandbox) -> Options {
    Options::rule(sandbox, "**", json!({"mode": "heal", "strategy": "respawn", "hungAfter": "2s"}))
}

fn is_alarm(event: &Event) -> bool {
    ["hung", "dead", "recovering"].contains(&event.kind())
}

fn a_stopped_daemon(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &options(sandbox));
    let daemon = Steerfs::mount(sandbox, "mnt", &["--attr-timeout", "0", "--entry-timeout", "0"]);
    let path = daemon.mount_point();
    agent.wait("ready", path);

    process::signal(daemon.pid(), Signal::SIGSTOP);
    let asked = path.join("hello");
    let application = thread::spawn(move || fs::read_to_string(asked));

    if sandbox.backend().has_programs() {
        let hung = agent.wait("hung", path);
        assert_eq!(hung.at("/reason"), &json!({"kind": "stalled", "cause": "stopped"}), "{hung}");
        assert_eq!(hung.at("/daemon/alive"), &json!(true), "{hung}");
        assert_eq!(hung.number("/oldestRequest/process/pid").map(is_a_thread_of_this_process), Some(true), "{hung}");
        let threshold = u64::try_from(THRESHOLD.as_millis()).expect("milliseconds");
        assert!(hung.number("/oldestRequest/ageMillis").is_some_and(|age| age >= threshold), "{hung}");
        assert!(agent.metric("fuse_detector_connections", &[("state", "hung")]) >= 1.0);
    }
    process::signal(daemon.pid(), Signal::SIGCONT);
    let content = application.join().expect("the application");
    assert_eq!(content.expect("it was only late"), "hello from steerfs\n");
    if sandbox.backend().has_programs() {
        agent.wait_new(wait::PATIENCE, "ready again", |event| event.is("ready", path));
    }
    let told = agent.seen_until_sentinel(|event| event.is_at(path) && is_alarm(event));
    assert_eq!(told.len(), usize::from(sandbox.backend().has_programs()), "{told:?}");
    assert!(!process::is_gone(daemon.pid()), "nobody ends a daemon that hangs");
}

/// `onHung: abort`: who waits gets an error, and the next one an answer.
fn ended_for_those_who_wait(sandbox: &Sandbox) {
    if !sandbox.backend().has_programs() {
        return;
    }
    let settings = json!({"mode": "heal", "strategy": "respawn", "hungAfter": "2s", "onHung": "abort"});
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "**", settings));
    let daemon = Steerfs::mount(sandbox, "mnt", &["--attr-timeout", "0", "--entry-timeout", "0"]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let before = Before::look(&[path.to_owned()]);
    process::signal(daemon.pid(), Signal::SIGSTOP);
    let asked = path.join("hello");
    let application = thread::spawn(move || fs::read_to_string(asked).map_err(|error| error.raw_os_error()));

    agent.wait("hung", path);
    let dead = agent.wait("dead", path);
    assert_eq!(dead.at("/reason"), &json!({"kind": "stalled", "cause": "stopped"}), "{dead}");
    assert_eq!(dead.at("/daemon/alive"), &json!(true), "{dead}");
    let seen = application.join().expect("the application");
    assert!(matches!(seen, Err(Some(libc::ECONNABORTED | libc::ENOTCONN))), "{seen:?}");
    before.wait_healed(&mut agent);
    assert!(!process::is_gone(daemon.pid()), "it was not the agent's to end");
    daemon.kill(Signal::SIGKILL);
}

fn is_a_thread_of_this_process(id: u64) -> bool {
    fs::metadata(format!("/proc/self/task/{id}")).is_ok()
}

/// While it hangs, the daemon is killed: then it is dead, for a reason of its own.
fn a_request_that_is_never_answered(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &options(sandbox));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    daemon.never_answer(Opcode::Lookup);
    let asked = path.join("never");
    let application = thread::spawn(move || fs::metadata(asked).map(drop));
    daemon.wait_held();

    if sandbox.backend().has_programs() {
        let hung = agent.wait("hung", path);
        assert_eq!(hung.at("/reason"), &json!({"kind": "stalled"}), "{hung}");
        assert_eq!(hung.text("/oldestRequest/opcode"), "LOOKUP", "{hung}");
    }
    daemon.kill(Signal::SIGKILL);
    let dead = agent.wait("dead", path);
    assert_eq!(dead.text("/reason/kind"), "signal", "{dead}");
    agent.wait("recovered", path);
    assert!(application.join().expect("the application").is_err());
}

/// Each answer comes well before the threshold, one after another for longer than that.
fn answers_that_take_their_time(sandbox: &Sandbox) {
    const DELAY: Duration = Duration::from_millis(500);
    const ANSWERS: u32 = 13;
    let options = Options::rule(sandbox, "**", json!({"mode": "heal", "strategy": "respawn", "hungAfter": "3s"}));
    let mut agent = Agent::start(sandbox, &options);
    let daemon = Steerfs::mount(sandbox, "mnt", &["--attr-timeout", "0", "--entry-timeout", "0"]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let millis = u64::try_from(DELAY.as_millis()).expect("milliseconds");
    daemon.send(&Command::Delay { opcode: Opcode::Lookup, millis });
    assert!(DELAY * ANSWERS > Duration::from_secs(6));
    for number in 0..ANSWERS {
        // An answer, too: there is no such file.
        assert!(fs::metadata(path.join(format!("absent-{number}"))).is_err());
    }
    daemon.send(&Command::Reset(true));
    assert_eq!(agent.seen_until_sentinel(|event| event.is_at(path) && is_alarm(event)), []);
}

/// The daemon mounts, and never answers the first request. Then it dies.
fn never_initialised(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "**", json!({"mode": "observe", "hungAfter": "2s"})));
    let daemon = Steerfs::mount(sandbox, "mnt", &["--mute"]);
    let path = daemon.mount_point();
    if sandbox.backend().has_programs() {
        let hung = agent.wait("hung", path);
        assert_eq!(hung.at("/reason"), &json!({"kind": "neverInitialised"}), "{hung}");
        assert_eq!(hung.text("/oldestRequest/opcode"), "INIT", "{hung}");
    }
    daemon.kill(Signal::SIGKILL);
    let dead = agent.wait("dead", path);
    if sandbox.backend().has_programs() {
        assert_eq!(dead.text("/reason/kind"), "neverInitialised", "{dead}");
        // Nobody answered, so who served is known from the descriptor only (Linux 6.18).
        if dead.at("/daemon/pid") == &json!(daemon.pid()) {
            assert_eq!(dead.text("/reason/end/signal"), "SIGKILL", "{dead}");
        }
    }
    assert_eq!(agent.seen(|event| event.is("ready", path)), [], "it never was");
}

/// Who was given the descriptor keeps the connection alive, and answers nobody until it goes on.
fn descriptor_handed_to_one_who_does_not_serve(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::observe(sandbox));
    let old = Steerfs::mount(sandbox, "mnt", &[]);
    let path = old.mount_point();
    agent.wait("ready", path);
    let (new, socket) = Steerfs::receiver(sandbox, path);
    old.send(&Command::PassDescriptor(socket));
    wait::until("the descriptor to arrive", || holds_device(new.pid()).then_some(()));
    process::signal(new.pid(), Signal::SIGSTOP);
    old.kill(Signal::SIGKILL);

    let hung = agent.wait("hung", path);
    let holder = json!({"pid": new.pid(), "comm": "steerfs"});
    assert_eq!(hung.at("/reason"), &json!({"kind": "descriptorHeld", "holder": holder}), "{hung}");
    process::signal(new.pid(), Signal::SIGCONT);
    agent.wait_count(2, "ready", path);
    assert_eq!(agent.seen_until_sentinel(|event| event.is("dead", path)), []);
}

fn holds_device(pid: u32) -> bool {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).expect("fd").flatten();
    links.filter_map(|link| fs::read_link(link.path()).ok()).any(|target| target.ends_with("fuse"))
}

/// The kernel itself ends connections with requests that are too old, if it is told to (Linux 6.15). Its limit is read when
/// FUSE_INIT is answered, so it concerns no other test's connection.
fn a_request_beyond_the_kernels_limit(sandbox: &Sandbox) {
    /// The least that the kernel takes (`FUSE_TIMEOUT_TIMER_FREQ`, fs/fuse/fuse_i.h); it looks as often.
    const LIMIT: &str = "15";
    let Some(limit) = KernelLimit::set(LIMIT) else {
        return backend::skip(false, "this kernel has no limit for a request's age (Linux 6.15)");
    };
    let mut agent =
        Agent::start(sandbox, &Options::rule(sandbox, "**", json!({"mode": "observe", "hungAfter": "10m"})));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    drop(limit);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    daemon.never_answer(Opcode::Lookup);
    let asked = path.join("never");
    let application = thread::spawn(move || fs::metadata(asked).map(drop).map_err(|error| error.raw_os_error()));

    let dead = agent.wait_within(Duration::from_secs(60), "the kernel to end it", |event| event.is("dead", path));
    if sandbox.backend().has_programs() {
        assert_eq!(dead.at("/reason"), &json!({"kind": "requestTimeout"}), "{dead}");
    }
    let seen = application.join().expect("the application");
    assert!(matches!(seen, Err(Some(libc::ECONNABORTED | libc::ENOTCONN))), "{seen:?}");
}

/// The kernel's limit for the age of a request; restored when dropped.
struct KernelLimit {
    before: String,
    /// Another test would take this one's limit for what was there before.
    _alone: MutexGuard<'static, ()>,
}

impl KernelLimit {
    const FILE: &str = "/proc/sys/fs/fuse/default_request_timeout";

    fn set(seconds: &str) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = fs::read_to_string(Self::FILE).ok()?;
        fs::write(Self::FILE, seconds).expect("set the limit");
        Some(Self { before, _alone: alone })
    }
}

impl Drop for KernelLimit {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, &self.before);
    }
}
