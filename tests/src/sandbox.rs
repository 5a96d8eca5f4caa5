//! A place for one scenario that leaves nothing behind.

use std::ffi::OsStr;
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use crate::backend::Backend;
use crate::{mountinfo, process};

/// In the environment of everything that is started in a sandbox, also of what the agent starts in turn: how the
/// processes to be ended are found.
const MARK: &str = "FUSE_DETECTOR_SANDBOX";

/// A mount namespace of the scenario's own thread and its children, and a temporary directory. On the way out, also by a
/// panic, every process of the sandbox is ended and every mount detached; the namespace goes with its last process.
#[derive(Debug)]
pub struct Sandbox {
    directory: Option<TempDir>,
    path: PathBuf,
    backend: Backend,
}

impl Sandbox {
    /// Runs a scenario in a thread of its own: a namespace is a thread's, and the test's main thread must keep its.
    /// Mount propagation is as systemd sets it up on a host: everything shared, within this namespace.
    ///
    /// # Panics
    /// If the scenario does, or without the privilege to make a mount namespace.
    pub fn run(backend: Backend, scenario: fn(&Self)) {
        Self::run_with(backend, MsFlags::MS_SHARED, scenario);
    }

    /// As [`Self::run`], with every mount private.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn run_private(backend: Backend, scenario: fn(&Self)) {
        Self::run_with(backend, MsFlags::MS_PRIVATE, scenario);
    }

    fn run_with(backend: Backend, propagation: MsFlags, scenario: fn(&Self)) {
        process::become_subreaper();
        let thread = thread::spawn(move || scenario(&Self::enter(backend, propagation)));
        if let Err(panic) = thread.join() {
            resume_unwind(panic);
        }
    }

    fn enter(backend: Backend, propagation: MsFlags) -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace of our own: are you root?");
        // First cut off from the host, whatever the propagation is to be in here.
        for kind in [MsFlags::MS_PRIVATE, propagation] {
            mount(None::<&str>, "/", None::<&str>, kind | MsFlags::MS_REC, None::<&str>).expect("set propagation of /");
        }
        let directory = tempfile::Builder::new().prefix("fuse-detector-").tempdir().expect("a temporary directory");
        // Other users look in too: owners of mounts without allow_other.
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        let path = directory.path().canonicalize().expect("the temporary directory's path");
        Self { directory: Some(directory), path, backend }
    }

    /// The hooks that the scenario's agent has to use.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The temporary directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// A new directory to mount on. It holds a file `hello` with a telling content, for [`crate::Reader`] to find if the
    /// directory below the mount ever becomes visible.
    ///
    /// # Panics
    /// If it can't be made.
    pub fn mount_point(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let path = self.join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("mkdir {}: {error}", path.display()));
        fs::write(path.join("hello"), crate::reader::BARE).expect("write below the mount point");
        path
    }

    /// A command that will be ended with the sandbox.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env(MARK, &self.path).current_dir("/").stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    ///
    /// # Panics
    /// If it fails.
    pub fn run_command<A: AsRef<OsStr>>(&self, program: &str, arguments: &[A]) {
        let output =
            self.command(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
        let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn detach_mounts(&self) {
        // Each round takes the uppermost layers; the bound is for a mount that can't be detached.
        for _ in 0..64 {
            let mounts = mountinfo::below(&self.path);
            if mounts.is_empty() {
                return;
            }
            for mount in mounts {
                let _ = umount2(&mount.mount_point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
            }
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Twice: what was ended may just have started something.
        for _ in 0..2 {
            process::kill_all(&process::mentioning(&self.path));
        }
        self.detach_mounts();
        let left = mountinfo::below(&self.path);
        if let (Some(directory), false) = (self.directory.take(), left.is_empty()) {
            // Never delete through a mount.
            eprintln!("left behind in {}: {left:?}", directory.keep().display());
        }
    }
}
