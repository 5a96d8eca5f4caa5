//! A private place to try things in: a mount namespace of its own with a temporary file system, whose processes cannot
//! outlive it.
//!
//! The task runs in a second process of the same program. Both are subreapers (PR_SET_CHILD_SUBREAPER), so a daemon that
//! detached itself becomes a child of one of them when its parent ends. Whichever of the two is killed, the other one
//! ends all that is left: the outer one waits for the inner one; the inner one sees the end of its standard input.
//! All mounts are in the inner one's namespace and vanish with its last process; the host's directory stays empty.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;

use crate::leftovers;
use crate::process;
use crate::workspace::{self, Binaries, Profile};

/// For processes to end after SIGKILL. They do so within milliseconds unless they are stuck in the kernel.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The exit code when the outer process was ended from outside, as a shell reports SIGINT (128 + 2).
const INTERRUPTED: i32 = 130;

/// What the outer process tells the inner one. Not for people.
#[derive(clap::Args)]
pub struct Inside {
    /// The scratch directory: this is the inner process.
    #[arg(long, hide = true, requires_all = ["agent", "steerfs"])]
    inside: Option<PathBuf>,
    #[arg(long, hide = true)]
    agent: Option<PathBuf>,
    #[arg(long, hide = true)]
    steerfs: Option<PathBuf>,
}

/// The place, seen from inside.
pub struct Scratch {
    /// A temporary file system that exists only in this mount namespace. Also `TMPDIR` of everything started here.
    pub dir: PathBuf,
    /// What was built for the task.
    pub binaries: Binaries,
}

impl Scratch {
    /// The same with a new directory below this one, for a part of the task.
    ///
    /// # Errors
    /// mkdir(2)'s.
    pub fn subdirectory(&self, name: &str) -> Result<Self> {
        let dir = self.dir.join(name);
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self { dir, binaries: self.binaries.clone() })
    }
}

/// Runs `task` in a place of its own, and says at the end what is left of it: nothing, or it failed.
///
/// # Errors
/// What is missing to run it, what the task says, or what was left behind.
pub fn run(inside: Inside, profile: Profile, task: impl FnOnce(&Scratch) -> Result<()>) -> Result<ExitCode> {
    match inside {
        Inside { inside: Some(dir), agent: Some(agent), steerfs: Some(steerfs) } => {
            within(Scratch { dir, binaries: Binaries { agent, steerfs } }, task)
        }
        Inside { .. } => outside(profile),
    }
}

/// What every task on real mounts needs.
///
/// # Errors
/// What is missing and what to do about it.
pub fn check_machine() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "this mounts file systems and loads kernel programs: run it as root, e.g. `sudo -E env \"PATH=$PATH\" cargo xtask …`"
    );
    match fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) => bail!(
            "/dev/fuse cannot be opened: {error}. Load the kernel's module with `modprobe fuse`; in a container, pass the \
             device in (`--device /dev/fuse`)"
        ),
    }
}

fn outside(profile: Profile) -> Result<ExitCode> {
    check_machine()?;
    let binaries = workspace::build(profile)?;
    prctl::set_child_subreaper(true).context("cannot become a subreaper")?;
    let dir = tempfile::Builder::new().prefix("fuse-detector-").tempdir().context("cannot make a scratch directory")?;
    let status = inner(dir.path(), &binaries);
    let ended = process::end_descendants(END_PATIENCE);
    // The task's mounts are in another namespace: here the directory is empty, and rmdir(2) is enough.
    let path = dir.keep();
    fs::remove_dir(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    let survey = leftovers::survey(&path);
    println!("{survey}");
    ended?;
    let succeeded = status? && survey.found.is_empty();
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts the inner process and waits for its end. Whether it succeeded.
fn inner(dir: &Path, binaries: &Binaries) -> Result<bool> {
    // Not current_exe(): its path is stale once cargo has built this program anew.
    let mut command = Command::new("/proc/self/exe");
    command.arg("--inside").arg(dir).arg("--agent").arg(&binaries.agent).arg("--steerfs").arg(&binaries.steerfs);
    command.args(std::env::args_os().skip(1)).env("TMPDIR", dir);
    // A group of its own: Ctrl-C ends the outer process alone, and the inner one then cleans up.
    let mut child = command.stdin(Stdio::piped()).process_group(0).spawn().context("cannot start the inner process")?;
    // Child::wait would close the pipe, which tells the inner process that this one is gone.
    let lifeline = child.stdin.take();
    let status = child.wait().context("cannot wait for the inner process")?;
    drop(lifeline);
    Ok(status.success())
}

fn within(scratch: Scratch, task: impl FnOnce(&Scratch) -> Result<()>) -> Result<ExitCode> {
    // Started through /proc/self/exe, it would be called "exe", also where the agent says who sent a signal.
    prctl::set_name(c"xtask").context("cannot name the process")?;
    prctl::set_child_subreaper(true).context("cannot become a subreaper")?;
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("cannot make its mounts private")?;
    mount(Some("scratch"), &scratch.dir, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .with_context(|| format!("cannot mount a tmpfs on {}", scratch.dir.display()))?;
    let dir = scratch.dir.clone();
    thread::spawn(move || when_outside_ends(&dir));
    let result = task(&scratch);
    // If the other thread is ending everything already, this waits for ever, and that thread ends the program.
    process::start_no_more();
    process::end_descendants(END_PATIENCE)?;
    result.map(|()| ExitCode::SUCCESS)
}

fn when_outside_ends(dir: &Path) {
    // Nothing is ever written to the pipe: any answer means that its other end is closed.
    let _ = std::io::stdin().read(&mut [0]);
    process::start_no_more();
    let ended = process::end_descendants(END_PATIENCE);
    let removed = umount2(dir, MntFlags::MNT_DETACH).map_err(std::io::Error::from).and_then(|()| fs::remove_dir(dir));
    match (ended, removed) {
        (Ok(()), Ok(())) => eprintln!("interrupted; left behind: nothing"),
        (Err(error), _) => eprintln!("interrupted; {error:#}"),
        (Ok(()), Err(error)) => eprintln!("interrupted; cannot remove {}: {error}", dir.display()),
    }
    std::process::exit(INTERRUPTED);
}
