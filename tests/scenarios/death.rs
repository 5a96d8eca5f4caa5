//! A daemon dies: who, why, exactly once, and the mount serves again (S1, S2, S17).

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::thread;

use fuse_detector_tests::cgroup::MemoryCgroup;
use fuse_detector_tests::heal::{Before, ask};
use fuse_detector_tests::process::kill_from_shell;
use fuse_detector_tests::steer::{Command, Opcode};
use fuse_detector_tests::{Agent, Backend, Event, Options, Reader, Sandbox, Steerfs, process, scenarios, steerfs};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

scenarios!(
    sigkill,
    sigsegv,
    sigterm_without_handler,
    exit_without_unmounting,
    request_in_flight,
    applications_never_see_the_bare_directory,
    cached_attributes,
    found_dead_at_start,
    descriptor_kept_by_a_child,
    out_of_memory,
    init_refused,
);

scenarios!(in fuse_detector_tests::Sandbox::run_private; sigkill_of_a_private_mount);

/// A daemon that a shell kills while nobody uses its mount: reported and healed, once.
fn killed(sandbox: &Sandbox, signal: Signal) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &["--subtype", "steer"]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let (before, device) = (Before::look(&[path.to_owned()]), daemon.device());

    let shell = kill_from_shell(sandbox, daemon.pid(), signal);

    let dead = agent.wait("dead", path);
    check_death(&dead, sandbox, &daemon, &device);
    assert_eq!((dead.text("/reason/kind"), dead.text("/reason/signal")), ("signal", signal.as_str()), "{dead}");
    match sandbox.backend() {
        Backend::Fentry | Backend::Kprobe | Backend::Tracepoint => {
            assert_eq!(dead.at("/reason/sender"), &json!({"pid": shell, "comm": "sh"}), "{dead}");
            assert!(dead.number("/detectionMicros").is_some(), "{dead}");
        }
        // Nobody saw the signal being sent.
        Backend::Portable => assert_eq!(dead.at("/reason/sender"), &Value::Null, "{dead}"),
    }
    check_recovery(&mut agent, &daemon, &before);
}

fn sigkill(sandbox: &Sandbox) {
    killed(sandbox, Signal::SIGKILL);
}

fn sigkill_of_a_private_mount(sandbox: &Sandbox) {
    killed(sandbox, Signal::SIGKILL);
}

fn sigsegv(sandbox: &Sandbox) {
    killed(sandbox, Signal::SIGSEGV);
}

fn sigterm_without_handler(sandbox: &Sandbox) {
    killed(sandbox, Signal::SIGTERM);
}

fn exit_without_unmounting(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    for (round, code) in [0, 3].into_iter().enumerate() {
        let daemon = Steerfs::mount(sandbox, &format!("mnt-{round}"), &["--subtype", "steer"]);
        let path = daemon.mount_point();
        agent.wait("ready", path);
        let (before, device) = (Before::look(&[path.to_owned()]), daemon.device());

        daemon.send(&Command::Exit { code, unmount: false });

        let dead = agent.wait("dead", path);
        check_death(&dead, sandbox, &daemon, &device);
        assert_eq!(dead.at("/reason"), &json!({"kind": "exit", "code": code}), "{dead}");
        check_recovery(&mut agent, &daemon, &before);
    }
}

/// What every death has in common.
fn check_death(dead: &Event, sandbox: &Sandbox, daemon: &Steerfs, device: &str) {
    assert_eq!(dead.connection(), device, "{dead}");
    assert_eq!(dead.text("/backend"), sandbox.backend().as_str(), "{dead}");
    assert_eq!((dead.text("/fsType"), dead.text("/source")), ("fuse.steer", "steerfs"), "{dead}");
    assert_eq!(dead.at("/daemon"), &json!({"pid": daemon.pid(), "comm": "steerfs", "alive": false}), "{dead}");
    let path = daemon.mount_point().to_str().unwrap_or_default();
    assert_eq!(dead.mounts(), [(path, "/", false)], "{dead}");
}

