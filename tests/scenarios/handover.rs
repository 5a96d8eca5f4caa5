//! A descriptor that changes hands, and a number that changes connections: neither is a death (S13).

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuse_detector_tests::heal::ask;
use fuse_detector_tests::steer::Command;
use fuse_detector_tests::{Agent, Event, Options, Sandbox, Steerfs, process, scenarios, wait};
use nix::sys::signal::Signal;
use serde_json::json;

scenarios!(descriptor_handed_over, descriptor_handed_over_then_its_new_daemon_dies, one_number_for_many);

/// Events that would call a file system anything but healthy.
fn is_alarm(event: &Event) -> bool {
    ["dead", "hung", "detached", "recovering", "recovered", "recoveryFailed"].contains(&event.kind())
}

/// One at a time: what one gives back is another one's next otherwise.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The old daemon hands its descriptor to a new process and exits.
fn hand_over(sandbox: &Sandbox, agent: &mut Agent<'_>) -> Steerfs {
    let old = Steerfs::mount(sandbox, "mnt", &[]);
    let path = old.mount_point();
    agent.wait("ready", path);
    let (new, socket) = Steerfs::receiver(sandbox, path);
    old.send(&Command::PassDescriptor(socket));
    old.send(&Command::Exit { code: 0, unmount: false });
    wait::until("the old daemon to end", || process::is_gone(old.pid()).then_some(()));
    assert_eq!(ask(path), Ok(()), "the new daemon serves on");
    new
}

fn descriptor_handed_over(sandbox: &Sandbox) {
    let _alone = alone();
    let mut agent = Agent::start(sandbox, &Options::observe(sandbox));
    let new = hand_over(sandbox, &mut agent);
    let path = new.mount_point().to_owned();
    assert_eq!(agent.seen_until_sentinel(|event| event.is_at(&path) && is_alarm(event)), []);
    new.kill(Signal::SIGKILL);
    agent.wait("dead", &path);
}

/// The new daemon's death is told as its own, and not as that of the one before.
fn descriptor_handed_over_then_its_new_daemon_dies(sandbox: &Sandbox) {
    let _alone = alone();
    let mut agent = Agent::start(sandbox, &Options::observe(sandbox));
    let new = hand_over(sandbox, &mut agent);
    if !new.is_recognisable(sandbox) {
        return;
    }
    assert_eq!(agent.seen_until_sentinel(|event| event.is_at(new.mount_point()) && is_alarm(event)), []);
    new.kill(Signal::SIGKILL);
    let dead = agent.wait("dead", new.mount_point());
    assert_eq!(dead.at("/daemon"), &json!({"pid": new.pid(), "comm": "steerfs", "alive": false}), "{dead}");
    assert_eq!(dead.text("/reason/signal"), "SIGKILL", "{dead}");
}

/// The kernel gives a number to the next connection as soon as it is free. Half of them are gone before the agent can have
/// seen much of them.
fn one_number_for_many(sandbox: &Sandbox) {
    const ROUNDS: usize = 50;
    let _alone = alone();
    let mut agent = Agent::start(sandbox, &Options::observe(sandbox));
    let places = ["here", "there"].map(|name| sandbox.mount_point(name));
    let mut daemon = Steerfs::mount_on(sandbox, &places[0], &[]);
    let (first, mut reused, mut told) = (daemon.device(), 0, 0);
    for round in 1..=ROUNDS {
        if round % 2 == 0 {
            wait_ready(&mut agent, daemon.mount_point(), told);
        }
        // A probe of the agent can be at it: that keeps it busy for a moment.
        let unmount = || nix::mount::umount(daemon.mount_point()).ok();
        wait::until("the unmount", unmount);
        let next = &places[round % 2];
        told = agent.seen(|event| event.is("ready", next)).len();
        daemon = Steerfs::mount_on(sandbox, next, &[]);
        reused += usize::from(daemon.device() == first);
    }
    assert!(reused > ROUNDS / 2, "{reused} of {ROUNDS} had the number {first}");
    wait_ready(&mut agent, daemon.mount_point(), told);
    let of_ours = |event: &Event| places.iter().any(|place| event.is_at(place));
    assert_eq!(agent.seen_until_sentinel(|event| of_ours(event) && is_alarm(event)), []);
    let [ready, unmounted] =
        ["ready", "unmounted"].map(|kind| agent.seen(|event| event.kind() == kind && of_ours(event)).len());
    assert!(ready == unmounted + 1 && ready > ROUNDS / 2, "{ready} ready, {unmounted} unmounted");

    let daemon_is_known = sandbox.backend().has_programs() || daemon.is_named();
    daemon.kill(Signal::SIGKILL);
    let dead = agent.wait("dead", daemon.mount_point());
    assert_eq!(dead.text("/connection"), daemon.device(), "{dead}");
    // By its arguments alone, a daemon can't be told from the one before it.
    if daemon_is_known {
        assert_eq!(dead.at("/daemon/pid"), &json!(daemon.pid()), "{dead}");
    }
}

/// Waits until more connections were told ready there than before.
fn wait_ready(agent: &mut Agent<'_>, path: &Path, before: usize) {
    agent.wait_count(before + 1, "ready", path);
}
