use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::*;

/// A child that is gone at the end of the test, however that ends.
struct Sleeper(Child);

impl Sleeper {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn everything_that_was_set_is_found() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(1234), None).unwrap();
    let child = Sleeper::start(
        Command::new("sleep")
            .arg0("the daemon")
            .arg("600")
            .env_clear()
            .env("SECRET", "hunter2 ")
            .current_dir(directory.path())
            .uid(1234)
            .gid(567),
    );
    let record = remember(child.0.id()).unwrap();
    assert_eq!(record.pid, child.0.id());
    assert_eq!(record.comm, "sleep");
    assert_eq!(record.argv, ["the daemon", "600"]);
    assert_eq!(record.env, ["SECRET=hunter2 "]);
    assert!(record.exe.is_absolute() && !record.exe_deleted);
    assert_eq!((record.cwd.as_path(), record.root.as_path()), (directory.path(), std::path::Path::new("/")));
    let Credentials { uid, effective_uid, saved_uid, gid, effective_gid, saved_gid, groups: _ } = record.credentials;
    assert_eq!([uid, effective_uid, saved_uid, gid, effective_gid, saved_gid], [1234, 1234, 1234, 567, 567, 567]);
    assert_eq!(record.mount_namespace.0, proc::namespace("self", "mnt").unwrap());
    assert_eq!(record.namespaces.get("net"), Some(&proc::namespace("self", "net").unwrap()));
    assert!(record.umask.is_some());
    assert!(record.limits.iter().any(|limit| limit.resource == libc::RLIMIT_NOFILE));
    assert!(!record.cgroups.is_empty());
    assert_eq!((record.foreign_namespaces.as_slice(), record.out_of_reach), ([].as_slice(), 0));

    let shown = format!("{record:?}");
    for secret in ["hunter2", "SECRET", "600", "the daemon"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn a_program_that_was_deleted_is_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("daemon");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let child = Sleeper::start(Command::new(&program).arg("600"));
    assert_eq!(remember(child.0.id()).unwrap().exe, program);
    std::fs::remove_file(&program).unwrap();
    let record = remember(child.0.id()).unwrap();
    assert_eq!((record.exe, record.exe_deleted), (program, true));
}

#[test]
fn what_is_no_living_program_is_said_to_be_what_it_is() {
    let mut child = Sleeper::start(Command::new("sleep").arg("600"));
    let pid = child.0.id();
    child.0.kill().unwrap();
    // Waits until it is a zombie, without reaping it.
    let id = nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid.try_into().unwrap()));
    nix::sys::wait::waitid(id, nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT).unwrap();
    assert!(matches!(remember(pid), Err(RecordError::Zombie { pid: told }) if told == pid));
    child.0.wait().unwrap();
    assert!(matches!(remember(pid), Err(RecordError::Gone { pid: told }) if told == pid));
    // kthreadd, where the pid namespace is the first one.
    if proc::comm(2).as_deref() == Some("kthreadd") {
        assert!(matches!(remember(2), Err(RecordError::KernelThread { pid: 2 })));
    }
}
