//! Loads that are timed with the agent and without it. Each runs in the calling thread, a fixed number of times.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};

/// Size of the file of the data-heavy load: 32 requests of the largest size that the kernel makes (1 MiB).
const FILE_SIZE: usize = 32 << 20;

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// getppid(2), which has nothing to do with FUSE: what a hook on every system call costs.
    Getppid,
    /// stat, open and close of files whose attributes and names may not be cached: many small requests.
    Metadata,
    /// Reading a large file that the page cache forgets at each open: few large requests.
    Data,
}

impl Load {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Getppid, Self::Metadata, Self::Data];

    /// As it is called in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Getppid => "getppid",
            Self::Metadata => "metadata: stat, open, close",
            Self::Data => "data: read 32 MiB",
        }
    }

    /// How often it is repeated to be timed once: some 100 ms.
    const fn repetitions(self) -> u32 {
        match self {
            Self::Getppid => 500_000,
            Self::Metadata => 200,
            Self::Data => 4,
        }
    }

    /// A system call that does not wait costs its thread's CPU time, whatever else runs on the machine; a request to a
    /// daemon takes as long as it takes.
    const fn clock(self) -> ClockId {
        match self {
            Self::Getppid => ClockId::CLOCK_THREAD_CPUTIME_ID,
            Self::Metadata | Self::Data => ClockId::CLOCK_MONOTONIC,
        }
    }
}

/// What the loads work on: a mounted file system.
pub struct Target {
    small: Vec<PathBuf>,
    large: PathBuf,
}

impl Target {
    /// The files of a directory that [`backing`] made and that is served at `mount_point`.
    pub fn at(mount_point: &Path) -> Self {
        let small = (0..SMALL_FILES).map(|number| mount_point.join(format!("small-{number}"))).collect();
        Self { small, large: mount_point.join("large") }
    }

    /// Nanoseconds for one repetition.
    ///
    /// # Errors
    /// A system call failed: the file system doesn't serve.
    pub fn time(&self, load: Load) -> Result<f64> {
        let repetitions = load.repetitions();
        let now = || clock_gettime(load.clock()).map(Duration::from).context("the clock cannot be read");
        let start = now()?;
        for _ in 0..repetitions {
            match load {
                Load::Getppid => {
                    black_box(nix::unistd::getppid());
                }
                Load::Metadata => self.metadata()?,
                Load::Data => self.data()?,
            }
        }
        Ok((now()? - start).as_secs_f64() * 1e9 / f64::from(repetitions))
    }

    fn metadata(&self) -> Result<()> {
        for path in &self.small {
            fs::metadata(path).with_context(|| format!("stat {}", path.display()))?;
            File::open(path).with_context(|| format!("open {}", path.display()))?;
        }
        Ok(())
    }

    fn data(&self) -> Result<()> {
        let mut file = File::open(&self.large).with_context(|| format!("open {}", self.large.display()))?;
        let mut buffer = vec![0; 1 << 20];
        while file.read(&mut buffer).with_context(|| format!("read {}", self.large.display()))? > 0 {}
        Ok(())
    }
}

/// How many small files: one repetition of the metadata load asks for each.
const SMALL_FILES: usize = 4;

/// Makes the files in a directory that is then served.
///
/// # Errors
/// write(2)'s.
pub fn backing(directory: &Path) -> Result<()> {
    fs::create_dir(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let write = |path: PathBuf, content: &[u8]| {
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    for number in 0..SMALL_FILES {
        write(directory.join(format!("small-{number}")), b"small")?;
    }
    write(directory.join("large"), &vec![b'x'; FILE_SIZE])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_runs_on_what_backing_made() {
        let directory = tempfile::tempdir().unwrap();
        let served = directory.path().join("served");
        backing(&served).unwrap();
        let target = Target::at(&served);
        for load in Load::ALL {
            assert!(target.time(load).unwrap() > 0.0, "{load:?}");
        }
        fs::remove_dir_all(&served).unwrap();
        assert!(target.time(Load::Metadata).is_err());
    }
}
