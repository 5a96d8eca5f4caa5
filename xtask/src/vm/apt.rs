//! Debian packages of any release, whatever the machine itself runs: apt-get with lists and a cache of its own. Nothing
//! is installed, and no root is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::process::Running;

/// Who signs Debian's archives (package `debian-archive-keyring`).
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Package lists in a directory of their own.
pub struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// Fetches the package lists of some suites. What is fetched is below `directory`, and goes with it.
    ///
    /// # Errors
    /// apt-get's.
    pub fn update(directory: &Path, suites: &[&str]) -> Result<Self> {
        ensure!(Path::new(KEYRING).exists(), "{KEYRING} is missing: install the package debian-archive-keyring");
        let apt = Self { directory: directory.join("apt") };
        for below in ["lists/partial", "cache/archives/partial", "download"] {
            fs::create_dir_all(apt.directory.join(below)).context("cannot make apt's directories")?;
        }
        let line = |suite: &&str| {
            let archive = if suite.ends_with("-security") { "debian-security" } else { "debian" };
            // An old release gets no new signature when nothing changes any more.
            format!("deb [signed-by={KEYRING} check-valid-until=no] http://deb.debian.org/{archive} {suite} main\n")
        };
        let sources: String = suites.iter().map(line).collect();
        fs::write(apt.directory.join("sources.list"), sources).context("cannot write the list of archives")?;
        println!("reading the package lists of Debian {}", suites.join(", "));
        apt.run(apt.command("apt-get").arg("update"))?;
        Ok(apt)
    }

    /// The names of all Linux packages.
    ///
    /// # Errors
    /// apt-cache's.
    pub fn package_names(&self) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        let output = command.args(["pkgnames", "linux-"]).output().context("cannot start apt-cache")?;
        ensure!(output.status.success(), "apt-cache pkgnames: {}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// Downloads a package and unpacks it.
    ///
    /// # Errors
    /// apt-get's and dpkg-deb's.
    pub fn unpack(&self, package: &str, target: &Path) -> Result<()> {
        let download = tempfile::tempdir_in(self.directory.join("download")).context("no scratch directory")?;
        self.run(self.command("apt-get").args(["download", package]).current_dir(download.path()))?;
        let mut files = fs::read_dir(download.path()).context("cannot look what was fetched")?.flatten();
        let file = files.next().with_context(|| format!("{package} was not fetched"))?;
        self.run(Command::new("dpkg-deb").arg("--extract").arg(file.path()).arg(target))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let place = |name: &str| self.directory.join(name).display().to_string();
        for option in [
            format!("Dir::Etc::sourcelist={}", place("sources.list")),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State::lists={}", place("lists")),
            "Dir::State::status=/dev/null".to_owned(),
            format!("Dir::Cache={}", place("cache")),
            // Whom apt-get would become for downloading may not write here.
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.arg("--quiet=2");
        command
    }

    fn run(&self, command: &mut Command) -> Result<()> {
        let line: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
        let line = line.join(" ".as_ref()).to_string_lossy().into_owned();
        let status = Running::start(command.stdin(Stdio::null()))?.wait()?;
        ensure!(status.success(), "{line}: {status}");
        Ok(())
    }
}
