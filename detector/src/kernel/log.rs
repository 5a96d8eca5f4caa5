//! The kernel programs' own debug output (aya-log), passed on to `tracing` under the target `kernel_program`.

use std::io;

use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// aya-log's name of the ring buffer that the output goes through.
pub(super) const MAP: &str = "AYA_LOGS";

/// Everything: the flag is for people who look at one event after another.
pub(super) const LEVEL_ALL: u8 = aya_log::Level::Trace as u8;

/// Below every level. The constant is frozen before the programs are verified, so the verifier removes the code.
pub(super) const LEVEL_NONE: u8 = 0;

/// Reads the output.
pub struct KernelLog(AsyncFd<EbpfLogger<Forward>>);

impl KernelLog {
    /// Takes the map from the loaded object. Has to be called within a tokio runtime.
    pub(super) fn open(ebpf: &mut Ebpf) -> io::Result<Self> {
        let logger = EbpfLogger::init_with_logger(ebpf, Forward).map_err(io::Error::other)?;
        // SAFETY: the logger owns its ring buffer's descriptor, keeps it open and never gives another one.
        Ok(Self(unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }?))
    }

    /// Waits for output and passes it on.
    pub(super) async fn flush_when_readable(&mut self) -> io::Result<()> {
        let mut guard = self.0.readable_mut().await?;
        guard.get_inner_mut().flush();
        guard.clear_ready();
        Ok(())
    }
}

/// `tracing` wants its level at compile time, hence one call for each.
struct Forward;

impl log::Log for Forward {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let message = record.args();
        match record.level() {
            log::Level::Error => tracing::error!(target: "kernel_program", "{message}"),
            log::Level::Warn => tracing::warn!(target: "kernel_program", "{message}"),
            log::Level::Info => tracing::info!(target: "kernel_program", "{message}"),
            log::Level::Debug => tracing::debug!(target: "kernel_program", "{message}"),
            log::Level::Trace => tracing::trace!(target: "kernel_program", "{message}"),
        }
    }

    fn flush(&self) {}
}
