//! Processes that outlive those that started them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::sandbox::Sandbox;
use crate::wait;

/// How long a killed process may take to be gone. One that waits for a FUSE answer goes when its daemon has.
const GONE: Duration = Duration::from_secs(5);

/// Makes this process the parent of every daemon that detaches itself, so that none stays behind as a zombie on machines
/// whose init reaps late. Concerns all threads.
///
/// # Panics
/// If the kernel refuses.
pub fn become_subreaper() {
    prctl::set_child_subreaper(true).expect("PR_SET_CHILD_SUBREAPER");
}

/// A process id as nix has it.
///
/// # Panics
/// If it is none.
pub fn id(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a process id"))
}

/// Sends a signal. A process that is gone is fine.
///
/// # Panics
/// If the kernel refuses.
pub fn signal(pid: u32, signal: Signal) {
    match signal::kill(id(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => panic!("{signal} to {pid}: {error}"),
    }
}

/// Has a shell send a signal; gives the shell's process id.
///
/// # Panics
/// If it can't.
pub fn kill_from_shell(sandbox: &Sandbox, pid: u32, signal: Signal) -> u32 {
    let name = signal.as_str().trim_start_matches("SIG");
    shell(sandbox, &format!("kill -{name} {pid}"))
}

/// Has a shell run something by itself, so that the shell's process, named `sh`, is who did it; gives its process id.
///
/// # Panics
/// If it fails.
pub fn shell(sandbox: &Sandbox, script: &str) -> u32 {
    let mut shell = sandbox.command("sh").args(["-c", script]).spawn().expect("sh");
    let status = shell.wait().expect("sh");
    assert!(status.success(), "{script}: {status}");
    shell.id()
}

/// A process's name; empty if it is gone.
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Waits until a process has ended and is no zombie of ours; `false` when it takes too long.
pub fn reap(pid: u32) -> bool {
    wait::until_within(GONE, || {
        // Somebody else's child is ECHILD: its parent reaps it.
        let _ = waitpid(id(pid), Some(WaitPidFlag::WNOHANG));
        is_gone(pid).then_some(())
    })
    .is_some()
}

/// Whether there is no such process, or nothing but its zombie. While its first thread is one, others can still be about to
/// end, and answer or swallow a request on the way: each thread has to be gone.
pub fn is_gone(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path().join("stat")).all(|stat| match fs::read_to_string(stat) {
        Ok(stat) => stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    })
}

/// The processes that have this path among their arguments or in their environment.
pub fn mentioning(path: &Path) -> Vec<u32> {
    let needle = path.as_os_str().as_encoded_bytes();
    let mentions = |pid: u32, file: &str| {
        fs::read(format!("/proc/{pid}/{file}"))
            .is_ok_and(|content| content.windows(needle.len()).any(|window| window == needle))
    };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id() && (mentions(*pid, "cmdline") || mentions(*pid, "environ")))
        .collect()
}

/// Ends these by SIGKILL, and waits until they are gone.
pub fn kill_all(pids: &[u32]) {
    for pid in pids {
        signal(*pid, Signal::SIGKILL);
    }
    for pid in pids {
        if !reap(*pid) {
            eprintln!("process {pid} does not end");
        }
    }
}
