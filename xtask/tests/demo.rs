//! The demonstration as a user runs it, on a real FUSE mount, also when somebody kills it in the middle.
#![expect(clippy::unwrap_used, reason = "what is missing fails the test")]

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// For processes to be gone that were killed, or that clean up.
const GONE_PATIENCE: Duration = Duration::from_secs(20);

fn demo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("demo").stdin(Stdio::null());
    command
}

/// Whether the machine allows it; says so where it doesn't.
fn possible() -> bool {
    let possible = nix::unistd::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !possible {
        let _ = writeln!(std::io::stderr(), "SKIPPED: needs root and /dev/fuse");
    }
    possible
}

/// A demonstration that has just begun to read, its scratch directory, and its output from there on.
fn begun() -> (Child, PathBuf, Lines<BufReader<ChildStdout>>) {
    let mut child = demo().stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = output.by_ref().map_while(Result::ok).find(|line| line.contains("is mounted on")).unwrap();
    let mount_point = line.split_whitespace().find(|word| word.starts_with('/')).unwrap().trim_end_matches(';');
    let scratch = Path::new(mount_point).parent().unwrap().to_owned();
    (child, scratch, output)
}

/// The processes of a demonstration: they all inherit its scratch directory.
fn processes_of(scratch: &Path) -> Vec<u32> {
    let variable = format!("TMPDIR={}\0", scratch.display());
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(variable.len()).any(|window| window == variable.as_bytes())
    })
    .collect()
}

fn wait_until_nothing_is_left(scratch: &Path) {
    let deadline = Instant::now() + GONE_PATIENCE;
    loop {
        let (processes, directory) = (processes_of(scratch), scratch.exists());
        if processes.is_empty() && !directory {
            return;
        }
        assert!(Instant::now() < deadline, "left behind: processes {processes:?}, directory: {directory}");
        sleep(Duration::from_millis(5));
    }
}

fn sigkill(pid: u32) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
}

#[test]
fn it_heals_and_leaves_nothing_twice_in_a_row() {
    if !possible() {
        return;
    }
    for _ in 0..2 {
        let output = demo().output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}\n{err}");
        for told in
            ["kernel event", "decision", "SIGKILL from xtask", "healed", "never a wrong file", "left behind: nothing"]
        {
            assert!(out.contains(told), "nothing about {told:?} in:\n{out}");
        }
        assert!(!out.contains('\x1b'), "colours in a pipe");
    }
}

#[test]
fn whoever_is_killed_nothing_is_left() {
    if !possible() {
        return;
    }
    let (mut outer, scratch, _output) = begun();
    sigkill(outer.id());
    outer.wait().unwrap();
    wait_until_nothing_is_left(&scratch);

    let (mut outer, scratch, _output) = begun();
    let inner = processes_of(&scratch).into_iter().find(|pid| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.windows(10).any(|window| window == b"\0--inside\0")
    });
    sigkill(inner.unwrap());
    assert_eq!(outer.wait().unwrap().code(), Some(1));
    wait_until_nothing_is_left(&scratch);
}
