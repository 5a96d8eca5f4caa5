//! FUSE daemons that nobody here wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::backend::skip;
use crate::sandbox::Sandbox;
use crate::{mountinfo, process, wait};

/// Set to 1, a missing daemon is a failure instead of being skipped.
const REQUIRE: &str = "FUSE_DETECTOR_REQUIRE_DAEMONS";

/// A program from a Debian package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// libfuse 2, high level. Refuses a mount point that is not empty.
    Bindfs,
    /// Go, its own FUSE library.
    Rclone,
    /// Go, another FUSE library; forks itself to the background.
    Gocryptfs,
    /// libfuse 3, low level.
    FuseOverlayfs,
}

impl Kind {
    /// The program's name, and its Debian package's.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Bindfs => "bindfs",
            Self::Rclone => "rclone",
            Self::Gocryptfs => "gocryptfs",
            Self::FuseOverlayfs => "fuse-overlayfs",
        }
    }

    /// Whether it is installed. If not, says which package is missing; or fails, if daemons are required.
    ///
    /// # Panics
    /// If it is missing and required.
    pub fn is_here(self) -> bool {
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|directory| directory.join(self.program()).exists());
        if !found {
            let required = std::env::var(REQUIRE).is_ok_and(|value| value == "1");
            skip(required, &format!("install the Debian package {0}: {0} is missing", self.program()));
        }
        found
    }
}

/// One such daemon, mounted in a sandbox.
#[derive(Debug)]
pub struct Foreign {
    mount_point: PathBuf,
    pid: u32,
}

impl Foreign {
    /// Mounts at a new directory `mnt` a file system with the files `hello` and `sub/inner`.
    ///
    /// # Panics
    /// If it can't.
    pub fn mount(sandbox: &Sandbox, kind: Kind) -> Self {
        let mount_point = sandbox.join("mnt");
        fs::create_dir(&mount_point).expect("mkdir");
        let source = sandbox.join("source");
        fs::create_dir(&source).expect("mkdir");
        if kind == Kind::Gocryptfs {
            fs::write(sandbox.join("password"), "secret\n").expect("write");
            // The cheapest key derivation it accepts: no secret is kept here.
            let arguments = [Path::new("-init"), Path::new("-scryptn=10"), &source];
            sandbox.run_command("gocryptfs", &gocryptfs(sandbox, &arguments));
        } else {
            fill(&source);
        }
        let mut command = command(sandbox, kind, &source, &mount_point);
        let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", kind.program()));
        assert!(output.status.success(), "{kind:?}: {}", String::from_utf8_lossy(&output.stderr));
        wait::until("the mount", || mountinfo::at(&mount_point).iter().any(mountinfo::Entry::is_fuse).then_some(()));
        if kind == Kind::Gocryptfs {
            fill(&mount_point);
        }
        let pid = daemon_of(kind, &mount_point);
        Self { mount_point, pid }
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The process that serves it.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

fn fill(directory: &Path) {
    fs::create_dir_all(directory.join("sub")).expect("mkdir");
    fs::write(directory.join("hello"), "hello from a real daemon\n").expect("write");
    fs::write(directory.join("sub/inner"), "inner\n").expect("write");
}

fn gocryptfs(sandbox: &Sandbox, arguments: &[&Path]) -> Vec<PathBuf> {
    let mut all = vec!["-quiet".into(), "-config".into(), sandbox.join("gocryptfs.conf")];
    all.extend(["-passfile".into(), sandbox.join("password")]);
    all.extend(arguments.iter().map(|argument| argument.to_path_buf()));
    all
}

fn command(sandbox: &Sandbox, kind: Kind, source: &Path, mount_point: &Path) -> Command {
    let mut command = sandbox.command(kind.program());
    match kind {
        Kind::Bindfs => command.args([source, mount_point]),
        Kind::Rclone => command
            .args(["mount", "--daemon", "--allow-other", "--config", "/dev/null", "--cache-dir"])
            .args([&sandbox.join("rclone-cache"), source, mount_point]),
        Kind::Gocryptfs => command.args(gocryptfs(sandbox, &[source, mount_point])),
        Kind::FuseOverlayfs => {
            let (upper, work) = (sandbox.join("upper"), sandbox.join("work"));
            fs::create_dir_all(&upper).and_then(|()| fs::create_dir_all(&work)).expect("mkdir");
            let layers = [("lowerdir=", source), ("upperdir=", &upper), ("workdir=", &work)];
            let options: Vec<String> = layers.iter().map(|(key, path)| format!("{key}{}", path.display())).collect();
            command.arg("-o").arg(options.join(",")).arg(mount_point)
        }
    };
    command
}

/// The process of that name with the mount point among its arguments, once it is alone: what started it has left.
fn daemon_of(kind: Kind, mount_point: &Path) -> u32 {
    wait::until("the daemon's process", || {
        let pids: Vec<u32> = process::mentioning(mount_point).into_iter().filter(|pid| is_named(*pid, kind)).collect();
        match pids.as_slice() {
            [pid] => Some(*pid),
            _ => None,
        }
    })
}

fn is_named(pid: u32, kind: Kind) -> bool {
    let name = process::name(pid);
    // A process's name has at most 15 bytes.
    !name.is_empty() && kind.program().starts_with(&name)
}
