//! Builds the kernel object from `detector-ebpf/` and puts it where the agent includes it from.
//!
//! Two compilers give different code for the same source, so the committed object is that of one pinned tool chain: the
//! packages of Debian 12, which everybody can install. Any rustup nightly builds an object that works as well.

mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use self::toolchain::Toolchain;

/// The BPF target: 64 bits, little-endian. One object serves x86-64 and arm64, because all that differs between the two
/// (structure offsets, system call numbers) is filled in when it is loaded.
const TARGET: &str = "bpfel-unknown-none";

/// Build the kernel object
#[derive(Args)]
pub struct Options {
    /// Change nothing; fail if the committed object is not, byte for byte, what the pinned tool chain builds
    #[arg(long)]
    check: bool,

    /// Tool chain: `distribution` (Debian's packages, the pinned one) or the name of a rustup tool chain such as
    /// `nightly` [default: distribution where its packages are or can be installed, else nightly]
    #[arg(long, value_name = "NAME")]
    toolchain: Option<String>,
}

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    let root = workspace()?;
    let toolchain = Toolchain::choose(options.toolchain.as_deref())?;
    if options.check {
        ensure!(
            toolchain.is_pinned(),
            "--check compares with the pinned tool chain's object: use --toolchain distribution"
        );
    }
    let built = build(&root, &toolchain)?;
    let versions = toolchain.versions()?;
    if options.check {
        compare(&root, &built, &versions)
    } else {
        install(&root, &built, &versions, toolchain.is_pinned())
    }
}

/// The directory of the workspace's `Cargo.toml`.
fn workspace() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(Path::to_owned).context("xtask's directory has no parent")
}

fn object(root: &Path) -> PathBuf {
    root.join("detector-ebpf/object/fuse-detector.bpfel.o")
}

/// What built it, beside it.
fn versions_file(root: &Path) -> PathBuf {
    root.join("detector-ebpf/object/fuse-detector.bpfel.toolchain")
}

/// The object as the tool chain builds it, without debug information (ten times its size) and with BTF.
fn build(root: &Path, toolchain: &Toolchain) -> Result<PathBuf> {
    let target_dir = root.join("target/ebpf");
    let mut cargo = toolchain.cargo()?;
    cargo
        .current_dir(root)
        .args(["build", "--release", "--locked", "--package", "detector-ebpf", "-Z", "build-std=core"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags(root, &toolchain.sysroot()?)?.join("\u{1f}"));
    execute(&mut cargo)?;
    let linked = target_dir.join(TARGET).join("release/fuse-detector");
    let stripped = target_dir.join("fuse-detector.bpfel.o");
    let mut objcopy = Command::new(toolchain.objcopy()?);
    objcopy.arg("--strip-debug").arg(&linked).arg(&stripped);
    execute(&mut objcopy)?;
    Ok(stripped)
}

/// No path of this machine gets into the object: it would differ from one directory to the next.
fn rustflags(root: &Path, sysroot: &Path) -> Result<Vec<String>> {
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => std::env::home_dir().context("neither CARGO_HOME nor HOME is set")?.join(".cargo"),
    };
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let flags = ["-Cdebuginfo=2", "-Clink-arg=--btf"].map(str::to_owned);
    let remaps = [remap(root, "/fuse-detector"), remap(&cargo_home, "/cargo"), remap(sysroot, "/rust")];
    Ok(flags.into_iter().chain(remaps).collect())
}

fn compare(root: &Path, built: &Path, versions: &str) -> Result<()> {
    let committed = object(root);
    let read = |path: &Path| fs::read(path).with_context(|| format!("reading {}", path.display()));
    if read(&committed)? == read(built)? {
        println!("{} is what the source builds", committed.display());
        return Ok(());
    }
    let recorded = fs::read_to_string(versions_file(root)).unwrap_or_default();
    if recorded != versions {
        bail!(
            "{} differs from what this tool chain builds, but it was built with another one:\n{recorded}here is\n{versions}",
            committed.display()
        );
    }
    bail!("{} is not what the source builds: run `cargo xtask build-ebpf` and commit it", committed.display())
}

fn install(root: &Path, built: &Path, versions: &str, pinned: bool) -> Result<()> {
    let object = object(root);
    fs::copy(built, &object).with_context(|| format!("copying {} to {}", built.display(), object.display()))?;
    fs::write(versions_file(root), versions).with_context(|| format!("writing {}", versions_file(root).display()))?;
    println!("built {}", object.display());
    if !pinned {
        println!(
            "note: it works, but commit only the pinned tool chain's: cargo xtask build-ebpf --toolchain distribution"
        );
    }
    Ok(())
}

/// Runs a command to its end and says it first.
fn execute(command: &mut Command) -> Result<()> {
    let line = describe(command);
    println!("+ {line}");
    let status = command.status().with_context(|| format!("running {line}"))?;
    ensure!(status.success(), "{line}: {status}");
    Ok(())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// What a command prints.
fn output(command: &mut Command) -> Result<String> {
    let line = describe(command);
    let output = command.output().with_context(|| format!("running {line}"))?;
    ensure!(output.status.success(), "{line}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
