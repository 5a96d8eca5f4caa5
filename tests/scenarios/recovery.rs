//! What is healed, how often, and what is not touched (S3, S18, S28).

use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuse_detector_tests::heal::{Before, ask, kernel_moves_beneath};
use fuse_detector_tests::reader::BARE;
use fuse_detector_tests::{
    Agent, Event, Options, Reader, Sandbox, Steerfs, mountinfo, process, scenarios, steerfs, wait,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

scenarios!(
    command_fails_then_blocks,
    gives_up,
    binds_keep_root_and_flags,
    command_heals,
    rebind_to_what_the_driver_brought,
    driver_heals_first,
    heals_again_after_a_restart,
    killed_in_the_middle,
    daemon_of_another_network,
    killed_in_the_middle_and_rebound,
    killed_in_the_middle_of_a_command,
    what_was_unmounted_on_purpose_stays_so,
);

/// S3: a command that fails twice, then blocks.
fn command_fails_then_blocks(sandbox: &Sandbox) {
    let (runs, blocking) = (sandbox.join("runs"), sandbox.join("blocking"));
    let script = format!(
        "echo run >> {runs}; [ $(wc -l < {runs}) -le 2 ] && exit 7; echo > {blocking}; sleep 60",
        runs = runs.display(),
        blocking = blocking.display()
    );
    let settings = json!({
        "mode": "heal", "strategy": "command", "command": ["sh", "-c", script], "commandTimeout": "2s",
        "backoff": {"initial": "200ms", "max": "30s", "giveUpAfter": "15m"},
    });
    let options = Options::rule(sandbox, "broken", settings).and(
        sandbox,
        "other",
        json!({"mode": "heal", "strategy": "respawn"}),
    );
    let mut agent = Agent::start(sandbox, &options);
    let (broken, other) = (Steerfs::mount(sandbox, "broken", &[]), Steerfs::mount(sandbox, "other", &[]));
    let path = broken.mount_point();
    agent.wait("ready", path);
    agent.wait("ready", other.mount_point());
    let healthy = Before::look(&[other.mount_point().to_owned()]);
    let reader = Reader::start(&path.join("hello"));

    broken.kill(Signal::SIGKILL);

    agent.wait("dead", path);
    wait::until("the command to block", || blocking.exists().then_some(()));
    // The blocked command holds up nobody else.
    other.kill(Signal::SIGKILL);
    healthy.wait_healed(&mut agent);
    assert!(agent.seen(|event| event.is("recoveryFailed", path)).len() <= 2, "the third attempt should still block");
    agent.wait_count(3, "recoveryFailed", path);

    let failures = agent.seen(|event| event.is("recoveryFailed", path));
    check_failures(&failures);
    assert_eq!(agent.seen_until_sentinel(|event| event.is("recovered", path)), []);
    let report = reader.stop();
    assert!(report.dead.contains_key(&(Errno::ENOTCONN as i32)), "{report:?}");
    assert_eq!(ask(path), Err(Errno::ENOTCONN), "the dead mount stays");
    assert_eq!(mountinfo::at(path).len(), 1);
    sandbox.run_command("umount", &[path]);
    assert_eq!(fs::read_to_string(path.join("hello")).expect("the bare directory"), BARE, "nothing was deleted");
}

fn check_failures(failures: &[Event]) {
    let delays: Vec<u64> = failures.iter().filter_map(|event| event.number("/retryInMillis")).collect();
    assert!(delays.len() >= 3 && delays.windows(2).all(|pair| pair[0] < pair[1]), "back-off grows: {delays:?}");
    for (failure, said) in failures.iter().zip(["code 7", "code 7", "in time"]) {
        assert!(failure.text("/error").contains(said), "{failure}");
        assert_eq!(failure.text("/strategy"), "command", "{failure}");
    }
}

/// Once the time is over it says so, and stops.
fn gives_up(sandbox: &Sandbox) {
    let settings = json!({
        "mode": "heal", "strategy": "command", "command": ["false"],
        "backoff": {"initial": "50ms", "max": "100ms", "giveUpAfter": "500ms"},
    });
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "mnt", settings));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    daemon.kill(Signal::SIGKILL);
    let last = agent.wait_for("giving up", |event| event.is_at(path) && event.at("/gaveUp") == &Value::Bool(true));
    assert_eq!(last.at("/retryInMillis"), &Value::Null, "{last}");
    let failures = agent.seen_until_sentinel(|event| event.is("recoveryFailed", path));
    assert_eq!(failures.last(), Some(&last), "nothing follows");
}

