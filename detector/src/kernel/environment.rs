//! What this kernel and these privileges allow: read once, to name the culprit when a program is refused.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::{fmt, fs, io};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use serde::{Serialize, Serializer};

use super::layout::KERNEL_BTF;

/// kernel_lockdown(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lockdown {
    /// Off.
    None,
    /// User space must not change the running kernel.
    Integrity,
    /// Nor read its memory: `bpf_probe_read_kernel` is refused.
    Confidentiality,
    /// The kernel doesn't have it, or securityfs can't be read.
    Unknown,
}

impl Lockdown {
    /// As it is written in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Confidentiality => "confidentiality",
            Self::Unknown => "unknown",
        }
    }

    /// The file marks the level in force with brackets: `none [integrity] confidentiality`.
    fn parse(content: &str) -> Self {
        match content.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')) {
            Some("none") => Self::None,
            Some("integrity") => Self::Integrity,
            Some("confidentiality") => Self::Confidentiality,
            Some(_) | None => Self::Unknown,
        }
    }

    /// From securityfs; from an instance of our own, visible in no namespace, where nobody has mounted it.
    pub fn read() -> Self {
        let content = fs::read_to_string("/sys/kernel/security/lockdown").or_else(|_| read_detached());
        content.map_or(Self::Unknown, |content| Self::parse(&content))
    }
}

