//! Small facts from /proc/PID that several parts of this module need. None of them touches the process's memory, its
//! files or a path it uses, so none can block on a FUSE file system.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

/// The processes that /proc lists, in its order (by pid). One may be gone before it is looked at.
///
/// # Errors
/// /proc can't be read: not mounted, or no permission.
pub fn pids() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        // Only processes have names that are numbers.
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(pids)
}

/// The name of a process, while it exists; bytes that are not UTF-8 are replaced.
pub fn comm(pid: u32) -> Option<String> {
    let text = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = text.strip_suffix(b"\n").unwrap_or(&text);
    Some(OsStr::from_bytes(name).to_string_lossy().into_owned())
}

/// Whether the process, or the thing of it that was asked for, no longer exists. /proc says ENOENT when the directory is
/// gone and ESRCH when the process ended behind an open file of it. A zombie has no namespaces, descriptors or links
/// any more: ENOENT, too.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH))
}

/// Whether the kernel refused it (`ptrace_may_access`): CAP_SYS_PTRACE is missing.
pub fn is_denied(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM))
}

/// The inode number of a namespace of the process: `kind` is a name below /proc/PID/ns, `mnt` for instance. `process` is
/// a pid, `self` or `thread-self`.
///
/// # Errors
/// The process is gone ([`is_gone`]), or the caller may not trace it ([`is_denied`]).
pub fn namespace(process: impl std::fmt::Display, kind: &str) -> io::Result<u64> {
    let link = std::fs::read_link(format!("/proc/{process}/ns/{kind}"))?;
    // nsfs (fs/nsfs.c, ns_dname) shows it as `mnt:[4026531841]`.
    let inode = || link.to_str()?.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok();
    inode().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{link:?} names no namespace")))
}

/// Some fields of /proc/PID/stat (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Field 3: `R`, `S`, `D`, `Z`, …
    pub state: u8,
    /// Field 9: the kernel's flags of the task.
    flags: u64,
    /// Field 19: its niceness.
    pub nice: i32,
    /// Field 22: when it started, in clock ticks (of 1/100 s) since boot. With the pid, its identity.
    pub start_time: u64,
    /// Field 52: the status that wait(2) would give, once it is a zombie. 0 where the reader may not trace the process.
    pub exit_code: u32,
}

impl Stat {
    /// Reads it.
    ///
    /// # Errors
    /// The process is gone ([`is_gone`]), or the text is not what proc_pid_stat(5) describes.
    pub fn read(pid: u32) -> io::Result<Self> {
        let text = std::fs::read(format!("/proc/{pid}/stat"))?;
        Self::parse(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has too few fields")))
    }

    /// From the file's text. The name in parentheses can contain anything, parentheses too; nothing behind it can.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let end_of_name = text.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(text.get(end_of_name + 1..)?).ok()?;
        // Field 3 is the first one here.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            state: *field(3)?.as_bytes().first()?,
            flags: field(9)?.parse().ok()?,
            nice: field(19)?.parse().ok()?,
            start_time: field(22)?.parse().ok()?,
            exit_code: field(52)?.parse().ok()?,
        })
    }

    /// It ended, and waits for its parent to take note (`Z`), or is on its way out of the kernel's tables (`X`).
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// A thread of the kernel: no program, no memory of its own.
    pub fn is_kernel_thread(&self) -> bool {
        /// include/linux/sched.h
        const PF_KTHREAD: u64 = 0x0020_0000;
        self.flags & PF_KTHREAD != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_shifts_nothing() {
        let numbers: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let text = format!("7 (a) Z 0 (b) S {}\n", numbers.join(" "));
        assert_eq!(
            Stat::parse(text.as_bytes()),
            Some(Stat { state: b'S', flags: 9, nice: 19, start_time: 22, exit_code: 52 })
        );
        for cut in 0..text.len() - "52\n".len() {
            assert_eq!(Stat::parse(&text.as_bytes()[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn this_process_is_no_zombie_and_no_kernel_thread() {
        let stat = Stat::read(std::process::id()).unwrap();
        assert!(!stat.is_zombie() && !stat.is_kernel_thread() && stat.start_time > 0);
        assert!(pids().unwrap().contains(&std::process::id()));
        assert!(comm(std::process::id()).is_some_and(|name| !name.is_empty() && !name.contains('\n')));
        assert!(namespace("self", "mnt").unwrap() > 0);
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        // Above the largest pid that the kernel gives (PID_MAX_LIMIT, include/linux/threads.h).
        let absent = (1 << 22) + 1;
        assert!(is_gone(&Stat::read(absent).unwrap_err()));
        assert!(is_gone(&namespace(absent, "mnt").unwrap_err()));
        assert_eq!(comm(absent), None);
    }
}
