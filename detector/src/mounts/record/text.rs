//! The texts of /proc/PID: pure functions of what was read.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// User and group ids of a process, as seen from the reader's user namespace (proc_pid_status(5)).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// Real user id.
    pub uid: u32,
    /// Effective user id.
    pub effective_uid: u32,
    /// Saved user id.
    pub saved_uid: u32,
    /// Real group id.
    pub gid: u32,
    /// Effective group id.
    pub effective_gid: u32,
    /// Saved group id.
    pub saved_gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// A process's place in one cgroup hierarchy (cgroups(7), `/proc/PID/cgroup`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupMembership {
    /// The hierarchy's number; 0 is version 2's only one.
    pub hierarchy: u32,
    /// Version 1: the controllers of the hierarchy, or `name=…`. Version 2: none.
    pub controllers: Vec<String>,
    /// The cgroup, from the root of the reader's cgroup namespace.
    pub path: PathBuf,
}

impl CgroupMembership {
    /// Whether it is the hierarchy of version 2.
    pub fn is_v2(&self) -> bool {
        self.hierarchy == 0
    }
}

/// A resource limit (getrlimit(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// `RLIMIT_NOFILE`, …
    pub resource: u32,
    /// The limit in force; `None`: unlimited.
    pub soft: Option<u64>,
    /// What it can be raised to; `None`: unlimited.
    pub hard: Option<u64>,
}

/// The names in /proc/PID/limits (`lnames` in fs/proc/base.c).
const LIMITS: [(&str, libc::__rlimit_resource_t); 16] = [
    ("Max cpu time", libc::RLIMIT_CPU),
    ("Max file size", libc::RLIMIT_FSIZE),
    ("Max data size", libc::RLIMIT_DATA),
    ("Max stack size", libc::RLIMIT_STACK),
    ("Max core file size", libc::RLIMIT_CORE),
    ("Max resident set", libc::RLIMIT_RSS),
    ("Max processes", libc::RLIMIT_NPROC),
    ("Max open files", libc::RLIMIT_NOFILE),
    ("Max locked memory", libc::RLIMIT_MEMLOCK),
    ("Max address space", libc::RLIMIT_AS),
    ("Max file locks", libc::RLIMIT_LOCKS),
    ("Max pending signals", libc::RLIMIT_SIGPENDING),
    ("Max msgqueue size", libc::RLIMIT_MSGQUEUE),
    ("Max nice priority", libc::RLIMIT_NICE),
    ("Max realtime priority", libc::RLIMIT_RTPRIO),
    ("Max realtime timeout", libc::RLIMIT_RTTIME),
];

/// /proc/PID/cmdline: each argument ends with a NUL. A program that has overwritten it may have left the last one out.
pub fn arguments(text: &[u8]) -> Vec<OsString> {
    if text.is_empty() {
        return Vec::new();
    }
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    text.split(|&byte| byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect()
}

/// /proc/PID/environ: as the arguments. What is no `NAME=value` is left out: a program that writes a title of its own over
/// the area (setproctitle) leaves such remains.
pub fn environment(text: &[u8]) -> Vec<OsString> {
    let entries = text.split(|&byte| byte == 0);
    let named = entries.filter(|entry| entry.iter().position(|&byte| byte == b'=').is_some_and(|at| at > 0));
    named.map(|entry| OsString::from_vec(entry.to_vec())).collect()
}

/// What a process may do (capabilities(7)), and how the scheduler favours it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Privileges {
    /// What it keeps when it starts a program that may have it.
    pub inheritable: u64,
    /// What it has.
    pub permitted: u64,
    /// What neither it nor a program that it starts can get beyond.
    pub bounding: u64,
    /// What it keeps when it starts any program.
    pub ambient: u64,
    /// No program that it starts gets more than it has (`PR_SET_NO_NEW_PRIVS` in prctl(2)).
    pub no_new_privs: bool,
    /// Its niceness, -20 to 19.
    pub nice: i32,
}

/// What /proc/PID/status says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its ids.
    pub credentials: Credentials,
    /// Its file mode creation mask; unknown before Linux 4.7.
    pub umask: Option<u32>,
    /// Its capabilities; the niceness is not there.
    pub privileges: Privileges,
}

/// From the text of /proc/PID/status. The name in it is escaped, so lines are lines.
pub fn status(text: &[u8]) -> Option<Status> {
    let text = String::from_utf8_lossy(text);
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let numbers = |key: &str| -> Option<Vec<u32>> {
        value(key)?.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
    };
    // Real, effective, saved, file system.
    let [uid, effective_uid, saved_uid, _] = numbers("Uid")?.try_into().ok()?;
    let [gid, effective_gid, saved_gid, _] = numbers("Gid")?.try_into().ok()?;
    let groups = numbers("Groups")?;
    let umask = value("Umask").and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
    let credentials = Credentials { uid, effective_uid, saved_uid, gid, effective_gid, saved_gid, groups };
    let set = |key: &str| u64::from_str_radix(value(key)?.trim(), 16).ok();
    let privileges = Privileges {
        inheritable: set("CapInh")?,
        permitted: set("CapPrm")?,
        bounding: set("CapBnd")?,
        ambient: set("CapAmb").unwrap_or(0),
        no_new_privs: value("NoNewPrivs").is_some_and(|flag| flag.trim() == "1"),
        nice: 0,
    };
    Some(Status { credentials, umask, privileges })
}

