//! The worker's side: one job after another from a socket on standard input. No thread, no runtime, no log.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use super::frame;
use super::probe::probe;
use super::protocol::{Reply, Request};
use crate::recovery::wire::ProgressForm;

/// The hidden first argument.
pub(super) const ARGUMENT: &str = "__worker";
/// A worker could not get its own ids back.
pub(super) const EXIT_LOST_IDS: i32 = 70;

/// Whether this process was started as a worker. To be asked before anything else is done in `main`.
pub fn is_worker_invocation() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == OsStr::new(ARGUMENT))
}

/// A worker's whole life: serves until the agent closes its end of the socket.
pub fn main() -> ExitCode {
    match start().and_then(|mut stream| serve(&mut stream)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuse-detector: a worker process ends: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Ties the worker to the agent and takes the socket off standard input.
fn start() -> io::Result<UnixStream> {
    // The signal comes when the thread that spawned this process ends. Had it ended before, the socket is at its end.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    close_inherited();
    // A working directory on a mount keeps it busy.
    std::env::set_current_dir("/")?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    Ok(UnixStream::from(socket))
}

/// Closes what a careless ancestor left open: it could be the very descriptor whose holder keeps a connection alive.
fn close_inherited() {
    const FIRST_AFTER_STDERR: libc::c_uint = 3;
    // SAFETY: the process has just started, and nothing in it owns a descriptor above standard error yet.
    unsafe { libc::close_range(FIRST_AFTER_STDERR, libc::c_uint::MAX, 0) };
}

fn serve(stream: &mut UnixStream) -> io::Result<()> {
    while let Some(bytes) = frame::read(stream)? {
        match frame::decode::<Request>(&bytes) {
            Ok(Request::Probe { mount, owner }) => {
                let found = probe(&mount.into(), owner);
                frame::write(stream, &Reply::Probe(found))?;
            }
            Ok(Request::Recover(job)) => {
                let mut failed = None;
                crate::recovery::run::run(&(*job).into(), &mut |progress: ProgressForm| {
                    // The agent has gone: the work is finished all the same, so that nothing is left half done.
                    failed = frame::write(stream, &Reply::Progress(progress)).err().or(failed.take());
                });
                failed.map_or(Ok(()), Err)?;
            }
            Err(error) => frame::write(stream, &Reply::Malformed(error.to_string()))?,
        }
    }
    Ok(())
}
