//! One boot of a virtual machine, from its start to the job's exit code.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use rustix::fs::MemfdFlags;

use crate::process::Running;

/// What the first process says when the job has ended.
const END_MARKER: &str = "fuse-detector-vm ends: ";

/// How much of the kernel's messages is shown when a machine did not end as it should.
const CONSOLE_LINES: usize = 30;

/// For QEMU to end once the machine is switched off.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(20);

/// The kernel's parameters. After a panic the machine restarts at once, which ends QEMU (`-no-reboot`). On a loaded host the
/// emulated timer can be too late for the kernel's check of it, which then panics.
const PARAMETERS: &str = "console=ttyS0 panic=-1 loglevel=4 random.trust_cpu=on no_timer_check";

/// What to boot.
pub struct Machine<'a> {
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The initial file system.
    pub image: &'a File,
    /// Further parameters of the kernel.
    pub parameters: &'a str,
    /// What the whole boot may take.
    pub deadline: Duration,
}

impl Machine<'_> {
    /// Boots, gives each line that the job writes to `line`, and returns the job's exit code.
    ///
    /// # Errors
    /// The machine hangs, its kernel panics, or QEMU does not start; with the end of the kernel's messages.
    pub fn run(&self, line: impl FnMut(&str)) -> Result<i32> {
        let console = memory_file("console")?;
        self.boot(&console, line).with_context(|| format!("the kernel's last messages:\n{}", tail(&console)))
    }

    fn boot(&self, console: &File, mut line: impl FnMut(&str)) -> Result<i32> {
        let deadline = Instant::now() + self.deadline;
        let mut qemu = Running::start(ended_with_us(&mut self.command(console)))?;
        let output = qemu.child().stdout.take().context("QEMU's output is not piped")?;
        let lines = receive(BufReader::new(output));
        let code = loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(text) => match text.split_once(END_MARKER) {
                    Some((before, code)) => {
                        // The job's last line, if it did not end it.
                        if !before.is_empty() {
                            line(before);
                        }
                        break code.parse().with_context(|| format!("{text:?} names no exit code"))?;
                    }
                    None => line(&text),
                },
                Err(RecvTimeoutError::Timeout) => bail!("HANG: not done after {:?}", self.deadline),
                Err(RecvTimeoutError::Disconnected) => bail!("the machine ended before its job did"),
            }
        };
        // It is switching itself off; if it hangs at that, it is ended: the job is done.
        while lines.recv_timeout(POWER_OFF_PATIENCE).is_ok() {}
        Ok(code)
    }

    fn command(&self, console: &File) -> Command {
        let mut command = Command::new("qemu-system-x86_64");
        // Without KVM: these kernels do not boot with it in every virtual machine, and every machine can do without.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2G"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(path_of(self.image));
        command.arg("-append").arg(format!("{PARAMETERS} {}", self.parameters));
        command.arg("-serial").arg(format!("file:{}", path_of(console)));
        command.args(["-serial", "stdio"]).stdout(Stdio::piped()).stdin(Stdio::null());
        command
    }
}

/// A process that is killed when the thread ends that starts it, in whatever way that happens.
fn ended_with_us(command: &mut Command) -> &mut Command {
    let tie = || prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    // SAFETY: prctl(2) is the only thing that is done between fork(2) and execve(2).
    unsafe { command.pre_exec(tie) }
}

fn receive(mut output: impl BufRead + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        while output.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            if sender.send(text).is_err() {
                return;
            }
            bytes.clear();
        }
    });
    lines
}

/// A file that is gone with this process, however that ends.
///
/// # Errors
/// memfd_create(2)'s.
pub fn memory_file(name: &str) -> Result<File> {
    let descriptor = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).context("cannot make a file in memory")?;
    Ok(File::from(descriptor))
}

/// As another process can open it, while this one lives.
fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn tail(console: &File) -> String {
    let text = fs::read(path_of(console)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(CONSOLE_LINES)..).unwrap_or_default().join("\n")
}