/// Healed by one new daemon, with each event written once, and in order.
fn check_recovery(agent: &mut Agent<'_>, daemon: &Steerfs, before: &Before) {
    let recovered = before.wait_healed(agent);
    assert_eq!(recovered.text("/strategy"), "respawn", "{recovered}");
    assert!(
        recovered.number("/recoveryMicros").is_some() && recovered.number("/outageMicros").is_some(),
        "{recovered}"
    );
    let successor = daemon.successor();
    assert!(process::is_gone(daemon.pid()) && !process::is_gone(successor.pid()));
    let path = daemon.mount_point();
    let told: Vec<Event> = agent.seen_until_sentinel(|event| event.is_at(path));
    let kinds: Vec<&str> = told.iter().map(Event::kind).filter(|kind| *kind != "ready").collect();
    assert_eq!(kinds, ["dead", "recovering", "recovered"], "{told:#?}");
    let daemons = process::mentioning(path).into_iter().filter(|pid| *pid != agent.pid());
    assert_eq!(daemons.filter(|pid| process::name(*pid) == "steerfs").count(), 1, "one daemon serves {path:?}");
}

/// S2: a request that the daemon never answers is aborted with its death.
fn request_in_flight(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let before = Before::look(&[path.to_owned()]);
    daemon.never_answer(Opcode::Lookup);
    let asked = path.join("never");
    let application = thread::spawn(move || fs::metadata(asked).map(drop).map_err(|error| error.raw_os_error()));
    daemon.wait_held();

    daemon.kill(Signal::SIGKILL);

    let seen = application.join().expect("the application's thread");
    assert_eq!(seen, Err(Some(Errno::ECONNABORTED as i32)), "what the waiting application got");
    let dead = agent.wait("dead", path);
    let aborted = match sandbox.backend() {
        Backend::Fentry | Backend::Kprobe | Backend::Tracepoint => Some(1),
        Backend::Portable => None,
    };
    assert_eq!(dead.number("/abortedRequests"), aborted, "{dead}");
    before.wait_healed(&mut agent);
    assert_eq!(agent.seen_until_sentinel(|event| event.is("dead", path)).len(), 1);
}

/// Round after round, with an application that reads all the time.
fn applications_never_see_the_bare_directory(sandbox: &Sandbox) {
    const ROUNDS: usize = 5;
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let mut daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point().to_owned();
    agent.wait("ready", &path);
    let before = Before::look(std::slice::from_ref(&path));
    let reader = Reader::start(&path.join("hello"));
    for round in 1..=ROUNDS {
        daemon.kill(Signal::SIGKILL);
        agent.wait_count(round, "recovered", &path);
        daemon = daemon.successor();
        before.check_all();
    }
    let report = reader.stop();
    assert!(report.good > 0 && !report.dead.is_empty(), "{report:?}");
    let told = agent.seen_until_sentinel(|event| event.is("dead", &path));
    assert_eq!(told.len(), ROUNDS, "{told:#?}");
}

/// S17: the kernel answers stat from its cache as if nothing had happened.
fn cached_attributes(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::observe(sandbox));
    let daemon = Steerfs::mount(sandbox, "mnt", &["--attr-timeout", "3600", "--entry-timeout", "3600"]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    fs::metadata(path.join("hello")).expect("stat, to be cached");
    fs::metadata(path).expect("stat, to be cached");

    daemon.kill(Signal::SIGKILL);

    agent.wait("dead", path);
    fs::metadata(path.join("hello")).expect("stat, out of the cache");
    fs::metadata(path).expect("stat, out of the cache");
    assert_eq!(ask(path), Err(Errno::ENOTCONN));
}

