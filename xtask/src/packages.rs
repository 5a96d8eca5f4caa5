//! The Debian packages that tasks need, and their installation.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process::Running;

/// One package.
pub struct Package {
    /// Its name in Debian.
    name: &'static str,
    /// A program that it brings, looked for in PATH.
    brings: &'static str,
    /// What it is needed for.
    reason: &'static str,
}

/// What the tests run. Beside these two lists, only the tool chain for the kernel programs has packages of its own.
pub const TESTS: &[Package] = &[
    Package { name: "fuse3", brings: "fusermount3", reason: "the helper with which daemons mount and users unmount" },
    Package { name: "bindfs", brings: "bindfs", reason: "a daemon on libfuse 2, high level" },
    Package { name: "rclone", brings: "rclone", reason: "a daemon in Go with a FUSE library of its own" },
    Package { name: "gocryptfs", brings: "gocryptfs", reason: "a daemon in Go that starts itself a second time" },
    Package { name: "fuse-overlayfs", brings: "fuse-overlayfs", reason: "a daemon on libfuse 3, low level" },
    Package { name: "mount", brings: "losetup", reason: "umount, and loop devices for file systems of type fuseblk" },
];

/// What `cargo xtask vm` runs, beside [`TESTS`].
pub const VIRTUAL_MACHINES: &[Package] = &[
    Package { name: "qemu-system-x86", brings: "qemu-system-x86_64", reason: "the virtual machines" },
    Package { name: "xz-utils", brings: "xz", reason: "to unpack kernel modules" },
];

/// Installs with apt-get what is missing of these.
///
/// # Errors
/// apt-get is missing or failed; with what to install by hand.
pub fn ensure_installed(packages: &[Package]) -> Result<()> {
    let missing: Vec<&Package> = packages.iter().filter(|package| !is_there(package.brings)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("packages that are needed and missing:");
    for Package { name, reason, .. } in &missing {
        println!("  {name:<20} {reason}");
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    install(&names).with_context(|| format!("install these packages by hand: {}", names.join(" ")))?;
    match missing.iter().find(|package| !is_there(package.brings)) {
        Some(Package { name, brings, .. }) => bail!("the package {name} is installed, but there is no {brings}"),
        None => Ok(()),
    }
}

fn is_there(program: &str) -> bool {
    find(program).is_some()
}

/// Where a program is.
pub fn find(program: &str) -> Option<PathBuf> {
    // sbin: where mount helpers live; not in everybody's PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.into_iter().map(|directory| directory.join(program)).find(|path| path.is_file())
}

fn install(names: &[&str]) -> Result<()> {
    ensure!(nix::unistd::geteuid().is_root(), "apt-get needs root");
    apt_get(&["update"])?;
    let options = ["install", "--yes", "--no-install-recommends"];
    apt_get(&[options.as_slice(), names].concat())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.arg("--quiet").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let status = Running::start(&mut command)?.wait()?;
    ensure!(status.success(), "apt-get {} failed: {status}", arguments.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_in_the_path() {
        assert!(is_there("sh") && !is_there("no-such-program"));
    }

    #[test]
    fn each_package_is_listed_once_with_its_reason() {
        let all = || TESTS.iter().chain(VIRTUAL_MACHINES);
        let mut names: Vec<_> = all().map(|package| package.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        assert!(all().all(|package| !package.reason.is_empty() && !package.brings.is_empty()));
    }
}
