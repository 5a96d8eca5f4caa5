//! Daemons that nobody here wrote: each dies, and each is started again as it was (S1, S18).

use std::path::PathBuf;

use fuse_detector_tests::daemons::{Foreign, Kind};
use fuse_detector_tests::heal::Before;
use fuse_detector_tests::process::kill_from_shell;
use fuse_detector_tests::{Agent, Options, Reader, Sandbox, scenarios};
use nix::sys::signal::Signal;
use serde_json::json;

scenarios!(bindfs, rclone, gocryptfs, fuse_overlayfs, bindfs_that_was_there_before_the_agent);

fn bindfs(sandbox: &Sandbox) {
    check(sandbox, Kind::Bindfs, Start::AgentFirst);
}

fn rclone(sandbox: &Sandbox) {
    check(sandbox, Kind::Rclone, Start::AgentFirst);
}

fn gocryptfs(sandbox: &Sandbox) {
    check(sandbox, Kind::Gocryptfs, Start::AgentFirst);
}

fn fuse_overlayfs(sandbox: &Sandbox) {
    check(sandbox, Kind::FuseOverlayfs, Start::AgentFirst);
}

fn bindfs_that_was_there_before_the_agent(sandbox: &Sandbox) {
    check(sandbox, Kind::Bindfs, Start::DaemonFirst);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    AgentFirst,
    DaemonFirst,
}

fn check(sandbox: &Sandbox, kind: Kind, start: Start) {
    if !kind.is_here() {
        return;
    }
    let options = Options::heal(sandbox, "respawn");
    let (mut agent, daemon) = match start {
        Start::AgentFirst => {
            let mut agent = Agent::start(sandbox, &options);
            let daemon = Foreign::mount(sandbox, kind);
            agent.wait("ready", daemon.mount_point());
            (agent, daemon)
        }
        Start::DaemonFirst => {
            let daemon = Foreign::mount(sandbox, kind);
            (Agent::start(sandbox, &options), daemon)
        }
    };
    let path = daemon.mount_point();
    let paths = bind(sandbox, &daemon);
    let before = Before::look(&paths);
    let readers = [Reader::start(&path.join("hello")), Reader::start(&paths[2].join("inner"))];

    let shell = kill_from_shell(sandbox, daemon.pid(), Signal::SIGKILL);

    let dead = agent.wait("dead", path);
    assert_eq!(dead.text("/reason/signal"), "SIGKILL", "{dead}");
    if sandbox.backend().has_programs() {
        assert_eq!(dead.at("/reason/sender"), &json!({"pid": shell, "comm": "sh"}), "{dead}");
    }
    assert_eq!(dead.number("/daemon/pid"), Some(u64::from(daemon.pid())), "{dead}");
    assert_eq!(dead.mounts().len(), paths.len(), "{dead}");
    before.wait_healed(&mut agent);
    for reader in readers {
        reader.stop();
    }
    assert_eq!(agent.seen_until_sentinel(|event| event.is("dead", path)).len(), 1);
}

/// S18's binds: of the root, of a part, and one with other flags.
fn bind(sandbox: &Sandbox, daemon: &Foreign) -> Vec<PathBuf> {
    let path = daemon.mount_point();
    let targets = ["whole", "part", "restricted"].map(|name| sandbox.mount_point(name));
    for (target, source) in targets.iter().zip([path.to_owned(), path.join("sub"), path.to_owned()]) {
        sandbox.run_command("mount", &["--bind".as_ref(), source.as_os_str(), target.as_os_str()]);
    }
    sandbox.run_command("mount", &["-o".as_ref(), "remount,bind,ro,noexec".as_ref(), targets[2].as_os_str()]);
    std::iter::once(path.to_owned()).chain(targets).collect()
}
