//! What looks like a death and is none (S10, S15, S16).

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use fuse_detector_tests::heal::{Before, ask};
use fuse_detector_tests::steer::{Command, Opcode};
use fuse_detector_tests::{Agent, Backend, Event, Options, Sandbox, Steerfs, mountinfo, process, scenarios, wait};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, SockaddrStorage, getpeername, recv, shutdown, socket,
    socketpair,
};
use nix::unistd::read;

scenarios!(
    slow_replies,
    errors_of_the_daemons_own,
    errors_that_have_nothing_to_do_with_fuse,
    healthy_mounts_are_left_alone,
);

/// Events that would call a file system anything but healthy.
fn is_alarm(event: &Event) -> bool {
    ["dead", "hung", "detached", "recovering", "recovered", "recoveryFailed"].contains(&event.kind())
}

/// S10: slowness is never death.
fn slow_replies(sandbox: &Sandbox) {
    const DELAY: Duration = Duration::from_millis(2500);
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let (path, device) = (daemon.mount_point(), daemon.device());
    agent.wait("ready", path);
    let before = Before::look(&[path.to_owned()]);
    let millis = u64::try_from(DELAY.as_millis()).expect("milliseconds");
    daemon.send(&Command::Delay { opcode: Opcode::Any, millis });
    let asked = path.join("hello");
    let started = Instant::now();
    let application = thread::spawn(move || fs::read_to_string(asked));
    daemon.wait_held();

    wait::until("the request among the metrics", || {
        let labels = [("connection", device.as_str())];
        let in_flight = agent.metric("fuse_detector_requests_in_flight", &labels) >= 1.0;
        let age = agent.metric("fuse_detector_oldest_request_seconds", &labels);
        // Without hooks the number of waiting requests is known, not their age.
        (in_flight && (age > 0.3 || sandbox.backend() == Backend::Portable)).then_some(())
    });

    let content = application.join().expect("the application");
    assert_eq!(content.expect("a slow answer is an answer"), "hello from steerfs\n");
    assert!(started.elapsed() >= DELAY);
    daemon.send(&Command::Reset(true));
    assert_eq!(agent.seen_until_sentinel(|event| event.is_at(path) && is_alarm(event)), []);
    before.check_all();
    assert!(!process::is_gone(daemon.pid()));
}

/// S15: the daemon itself answers with the errors of a dead connection, even when asked for a sign of life.
fn errors_of_the_daemons_own(sandbox: &Sandbox) {
    let options = Options::heal(sandbox, "respawn").argument("--vfs-errors=on");
    let mut agent = Agent::start(sandbox, &options);
    let daemon = Steerfs::mount(sandbox, "mnt", &["--subtype", "sick", "--attr-timeout", "0"]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let before = Before::look(&[path.to_owned()]);
    for (opcode, errno) in [
        (Opcode::Getattr, Errno::ENOTCONN),
        (Opcode::Getattr, Errno::EIO),
        (Opcode::Statfs, Errno::ENOTCONN),
        (Opcode::Statfs, Errno::ECONNABORTED),
    ] {
        daemon.send(&Command::Errno { opcode, errno: errno as i32 });
        let seen = match opcode {
            Opcode::Statfs => ask(path),
            _ => nix::sys::stat::stat(path).map(drop),
        };
        assert_eq!(seen, Err(errno), "the application gets what the daemon answered");
    }
    assert_eq!(agent.seen_until_sentinel(|event| event.is_at(path) && is_alarm(event)), []);
    if sandbox.backend().has_programs() {
        for errno in ["ENOTCONN", "EIO", "ECONNABORTED"] {
            let labels = [("errno", errno), ("fs_type", "fuse.sick")];
            assert!(agent.metric("fuse_detector_request_errors_total", &labels) >= 1.0, "{errno} is not counted");
        }
    }
    daemon.send(&Command::Reset(true));
    before.check_all();
    assert_eq!(mountinfo::at(path).len(), 1);
    assert!(!process::is_gone(daemon.pid()), "nobody restarts a daemon for its errors");
}

/// S16: the same errors from sockets, while the hook on system calls is attached.
fn errors_that_have_nothing_to_do_with_fuse(sandbox: &Sandbox) {
    let options = Options::heal(sandbox, "respawn").argument("--vfs-errors=on");
    let mut agent = Agent::start(sandbox, &options);
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    if sandbox.backend() == Backend::Tracepoint {
        wait::until("the hook on system calls", || {
            (agent.metric("fuse_detector_hook_attached", &[("hook", "sys_exit")]) > 0.0).then_some(())
        });
    }

    let unconnected = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("socket");
    let mut buffer = [0u8; 8];
    let peer = getpeername::<SockaddrStorage>(unconnected.as_raw_fd());
    assert_eq!(peer.map(drop), Err(Errno::ENOTCONN));
    assert_eq!(read(&unconnected, &mut buffer), Err(Errno::ENOTCONN));
    assert_eq!(recv(unconnected.as_raw_fd(), &mut buffer, MsgFlags::empty()), Err(Errno::ENOTCONN));
    assert_eq!(shutdown(unconnected.as_raw_fd(), Shutdown::Both), Err(Errno::ENOTCONN));
    let (ours, _theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC).expect("socketpair");
    shutdown(ours.as_raw_fd(), Shutdown::Both).expect("shutdown");
    assert_eq!(read(&ours, &mut buffer), Ok(0));
    assert_eq!(nix::unistd::write(&ours, b"x"), Err(Errno::EPIPE));
    // A path whose last component is a socket that nobody serves: ENXIO.
    let address = sandbox.join("socket");
    drop(std::os::unix::net::UnixListener::bind(&address).expect("bind"));
    assert_eq!(
        fs::File::open(&address).map_err(|error: io::Error| error.raw_os_error()).err(),
        Some(Some(libc::ENXIO))
    );

    // What is read at one scrape can be attributed until the next.
    let counted = [(); 2].map(|()| agent.metric("fuse_detector_vfs_errors_total", &[]));
    assert_eq!(counted, [0.0; 2], "errors of sockets are counted");
    let told = agent.seen_until_sentinel(|event| event.is_below(sandbox.path()) && is_alarm(event));
    assert_eq!(told, []);
    assert!(!process::is_gone(daemon.pid()));
}

/// While others die and are healed, nothing is asked of a healthy file system.
fn healthy_mounts_are_left_alone(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    agent.wait("ready", daemon.mount_point());
    let other = Steerfs::mount(sandbox, "other", &[]);
    agent.wait("ready", other.mount_point());
    let before = daemon.stats();

    other.kill(Signal::SIGKILL);
    agent.wait("recovered", other.mount_point());
    assert_eq!(agent.seen_until_sentinel(|event| event.is_at(daemon.mount_point()) && is_alarm(event)), []);

    assert_eq!(daemon.stats(), before, "requests that only the agent can have caused");
}