/// S17 at the start of the agent: it finds what died before, attributes cached or not, and heals it.
fn found_dead_at_start(sandbox: &Sandbox) {
    let daemon = Steerfs::mount(sandbox, "mnt", &["--attr-timeout", "3600", "--entry-timeout", "3600"]);
    let path = daemon.mount_point().to_owned();
    let before = Before::look(std::slice::from_ref(&path));
    fs::metadata(&path).expect("stat, to be cached");
    daemon.kill(Signal::SIGKILL);

    let command = json!([steerfs::program(), path]);
    let settings = json!({"mode": "heal", "strategy": "command", "command": command});
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "mnt", settings));

    let dead = agent.wait("dead", &path);
    assert_eq!(dead.text("/reason/kind"), "unknown", "{dead}");
    let recovered = before.wait_healed(&mut agent);
    assert_eq!(recovered.text("/strategy"), "command", "{recovered}");
    // Nobody saw the death: how long the outage was is unknown.
    assert_eq!(recovered.at("/outageMicros"), &Value::Null, "{recovered}");
}

/// A child keeps the descriptor, so the daemon's death aborts nothing: callers would wait for ever.
fn descriptor_kept_by_a_child(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::observe(sandbox));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let holder = daemon.send(&Command::HoldDescriptor(true)).pid.expect("the holder's process id");

    daemon.kill(Signal::SIGKILL);

    let hung = agent.wait("hung", path);
    let expected = json!({"kind": "descriptorHeld", "holder": {"pid": holder, "comm": "sleep"}});
    assert_eq!(hung.at("/reason"), &expected, "{hung}");
    assert!(agent.seen_until_sentinel(|event| event.is("dead", path)).is_empty(), "nothing was aborted");
}

/// S4: the daemon's memory cgroup is full.
fn out_of_memory(sandbox: &Sandbox) {
    let Some(cgroup) = MemoryCgroup::new(sandbox) else { return };
    let mut agent = Agent::start(sandbox, &Options::observe(sandbox));
    let program = ["sh", "-c", r#"echo $$ > "$0" && exec "$@""#].map(OsString::from).into_iter();
    let joining = program.chain([cgroup.processes().into(), steerfs::program().into()]);
    let daemon = Steerfs::mount_by(sandbox, &sandbox.mount_point("mnt"), joining, &[]);
    let path = daemon.mount_point();
    agent.wait("ready", path);

    let mut file = fs::File::create(path.join("file")).expect("create");
    cgroup.limit(8 << 20);
    let written = (0..64).try_for_each(|_| file.write_all(&[0x55; 1 << 20]).and_then(|()| file.sync_data()));
    assert!(written.is_err(), "the daemon stored 64 MiB in 8");

    let dead = agent.wait("dead", path);
    let reason = match sandbox.backend() {
        Backend::Fentry | Backend::Kprobe | Backend::Tracepoint => json!({"kind": "oom", "cgroup": cgroup.name()}),
        // A signal like any other, for those who don't see why it was sent.
        Backend::Portable => json!({"kind": "signal", "signal": "SIGKILL"}),
    };
    assert_eq!(dead.at("/reason"), &reason, "{dead}");
    assert_eq!(dead.at("/daemon/pid"), &json!(daemon.pid()), "{dead}");
}

/// FUSE_INIT was answered with an error: no other request will ever be let through.
fn init_refused(sandbox: &Sandbox) {
    let path = sandbox.mount_point("mnt");
    let mut device = fs::File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    mount(Some("none"), &path, Some("fuse"), MsFlags::empty(), Some(options.as_str())).expect("mount");
    let mut request = vec![0; 1 << 16];
    let length = device.read(&mut request).expect("FUSE_INIT");
    assert!(length >= 16, "{length} bytes");
    // `struct fuse_out_header` of include/uapi/linux/fuse.h; `unique` is the third field of `struct fuse_in_header`.
    let mut answer = [16_u32.to_ne_bytes(), (-libc::EIO).to_ne_bytes()].concat();
    answer.extend_from_slice(&request[8..16]);
    device.write_all(&answer).expect("answer FUSE_INIT");
    assert_eq!(ask(&path), Err(Errno::ECONNREFUSED));

    let mut agent = Agent::start(sandbox, &Options::observe(sandbox));
    let dead = agent.wait("dead", &path);
    assert_eq!(dead.text("/reason/kind"), "neverInitialised", "{dead}");
}
