//! The tool chains that can build the kernel object, and how a bare machine gets them.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{execute, output};
use crate::workspace;

/// Debian's packages of a compiler, its standard library's source and the LLVM that it uses: what web browsers there are
/// built with, so that they stay current in the stable release.
const PACKAGES: [&str; 4] = ["cargo-web", "rustc-web", "rust-web-src", "llvm-22-dev"];

/// Where `llvm-22-dev` and its programs are.
const LLVM_PREFIX: &str = "/usr/lib/llvm-22";

/// The newest release; later ones need not give the same code.
const LINKER_VERSION: &str = "0.13.0";

/// What builds the object.
pub enum Toolchain {
    /// Debian's packages: the pinned one.
    Distribution {
        /// The directory of its bpf-linker.
        linker: PathBuf,
    },
    /// A tool chain of rustup's, and whichever bpf-linker and llvm-objcopy are in PATH.
    Rustup {
        /// Its name.
        name: String,
    },
}

impl Toolchain {
    /// The one asked for, or the pinned one where it can be had; installs what is missing.
    pub fn choose(asked: Option<&str>) -> Result<Self> {
        match asked {
            Some("distribution") => Self::distribution(),
            Some(name) => Self::rustup(name),
            None if missing_files().is_empty() || can_install() => Self::distribution(),
            None => {
                println!("Debian's {} are neither installed nor to be had here: using nightly", PACKAGES.join(", "));
                Self::rustup("nightly")
            }
        }
    }

    fn distribution() -> Result<Self> {
        let missing = missing_files();
        if !missing.is_empty() {
            println!(
                "missing: {}",
                missing.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
            );
            install_packages()?;
            let missing = missing_files();
            ensure!(missing.is_empty(), "{missing:?} are still missing with {} installed", PACKAGES.join(", "));
        }
        let linker = workspace::cache_dir()?.join(format!("bpf-linker-{LINKER_VERSION}"));
        if !linker.join("bin/bpf-linker").exists() {
            install_linker(&linker)?;
        }
        Ok(Self::Distribution { linker: linker.join("bin") })
    }

    fn rustup(name: &str) -> Result<Self> {
        let toolchain = Self::Rustup { name: name.to_owned() };
        let has_source = |toolchain: &Self| {
            toolchain.sysroot().is_ok_and(|root| root.join("lib/rustlib/src/rust/library/core").exists())
        };
        if !has_source(&toolchain) {
            println!("rustup's {name} lacks rust-src");
            execute(Command::new("rustup").args(["toolchain", "install", name, "--component", "rust-src"]))?;
            ensure!(has_source(&toolchain), "rustup's {name} still lacks rust-src");
        }
        if in_path("bpf-linker").is_none() {
            bail!("bpf-linker is not in PATH: install it with `cargo install bpf-linker`, or from your distribution");
        }
        Ok(toolchain)
    }

    /// Whether it is the one whose object is committed.
    pub const fn is_pinned(&self) -> bool {
        matches!(self, Self::Distribution { .. })
    }

