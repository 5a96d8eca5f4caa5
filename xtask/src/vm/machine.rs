//! One boot of a virtual machine, from its start to the job's exit code.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;

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
    pub image: &'a Path,
    /// Further parameters of the kernel.
    pub parameters: &'a str,
    /// What the whole boot may take.
    pub deadline: Duration,
    /// Where the kernel's messages go.
    pub console: &'a Path,
}

impl Machine<'_> {
    /// Boots, gives each line that the job writes to `line`, and returns the job's exit code.
    ///
    /// # Errors
    /// The machine hangs, its kernel panics, or QEMU does not start; with the end of the kernel's messages.
    pub fn run(&self, line: impl FnMut(&str)) -> Result<i32> {
        File::create(self.console).context("cannot make a file for the kernel's messages")?;
        self.boot(line).with_context(|| format!("the kernel's last messages:\n{}", tail(self.console)))
    }

    fn boot(&self, mut line: impl FnMut(&str)) -> Result<i32> {
        let deadline = Instant::now() + self.deadline;
        let mut qemu = Running::start(ended_with_us(&mut self.command()))?;
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

    fn command(&self) -> Command {
        let mut command = Command::new("qemu-system-x86_64");
        // Without KVM: these kernels do not boot with it in every virtual machine, and every machine can do without.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2G"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(self.image);
        command.arg("-append").arg(format!("{PARAMETERS} {}", self.parameters));
        command.arg("-serial").arg(format!("file:{}", self.console.display()));
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

fn tail(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(CONSOLE_LINES)..).unwrap_or_default().join("\n")
}
