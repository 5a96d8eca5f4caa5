//! `fuse-detector heal`, by hand: what it takes, what it refuses, and what it says.

use std::ffi::OsStr;
use std::fs;

use fuse_detector_tests::heal::ask;
use fuse_detector_tests::{Backend, Sandbox, Steerfs, agent, mountinfo, steerfs, wait};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Runs it with JSON output: exit code, standard output, standard error.
fn heal(sandbox: &Sandbox, arguments: &[&OsStr]) -> (Option<i32>, Value, String) {
    let mut command = sandbox.command(agent::program());
    let output = command.args(["heal", "--output", "json"]).args(arguments).output().expect("fuse-detector heal");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let data = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code(), data, said)
}

#[test]
fn another_volume_of_the_same_source_is_not_taken() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let dead = Steerfs::mount(sandbox, "one", &["--source", "s3fs"]);
        let other = Steerfs::mount(sandbox, "two", &["--source", "s3fs"]);
        let path = dead.mount_point();
        dead.kill(Signal::SIGKILL);
        let (code, data, said) = heal(sandbox, &[path.as_os_str()]);
        assert_eq!((code, data), (Some(3), Value::Null), "{said}");
        assert!(said.contains("at the same place"), "{said}");
        assert_eq!((ask(path), ask(other.mount_point())), (Err(Errno::ENOTCONN), Ok(())));
        // Who names it is believed.
        let (code, data, said) = heal(sandbox, &["--from".as_ref(), other.mount_point().as_os_str(), path.as_os_str()]);
        assert_eq!((code, data), (Some(0), json!([{"mountPoint": path, "outcome": "healed"}])), "{said}");
        assert_eq!(mountinfo::at(path)[0].device, other.device());
    });
}

#[test]
fn a_command_is_planned_then_run() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let daemon = Steerfs::mount(sandbox, "data", &[]);
        let path = daemon.mount_point();
        let (code, data, said) = heal(sandbox, &[path.as_os_str()]);
        assert_eq!((code, data), (Some(0), json!([])), "a living mount: {said}");
        daemon.kill(Signal::SIGKILL);
        let before = mountinfo::at(path);

        let program = steerfs::program();
        let command = ["--".as_ref(), program.as_os_str(), path.as_os_str()];
        let planned = [&[path.as_os_str(), "--dry-run".as_ref()], command.as_slice()].concat();
        let (code, data, said) = heal(sandbox, &planned);
        assert_eq!(code, Some(0), "{data} {said}");
        assert_eq!((mountinfo::at(path), ask(path)), (before, Err(Errno::ENOTCONN)), "nothing is done");

        let (code, data, said) = heal(sandbox, &[&[path.as_os_str()], command.as_slice()].concat());
        assert_eq!((code, data), (Some(0), json!([{"mountPoint": path, "outcome": "healed"}])), "{said}");
        assert_eq!(fs::read_to_string(path.join("hello")).expect("read"), "hello from steerfs\n");
    });
}

/// A lookup below a dead mount fails, and the kernel then takes away what is mounted there: so nothing is looked up there.
#[test]
fn looking_takes_no_mount_away() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let above = Steerfs::mount(sandbox, "above", &[]);
        let below = above.mount_point().join("sub");
        let living = Steerfs::mount_on(sandbox, &below, &[]);
        above.kill(Signal::SIGKILL);
        wait::until("the kernel to have to ask for the name", || {
            // RESOLVE_CACHED (include/uapi/linux/openat2.h).
            let how = OpenHow::new().flags(OFlag::O_PATH).resolve(ResolveFlag::from_bits_retain(0x20));
            (openat2(AT_FDCWD, &below, how).err() == Some(Errno::EAGAIN)).then_some(())
        });
        let mut command = sandbox.command(agent::program());
        let output = command.args(["mounts", "--output", "json"]).output().expect("fuse-detector mounts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(mountinfo::at(&below).len(), 1, "it was taken away: {}", String::from_utf8_lossy(&output.stdout));
        let (code, _, said) = heal(sandbox, &[below.as_os_str()]);
        assert_eq!((code, mountinfo::at(&below).len()), (Some(1), 1), "{said}");
        drop(living);
        sandbox.run_command("umount", &["-l".as_ref(), above.mount_point().as_os_str()]);
    });
}

/// `a/../b` is `b`, and not a path below `a`; where only the dead file system could say what is meant, nothing is done.
#[test]
fn paths_are_what_the_kernel_would_make_of_them() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let (one, other) = (Steerfs::mount(sandbox, "one", &[]), Steerfs::mount(sandbox, "other", &[]));
        let (first, second) = (one.mount_point().to_owned(), other.mount_point().to_owned());
        let link = sandbox.join("link");
        std::os::unix::fs::symlink(&second, &link).expect("symlink");
        one.kill(Signal::SIGKILL);
        let program = steerfs::program();
        let start = |path: &std::path::Path, place: &std::path::Path| {
            heal(sandbox, &[path.as_os_str(), "--".as_ref(), program.as_os_str(), place.as_os_str()])
        };
        let (code, data, said) = start(&first.join("../other"), &second);
        assert_eq!((code, data), (Some(0), json!([])), "the other one lives: {said}");
        assert_eq!(ask(&first), Err(Errno::ENOTCONN), "the wrong one was healed");

        other.kill(Signal::SIGKILL);
        let (code, _, said) = start(&first.join("sub/../../other"), &second);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("`..` below the FUSE mount"), "{said}");
        assert_eq!((ask(&first), ask(&second)), (Err(Errno::ENOTCONN), Err(Errno::ENOTCONN)), "nothing is done");

        let (code, data, said) = start(&link.join("hello"), &second);
        assert_eq!((code, data), (Some(0), json!([{"mountPoint": second, "outcome": "healed"}])), "{said}");
        assert_eq!((ask(&first), ask(&second)), (Err(Errno::ENOTCONN), Ok(())));
    });
}
