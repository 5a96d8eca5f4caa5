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

/// What is fetched or built once for every clone of the source tree, outside of each.
///
/// # Errors
/// The environment names no home.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(base) => PathBuf::from(base),
        None => std::env::home_dir().context("neither XDG_CACHE_HOME nor HOME is set")?.join(".cache"),
    };
    Ok(base.join("fuse-detector"))
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
    kind: Vec<String>,
}

/// A program that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The target's name.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// `bin`, `lib`, `test`
    kind: String,
}

impl Built {
    /// Whether it is a test program of its own, not the unit tests of something else.
    pub fn is_integration_test(&self) -> bool {
        self.kind == "test"
    }
}

/// Builds the agent and `steerfs`; cargo's progress goes to standard error.
///
/// # Errors
/// The build failed (the compiler said why), or made no such program.
pub fn build(profile: Profile) -> Result<Binaries> {
    let mut command = cargo()?;
    command.args(["build", "--bins", "-p", "fuse-detector", "-p", "fuse-detector-tests"]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    let executables = executables(&mut command)?;
    let find = |wanted: &str| {
        let found = executables.iter().find(|built| built.name == wanted);
        found.map(|built| built.path.clone()).with_context(|| format!("cargo build made no program {wanted:?}"))
    };
    Ok(Binaries { agent: find("fuse-detector")?, steerfs: find("steerfs")? })
}

/// What a command of cargo's builds; its progress goes to standard error.
///
/// # Errors
/// The build failed: the compiler said why.
pub fn executables(command: &mut Command) -> Result<Vec<Built>> {
    command.args(["--message-format", "json-render-diagnostics"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo's output is not piped")?;
    let mut executables = Vec::new();
    for line in BufReader::new(output).lines() {
        executables.extend(executable(&line.context("cannot read cargo's messages")?));
    }
    if !child.wait().context("cannot wait for cargo")?.success() {
        bail!("the build failed");
    }
    Ok(executables)
}

/// The program that a message of cargo tells of. Messages of other kinds, and lines that are none, are skipped.
fn executable(line: &str) -> Option<Built> {
    let message: Message = serde_json::from_str(line).ok()?;
    if message.reason != "compiler-artifact" {
        return None;
    }
    let Target { name, kind } = message.target?;
    Some(Built { name, path: message.executable?, kind: kind.into_iter().next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_are_taken_from_cargos_messages() {
        let program = r#"{"reason":"compiler-artifact","target":{"name":"steerfs","kind":["bin"]},
            "executable":"/t/steerfs","x":1}"#;
        let library = r#"{"reason":"compiler-artifact","target":{"name":"lib","kind":["lib"]},
            "executable":null}"#;
        let steerfs = Built { name: "steerfs".into(), path: "/t/steerfs".into(), kind: "bin".into() };
        assert!(!steerfs.is_integration_test());
        assert_eq!(executable(program), Some(steerfs));
        assert_eq!(executable(library), None);
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(executable("warning: not JSON"), None);
    }
}