/// S18: the file system is bound whole, in part, and with other flags.
fn binds_keep_root_and_flags(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    let bind = |name: &str, source: &str, flags: &str| -> PathBuf {
        let target = sandbox.mount_point(name);
        sandbox.run_command("mount", &["--bind".as_ref(), path.join(source).as_os_str(), target.as_os_str()]);
        if !flags.is_empty() {
            let remount = format!("remount,bind,{flags}");
            sandbox.run_command("mount", &["-o".as_ref(), remount.as_ref(), target.as_os_str()]);
        }
        target
    };
    let paths = [
        path.to_owned(),
        bind("whole", "", ""),
        bind("part", "sub", ""),
        bind("restricted", "", "ro,nosuid,nodev"),
        bind("quiet-part", "sub", "noexec,noatime"),
    ];
    agent.wait("ready", path);
    let before = Before::look(&paths);
    let readers: Vec<Reader> = paths
        .iter()
        .zip(["hello", "hello", "inner", "hello", "inner"])
        .map(|(path, file)| Reader::start(&path.join(file)))
        .collect();

    daemon.kill(Signal::SIGKILL);

    let dead = agent.wait("dead", path);
    let mut mounts = dead.mounts();
    mounts.sort_unstable();
    let text = |index: usize| paths[index].to_str().expect("UTF-8");
    let mut expected = [
        (text(0), "/", false),
        (text(1), "/", false),
        (text(2), "/sub", false),
        (text(3), "/", true),
        (text(4), "/sub", false),
    ];
    expected.sort_unstable();
    assert_eq!(mounts, expected, "{dead}");
    before.wait_healed(&mut agent);
    for reader in readers {
        reader.stop();
    }
    assert_eq!(fs::write(paths[3].join("file"), "").map_err(|error| error.raw_os_error()), Err(Some(libc::EROFS)));
    assert_eq!(agent.seen_until_sentinel(|event| event.kind() == "dead" && event.is_below(sandbox.path())).len(), 1);
}

/// The policy's command starts the daemon.
fn command_heals(sandbox: &Sandbox) {
    let path = sandbox.mount_point("mnt");
    let settings = json!({
        "mode": "heal", "strategy": "command", "command": [steerfs::program(), path, "--source", "share"],
    });
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "mnt", settings));
    let daemon = Steerfs::mount_on(sandbox, &path, &["--source", "share"]);
    agent.wait("ready", &path);
    let (before, reader) = (Before::look(std::slice::from_ref(&path)), Reader::start(&path.join("hello")));
    daemon.kill(Signal::SIGKILL);
    let recovered = before.wait_healed(&mut agent);
    assert_eq!(recovered.text("/strategy"), "command", "{recovered}");
    reader.stop();
}

/// The driver mounts again where the dead one was; the agent attaches what else hung on it.
fn rebind_to_what_the_driver_brought(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "rebind"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let (path, bound) = (daemon.mount_point().to_owned(), sandbox.mount_point("bound"));
    sandbox.run_command("mount", &["--bind".as_ref(), path.join("sub").as_os_str(), bound.as_os_str()]);
    agent.wait("ready", &path);
    let before = Before::look(&[path.clone(), bound.clone()]);
    let reader = Reader::start(&bound.join("inner"));
    daemon.kill(Signal::SIGKILL);
    agent.wait("dead", &path);

    sandbox.run_command("umount", &["-l".as_ref(), path.as_os_str()]);
    Steerfs::mount_on(sandbox, &path, &[]);

    let recovered = agent.wait("recovered", &bound);
    assert_eq!(recovered.text("/strategy"), "rebind", "{recovered}");
    before.check_all();
    reader.stop();
}

