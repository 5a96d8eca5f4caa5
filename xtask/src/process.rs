//! Processes: those that are started here end when their owner is dropped; those that are found are read from /proc.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

/// Between two looks at something that cannot be waited for. Short beside what a person notices.
pub const POLL: Duration = Duration::from_millis(2);

/// Held while a process is started.
static STARTING: Mutex<()> = Mutex::new(());

/// From now on nothing is started any more: who tries waits for ever. For the thread that ends everything and then the
/// program, so that nothing slips through between the two.
pub fn start_no_more() {
    std::mem::forget(STARTING.lock().unwrap_or_else(PoisonError::into_inner));
}

/// A child that is killed and reaped, by its own pid, when this is dropped.
pub struct Running {
    name: String,
    child: Child,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// What was to be started, and why it could not be.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let _permitted = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its status if it ended by itself.
    ///
    /// # Errors
    /// wait(2)'s.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// wait(2)'s.
    pub fn wait(mut self) -> Result<ExitStatus> {
        self.child.wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    /// SIGTERM, then up to `patience` for it to end. Whether it did; if not, dropping it kills it.
    ///
    /// # Errors
    /// kill(2)'s and wait(2)'s.
    pub fn terminate(&mut self, patience: Duration) -> Result<bool> {
        let deadline = Instant::now() + patience;
        if self.ended()?.is_none() {
            kill(pid(self.pid())?, Signal::SIGTERM).with_context(|| format!("cannot end {}", self.name))?;
        }
        loop {
            if self.ended()?.is_some() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it is reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process id for system calls.
///
/// # Errors
/// The kernel's process ids are below 2^22 (`PID_MAX_LIMIT`); anything above an `i32` is none.
pub fn pid(number: u32) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(number).with_context(|| format!("{number} is no process id"))?))
}

/// SIGKILL to a process that is a child of ours, by birth or because we are its subreaper, and its end reaped.
///
/// # Errors
/// kill(2)'s and waitpid(2)'s.
pub fn kill_child(number: u32) -> Result<()> {
    let pid = pid(number)?;
    kill(pid, Signal::SIGKILL).with_context(|| format!("cannot kill process {number}"))?;
    reap(number)
}

/// Waits for the end of a child that was sent a signal.
///
/// # Errors
/// waitpid(2)'s.
pub fn reap(number: u32) -> Result<()> {
    waitpid(pid(number)?, None).with_context(|| format!("cannot wait for process {number}"))?;
    Ok(())
}

/// One line of the process table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Process id.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its name, at most 15 bytes.
    pub comm: String,
    /// Ended, but not reaped.
    pub zombie: bool,
}

/// proc_pid_stat(5): pid, comm in parentheses (any bytes, parentheses too), state, parent.
fn parse_stat(stat: &str) -> Option<Entry> {
    let (pid, rest) = stat.split_once(" (")?;
    let (comm, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let zombie = fields.next()? == "Z";
    Some(Entry { pid: pid.parse().ok()?, parent: fields.next()?.parse().ok()?, comm: comm.to_owned(), zombie })
}

/// Every process there is. One that ends while it is read is left out.
pub fn table() -> Vec<Entry> {
    let numeric = |name: &OsString| name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| numeric(&entry.file_name()))
        .filter_map(|entry| fs::read(entry.path().join("stat")).ok())
        .filter_map(|stat| parse_stat(&String::from_utf8_lossy(&stat)))
        .collect()
}

/// The command line, argument by argument; empty for a zombie or a process that is gone.
pub fn arguments(pid: u32) -> Vec<OsString> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    text.split(|&byte| byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect()
}

/// The environment as the process got it, one `NAME=VALUE` each; empty for a zombie or a process that is gone.
pub fn environment(pid: u32) -> Vec<Vec<u8>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
}

/// Those of `entries` that descend from `ancestor`, without itself.
pub fn descendants(entries: &[Entry], ancestor: u32) -> Vec<Entry> {
    let mut children: BTreeMap<u32, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        children.entry(entry.parent).or_default().push(entry);
    }
    let mut found: Vec<Entry> = Vec::new();
    let mut open = vec![ancestor];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            open.push(child.pid);
            found.push(child.clone());
        }
    }
    found
}

/// The descendants of this process that have an argument on their command line that is `wanted`.
pub fn find_descendants(wanted: impl Fn(&Path) -> bool) -> Vec<u32> {
    descendants(&table(), std::process::id())
        .into_iter()
        .map(|entry| entry.pid)
        .filter(|pid| arguments(*pid).iter().any(|argument| wanted(Path::new(argument))))
        .collect()
}

/// Kills whatever descends from this process, which must be a subreaper (PR_SET_CHILD_SUBREAPER), until nothing is left
/// or `patience` is over. Only direct children get the signal: their pids cannot be reused before they are reaped here,
/// and what they leave behind becomes a direct child in turn.
///
/// # Errors
/// What would not end, e.g. because it is stuck in a system call.
pub fn end_descendants(patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        reap_zombies();
        let left = descendants(&table(), std::process::id());
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let names: Vec<_> = left.iter().map(|entry| format!("{} ({})", entry.comm, entry.pid)).collect();
            anyhow::bail!("processes that SIGKILL did not end: {}", names.join(", "));
        }
        for child in left.iter().filter(|entry| entry.parent == std::process::id() && !entry.zombie) {
            // ESRCH: it became a zombie since, and is reaped in the next round.
            let _ = kill(pid(child.pid)?, Signal::SIGKILL);
        }
        sleep(POLL);
    }
}

/// Reaps the children that ended. To be called only where nobody waits for one of them.
pub fn reap_zombies() {
    loop {
        match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: u32, parent: u32) -> Entry {
        Entry { pid, parent, comm: "x".into(), zombie: false }
    }

    #[test]
    fn a_name_may_hold_what_separates_fields() {
        assert_eq!(
            parse_stat("812 (a) b (c) Z 7 812 0"),
            Some(Entry { pid: 812, parent: 7, comm: "a) b (c".into(), zombie: true })
        );
        for broken in ["", "812", "812 (x", "812 (x) S", "x (y) S 1"] {
            assert_eq!(parse_stat(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn descendants_are_children_of_children_and_nobody_else() {
        let all = [entry(2, 1), entry(3, 2), entry(4, 3), entry(5, 1), entry(1, 0)];
        let mut found: Vec<_> = descendants(&all, 2).into_iter().map(|entry| entry.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let mut child = Running::start(Command::new("sleep").arg("60")).unwrap();
        assert_eq!(child.ended().unwrap(), None);
        let pid = child.pid();
        drop(child);
        assert!(!table().iter().any(|entry| entry.pid == pid && entry.parent == std::process::id()));
    }
}
