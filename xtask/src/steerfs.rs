//! The file system in the repository whose faults can be commanded, started as a daemon.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, Running};

/// A file that it serves.
pub const FILE: &str = "hello";

/// Mounts it on `mount_point`, which must exist, and returns once it serves: the program goes to the background when
/// FUSE_INIT is answered. The process that serves is a descendant of this one, if this one is a subreaper.
///
/// # Errors
/// The program failed (its message is on standard error).
pub fn mount(program: &Path, mount_point: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.arg(mount_point).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let status = Running::start(&mut command)?.wait()?;
    ensure!(status.success(), "{} on {} failed: {status}", program.display(), mount_point.display());
    Ok(())
}

/// The process that serves `mount_point`.
///
/// # Errors
/// There is none, or more than one.
pub fn daemon(mount_point: &Path) -> Result<u32> {
    match process::find_descendants(|argument| argument == mount_point).as_slice() {
        [one] => Ok(*one),
        several => bail!("{} processes serve {}, expected one", several.len(), mount_point.display()),
    }
}

/// Makes a directory for a mount, with a file of the same name as the file system's own but other content: whoever reads
/// that has seen the bare directory below the mount.
///
/// # Errors
/// mkdir(2)'s and write(2)'s.
pub fn mount_point(parent: &Path, name: &str) -> Result<PathBuf> {
    let directory = parent.join(name);
    std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    std::fs::write(directory.join(FILE), BARE).with_context(|| format!("cannot write in {}", directory.display()))?;
    Ok(directory)
}

/// What the file in the bare directory says.
pub const BARE: &[u8] = b"this is the bare directory below the mount\n";
