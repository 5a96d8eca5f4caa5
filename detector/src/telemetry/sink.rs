//! A stream of lines that never blocks who writes to it.
//!
//! Standard output and standard error may be pipes whose reader is stuck, or terminals that are stopped with Ctrl-S. A
//! write to them can then block for ever. So a thread of its own writes, from a queue with a limit; what does not fit is
//! dropped and counted, by reason.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much may wait for the reader, in bytes. A thousand connections dying at once make about half of it; with one queue
/// each for standard output and the log it stays a small part of the agent's memory target (16 MiB).
const QUEUE_BYTES: usize = 1 << 20;

/// Lines that were dropped, by reason, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// The reader was too slow.
    pub full: u64,
    /// The reader is gone (EPIPE), or writing failed for good.
    pub closed: u64,
}

/// Where lines are put. Clones share one queue.
#[derive(Debug, Clone)]
pub struct LineSink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// The writer waits here for lines, [`LineSink::finish`] for their end.
    changed: Condvar,
    /// Tells [`LineSink::broken`].
    broken: tokio::sync::watch::Sender<bool>,
    full: AtomicU64,
    closed: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The writer has taken a line and is writing it.
    writing: bool,
    /// No more lines will come.
    finishing: bool,
    broken: bool,
}

impl LineSink {
    /// A sink that writes to standard output.
    ///
    /// # Errors
    /// The descriptor could not be duplicated, or the thread not started.
    pub fn stdout() -> io::Result<Self> {
        Self::start("stdout", io::stdout().as_fd().try_clone_to_owned()?)
    }

    /// A sink that writes to standard error.
    ///
    /// # Errors
    /// The descriptor could not be duplicated, or the thread not started.
    pub fn stderr() -> io::Result<Self> {
        Self::start("stderr", io::stderr().as_fd().try_clone_to_owned()?)
    }

    /// A sink that writes to a descriptor, from a thread of this name.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(name: &str, descriptor: OwnedFd) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            broken: tokio::sync::watch::Sender::new(false),
            full: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        });
        let writer = Arc::clone(&shared);
        // Detached on purpose: it may hang in write(2) for ever, and must not keep the process.
        std::thread::Builder::new().name(name.to_owned()).spawn(move || write_lines(&writer, descriptor))?;
        Ok(Self { shared })
    }

    /// Queues a line; a line feed is added. Never blocks.
    pub fn line(&self, text: &str) {
        let mut line = Vec::with_capacity(text.len() + 1);
        line.extend_from_slice(text.as_bytes());
        line.push(b'\n');
        self.push(line);
    }

    fn push(&self, line: Vec<u8>) {
        let mut queue = self.shared.lock();
        if queue.broken || queue.finishing {
            self.shared.closed.fetch_add(1, Ordering::Relaxed);
        } else if queue.bytes + line.len() > QUEUE_BYTES {
            self.shared.full.fetch_add(1, Ordering::Relaxed);
        } else {
            queue.bytes += line.len();
            queue.lines.push_back(line);
            self.shared.changed.notify_all();
        }
    }

    /// What was dropped so far.
    pub fn dropped(&self) -> Dropped {
        Dropped { full: self.shared.full.load(Ordering::Relaxed), closed: self.shared.closed.load(Ordering::Relaxed) }
    }

    /// Resolves when the reader has gone away.
    pub async fn broken(&self) {
        // The sender lives in `self.shared`, so waiting can't fail before `self` is gone.
        let _ = self.shared.broken.subscribe().wait_for(|broken| *broken).await;
    }

    /// Takes no more lines and waits until those queued are written, at most `patience`. Blocks: for the end of a
    /// process only. Returns whether everything was written.
    pub fn finish(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut queue = self.shared.lock();
        queue.finishing = true;
        self.shared.changed.notify_all();
        while !queue.broken && (queue.writing || !queue.lines.is_empty()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queue = self.shared.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !queue.broken
    }
}

