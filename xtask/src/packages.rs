//! The Debian packages that the tests need, and their installation.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process::Running;

/// One package.
struct Package {
    /// Its name in Debian.
    name: &'static str,
    /// A file that it brings: a program's name, looked for in PATH, or an absolute path.
    brings: &'static str,
    /// What it is needed for.
    reason: &'static str,
}

/// All of them. Nothing else in this repository names a package.
const PACKAGES: &[Package] = &[
    Package { name: "fuse3", brings: "fusermount3", reason: "the helper with which libfuse mounts and users unmount" },
    Package { name: "bindfs", brings: "bindfs", reason: "a daemon on libfuse's high-level interface" },
    Package { name: "rclone", brings: "rclone", reason: "a daemon in Go, which mounts through fusermount3" },
    Package { name: "gocryptfs", brings: "gocryptfs", reason: "a daemon in Go that starts itself a second time" },
    Package { name: "fuse-overlayfs", brings: "fuse-overlayfs", reason: "a daemon on libfuse's low-level interface" },
    Package { name: "sshfs", brings: "sshfs", reason: "a daemon that depends on a second process" },
    Package {
        name: "openssh-sftp-server",
        brings: "/usr/lib/openssh/sftp-server",
        reason: "what sshfs talks to, through a pipe, without a network",
    },
    Package { name: "ntfs-3g", brings: "ntfs-3g", reason: "a file system of type fuseblk, on a loop device" },
];

/// Installs what is missing with apt-get.
///
/// # Errors
/// apt-get is missing or failed; with what to install by hand.
pub fn ensure_installed() -> Result<()> {
    let missing: Vec<&Package> = PACKAGES.iter().filter(|package| !is_there(package.brings)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("packages that the tests need and that are missing:");
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

fn is_there(file: &str) -> bool {
    // sbin: where mount helpers live; not in everybody's PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    // Joining an absolute path gives that path.
    directories.into_iter().any(|directory| directory.join(file).is_file())
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
    fn files_are_looked_for_in_the_path_or_where_they_are() {
        assert!(is_there("sh") && is_there("/bin/sh"));
        assert!(!is_there("no-such-program") && !is_there("/usr/lib/no/such/file"));
    }

    #[test]
    fn each_package_is_listed_once_with_its_reason() {
        let mut names: Vec<_> = PACKAGES.iter().map(|package| package.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PACKAGES.len());
        assert!(PACKAGES.iter().all(|package| !package.reason.is_empty() && !package.brings.is_empty()));
    }
}
