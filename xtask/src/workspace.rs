//! The workspace and what cargo builds in it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The root of the workspace: the parent of this crate's directory.
///
/// # Errors
/// The crate's directory has no parent, which no checkout of the workspace makes.
pub fn root() -> Result<PathBuf> {
    // Cargo sets the variable for what it runs; without it (the binary started by hand) the place of the build counts.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| OsString::from(env!("CARGO_MANIFEST_DIR")));
    let root = Path::new(&here).parent().context("the xtask crate is not inside a workspace")?;
    Ok(root.to_owned())
}

/// `cargo`, the one that runs this, in the workspace's root.
///
/// # Errors
/// As [`root`].
pub fn cargo() -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root()?);
    Ok(command)
}

/// What is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build: for showing and testing.
    Dev,
    /// Optimised: for measuring.
    Release,
}

/// The two programs that every scenario needs.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// `fuse-detector`
    pub agent: PathBuf,
    /// `steerfs`, the file system whose faults can be commanded.
    pub steerfs: PathBuf,
}

/// The part of cargo's `compiler-artifact` messages that is needed (`cargo build --message-format`).
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds the agent and `steerfs`; cargo's progress goes to standard error.
///
/// # Errors
/// The build failed (the compiler said why), or made no such program.
pub fn build(profile: Profile) -> Result<Binaries> {
    let mut command = cargo()?;
    command.args(["build", "--bins", "-p", "fuse-detector", "-p", "fuse-detector-tests"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo's output is not piped")?;
    let mut executables = Vec::new();
    for line in BufReader::new(output).lines() {
        executables.extend(executable(&line.context("cannot read cargo's messages")?));
    }
    if !child.wait().context("cannot wait for cargo")?.success() {
        bail!("cargo build failed");
    }
    let find = |wanted: &str| {
        let found = executables.iter().find(|(name, _)| name == wanted);
        found.map(|(_, path)| path.clone()).with_context(|| format!("cargo build made no program {wanted:?}"))
    };
    Ok(Binaries { agent: find("fuse-detector")?, steerfs: find("steerfs")? })
}

/// The program that a message of cargo tells of. Messages of other kinds, and lines that are none, are skipped.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let message: Message = serde_json::from_str(line).ok()?;
    if message.reason != "compiler-artifact" {
        return None;
    }
    Some((message.target?.name, message.executable?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_are_taken_from_cargos_messages() {
        let program = r#"{"reason":"compiler-artifact","target":{"name":"steerfs"},"executable":"/t/steerfs","x":1}"#;
        let library = r#"{"reason":"compiler-artifact","target":{"name":"lib"},"executable":null}"#;
        assert_eq!(executable(program), Some(("steerfs".into(), "/t/steerfs".into())));
        assert_eq!(executable(library), None);
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(executable("warning: not JSON"), None);
    }
}