/// Needs CAP_SYS_ADMIN.
fn read_detached() -> io::Result<String> {
    let context = rustix::mount::fsopen("securityfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&context)?;
    let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let file = rustix::fs::openat(&root, "lockdown", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(fs::File::from(file))
}

impl fmt::Display for Lockdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Lockdown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// One capability, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// As capabilities(7) spells it.
    pub name: &'static str,
    /// Whether it is effective.
    pub held: bool,
    /// The call that needs it.
    #[serde(rename = "for")]
    pub needed_for: &'static str,
    #[serde(skip)]
    number: u32,
}

const fn capability(name: &'static str, number: u32, needed_for: &'static str) -> Capability {
    Capability { name, held: false, needed_for, number }
}

/// Numbers from include/uapi/linux/capability.h.
const CAPABILITIES: [Capability; 8] = [
    capability("CAP_BPF", 39, "bpf(2): loading the kernel programs, creating their maps"),
    capability("CAP_PERFMON", 38, "bpf(2): programs on tracepoints, pointers into kernel memory"),
    capability("CAP_SYS_PTRACE", 19, "reading other processes' /proc/PID/fd, exe, environ and ns"),
    capability("CAP_DAC_READ_SEARCH", 2, "reading other users' /proc and connections' control files"),
    capability("CAP_SYS_ADMIN", 21, "mount(2), setns(2), fsopen(2), fanotify marks on file systems: healing"),
    capability("CAP_SYS_CHROOT", 18, "setns(2) into a mount namespace: healing"),
    capability("CAP_SETUID", 7, "setresuid(2): probing mounts without allow_other, starting a user's daemon"),
    capability("CAP_SETGID", 6, "setresgid(2), setgroups(2): the same"),
];

/// What mount(2) and its kin need: to take a dead mount away, and to put another in its place.
pub const MOUNT_CAPABILITY: &str = "CAP_SYS_ADMIN";

/// Where every FUSE daemon gets its connection from.
const DEVICE: &str = "/dev/fuse";
/// Documentation/admin-guide/devices.txt.
const DEVICE_NUMBER: u64 = libc::makedev(10, 229);

/// Whether dead mounts can be healed here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "status", content = "why")]
pub enum Healing {
    /// They can.
    Possible,
    /// What others bring can be attached, but no daemon be started from here.
    Limited(String),
    /// They can't.
    Impossible(String),
}

impl Healing {
    /// As it is here.
    pub fn read() -> Self {
        let missing = |entry: &Capability| entry.name == MOUNT_CAPABILITY && !entry.held;
        if capabilities().iter().any(missing) {
            return Self::Impossible(format!("{MOUNT_CAPABILITY} is missing: nothing can be mounted"));
        }
        // Looked at, not opened: opening it makes a connection's descriptor.
        match fs::metadata(DEVICE).map(|found| found.file_type().is_char_device() && found.rdev() == DEVICE_NUMBER) {
            Ok(true) => Self::Possible,
            Ok(false) => Self::Limited(format!("{DEVICE} is another file: no daemon can be started here")),
            Err(error) => Self::Limited(format!("{DEVICE}: {error}: no daemon can be started here")),
        }
    }
}

/// The capabilities that matter, with those in force marked.
pub fn capabilities() -> Vec<Capability> {
    let held = fs::read_to_string("/proc/self/status").map_or(0, |status| effective(&status));
    CAPABILITIES.map(|entry| Capability { held: held & (1 << entry.number) != 0, ..entry }).to_vec()
}

/// `CapEff` of proc_pid_status(5).
fn effective(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// What can be to blame.
pub(super) struct Environment {
    pub lockdown: Lockdown,
    pub has_btf: bool,
    held: Vec<Capability>,
}

impl Environment {
    pub fn read() -> Self {
        Self { lockdown: Lockdown::read(), has_btf: Path::new(KERNEL_BTF).exists(), held: capabilities() }
    }

    fn holds(&self, name: &str) -> bool {
        self.held.iter().any(|entry| entry.name == name && entry.held)
    }

    /// Those that are missing to load a program. Before Linux 5.8, and still, CAP_SYS_ADMIN stands in for both.
    fn missing_for_bpf(&self) -> Vec<&'static str> {
        let missing = |name: &&'static str| !self.holds(name) && !self.holds("CAP_SYS_ADMIN");
        ["CAP_BPF", "CAP_PERFMON"].into_iter().filter(missing).collect()
    }

    /// A clause that names the culprit of a refusal, where it can be told.
    pub fn blame(&self, error: &io::Error, log: &str) -> Option<String> {
        let denied = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
        let missing = self.missing_for_bpf();
        if denied && !missing.is_empty() {
            return Some(format!("{} missing", missing.join(" and ")));
        }
        if log.contains("probe_read") && self.lockdown == Lockdown::Confidentiality {
            return Some("lockdown=confidentiality forbids bpf_probe_read_kernel".to_owned());
        }
        if !self.has_btf {
            return Some(format!("the kernel has no BTF ({KERNEL_BTF})"));
        }
        denied.then(|| format!("the capabilities suffice; lockdown is {}, an LSM may forbid it", self.lockdown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_in_brackets_is_in_force() {
        assert_eq!(Lockdown::parse("none integrity [confidentiality]\n"), Lockdown::Confidentiality);
        assert_eq!(Lockdown::parse("[none] integrity confidentiality\n"), Lockdown::None);
        assert_eq!(Lockdown::parse(""), Lockdown::Unknown);
    }

    #[test]
    fn effective_capabilities_are_read_from_status() {
        assert_eq!(effective("Name:\tx\nCapPrm:\tff\nCapEff:\t0000008000000004\n"), 1 << 39 | 1 << 2);
        assert_eq!(effective("Name:\tx\n"), 0);
    }

    #[test]
    fn the_culprit_is_named() {
        let environment = |lockdown, has_btf, held| Environment {
            lockdown,
            has_btf,
            held: CAPABILITIES.map(|entry| Capability { held, ..entry }).to_vec(),
        };
        let denied = || io::Error::from_raw_os_error(libc::EPERM);
        let invalid = io::Error::from_raw_os_error(libc::EINVAL);
        let without = environment(Lockdown::None, true, false).blame(&denied(), "").unwrap();
        assert_eq!(without, "CAP_BPF and CAP_PERFMON missing");
        let log = "program of this type cannot use helper bpf_probe_read_kernel#113";
        let locked = environment(Lockdown::Confidentiality, true, true).blame(&invalid, log).unwrap();
        assert!(locked.contains("lockdown"), "{locked}");
        let untyped = environment(Lockdown::None, false, true).blame(&invalid, "").unwrap();
        assert!(untyped.contains("no BTF"), "{untyped}");
        assert_eq!(environment(Lockdown::None, true, true).blame(&invalid, "R1 is bad"), None);
    }
}
