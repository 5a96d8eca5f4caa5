//! What a virtual machine boots with: its whole file system, packed for the kernel to unpack into memory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cpio::Archive;
use super::kernel::Kernel;
use super::programs::Programs;

/// Where this project's programs are; the tests' in `deps`, as cargo has it, so that they find the others.
pub const HOME: &str = "/fuse-detector";

/// The first process.
const INIT: &str = include_str!("init.sh");

const DIRECTORIES: [&str; 11] =
    ["bin", "sbin", "dev", "etc", "lib", "proc", "root", "run", "sys", "tmp", "fuse-detector/deps"];

/// Users and groups that tests and daemons look up.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// What is the same in every machine, packed once.
pub struct Base(Vec<u8>);

impl Base {
    /// Packs programs, tools and busybox.
    ///
    /// # Errors
    /// What can't be read.
    pub fn pack(programs: &Programs, tools: &BTreeSet<PathBuf>, busybox: &Path) -> Result<Self> {
        let mut tree = Tree::default();
        for directory in DIRECTORIES {
            tree.directory(directory)?;
        }
        tree.file("init", INIT.as_bytes())?;
        tree.file("etc/passwd", PASSWD.as_bytes())?;
        tree.file("etc/group", GROUP.as_bytes())?;
        tree.file("etc/fuse.conf", b"user_allow_other\n")?;
        tree.copy(busybox, "bin/busybox")?;
        tree.link("etc/mtab", "/proc/self/mounts")?;
        // The kernel calls it by this path (kernel.modprobe).
        tree.link("sbin/modprobe", "/bin/busybox")?;
        for program in &programs.binaries {
            tree.copy(&program.path, &format!("{HOME}/{}", program.name))?;
        }
        for test in &programs.tests {
            tree.copy(&test.path, &format!("{HOME}/deps/{}", test.name))?;
        }
        for file in tools {
            tree.copy(file, &file.to_string_lossy())?;
        }
        Ok(Self(tree.archive.finish()?))
    }

    /// With a kernel's modules and a job, a shell script.
    ///
    /// # Errors
    /// What can't be read or written.
    pub fn write(&self, kernel: &Kernel, job: &str, mut output: &File) -> Result<()> {
        output.write_all(&self.0)?;
        let mut tree = Tree { archive: Archive::new(Vec::new()), directories: BTreeSet::new() };
        tree.file("job", job.as_bytes())?;
        let place = format!("lib/modules/{}", kernel.release);
        tree.directory(&place)?;
        let modules = kernel.modules();
        for file in files_below(&modules)? {
            let name = file.strip_prefix(&modules).context("not below the modules")?;
            tree.copy(&file, &format!("{place}/{}", name.display()))?;
        }
        output.write_all(&tree.archive.finish()?).context("cannot write the initial file system")
    }
}

/// An archive in memory, and which directories it has.
struct Tree {
    archive: Archive<Vec<u8>>,
    directories: BTreeSet<PathBuf>,
}

impl Default for Tree {
    fn default() -> Self {
        Self { archive: Archive::new(Vec::new()), directories: BTreeSet::new() }
    }
}

impl Tree {
    /// With those above it.
    fn directory(&mut self, path: &str) -> Result<()> {
        let path = Path::new(path.trim_start_matches('/'));
        let mut all: Vec<&Path> = path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
        all.reverse();
        for directory in all {
            if self.directories.insert(directory.to_owned()) {
                self.archive.directory(&directory.to_string_lossy())?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        if let Some(parent) = Path::new(path).parent() {
            self.directory(&parent.to_string_lossy())?;
        }
        Ok(self.archive.file(path, content)?)
    }

    fn link(&mut self, path: &str, target: &str) -> Result<()> {
        Ok(self.archive.link(path, target)?)
    }

    fn copy(&mut self, file: &Path, path: &str) -> Result<()> {
        let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        self.file(path, &content)
    }
}

fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
