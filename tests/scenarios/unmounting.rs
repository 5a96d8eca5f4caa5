//! Mounts that are taken away on purpose are no failures (S6, S7).

use std::fs::File;
use std::path::Path;

use fuse_detector_tests::daemons::{Foreign, Kind};
use fuse_detector_tests::steer::Command;
use fuse_detector_tests::{Agent, Event, Options, Sandbox, Steerfs, mountinfo, process, scenarios, wait};
use nix::sys::signal::Signal;

scenarios!(
    umount,
    fusermount_of_a_libfuse_daemon,
    sigterm_to_a_libfuse_daemon,
    sigterm_with_unmounting_handler,
    exit_after_unmounting,
    lazily_then_closed,
    lazily_then_killed,
    lazily_then_killed_is_no_flapping,
);

/// Does something to a mount, waits for the agent to call it unmounted, and checks that it was called nothing else.
fn check_clean(agent: &mut Agent<'_>, path: &Path, unmount: impl FnOnce()) {
    agent.wait("ready", path);

    unmount();

    agent.wait("unmounted", path);
    // Of the deaths that the agent counts, the sentinel's is the only one.
    let told = agent.seen_until_sentinel(|event| event.is_at(path) && event.kind() != "ready");
    assert_eq!(told.iter().map(Event::kind).collect::<Vec<_>>(), ["unmounted"], "{told:#?}");
    let failures = agent.metric("fuse_detector_failures_total", &[]);
    assert!((failures - 1.0).abs() < f64::EPSILON, "failures_total is {failures}, of which 1 is the sentinel");
    assert_eq!(mountinfo::at(path), [], "nobody mounts it again");
}

fn umount(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    check_clean(&mut agent, path, || sandbox.run_command("umount", &[path]));
}

fn fusermount_of_a_libfuse_daemon(sandbox: &Sandbox) {
    if !Kind::Bindfs.is_here() {
        return;
    }
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Foreign::mount(sandbox, Kind::Bindfs);
    let path = daemon.mount_point();
    check_clean(&mut agent, path, || sandbox.run_command("fusermount3", &["-u".as_ref(), path.as_os_str()]));
}

fn sigterm_to_a_libfuse_daemon(sandbox: &Sandbox) {
    if !Kind::Bindfs.is_here() {
        return;
    }
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Foreign::mount(sandbox, Kind::Bindfs);
    check_clean(&mut agent, daemon.mount_point(), || process::signal(daemon.pid(), Signal::SIGTERM));
}

fn sigterm_with_unmounting_handler(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &["--exit-mode", "unmount-on-term"]);
    check_clean(&mut agent, daemon.mount_point(), || daemon.kill(Signal::SIGTERM));
}

fn exit_after_unmounting(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    check_clean(&mut agent, daemon.mount_point(), || {
        daemon.send(&Command::Exit { code: 0, unmount: true });
    });
}

/// Mounts, opens a file, and takes the mount away under it.
fn detached<'a>(sandbox: &'a Sandbox) -> (Agent<'a>, Steerfs, String, File) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let (path, device) = (daemon.mount_point(), daemon.device());
    agent.wait("ready", path);
    let open = File::open(path.join("hello")).expect("open");
    sandbox.run_command("umount", &["-l".as_ref(), path.as_os_str()]);
    agent.wait_for("detached", |event| event.kind() == "detached" && event.connection() == device);
    (agent, daemon, device, open)
}

fn lazily_then_closed(sandbox: &Sandbox) {
    let (mut agent, daemon, device, open) = detached(sandbox);
    drop(open);
    // With its last user the connection goes, and with that the daemon.
    wait::until("the daemon to end", || process::is_gone(daemon.pid()).then_some(()));
    let alarms = ["dead", "hung", "recovering", "recovered", "recoveryFailed"];
    let told = agent.seen_until_sentinel(|event| event.connection() == device && alarms.contains(&event.kind()));
    // The sentinel may have got the number that just became free.
    let ours: Vec<_> =
        told.iter().filter(|event| event.mounts().is_empty() || event.is_at(daemon.mount_point())).collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

fn lazily_then_killed(sandbox: &Sandbox) {
    let (mut agent, daemon, device, _open) = detached(sandbox);
    daemon.kill(Signal::SIGKILL);
    let dead = agent.wait_for("dead", |event| event.kind() == "dead" && event.connection() == device);
    assert_eq!(dead.mounts(), [], "{dead}");
    assert_eq!(dead.text("/reason/signal"), "SIGKILL", "{dead}");
    let told = agent.seen_until_sentinel(|event| event.connection() == device && event.kind() == "recovering");
    assert_eq!(told, [], "there is nothing to heal");
}

/// However often that happens at a place, what dies there with a mount does not flap.
fn lazily_then_killed_is_no_flapping(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let path = sandbox.mount_point("mnt");
    for round in 1..=3 {
        let daemon = Steerfs::mount_on(sandbox, &path, &[]);
        agent.wait_count(round, "ready", &path);
        let open = File::open(path.join("hello")).expect("open");
        sandbox.run_command("umount", &["-l".as_ref(), path.as_os_str()]);
        agent.wait_count(round, "detached", &path);
        daemon.kill(Signal::SIGKILL);
        let is_dead = |event: &Event| event.kind() == "dead" && event.mounts().is_empty();
        wait::until("its death", || (agent.seen(is_dead).len() == round).then_some(()));
        drop(open);
    }
    let daemon = Steerfs::mount_on(sandbox, &path, &[]);
    agent.wait_count(4, "ready", &path);
    daemon.kill(Signal::SIGKILL);
    let recovering = agent.wait("recovering", &path);
    assert_eq!(recovering.at("/flapping"), &serde_json::Value::Null, "{recovering}");
    agent.wait("recovered", &path);
}