/// S28: between two attempts of the agent, the driver mounts again by itself.
fn driver_heals_first(sandbox: &Sandbox) {
    let runs = sandbox.join("runs");
    let command = |name: &str| json!(["sh", "-c", format!("echo {name} >> {}; exit 1", runs.display())]);
    let settings = |name: &str| {
        json!({
            "mode": "heal", "strategy": "command", "command": command(name),
            "backoff": {"initial": "1s", "max": "1s", "giveUpAfter": "1m"},
        })
    };
    let options = Options::rule(sandbox, "mnt", settings("mnt")).and(sandbox, "later", settings("later"));
    let mut agent = Agent::start(sandbox, &options);
    let (daemon, later) = (Steerfs::mount(sandbox, "mnt", &[]), Steerfs::mount(sandbox, "later", &[]));
    let path = daemon.mount_point();
    agent.wait("ready", path);
    agent.wait("ready", later.mount_point());
    let before = Before::look(&[path.to_owned()]);
    daemon.kill(Signal::SIGKILL);
    agent.wait("recoveryFailed", path);

    sandbox.run_command("umount", &["-l".as_ref(), path.as_os_str()]);
    let driver = Steerfs::mount_on(sandbox, path, &[]);

    // This one failed later and waits equally long: by its second failure, the first one's next attempt is past.
    later.kill(Signal::SIGKILL);
    agent.wait_count(2, "recoveryFailed", later.mount_point());
    before.check_all();
    assert_eq!(driver.device(), mountinfo::at(path)[0].device);
    let attempts = fs::read_to_string(&runs).expect("the commands' log");
    assert_eq!(attempts.lines().filter(|line| *line == "mnt").count(), 1, "nothing is done twice");
    assert_eq!(agent.seen(|event| event.is("recoveryFailed", path)).len(), 1);
}

/// What the agent has healed once is healed again by one that is started later, after an upgrade say: it knows the daemon
/// that the first one launched.
fn heals_again_after_a_restart(sandbox: &Sandbox) {
    let options = Options::heal(sandbox, "respawn");
    let mut agent = Agent::start(sandbox, &options);
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let before = Before::look(&[path.to_owned()]);
    daemon.kill(Signal::SIGKILL);
    before.wait_healed(&mut agent);
    drop(agent);

    let mut agent = Agent::start(sandbox, &options);
    agent.wait("ready", path);
    daemon.successor().kill(Signal::SIGKILL);
    let dead = agent.wait("dead", path);
    assert_eq!(dead.mounts().len(), 1, "what hangs in the daemon's own namespace is nobody's: {dead}");
    let recovered = before.wait_healed(&mut agent);
    assert_eq!(recovered.text("/strategy"), "respawn", "{recovered}");
}

/// Agent and workers are killed when the first of many mounts is healed. The agent that is started then did not see the daemon
/// that died, but finds the one that was launched for it, and heals the others from that one.
fn killed_in_the_middle(sandbox: &Sandbox) {
    let respawn = json!({"mode": "heal", "strategy": "respawn"});
    let path = sandbox.mount_point("mnt");
    finishes_what_was_begun(sandbox, &path, &respawn, &respawn);
}

/// That agent would wait for somebody else, too.
fn killed_in_the_middle_and_rebound(sandbox: &Sandbox) {
    let settings = |strategy: &str| json!({"mode": "heal", "strategy": strategy});
    finishes_what_was_begun(sandbox, &sandbox.mount_point("mnt"), &settings("respawn"), &settings("auto"));
}

/// A command would be run again by any agent.
fn killed_in_the_middle_of_a_command(sandbox: &Sandbox) {
    let path = sandbox.mount_point("mnt");
    let argv = json!([steerfs::program(), path]);
    let command = json!({"mode": "heal", "strategy": "command", "command": argv});
    finishes_what_was_begun(sandbox, &path, &command, &command);
}

