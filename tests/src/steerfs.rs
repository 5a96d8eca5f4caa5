//! A running `steerfs`, and how it is commanded.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::agent::built;
use crate::backend;
use crate::mountinfo;
use crate::process;
use crate::sandbox::Sandbox;
use crate::steer::{Answer, Command, Opcode, Stats};
use crate::wait::{self, PATIENCE};

/// A daemon that serves one or many mounts of a sandbox, in the background.
#[derive(Debug)]
pub struct Steerfs {
    mount_point: PathBuf,
    control: PathBuf,
    pid: u32,
}

impl Steerfs {
    /// Mounts at a new directory `name` of the sandbox.
    ///
    /// # Panics
    /// If it can't.
    pub fn mount(sandbox: &Sandbox, name: &str, arguments: &[&str]) -> Self {
        let mount_point = sandbox.mount_point(name);
        Self::mount_on(sandbox, &mount_point, arguments)
    }

    /// Mounts at a path.
    ///
    /// # Panics
    /// If it can't.
    pub fn mount_on(sandbox: &Sandbox, mount_point: &Path, arguments: &[&str]) -> Self {
        Self::mount_by(sandbox, mount_point, [program().into()], arguments)
    }

    /// Mounts at a path, started by other programs: their names and arguments end with the path of `steerfs`.
    ///
    /// # Panics
    /// If it can't.
    pub fn mount_by(
        sandbox: &Sandbox,
        mount_point: &Path,
        program: impl IntoIterator<Item = OsString>,
        arguments: &[&str],
    ) -> Self {
        let control = control_of(sandbox, mount_point);
        let mut program = program.into_iter();
        let mut command = sandbox.command(program.next().expect("a program"));
        let output = command
            .args(program)
            .arg(mount_point)
            .arg("--control")
            .arg(&control)
            .args(arguments)
            .output()
            .expect("steerfs");
        assert!(output.status.success(), "steerfs: {}", String::from_utf8_lossy(&output.stderr));
        Self::connect(mount_point, &control)
    }

    /// Waits for the descriptors of another `steerfs`, to serve on at its mount point; gives the path of the socket.
    ///
    /// # Panics
    /// If it can't.
    pub fn receiver(sandbox: &Sandbox, mount_point: &Path) -> (Self, PathBuf) {
        let (control, socket) = (sandbox.join("receiver.control"), sandbox.join("receiver"));
        let mut command = sandbox.command(program());
        let output = command.arg("--receive").arg(&socket).arg("--control").arg(&control).output().expect("steerfs");
        assert!(output.status.success(), "steerfs: {}", String::from_utf8_lossy(&output.stderr));
        (Self::connect(mount_point, &control), socket)
    }

    fn connect(mount_point: &Path, control: &Path) -> Self {
        let pid = server_of(control).expect("connect to the control socket");
        Self { mount_point: mount_point.to_owned(), control: control.to_owned(), pid }
    }

    /// The one that somebody started with the same arguments after this one had ended.
    ///
    /// # Panics
    /// If none is there in time.
    pub fn successor(&self) -> Self {
        let pid = wait::until("a successor at the control socket", || {
            server_of(&self.control).filter(|pid| *pid != self.pid)
        });
        Self { mount_point: self.mount_point.clone(), control: self.control.clone(), pid }
    }

    /// Where it mounted; with `--mounts`, what the paths begin with.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The device number of what is mounted at its mount point now, as events write it.
    ///
    /// # Panics
    /// If nothing is.
    pub fn device(&self) -> String {
        mountinfo::at(&self.mount_point).pop().expect("a mount at the mount point").device
    }

    /// Whether the kernel says what its descriptors serve: `fuse_connection` in fdinfo (Linux 6.18).
    ///
    /// # Panics
    /// If the daemon is gone.
    pub fn is_named(&self) -> bool {
        let infos = fs::read_dir(format!("/proc/{}/fdinfo", self.pid)).expect("fdinfo").flatten();
        infos.filter_map(|info| fs::read_to_string(info.path()).ok()).any(|info| info.contains("fuse_connection:"))
    }

    /// Whether the agent can know of the file system that it is this daemon's: kernel programs see who answers; without, the
    /// kernel has to say what a descriptor serves. Where it can't, and the daemon does not
    /// name the mount point among its arguments either, the test is told as one that can't run.
    ///
    /// # Panics
    /// If the daemon is gone.
    pub fn is_recognisable(&self, sandbox: &Sandbox) -> bool {
        let recognisable = sandbox.backend().has_programs() || self.is_named();
        if !recognisable {
            backend::skip(false, "this kernel does not say what a daemon's descriptor serves (Linux 6.18)");
        }
        recognisable
    }

    /// Has a command carried out.
    ///
    /// # Panics
    /// If it is refused.
    pub fn send(&self, command: &Command) -> Answer {
        let mut stream = UnixStream::connect(&self.control).expect("connect to the control socket");
        stream.set_read_timeout(Some(wait::stretched(PATIENCE))).expect("a timeout");
        writeln!(stream, "{}", serde_json::to_string(command).expect("JSON")).expect("send the command");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("an answer");
        let answer: Answer = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert!(answer.ok, "{command:?}: {answer:?}");
        answer
    }

    /// What it served.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn stats(&self) -> Stats {
        self.send(&Command::Stats(true)).stats.expect("stats")
    }

    /// Waits until requests are being held by a fault.
    ///
    /// # Panics
    /// If none comes.
    pub fn wait_held(&self) {
        wait::until("a held request", || (self.stats().held > 0).then_some(()));
    }

    /// Stops answering requests of a kind.
    pub fn never_answer(&self, opcode: Opcode) {
        self.send(&Command::Never { opcode });
    }

    /// Ends it by a signal of ours, and waits until it is gone.
    ///
    /// # Panics
    /// If it is not gone in time.
    pub fn kill(&self, signal: Signal) {
        process::signal(self.pid, signal);
        assert!(process::reap(self.pid), "steerfs {} survived {signal}", self.pid);
    }
}

/// The path of the program.
///
/// # Panics
/// If it is not built.
pub fn program() -> PathBuf {
    let path = built("steerfs");
    assert!(path.exists(), "{} is missing: run `cargo build`", path.display());
    path
}

/// Short and without special characters: a socket's path is limited to 108 bytes (unix(7)), a mount point's name is not.
fn control_of(sandbox: &Sandbox, mount_point: &Path) -> PathBuf {
    let name = mount_point.file_name().unwrap_or_default().as_encoded_bytes();
    let plain: String = name.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(|byte| char::from(*byte)).collect();
    sandbox.join(format!("c-{plain}"))
}

/// Who listens on a socket, if anybody does.
fn server_of(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    u32::try_from(getsockopt(&stream, PeerCredentials).ok()?.pid()).ok()
}
