use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};

use crate::recovery::error::Tail;

/// How much a program may write to standard error before it answers. The rest is refused.
const CAPACITY: u64 = 64 << 10;
/// How much of it is worth telling.
const TOLD: u64 = 512;

/// What a program writes to standard error until it answers.
///
/// A file in memory of fixed size rather than a pipe: a daemon keeps the descriptor for life, and a pipe whose reader has
/// gone would end it by SIGPIPE at its next message.
pub(super) struct Stderr(File);

impl Stderr {
    pub fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("fuse-detector-stderr", flags)?);
        file.set_len(CAPACITY)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self(file))
    }

    /// A descriptor for the program. It shares its offset, which tells how much was written.
    pub fn writer(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// The last of what was written.
    pub fn tail(&self) -> Tail {
        let written = rustix::fs::seek(&self.0, SeekFrom::Current(0)).unwrap_or(0).min(CAPACITY);
        let start = written.saturating_sub(TOLD);
        let mut bytes = vec![0; usize::try_from(written - start).unwrap_or(0)];
        match self.0.read_exact_at(&mut bytes, start) {
            Ok(()) => Tail(bytes),
            Err(_) => Tail::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_end_is_told_and_too_much_is_refused_without_a_signal() {
        let stderr = Stderr::new().unwrap();
        let mut writer = File::from(stderr.writer().unwrap());
        assert_eq!(stderr.tail(), Tail::default());
        writer.write_all(b"first line\nlast line\n").unwrap();
        assert_eq!(stderr.tail().to_string(), "; it said: first line / last line");
        while writer.write(&[b'x'; 4096]).is_ok_and(|written| written > 0) {}
        assert_eq!(stderr.tail().0, [b'x'; 512]);
    }
}
