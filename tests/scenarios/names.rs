//! Mount points, types and mounts out of the ordinary (S24).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use fuse_detector_tests::backend::skip;
use fuse_detector_tests::heal::{Before, ask};
use fuse_detector_tests::loopdev::LoopDevice;
use fuse_detector_tests::{Agent, Options, Reader, Sandbox, Steerfs, scenarios, steerfs};
use nix::errno::Errno;
use nix::sys::signal::Signal;

scenarios!(odd_mount_points, fs_types, fuseblk, bind_of_a_file, without_allow_other);

/// Healed at every path that mountinfo has to escape, and told of as it is.
fn odd_mount_points(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let names =
        ["a space", "a\nnewline", "a\ttab", "a\\backslash", "a\\040b", "ünïcode-漢字", "quote'\"", "* [glob]", "#"];
    let daemons = names.map(|name| Steerfs::mount(sandbox, name, &[]));
    for daemon in &daemons {
        agent.wait("ready", daemon.mount_point());
    }
    let before = daemons.each_ref().map(|daemon| Before::look(&[daemon.mount_point().to_owned()]));
    daemons.iter().for_each(|daemon| daemon.kill(Signal::SIGKILL));
    for (daemon, before) in daemons.iter().zip(&before) {
        agent.wait("dead", daemon.mount_point());
        before.wait_healed(&mut agent);
    }

    // Bytes that are not UTF-8 are written as \xHH, and backslashes doubled.
    let daemon = Steerfs::mount_on(sandbox, &sandbox.mount_point(OsStr::from_bytes(b"bytes\\\xff\xfe")), &[]);
    let escaped = sandbox.join(r"bytes\\\xff\xfe");
    agent.wait("ready", &escaped);
    let before = Before::look(&[daemon.mount_point().to_owned()]);
    daemon.kill(Signal::SIGKILL);
    let dead = agent.wait("dead", &escaped);
    assert_eq!(dead.at("/mounts/0/escaped").as_bool(), Some(true), "{dead}");
    agent.wait("recovered", &escaped);
    before.check_all();
}

fn fs_types(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let cases: [(&str, &[&str], &str); 3] = [
        ("plain", &[], "fuse"),
        ("subtype", &["--subtype", "sub-type"], "fuse.sub-type"),
        ("dotted", &["--subtype", "s.t"], "fuse.s.t"),
    ];
    for (name, arguments, fs_type) in cases {
        let daemon = Steerfs::mount(sandbox, name, arguments);
        agent.wait("ready", daemon.mount_point());
        check(&mut agent, &daemon, fs_type);
    }
}

/// Detected; not healed: as long as the dead superblock is mounted, another mount of its block device gets that very
/// superblock (`get_tree_bdev` in fs/super.c), so there can be no replacement before the dead mount is gone. Nobody is asked
/// to try, again and again; the way out is told.
fn fuseblk(sandbox: &Sandbox) {
    let device = match LoopDevice::attach(sandbox) {
        Ok(device) => device,
        Err(why) => return skip(false, &format!("no loop device: {why}")),
    };
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let source = device.path().to_str().expect("UTF-8");
    let daemon = Steerfs::mount(sandbox, "mnt", &["--fstype", "fuseblk", "--device", source]);
    let (path, number) = (daemon.mount_point(), daemon.device());
    agent.wait("ready", path);
    daemon.kill(Signal::SIGKILL);
    let dead = agent.wait("dead", path);
    assert_eq!((dead.text("/fsType"), dead.text("/source")), ("fuseblk", source), "{dead}");
    assert_eq!(dead.connection(), number, "{dead}");
    let failed = agent.wait("recoveryFailed", path);
    assert!(failed.text("/error").contains("unmount it everywhere"), "{failed}");
    assert_eq!(failed.at("/gaveUp").as_bool(), Some(true), "{failed}");
    // A second daemon on the device gets the dead file system, and no FUSE_INIT.
    let other = sandbox.mount_point("other");
    let second =
        sandbox.command(steerfs::program()).args(["--fstype", "fuseblk", "--device", source]).arg(&other).output();
    let said = String::from_utf8_lossy(&second.expect("steerfs").stderr).into_owned();
    assert!(said.contains("FUSE_INIT"), "{said}");
    // The loop device is detached first, and nobody may hold it then.
    sandbox.run_command("umount", &[path]);
}

fn check(agent: &mut Agent<'_>, daemon: &Steerfs, fs_type: &str) {
    let path = daemon.mount_point();
    let (before, device) = (Before::look(&[path.to_owned()]), daemon.device());
    daemon.kill(Signal::SIGKILL);
    let dead = agent.wait("dead", path);
    assert_eq!((dead.text("/fsType"), dead.connection()), (fs_type, device.as_str()), "{dead}");
    before.wait_healed(agent);
}

/// A file stays a file.
fn bind_of_a_file(sandbox: &Sandbox) {
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let daemon = Steerfs::mount(sandbox, "mnt", &[]);
    let (path, file) = (daemon.mount_point(), sandbox.join("a file"));
    fs::write(&file, fuse_detector_tests::reader::BARE).expect("write");
    sandbox.run_command("mount", &["--bind".as_ref(), path.join("hello").as_os_str(), file.as_os_str()]);
    agent.wait("ready", path);
    let before = Before::look(&[path.to_owned(), file.clone()]);
    let reader = Reader::start(&file);
    daemon.kill(Signal::SIGKILL);
    let dead = agent.wait("dead", path);
    assert!(dead.mounts().contains(&(file.to_str().expect("UTF-8"), "/hello", false)), "{dead}");
    before.wait_healed(&mut agent);
    assert!(fs::metadata(&file).expect("stat").is_file());
    reader.stop();
}

/// Root gets EACCES there, dead or alive, which is no failure.
fn without_allow_other(sandbox: &Sandbox) {
    let options = Options::heal(sandbox, "respawn").argument("--vfs-errors=on");
    let mut agent = Agent::start(sandbox, &options);
    let daemon = Steerfs::mount(sandbox, "mnt", &["--no-allow-other", "--owner", "1000:1000"]);
    let path = daemon.mount_point();
    agent.wait("ready", path);
    let before = Before::look(&[path.to_owned()]);
    let seen = fs::metadata(path).map(drop).map_err(|error| error.raw_os_error());
    assert_eq!(seen, Err(Some(Errno::EACCES as i32)));
    assert_eq!(agent.seen_until_sentinel(|event| event.is("dead", path)), []);

    daemon.kill(Signal::SIGKILL);

    agent.wait("dead", path);
    agent.wait("recovered", path);
    before.check_all();
    let _ = ask(path);
    let owner = ["--reuid=1000", "--regid=1000", "--clear-groups", "cat"].map(OsStr::new);
    let hello = path.join("hello");
    sandbox.run_command("setpriv", &[owner.as_slice(), &[hello.as_os_str()]].concat());
}