/// /proc/PID/cgroup: `hierarchy:controllers:path` a line. The path can contain colons, but no line feed
/// (`cgroup_mkdir` in kernel/cgroup/cgroup.c).
pub fn cgroups(text: &[u8]) -> Option<Vec<CgroupMembership>> {
    text.strip_suffix(b"\n")
        .unwrap_or(text)
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let mut parts = line.splitn(3, |&byte| byte == b':');
            let hierarchy = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
            let controllers = std::str::from_utf8(parts.next()?).ok()?;
            let path = OsString::from_vec(parts.next()?.to_vec()).into();
            let controllers = controllers.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            Some(CgroupMembership { hierarchy, controllers, path })
        })
        .collect()
}

/// A file that holds one number.
pub fn number(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// /proc/PID/limits. Limits that this version doesn't know are left out, so that a newer kernel's are no error.
pub fn limits(text: &[u8]) -> Option<Vec<Limit>> {
    let text = std::str::from_utf8(text).ok()?;
    let known = text.lines().filter_map(|line| {
        let (resource, values) =
            LIMITS.iter().find_map(|&(name, resource)| Some((resource, line.strip_prefix(name)?)))?;
        Some((resource, values))
    });
    known
        .map(|(resource, values)| {
            let mut values = values.split_ascii_whitespace();
            let soft = limit(values.next()?)?;
            let hard = limit(values.next()?)?;
            Some(Limit { resource, soft, hard })
        })
        .collect()
}

fn limit(text: &str) -> Option<Option<u64>> {
    if text == "unlimited" { Some(None) } else { text.parse().ok().map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_end_with_nul_and_can_be_empty() {
        assert_eq!(arguments(b"a\0\0b c\0"), ["a", "", "b c"]);
        assert_eq!(arguments(b"nginx: worker"), ["nginx: worker"]);
        assert_eq!(arguments(b""), <[&str; 0]>::default());
        assert_eq!(arguments(b"\0"), [""]);
    }

    #[test]
    fn environment_entries_have_names() {
        assert_eq!(environment(b"A=1\0B=\0=x\0remains\0\0C=a=b\0"), ["A=1", "B=", "C=a=b"]);
    }

    #[test]
    fn ids_are_real_effective_saved() {
        let text = b"Name:\tx\\nUid:\t9\nUmask:\t0027\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t10 11 \n\
            CapInh:\t0000000000000002\nCapPrm:\t0000000000000003\nCapEff:\t0000000000000000\n\
            CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000002\nNoNewPrivs:\t1\n";
        let Status { credentials, umask, privileges } = status(text).unwrap();
        assert_eq!(
            privileges,
            Privileges {
                inheritable: 2,
                permitted: 3,
                bounding: (1 << 41) - 1,
                ambient: 2,
                no_new_privs: true,
                nice: 0
            }
        );
        assert_eq!(umask, Some(0o27));
        assert_eq!(
            credentials,
            Credentials {
                uid: 1,
                effective_uid: 2,
                saved_uid: 3,
                gid: 5,
                effective_gid: 6,
                saved_gid: 7,
                groups: vec![10, 11]
            }
        );
        assert_eq!(status(b"Uid:\t1\t2\nGid:\t5\t6\t7\t8\nGroups:\t\n"), None);
        assert_eq!(status(b""), None);
    }

    #[test]
    fn both_versions_of_cgroups_are_read() {
        let memberships = cgroups(b"12:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/c d\n").unwrap();
        assert_eq!(
            memberships,
            [
                CgroupMembership {
                    hierarchy: 12,
                    controllers: vec!["cpu".into(), "cpuacct".into()],
                    path: "/a:b".into()
                },
                CgroupMembership { hierarchy: 1, controllers: vec!["name=systemd".into()], path: "/".into() },
                CgroupMembership { hierarchy: 0, controllers: vec![], path: "/c d".into() },
            ]
        );
        assert_eq!(memberships.iter().filter(|membership| membership.is_v2()).count(), 1);
        assert_eq!(cgroups(b"").unwrap(), []);
        assert_eq!(cgroups(b"x:y:/\n"), None);
        assert_eq!(cgroups(b"1:cpu\n"), None);
    }

    #[test]
    fn limits_are_numbers_or_none() {
        let text = b"Limit                     Soft Limit           Hard Limit           Units     \n\
            Max open files            1024                 unlimited            files     \n\
            Max nice priority         0                    0                    \n\
            Max future thing          1                    2                    things\n";
        assert_eq!(
            limits(text).unwrap(),
            [
                Limit { resource: libc::RLIMIT_NOFILE, soft: Some(1024), hard: None },
                Limit { resource: libc::RLIMIT_NICE, soft: Some(0), hard: Some(0) },
            ]
        );
        assert_eq!(limits(b"Max open files            x 1 files\n"), None);
    }
}
