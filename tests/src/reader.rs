//! An application that reads a file in a tight loop while its file system dies and is healed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use nix::libc;

/// What the directory below a mount holds in the file that the reader reads.
pub const BARE: &str = "the bare directory below the mount\n";

/// What the application saw.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Complete reads of the expected content.
    pub good: u64,
    /// Errors by number that a dead file system may give.
    pub dead: BTreeMap<i32, u64>,
    /// Everything else: the bare directory, another file, an unexpected error.
    pub wrong: BTreeMap<String, u64>,
}

/// Reads until it is stopped.
#[derive(Debug)]
pub struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Report>>,
}

impl Reader {
    /// Reads the file, whose content right now is the expected one.
    ///
    /// # Panics
    /// If it can't be read now.
    pub fn start(file: &Path) -> Self {
        let expected = fs::read(file).unwrap_or_else(|error| panic!("read {}: {error}", file.display()));
        let (file, stop) = (file.to_owned(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || read_until(&file, &expected, &stopped));
        Self { stop, thread: Some(thread) }
    }

    /// Stops and gives the report.
    ///
    /// # Panics
    /// If the application saw anything but the file or the errors of a dead file system.
    pub fn stop(mut self) -> Report {
        let report = self.join().expect("the reader's thread");
        assert!(report.wrong.is_empty(), "an application saw what it must never see: {report:?}");
        report
    }

    fn join(&mut self) -> Option<Report> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn read_until(file: &PathBuf, expected: &[u8], stop: &AtomicBool) -> Report {
    let mut report = Report::default();
    while !stop.load(Ordering::SeqCst) {
        match fs::read(file) {
            Ok(content) if content == expected => report.good += 1,
            Ok(content) => *report.wrong.entry(String::from_utf8_lossy(&content).into_owned()).or_default() += 1,
            Err(error) => note(&mut report, &error),
        }
    }
    report
}

/// ENOTCONN, ECONNABORTED for a request in flight, EIO from read(2) since Linux 7.2: fs/fuse/dev.c.
fn note(report: &mut Report, error: &io::Error) {
    match error.raw_os_error() {
        Some(errno @ (libc::ENOTCONN | libc::ECONNABORTED | libc::EIO)) => *report.dead.entry(errno).or_default() += 1,
        _ => *report.wrong.entry(error.to_string()).or_default() += 1,
    }
}
