//! The programs that go into the machine: this project's, linked statically, and the installed ones that tests call.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::packages;
use crate::workspace::{self, Built};

/// The only architecture whose kernels are fetched.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What tests and their daemons run, if it is installed. What is missing is skipped by those tests, and told.
const TOOLS: [&str; 12] = [
    "mount",
    "umount",
    // Busybox's knows no `--propagation unchanged` and no priority by process id.
    "unshare",
    "renice",
    "losetup",
    "setpriv",
    "fusermount3",
    "bindfs",
    "rclone",
    "gocryptfs",
    "fuse-overlayfs",
    "findmnt",
];

/// This project's.
pub struct Programs {
    /// `fuse-detector` and `steerfs`.
    pub binaries: Vec<Built>,
    /// The scenarios' test programs.
    pub tests: Vec<Built>,
}

/// Builds them, in a target directory of their own: the flags would make everything else be built anew.
///
/// # Errors
/// The build failed; the compiler said why.
pub fn build() -> Result<Programs> {
    ensure!(cfg!(target_arch = "x86_64"), "the virtual machines are x86-64: this needs a machine of that kind");
    let packages = ["-p", "fuse-detector", "-p", "fuse-detector-tests"];
    let binaries = cargo(&[["build", "--bins"].as_slice(), &packages].concat())?;
    let tests = cargo(&["test", "--no-run", "--test", "*", "-p", "fuse-detector-tests"])?;
    Ok(Programs { binaries, tests: tests.into_iter().filter(Built::is_integration_test).collect() })
}

fn cargo(arguments: &[&str]) -> Result<Vec<Built>> {
    let mut command = workspace::cargo()?;
    // Emulated and unoptimised, it would need half a minute to read the types of a kernel.
    command.args(["--config", "profile.dev.package.aya-obj.opt-level=2"]);
    command.args(arguments).args(["--target", TARGET, "--target-dir", "target/vm"]);
    command.env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols").env("CARGO_PROFILE_DEV_DEBUG", "0");
    workspace::executables(command.env_remove("CARGO_ENCODED_RUSTFLAGS"))
}

/// The installed programs, and every library that they load: absolute paths.
///
/// # Errors
/// ldd(1)'s.
pub fn tools() -> Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for tool in TOOLS.iter().filter_map(|tool| packages::find(tool)) {
        files.extend(libraries(&tool)?);
        files.insert(tool);
    }
    Ok(files)
}

/// What the dynamic loader would load for a program; nothing for one that is linked statically.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    Ok(parse_ldd(&String::from_utf8_lossy(&output.stdout)))
}

/// `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader itself.
fn parse_ldd(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let path = line.rsplit_once(" (0x")?.0;
        let path = path.rsplit_once("=> ").map_or(path, |(_, path)| path).trim();
        path.starts_with('/').then(|| path.into())
    };
    text.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibfuse.so.2 => /lib/x/libfuse.so.2 (0x00007f)\n\t\
                    /lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<PathBuf> = ["/lib/x/libfuse.so.2", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from).into();
        assert_eq!(parse_ldd(text), found);
        assert_eq!(parse_ldd("\tnot a dynamic executable\n"), Vec::<PathBuf>::new());
    }
}