impl Shared {
    /// A panic while the lock was held leaves plain counters and bytes behind: still good to use.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next line; `None` at the end.
    fn next(&self) -> Option<Vec<u8>> {
        let mut queue = self.lock();
        queue.writing = false;
        self.changed.notify_all();
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.bytes -= line.len();
                queue.writing = true;
                return Some(line);
            }
            if queue.finishing {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn break_off(&self) {
        let mut queue = self.lock();
        let lost = u64::try_from(queue.lines.len()).unwrap_or(u64::MAX).saturating_add(1);
        self.closed.fetch_add(lost, Ordering::Relaxed);
        *queue = Queue { broken: true, finishing: queue.finishing, ..Queue::default() };
        self.changed.notify_all();
        self.broken.send_replace(true);
    }
}

fn write_lines(shared: &Shared, descriptor: OwnedFd) {
    let mut file = std::fs::File::from(descriptor);
    while let Some(line) = shared.next() {
        if write_fully(&mut file, &line).is_err() {
            shared.break_off();
            return;
        }
    }
}

/// As `write_all`, also when somebody who shares the descriptor made it non-blocking (open file descriptions are
/// shared, fcntl(2)).
fn write_fully(file: &mut std::fs::File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_writable(file)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_writable(file: &std::fs::File) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    match poll(&mut [PollFd::new(file, PollFlags::OUT)], None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// For the log: one event of `tracing`, written in pieces and queued as one line when it is complete.
#[derive(Debug)]
pub struct EventWriter {
    sink: LineSink,
    event: Vec<u8>,
}

impl Write for EventWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.event.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        if !self.event.is_empty() {
            self.sink.push(std::mem::take(&mut self.event));
        }
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for LineSink {
    type Writer = EventWriter;

    fn make_writer(&'a self) -> Self::Writer {
        EventWriter { sink: self.clone(), event: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Long enough for a loaded machine; tests wait for events, not for this to pass.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn sink_into_pipe() -> (LineSink, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        (LineSink::start("test", writer.into()).unwrap(), reader)
    }

    #[test]
    fn lines_arrive_in_order_and_finish_waits_for_them() {
        let (sink, mut reader) = sink_into_pipe();
        sink.line("first");
        sink.line("second");
        assert!(sink.finish(PATIENCE));
        drop(sink);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first\nsecond\n");
    }

    #[test]
    fn a_stuck_reader_blocks_nobody_and_what_is_lost_is_counted() {
        let (sink, mut reader) = sink_into_pipe();
        let line = "x".repeat(1023);
        let sent = 2 * QUEUE_BYTES / 1024;
        for _ in 0..sent {
            sink.line(&line);
        }
        let Dropped { full, closed } = sink.dropped();
        assert!(full > 0, "nothing was dropped although nobody reads");
        assert_eq!(closed, 0);
        assert!(!sink.finish(Duration::from_millis(50)), "finish must give up");

        let mut received = Vec::new();
        while received.len() < (sent - usize::try_from(full).unwrap()) * 1024 {
            let mut buffer = [0; 65536];
            let count = reader.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the writer gave up early");
            received.extend_from_slice(&buffer[..count]);
        }
        assert!(received.chunks(1024).all(|chunk| chunk.last() == Some(&b'\n')), "a line was cut");
    }

    #[tokio::test]
    async fn a_reader_that_went_away_is_noticed_and_counted() {
        let (sink, reader) = sink_into_pipe();
        drop(reader);
        sink.line("lost");
        tokio::time::timeout(PATIENCE, sink.broken()).await.expect("EPIPE was not noticed");
        sink.line("lost too");
        assert_eq!(sink.dropped(), Dropped { full: 0, closed: 2 });
        assert!(!sink.finish(PATIENCE));
    }

    #[test]
    fn a_non_blocking_pipe_loses_nothing() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
        let sink = LineSink::start("test", writer.into()).unwrap();
        // More than a pipe holds (64 KiB, pipe(7)), so that write(2) says EAGAIN.
        let lines = 200;
        for _ in 0..lines {
            sink.line(&"y".repeat(1023));
        }
        let mut received = vec![0; lines * 1024];
        reader.read_exact(&mut received).unwrap();
        assert!(sink.finish(PATIENCE));
        assert_eq!(sink.dropped(), Dropped::default());
    }
}
