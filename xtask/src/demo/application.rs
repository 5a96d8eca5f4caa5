//! The application of the demonstration: it reads one file in a tight loop and writes down what it saw.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use nix::errno::Errno;

use crate::steerfs;

/// What one round of open, read, compare and close came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The content it expected.
    Good,
    /// A system call failed.
    Failed(Errno),
    /// Other content: the worst case, e.g. the bare directory's file.
    Wrong,
}

/// A time in which the application could not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// When the last good read before it ended.
    pub last_good: Option<Timestamp>,
    /// How many reads had been good until then.
    pub reads_before: u64,
    /// When the first read failed, and with what.
    pub first_error: (Timestamp, Errno),
    /// How often it saw which error, in the order of their first appearance.
    pub errors: Vec<(Errno, u64)>,
    /// When the first good read after it ended.
    pub first_good: Option<Timestamp>,
}

impl Outage {
    /// How many reads failed.
    pub fn count(&self) -> u64 {
        self.errors.iter().map(|(_, count)| count).sum()
    }

    fn count_error(&mut self, errno: Errno) {
        match self.errors.iter_mut().find(|(seen, _)| *seen == errno) {
            Some((_, count)) => *count += 1,
            None => self.errors.push((errno, 1)),
        }
    }
}

/// Everything that the application saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Good reads.
    pub good: u64,
    /// When the last of them ended.
    pub last_good: Option<Timestamp>,
    /// Reads that gave other content.
    pub wrong: u64,
    /// When the first of them ended.
    pub first_wrong: Option<Timestamp>,
    /// Times without a good read, in order.
    pub outages: Vec<Outage>,
}

impl Seen {
    /// Takes down one round that ended at `at`.
    fn record(&mut self, outcome: Outcome, at: Timestamp) {
        let open = self.outages.last_mut().filter(|outage| outage.first_good.is_none());
        match (outcome, open) {
            (Outcome::Good, open) => {
                if let Some(outage) = open {
                    outage.first_good = Some(at);
                }
                self.good += 1;
                self.last_good = Some(at);
            }
            (Outcome::Wrong, _) => {
                self.wrong += 1;
                self.first_wrong.get_or_insert(at);
            }
            (Outcome::Failed(errno), Some(outage)) => outage.count_error(errno),
            (Outcome::Failed(errno), None) => self.outages.push(Outage {
                last_good: self.last_good,
                reads_before: self.good,
                first_error: (at, errno),
                errors: vec![(errno, 1)],
                first_good: None,
            }),
        }
    }
}

/// The application at work, in a thread.
pub struct Application {
    stop: Arc<AtomicBool>,
    good_again: Receiver<()>,
    thread: JoinHandle<Seen>,
}

impl Application {
    /// Starts reading `file`, whose content must be the file system's own now.
    ///
    /// # Errors
    /// The file cannot be read now, or is the bare directory's.
    pub fn start(file: &Path) -> Result<Self> {
        let expected = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        ensure!(expected != steerfs::BARE, "{} is not mounted", file.display());
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, good_again) = mpsc::channel();
        let thread = thread::spawn({
            let (stop, file) = (Arc::clone(&stop), file.to_owned());
            move || read_until(&stop, &file, &expected, &tell)
        });
        Ok(Self { stop, good_again, thread })
    }

    /// Waits for the first good read after an outage.
    ///
    /// # Errors
    /// There was none within `patience`.
    pub fn wait_until_good_again(&self, patience: Duration) -> Result<()> {
        let waited = self.good_again.recv_timeout(patience);
        waited.with_context(|| format!("the application could not read its file again within {patience:?}"))
    }

    /// Ends it; what it saw.
    ///
    /// # Errors
    /// The thread panicked.
    pub fn finish(self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the application's thread panicked"))
    }
}

fn read_until(stop: &AtomicBool, file: &Path, expected: &[u8], good_again: &Sender<()>) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let outcome = read_once(file, expected);
        let outage_before = seen.outages.last().is_some_and(|outage| outage.first_good.is_none());
        seen.record(outcome, Timestamp::now());
        if outage_before && outcome == Outcome::Good {
            // Nobody waits any more when the demonstration has failed.
            let _ = good_again.send(());
        }
    }
    seen
}

fn read_once(file: &Path, expected: &[u8]) -> Outcome {
    match fs::read(file) {
        Ok(content) if content == expected => Outcome::Good,
        Ok(_) => Outcome::Wrong,
        Err(error) => Outcome::Failed(errno(&error)),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_microsecond(micros).unwrap()
    }

    #[test]
    fn an_outage_lasts_from_the_last_good_read_to_the_next() {
        let mut seen = Seen::default();
        seen.record(Outcome::Good, at(1));
        seen.record(Outcome::Good, at(2));
        seen.record(Outcome::Failed(Errno::ECONNABORTED), at(3));
        seen.record(Outcome::Failed(Errno::ENOTCONN), at(4));
        seen.record(Outcome::Failed(Errno::ENOTCONN), at(5));
        seen.record(Outcome::Good, at(6));
        seen.record(Outcome::Good, at(7));
        let errors = vec![(Errno::ECONNABORTED, 1), (Errno::ENOTCONN, 2)];
        let outage = Outage {
            last_good: Some(at(2)),
            reads_before: 2,
            first_error: (at(3), Errno::ECONNABORTED),
            errors,
            first_good: Some(at(6)),
        };
        assert_eq!(outage.count(), 3);
        assert_eq!(seen, Seen { good: 4, last_good: Some(at(7)), outages: vec![outage], ..Seen::default() });
    }

    #[test]
    fn a_second_outage_is_another_one_and_wrong_content_is_none() {
        let mut seen = Seen::default();
        for (moment, outcome) in
            [Outcome::Failed(Errno::ENOTCONN), Outcome::Good, Outcome::Wrong, Outcome::Failed(Errno::EIO)]
                .into_iter()
                .enumerate()
        {
            seen.record(outcome, at(i64::try_from(moment).unwrap()));
        }
        assert_eq!((seen.good, seen.wrong, seen.first_wrong, seen.outages.len()), (1, 1, Some(at(2)), 2));
        assert_eq!(seen.outages[0].last_good, None);
        assert_eq!(seen.outages[1].first_good, None);
    }

    #[test]
    fn a_file_of_other_content_is_wrong_and_a_missing_one_failed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hello");
        assert_eq!(read_once(&file, b"x"), Outcome::Failed(Errno::ENOENT));
        fs::write(&file, "y").unwrap();
        assert_eq!(read_once(&file, b"x"), Outcome::Wrong);
        assert_eq!(read_once(&file, b"y"), Outcome::Good);
    }
}
