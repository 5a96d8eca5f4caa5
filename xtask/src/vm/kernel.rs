//! The kernels: which there are, and how they come from Debian's packages into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::apt::Apt;
use crate::workspace;

/// One line of kernels: the newest release of it is taken.
pub struct Series {
    /// What all its releases begin with.
    pub name: &'static str,
    /// Where Debian keeps it: `SUITE`, or `SUITE-security` from the archive of security updates.
    suites: &'static [&'static str],
    /// Backends that have to work there: tests fail instead of being called impossible.
    expected: &'static [&'static str],
    /// The same with the kernel locked down.
    expected_locked: &'static [&'static str],
}

impl Series {
    /// Backends that have to work there.
    pub const fn expected(&self, locked: bool) -> &'static [&'static str] {
        if locked { self.expected_locked } else { self.expected }
    }
}

/// From the oldest to the newest. What is special about each is in docs/development.md.
pub const SERIES: &[Series] = &[
    Series {
        name: "5.10",
        suites: &["bullseye", "bullseye-security"],
        expected: &["kprobe", "portable"],
        expected_locked: &[],
    },
    Series {
        name: "6.1",
        suites: &["bookworm", "bookworm-security"],
        expected: &["kprobe", "portable"],
        expected_locked: &[],
    },
    Series {
        name: "6.12",
        suites: &["bookworm-security"],
        expected: &["fentry", "kprobe", "tracepoint", "portable"],
        expected_locked: &["fentry", "tracepoint"],
    },
    Series {
        name: "7",
        suites: &["sid"],
        expected: &["fentry", "kprobe", "tracepoint", "portable"],
        expected_locked: &["fentry", "tracepoint"],
    },
];

/// Modules that the tests need where they are not built in.
const MODULES: [&str; 2] = ["kernel/fs/fuse/fuse.ko", "kernel/drivers/block/loop.ko"];

/// What depmod(8) reads beside the modules.
const MODULE_LISTS: [&str; 3] = ["modules.builtin", "modules.builtin.modinfo", "modules.order"];

/// A kernel in the cache.
pub struct Kernel {
    /// As `uname -r` says.
    pub release: String,
    directory: PathBuf,
}

/// Those that are asked for by the beginning of their names; all, if none is.
///
/// # Errors
/// There is no such kernel.
pub fn choose(asked: &[String]) -> Result<Vec<&'static Series>> {
    let fits = |series: &Series, wanted: &str| {
        let parts = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        let (has, wanted) = (parts(series.name), parts(wanted));
        has.iter().zip(&wanted).all(|(has, wanted)| has == wanted)
    };
    if let Some(unknown) = asked.iter().find(|wanted| !SERIES.iter().any(|series| fits(series, wanted))) {
        let names: Vec<&str> = SERIES.iter().map(|series| series.name).collect();
        bail!("there is no kernel {unknown}: choose among {}", names.join(", "));
    }
    Ok(SERIES.iter().filter(|series| asked.is_empty() || asked.iter().any(|wanted| fits(series, wanted))).collect())
}

impl Kernel {
    /// From the cache; from Debian if it is not there, or if a newer one is wanted.
    ///
    /// # Errors
    /// What apt-get says, or that the package is not what it was expected to be.
    pub fn get(series: &Series, refresh: bool) -> Result<Self> {
        let directory = workspace::cache_dir()?.join("kernels").join(series.name);
        if refresh || !directory.exists() {
            fetch(series, &directory).with_context(|| format!("cannot get a kernel {}", series.name))?;
        }
        let release = fs::read_to_string(directory.join("release"))
            .with_context(|| format!("{} is damaged: remove it", directory.display()))?;
        Ok(Self { release, directory })
    }

