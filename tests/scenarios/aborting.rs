//! An administrator ends the connection, the daemon lives on (S9).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

use fuse_detector_tests::heal::{Before, ask};
use fuse_detector_tests::process::{shell, signal};
use fuse_detector_tests::steer::Opcode;
use fuse_detector_tests::{Agent, Backend, Options, Sandbox, Steerfs, mountinfo, process, scenarios};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use serde_json::json;

scenarios!(
    abort_file,
    abort_file_with_a_policy_to_heal,
    aborted_daemons_that_stay,
    abort_file_of_one_of_several,
    forced_unmount_of_a_busy_mount,
);

/// The control file of a connection, in a fusectl mount of the sandbox's own.
fn abort_file_of(sandbox: &Sandbox, device: &str) -> PathBuf {
    let control = sandbox.join("fusectl");
    fs::create_dir(&control).expect("mkdir");
    sandbox.run_command("mount", &["-t".as_ref(), "fusectl".as_ref(), "none".as_ref(), control.as_os_str()]);
    let (major, minor) = device.split_once(':').expect("major:minor");
    assert_eq!(major, "0", "an anonymous device");
    control.join(minor).join("abort")
}

fn abort_file(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &["--exit-mode", "stay-on-abort"]);
    let path = daemon.mount_point();
    agent.wait("ready", path);

    let script = format!("echo 1 > {}; read -r _", abort_file_of(sandbox, &daemon.device()).display());
    // It stays until the agent has spoken: a process that is gone may have no name any more.
    let mut actor = sandbox.command("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().expect("sh");

    let dead = agent.wait("dead", path);
    drop(actor.stdin.take());
    actor.wait().expect("sh");
    let actor = json!({"pid": actor.id(), "comm": "sh"});
    assert_eq!(dead.at("/reason"), &json!({"kind": "adminAbort", "actor": actor}), "{dead}");
    assert_eq!(dead.at("/daemon"), &json!({"pid": daemon.pid(), "comm": "steerfs", "alive": true}), "{dead}");
    // On purpose is on purpose: healed only if the policy says so.
    assert_eq!(agent.seen_until_sentinel(|event| event.is("recovering", path)), []);
    assert_eq!(ask(path), Err(Errno::ENOTCONN));
    signal(daemon.pid(), Signal::SIGKILL);
    assert!(process::reap(daemon.pid()));
    let told = agent.seen_until_sentinel(|event| event.is("dead", path));
    assert_eq!(told, [dead], "the daemon's end is not another death");
}

fn abort_file_with_a_policy_to_heal(sandbox: &Sandbox) {
    let settings = json!({"mode": "heal", "strategy": "respawn", "onAbort": "heal"});
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "mnt", settings));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let before = Before::look(&[path.to_owned()]);

    shell(sandbox, &format!("echo 1 > {}", abort_file_of(sandbox, &daemon.device()).display()));

    let dead = agent.wait("dead", path);
    assert_eq!(dead.text("/reason/kind"), "adminAbort", "{dead}");
    before.wait_healed(&mut agent);
}

/// A daemon that doesn't leave when its connection is aborted serves nothing any more. One that the agent launched is ended before
/// the next one starts; the first, which somebody else started, is left alone.
fn aborted_daemons_that_stay(sandbox: &Sandbox) {
    let settings = json!({"mode": "heal", "strategy": "respawn", "onAbort": "heal"});
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "mnt", settings));
    let first = Steerfs::mount(sandbox, "mnt", &["--exit-mode", "stay-on-abort"]);
    let path = first.mount_point().to_owned();
    agent.wait("ready", &path);
    let before = Before::look(std::slice::from_ref(&path));
    let control = abort_file_of(sandbox, &first.device()).parent().and_then(Path::parent).expect("fusectl").to_owned();
    let mut current = first.pid();
    for round in 1..=3 {
        let device = mountinfo::at(&path).pop().expect("a mount").device;
        let minor = device.split_once(':').expect("major:minor").1.to_owned();
        shell(sandbox, &format!("echo 1 > {}", control.join(minor).join("abort").display()));
        agent.wait_count(round, "recovered", &path);
        before.check_all();
        let daemons = process::mentioning(&path);
        assert!(daemons.len() == 2 && daemons.contains(&first.pid()), "round {round}: {daemons:?}");
        assert!(round == 1 || !daemons.contains(&current), "round {round}: {current} stays");
        current = daemons.into_iter().find(|pid| *pid != first.pid()).expect("the new one");
    }
}

