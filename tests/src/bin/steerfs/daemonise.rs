//! Going to the background, with the parent waiting until the file system serves.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::Context;
use nix::unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, fork, pipe2, setsid};

/// What the child has to say to the waiting parent before it may live on alone.
pub struct Parent(Option<File>);

/// Which of the two processes this is.
pub enum Side {
    /// The parent, once the child has spoken or died: exit with this.
    Parent(ExitCode),
    /// The child.
    Child(Parent),
}

/// The child's word that all is well; anything else is its error message.
const READY: &[u8] = b"\0ready";

/// Forks. To be called before any thread is started.
pub fn fork_to_background() -> anyhow::Result<Side> {
    let (read, write) = pipe2(nix::fcntl::OFlag::O_CLOEXEC).context("pipe2")?;
    // SAFETY: no thread was started yet, so the child may do whatever it likes.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Parent { .. } => {
            drop(write);
            let mut said = Vec::new();
            File::from(read).read_to_end(&mut said).context("read from the child")?;
            if said == READY {
                return Ok(Side::Parent(ExitCode::SUCCESS));
            }
            let said = if said.is_empty() { "it died before FUSE_INIT was answered".into() } else { said };
            eprintln!("steerfs: {}", String::from_utf8_lossy(&said));
            Ok(Side::Parent(ExitCode::FAILURE))
        }
        ForkResult::Child => {
            setsid().context("setsid")?;
            Ok(Side::Child(Parent(Some(File::from(write)))))
        }
    }
}

impl Parent {
    /// Nobody waits: the process stays in the foreground.
    pub fn none() -> Self {
        Self(None)
    }

    /// Lets the parent exit with success and gives up its terminal and working directory.
    pub fn ready(&mut self) -> anyhow::Result<()> {
        let Some(mut pipe) = self.0.take() else { return Ok(()) };
        std::env::set_current_dir("/").context("chdir /")?;
        let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
        dup2_stdin(null.as_fd()).context("dup2")?;
        dup2_stdout(null.as_fd()).context("dup2")?;
        dup2_stderr(null.as_fd()).context("dup2")?;
        pipe.write_all(READY).context("tell the parent")
    }

    /// Tells the parent, or the terminal, why it failed.
    pub fn failed(&mut self, error: &anyhow::Error) {
        match &mut self.0 {
            Some(pipe) => drop(write!(pipe, "{error:#}")),
            None => eprintln!("steerfs: {error:#}"),
        }
    }
}
