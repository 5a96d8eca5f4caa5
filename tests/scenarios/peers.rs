//! Mounts below a parent that other namespaces share: what is mounted and unmounted there happens to them, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use fuse_detector_tests::heal::Before;
use fuse_detector_tests::reader::BARE;
use fuse_detector_tests::{Agent, Options, Reader, Sandbox, Steerfs, mountinfo, process, scenarios, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

scenarios!(a_private_bind, a_slave, an_unbindable_bind);

const ROUNDS: usize = 5;

fn a_private_bind(sandbox: &Sandbox) {
    dies_and_is_healed(sandbox, "--make-private");
}

fn a_slave(sandbox: &Sandbox) {
    dies_and_is_healed(sandbox, "--make-slave");
}

fn an_unbindable_bind(sandbox: &Sandbox) {
    dies_and_is_healed(sandbox, "--make-unbindable");
}

/// A bind that is not shared, below a shared mount with peers: it keeps its propagation here, and there every copy is healed
/// in every round, as one layer.
fn dies_and_is_healed(sandbox: &Sandbox, propagation: &str) {
    let parent = sandbox.join("w");
    fs::create_dir(&parent).expect("mkdir");
    sandbox.run_command("mount", &["-t".as_ref(), "tmpfs".as_ref(), "w".as_ref(), parent.as_os_str()]);
    let (main, bound) = (bare(&parent, "main", "hello"), bare(&parent, "sub", "inner"));
    let namespaces = ["unchanged", "slave"].map(|propagation| Peer::start(sandbox, propagation));
    let peers = namespaces.each_ref().map(Peer::pid);
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let mut daemon = Steerfs::mount_on(sandbox, &main, &[]);
    sandbox.run_command("mount", &["--bind".as_ref(), main.join("sub").as_os_str(), bound.as_os_str()]);
    sandbox.run_command("mount", &[propagation.as_ref(), bound.as_os_str()]);
    agent.wait("ready", &main);
    let before = Before::look(&[main.clone(), bound.clone()]);
    let layers = peers.map(|pid| layers_below(pid, &parent));
    assert_eq!(layers, [2, 2], "both are mounted there");
    let inner = |pid: u32| PathBuf::from(format!("/proc/{pid}/root{}", bound.join("inner").display()));
    let files = [bound.join("inner"), inner(peers[0]), inner(peers[1])];
    let readers = files.each_ref().map(|file| Reader::start(file));

    for round in 1..=ROUNDS {
        // Other namespaces are looked at once things have calmed down.
        wait::until("the agent to know all copies", || knows_all(&agent, &bound).then_some(()));
        daemon.kill(Signal::SIGKILL);
        agent.wait_count(round, "recovered", &bound);
        daemon = daemon.successor();
        before.check_all();
        assert_eq!(peers.map(|pid| layers_below(pid, &parent)), layers, "round {round}");
        for file in &files {
            assert!(
                fs::read(file).is_ok_and(|content| content != BARE.as_bytes()),
                "round {round}: {}",
                file.display()
            );
        }
    }
    for reader in readers {
        reader.stop();
    }
}

/// Whether the agent knows a connection that serves and is mounted there in each of the three namespaces.
fn knows_all(agent: &Agent<'_>, place: &Path) -> bool {
    let status: Value = serde_json::from_str(&agent.get("/status").1).expect("JSON");
    let is_there = |mount: &Value| mount["mountPoint"].as_str() == place.to_str();
    let copies =
        |report: &Value| report["mounts"].as_array().map_or(0, |all| all.iter().filter(|it| is_there(it)).count());
    let reports = status["connections"].as_array().map(Vec::as_slice).unwrap_or_default();
    reports.iter().any(|report| report["state"] == "ready" && copies(report) == 3)
}

/// A directory to mount on with a file that an application would find if nothing were mounted there.
fn bare(parent: &Path, name: &str, file: &str) -> PathBuf {
    let path = parent.join(name);
    fs::create_dir(&path).expect("mkdir");
    fs::write(path.join(file), BARE).expect("write below the mount point");
    path
}

/// A process in a mount namespace of its own, made of this one. It ends with the value.
struct Peer(Child);

impl Peer {
    fn start(sandbox: &Sandbox, propagation: &str) -> Self {
        let mut command = sandbox.command("unshare");
        let child = command.args(["-m", "--propagation", propagation, "sleep", "1000"]).spawn().expect("unshare");
        let peer = Self(child);
        wait::until("the namespace", || (process::name(peer.pid()) == "sleep").then_some(()));
        peer
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn layers_below(pid: u32, place: &Path) -> usize {
    mountinfo::of(pid).iter().filter(|mount| mount.is_fuse() && mount.mount_point.starts_with(place)).count()
}