    /// `cargo` of this tool chain, without what the cargo that runs this task has put into the environment.
    pub fn cargo(&self) -> Result<Command> {
        let mut command = match self {
            Self::Distribution { linker } => {
                let mut command = Command::new("/usr/bin/cargo");
                // Build scripts and `-Z` are for nightly compilers; a stable one has to be told (RUSTC_BOOTSTRAP).
                command.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1").env("PATH", path_with(&[linker])?);
                command
            }
            Self::Rustup { name } => {
                let mut command = Command::new("rustup");
                command.args(["run", name, "cargo"]).env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTC");
                command
            }
        };
        for inherited in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
            command.env_remove(inherited);
        }
        Ok(command)
    }

    fn rustc(&self) -> Command {
        match self {
            Self::Distribution { .. } => Command::new("/usr/bin/rustc"),
            Self::Rustup { name } => {
                let mut command = Command::new("rustup");
                command.args(["run", name, "rustc"]).env_remove("RUSTUP_TOOLCHAIN");
                command
            }
        }
    }

    /// Where its libraries and their source are.
    pub fn sysroot(&self) -> Result<PathBuf> {
        output(self.rustc().args(["--print", "sysroot"])).map(PathBuf::from)
    }

    /// The program that strips the object.
    pub fn objcopy(&self) -> Result<PathBuf> {
        match self {
            Self::Distribution { .. } => Ok(Path::new(LLVM_PREFIX).join("bin/llvm-objcopy")),
            Self::Rustup { name } => {
                let host = output(self.rustc().args(["--print", "host-tuple"]))?;
                let own = self.sysroot()?.join("lib/rustlib").join(host).join("bin/llvm-objcopy");
                if own.exists() {
                    return Ok(own);
                }
                in_path("llvm-objcopy").with_context(|| {
                    format!("no llvm-objcopy: install LLVM, or `rustup component add llvm-tools --toolchain {name}`")
                })
            }
        }
    }

    /// What is recorded beside the object.
    pub fn versions(&self) -> Result<String> {
        let linker = match self {
            Self::Distribution { linker } => linker.join("bpf-linker"),
            Self::Rustup { .. } => in_path("bpf-linker").context("bpf-linker is not in PATH")?,
        };
        let rustc = output(self.rustc().arg("--version"))?;
        let llvm = output(self.rustc().args(["--version", "--verbose"]))?;
        let llvm = llvm.lines().find(|line| line.starts_with("LLVM")).unwrap_or("LLVM version: unknown").to_owned();
        let linker = output(Command::new(linker).arg("--version"))?;
        Ok(format!("{rustc}\n{llvm}\n{linker}\n"))
    }
}

/// What the packages are installed for.
fn missing_files() -> Vec<&'static Path> {
    const FILES: [&str; 5] = [
        "/usr/bin/cargo",
        "/usr/bin/rustc",
        "/usr/lib/rustlib/src/rust/library/core",
        "/usr/lib/llvm-22/bin/llvm-config",
        "/usr/lib/llvm-22/bin/llvm-objcopy",
    ];
    FILES.iter().map(Path::new).filter(|path| !path.exists()).collect()
}

/// Root on a Debian that has the packages.
fn can_install() -> bool {
    nix::unistd::geteuid().is_root()
        && in_path("apt-cache").is_some()
        && output(Command::new("apt-cache").args(["show", "--no-all-versions"]).args(PACKAGES)).is_ok()
}

fn install_packages() -> Result<()> {
    let by_hand = || format!("install them by hand: apt-get install {}", PACKAGES.join(" "));
    ensure!(in_path("apt-get").is_some(), "this is no Debian; use --toolchain nightly");
    ensure!(nix::unistd::geteuid().is_root(), "only root can install Debian packages; {}", by_hand());
    println!("installing {}", PACKAGES.join(", "));
    let noninteractive = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    execute(noninteractive().args(["update", "--quiet"]))?;
    execute(noninteractive().args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(PACKAGES))
        .with_context(by_hand)
}

fn install_linker(root: &Path) -> Result<()> {
    println!("installing bpf-linker {LINKER_VERSION} into {} (about a minute)", root.display());
    let mut cargo = Command::new("/usr/bin/cargo");
    cargo
        .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--no-default-features"])
        .args(["--features", "llvm-22", "--root"])
        .arg(root)
        .env("RUSTC", "/usr/bin/rustc")
        .env("LLVM_PREFIX", LLVM_PREFIX)
        .env("PATH", path_with(&[&Path::new(LLVM_PREFIX).join("bin")])?)
        .current_dir("/");
    for inherited in ["CARGO", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        cargo.env_remove(inherited);
    }
    execute(&mut cargo)
}

/// PATH with some directories put in front.
fn path_with(first: &[&PathBuf]) -> Result<OsString> {
    let rest = env::var_os("PATH").unwrap_or_default();
    let all = first.iter().map(|dir| (*dir).clone()).chain(env::split_paths(&rest));
    env::join_paths(all).context("a directory in PATH has a colon in its name")
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