/// The daemon serves others, and a second one would work on the same data: the mount waits for the daemon's end, and then one
/// start brings back all.
fn abort_file_of_one_of_several(sandbox: &Sandbox) {
    let settings = json!({"mode": "heal", "strategy": "respawn", "onAbort": "heal"});
    let mut agent = Agent::start(sandbox, &Options::rule(sandbox, "**", settings));
    let paths = ["mnt-0", "mnt-1", "mnt-2"].map(|name| sandbox.mount_point(name));
    let daemon = Steerfs::mount_on(sandbox, &sandbox.join("mnt"), &["--mounts", "3"]);
    if !daemon.is_recognisable(sandbox) {
        return;
    }
    for path in &paths {
        agent.wait("ready", path);
    }
    let before = Before::look(&paths);
    let device = mountinfo::at(&paths[0]).pop().expect("a mount").device;

    shell(sandbox, &format!("echo 1 > {}", abort_file_of(sandbox, &device).display()));
    agent.wait("dead", &paths[0]);
    agent.wait("recovering", &paths[0]);
    assert_eq!(agent.seen_until_sentinel(|event| event.kind().starts_with("recover") && event.is_at(&paths[1])), []);
    assert_eq!((ask(&paths[0]), ask(&paths[1])), (Err(Errno::ENOTCONN), Ok(())));
    assert_eq!(process::mentioning(&sandbox.join("mnt")), [daemon.pid()], "a second daemon was started");

    daemon.kill(Signal::SIGKILL);
    for path in &paths {
        agent.wait("recovered", path);
    }
    before.check_all();
    assert_eq!(process::mentioning(&sandbox.join("mnt")), [daemon.successor().pid()], "started more than once");
}

/// `umount -f` says EBUSY and ends the connection all the same.
fn forced_unmount_of_a_busy_mount(sandbox: &Sandbox) {
    let stays = sandbox.backend().has_programs();
    let mode = if stays { "stay-on-abort" } else { "plain" };
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &["--exit-mode", mode]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let _open = File::open(path.join("hello")).expect("open");
    daemon.never_answer(Opcode::Lookup);
    let asked = path.join("never");
    let application = thread::spawn(move || fs::metadata(asked).map(drop).map_err(|error| error.raw_os_error()));
    daemon.wait_held();

    let mut umount = sandbox.command("umount").arg("-f").arg(path).spawn().expect("umount");
    assert!(!umount.wait().expect("umount").success(), "umount -f of a busy mount is EBUSY");

    assert_eq!(application.join().expect("the application"), Err(Some(Errno::ECONNABORTED as i32)));
    let dead = agent.wait("dead", path);
    match sandbox.backend() {
        Backend::Fentry | Backend::Kprobe | Backend::Tracepoint => {
            let actor = json!({"pid": umount.id(), "comm": "umount"});
            assert_eq!(dead.at("/reason"), &json!({"kind": "forcedUnmount", "actor": actor}), "{dead}");
            assert_eq!(dead.at("/daemon/alive"), &json!(true), "{dead}");
            assert_eq!(agent.seen_until_sentinel(|event| event.is("recovering", path)), []);
        }
        // No hook sees the call; what is seen is the daemon, which leaves.
        Backend::Portable => assert_eq!(dead.text("/reason/kind"), "exit", "{dead}"),
    }
}