fn finishes_what_was_begun(sandbox: &Sandbox, path: &Path, first: &Value, second: &Value) {
    /// Enough that the agent is killed before the last of them is healed.
    const BINDS: usize = 300;
    let daemon = Steerfs::mount_on(sandbox, path, &[]);
    let bind = |number: usize| {
        let target = sandbox.mount_point(format!("bind-{number}"));
        sandbox.run_command("mount", &["--bind".as_ref(), path.as_os_str(), target.as_os_str()]);
        target
    };
    let paths: Vec<PathBuf> = std::iter::once(path.to_owned()).chain((0..BINDS).map(bind)).collect();
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "**", first.clone()));
    agent.wait("ready", path);
    let (before, old) = (Before::look(&paths), daemon.device());
    let of_old = || mountinfo::uppermost_below(sandbox.path()).into_iter().filter(|mount| mount.device == old).count();

    // It wakes at the first change, and is not kept waiting for a processor.
    let table = fs::File::open("/proc/thread-self/mountinfo").expect("mountinfo");
    sandbox.run_command("renice", &["-n", "-20", "-p", &nix::unistd::gettid().to_string()]);
    daemon.kill(Signal::SIGKILL);
    let mut change = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
    poll(&mut change, PollTimeout::from(20_000_u16)).expect("poll");
    process::signal(agent.pid(), Signal::SIGKILL);
    drop(agent);
    let left = of_old();
    assert!(left > 0, "all are healed already");

    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "**", second.clone()));
    wait::until("the others to be healed", || (of_old() == 0).then_some(()));
    let event = agent.wait_for("recovered", |event| event.kind() == "recovered");
    // Where guards stay below those that were healed by then, the dead connection has all its mounts still, and nobody has told
    // of any yet.
    let expected = if kernel_moves_beneath() { left } else { paths.len() };
    assert_eq!(event.mounts().len(), expected, "{event}");
    // No layer more than there has to be.
    before.check_all();
    let mut daemons = process::mentioning(sandbox.path());
    daemons.retain(|pid| process::name(*pid) == "steerfs");
    assert_eq!(daemons.len(), 1, "a second daemon was started: {daemons:?}");
}

/// Started by the agent, it would reach other servers, or none.
fn daemon_of_another_network(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let path = sandbox.mount_point("mnt");
    let program = ["unshare".into(), "--net".into(), steerfs::program().into()];
    let daemon = Steerfs::mount_by(sandbox, &path, program, &[]);
    agent.wait("ready", &path);
    daemon.kill(Signal::SIGKILL);
    let failed = agent.wait("recoveryFailed", &path);
    assert!(failed.text("/error").contains("another net namespace"), "{failed}");
    assert_eq!(failed.at("/gaveUp"), &Value::Bool(true), "{failed}");
    assert_eq!(ask(&path), Err(Errno::ENOTCONN));
    sandbox.run_command("umount", &[&path]);
}

/// Of a daemon's three mounts one was unmounted on purpose. Started again, it mounts all three: that one is not wanted, and
/// serves nobody unseen.
fn what_was_unmounted_on_purpose_stays_so(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    for index in 0..3 {
        sandbox.mount_point(format!("mnt-{index}"));
    }
    let daemon = Steerfs::mount_on(sandbox, &sandbox.join("mnt"), &["--mounts", "3"]);
    if !daemon.is_recognisable(sandbox) {
        return;
    }
    let path = |index: usize| sandbox.join(format!("mnt-{index}"));
    (0..3).for_each(|index| drop(agent.wait("ready", &path(index))));
    sandbox.run_command("umount", &[path(1)]);
    agent.wait("unmounted", &path(1));
    let before = [0, 2].map(|index| Before::look(&[path(index)]));

    daemon.kill(Signal::SIGKILL);

    before.iter().for_each(|before| drop(before.wait_healed(&mut agent)));
    let successor = daemon.successor();
    let there =
        || mountinfo::of(successor.pid()).into_iter().filter(|mount| mount.is_fuse() && mount.mount_point == path(1));
    let gone = wait::until_within(Duration::from_secs(10), || there().next().is_none().then_some(()));
    assert!(gone.is_some(), "{:?}", there().collect::<Vec<_>>());
    assert_eq!(mountinfo::at(&path(1)), []);
    before.iter().for_each(Before::check_all);
}
