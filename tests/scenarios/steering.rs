//! The file system that the other scenarios rest on does what it is told.

use std::fs;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use fuse_detector_tests::backend::Backend;
use fuse_detector_tests::heal::ask;
use fuse_detector_tests::steer::{Command, Opcode};
use fuse_detector_tests::{Sandbox, Steerfs, mountinfo, process, steerfs, wait};
use nix::errno::Errno;
use nix::sys::signal::Signal;

fn in_sandbox(scenario: fn(&Sandbox)) {
    // No agent runs, so either backend will do.
    Sandbox::run(Backend::Portable, scenario);
}

fn errno_of<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// What the sandbox of a scenario that failed leaves behind: nothing.
#[test]
fn a_failed_scenario_is_cleaned_up() {
    static SEEN: Mutex<Option<(PathBuf, Vec<u32>)>> = Mutex::new(None);
    let failed = catch_unwind(|| {
        in_sandbox(|sandbox| {
            let daemon = Steerfs::mount(sandbox, "mnt", &[]);
            let holder = daemon.send(&Command::HoldDescriptor(true)).pid.unwrap();
            *SEEN.lock().unwrap() = Some((sandbox.path().to_owned(), vec![daemon.pid(), holder]));
            panic!("this panic is part of the test");
        });
    });
    assert!(failed.is_err());
    let (path, pids) = SEEN.lock().unwrap().take().unwrap();
    assert!(pids.iter().all(|pid| process::is_gone(*pid)));
    assert!(!path.exists());
    assert!(process::mentioning(&path).is_empty());
}

#[test]
fn serves_files() {
    in_sandbox(|sandbox| {
        let path = Steerfs::mount(sandbox, "mnt", &[]).mount_point().to_owned();
        assert_eq!(fs::read_to_string(path.join("hello")).unwrap(), "hello from steerfs\n");
        fs::write(path.join("file"), "written").unwrap();
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "written");
        let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["file", "hello", "sub"]);
        assert_eq!(errno_of(fs::metadata(path.join("nothing"))), Some(libc::ENOENT));
        assert_eq!(nix::sys::statvfs::statvfs(&path).unwrap().block_size(), 4096);
    });
}

#[test]
fn serves_a_copy_of_a_directory() {
    in_sandbox(|sandbox| {
        let backing = sandbox.join("backing");
        fs::create_dir_all(backing.join("x/y")).unwrap();
        fs::write(backing.join("x/y/z"), "deep").unwrap();
        let daemon = Steerfs::mount(sandbox, "mnt", &["--backing", backing.to_str().unwrap()]);
        assert_eq!(fs::read_to_string(daemon.mount_point().join("x/y/z")).unwrap(), "deep");
    });
}

#[test]
fn one_held_request_stops_no_other() {
    in_sandbox(|sandbox| {
        let daemon = Steerfs::mount(sandbox, "mnt", &[]);
        let path = daemon.mount_point().to_owned();
        daemon.send(&Command::Delay { opcode: Opcode::Lookup, millis: 700 });
        let (slow, started) = (path.join("hello"), Instant::now());
        let application = thread::spawn(move || fs::read_to_string(slow));
        daemon.wait_held();
        assert_eq!(ask(&path), Ok(()));
        assert!(started.elapsed() < Duration::from_millis(700), "statfs waited for the lookup");
        assert_eq!(application.join().unwrap().unwrap(), "hello from steerfs\n");
        assert!(started.elapsed() >= Duration::from_millis(700));
    });
}

#[test]
fn errors_are_answered_and_reset() {
    in_sandbox(|sandbox| {
        let daemon = Steerfs::mount(sandbox, "mnt", &[]);
        let path = daemon.mount_point();
        for errno in [Errno::ENOTCONN, Errno::EIO] {
            daemon.send(&Command::Errno { opcode: Opcode::Statfs, errno: errno as i32 });
            assert_eq!(ask(path), Err(errno));
        }
        daemon.send(&Command::Reset(true));
        assert_eq!(ask(path), Ok(()));
    });
}

#[test]
fn a_dead_mount_point_is_refused() {
    in_sandbox(|sandbox| {
        let daemon = Steerfs::mount(sandbox, "mnt", &[]);
        daemon.send(&Command::Exit { code: 3, unmount: false });
        assert!(process::reap(daemon.pid()));
        // A question put while the connection is being aborted is ended with it.
        assert!(matches!(ask(daemon.mount_point()), Err(Errno::ENOTCONN | Errno::ECONNABORTED)));
        let output = sandbox.command(steerfs::program()).arg(daemon.mount_point()).output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("bad mount point") && said.contains("not connected"), "{said}");
    });
}

#[test]
fn sigterm_unmounts_when_it_should() {
    in_sandbox(|sandbox| {
        let daemon = Steerfs::mount(sandbox, "mnt", &["--exit-mode", "unmount-on-term"]);
        daemon.kill(Signal::SIGTERM);
        assert_eq!(mountinfo::at(daemon.mount_point()), []);
    });
}

#[test]
fn exit_unmounts_when_it_should() {
    in_sandbox(|sandbox| {
        let paths = ["mnt-0", "mnt-1", "mnt-2"].map(|name| sandbox.mount_point(name));
        let daemon = Steerfs::mount_on(sandbox, &sandbox.join("mnt"), &["--mounts", "3"]);
        assert!(paths.iter().all(|path| ask(path) == Ok(()) && mountinfo::at(path).len() == 1));
        daemon.send(&Command::Exit { code: 0, unmount: true });
        assert!(process::reap(daemon.pid()));
        assert!(paths.iter().all(|path| mountinfo::at(path).is_empty()));
    });
}

#[test]
fn a_held_descriptor_keeps_the_connection() {
    in_sandbox(|sandbox| {
        let daemon = Steerfs::mount(sandbox, "mnt", &[]);
        let path = daemon.mount_point().to_owned();
        let holder = daemon.send(&Command::HoldDescriptor(true)).pid.unwrap();
        daemon.kill(Signal::SIGKILL);
        let asked = path.clone();
        let application = thread::spawn(move || fs::metadata(asked.join("hello")).map(drop));
        assert_eq!(wait::until_within(Duration::from_millis(300), || application.is_finished().then_some(())), None);
        process::signal(holder, Signal::SIGKILL);
        assert!(process::reap(holder));
        assert!(application.join().unwrap().is_err());
        assert_eq!(ask(&path), Err(Errno::ENOTCONN));
    });
}

#[test]
fn another_process_serves_on() {
    in_sandbox(|sandbox| {
        let daemon = Steerfs::mount(sandbox, "mnt", &[]);
        let path = daemon.mount_point();
        let (receiver, socket) = Steerfs::receiver(sandbox, path);
        daemon.send(&Command::PassDescriptor(socket));
        daemon.send(&Command::Exit { code: 0, unmount: false });
        assert!(process::reap(daemon.pid()));
        assert_eq!(fs::read_to_string(path.join("hello")).unwrap(), "hello from steerfs\n");
        assert!(receiver.stats().requests.contains_key(&Opcode::Read));
    });
}