    /// What QEMU boots.
    pub fn image(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    /// What belongs to `/lib/modules/RELEASE`.
    pub fn modules(&self) -> PathBuf {
        self.directory.join("modules")
    }
}

fn fetch(series: &Series, directory: &Path) -> Result<()> {
    let parent = directory.parent().context("the cache has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    // In the cache itself, so that it can be renamed.
    let scratch = tempfile::Builder::new().prefix("fetch-").tempdir_in(parent).context("no scratch directory")?;
    let apt = Apt::update(scratch.path(), series.suites)?;
    let names = apt.package_names()?;
    let (release, image) = newest(&names, series.name).context("none of Debian's packages is one")?;
    // Since 6.17 the image and the modules are in packages of their own, on which the package of the kernel depends.
    let parts = [image.to_owned(), format!("linux-binary-{release}"), format!("linux-modules-{release}")];
    let unpacked = scratch.path().join("unpacked");
    for package in parts.iter().filter(|part| names.contains(part)) {
        println!("fetching {package}");
        apt.unpack(package, &unpacked)?;
    }
    let ready = scratch.path().join("ready");
    pick(&unpacked, release, &ready)?;
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::rename(&ready, directory).with_context(|| format!("cannot make {}", directory.display()))
}

/// Keeps of an unpacked kernel what is needed.
fn pick(unpacked: &Path, release: &str, ready: &Path) -> Result<()> {
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.parent().context("no parent")?)?;
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))
    };
    let [old, merged] = ["lib/modules", "usr/lib/modules"].map(|place| unpacked.join(place).join(release));
    let modules = if merged.exists() { merged } else { old };
    let [beside, boot] = [modules.join("vmlinuz"), unpacked.join(format!("boot/vmlinuz-{release}"))];
    copy(if beside.exists() { &beside } else { &boot }, &ready.join("vmlinuz"))?;
    for list in MODULE_LISTS.map(|list| modules.join(list)).iter().filter(|list| list.exists()) {
        copy(list, &ready.join("modules").join(list.file_name().context("no name")?))?;
    }
    for module in MODULES {
        let (plain, packed) = (modules.join(module), modules.join(format!("{module}.xz")));
        if packed.exists() {
            let status = Command::new("xz").arg("--decompress").arg(&packed).status().context("cannot start xz")?;
            ensure!(status.success(), "cannot unpack {}: {status}", packed.display());
        }
        // Otherwise it is built in, or the kernel lacks it: what needs it says so.
        if plain.exists() {
            copy(&plain, &ready.join("modules").join(module))?;
        }
    }
    fs::create_dir_all(ready.join("modules"))?;
    fs::write(ready.join("release"), release).context("cannot write the release")
}

/// The newest release of a series, and its package. Kernels for clouds: they have what virtual machines need built in.
fn newest<'a>(names: &'a [String], series: &str) -> Option<(&'a str, &'a str)> {
    let prefix = format!("{series}.");
    let release = |name: &'a str| {
        let release = name.strip_prefix("linux-image-")?;
        let release = release.strip_suffix("-unsigned").unwrap_or(release);
        (release.starts_with(&prefix) && release.ends_with("-cloud-amd64")).then_some((release, name))
    };
    names.iter().filter_map(|name| release(name)).max_by_key(|(release, _)| numbers(release))
}

/// The numbers in a release, for comparing.
fn numbers(release: &str) -> Vec<u32> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_release_is_by_number() {
        let names = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64-dbg",
            "linux-image-6.1.0-58-cloud-amd64-unsigned",
            "linux-image-6.1.0-59-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
        ]
        .map(str::to_owned);
        assert_eq!(newest(&names, "6.1"), Some(("6.1.0-58-cloud-amd64", "linux-image-6.1.0-58-cloud-amd64-unsigned")));
        assert_eq!(newest(&names, "6.12").map(|(release, _)| release), Some("6.12.117+deb12-cloud-amd64"));
        assert_eq!(newest(&names, "7"), None);
    }

    #[test]
    fn a_kernel_is_asked_for_by_how_its_name_begins() {
        let names = |asked: &[&str]| -> Option<Vec<&str>> {
            let asked: Vec<String> = asked.iter().map(|&name| name.to_owned()).collect();
            Some(choose(&asked).ok()?.iter().map(|series| series.name).collect())
        };
        assert_eq!(names(&[]), Some(vec!["5.10", "6.1", "6.12", "7"]));
        assert_eq!(names(&["6.1"]), Some(vec!["6.1"]));
        assert_eq!(names(&["6", "7.2"]), Some(vec!["6.1", "6.12", "7"]));
        assert_eq!(names(&["4.19"]), None);
    }
}
