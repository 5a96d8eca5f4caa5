//! A FUSE file system whose faults are commanded while it runs. See `steerfs --help`.

mod cli;
mod control;
mod daemonise;
mod device;
mod faults;
mod filesystem;
mod server;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use clap::Parser;
use fuser::Session;

use crate::cli::{Cli, ExitMode};
use crate::daemonise::{Parent, Side};
use crate::device::Connection;
use crate::faults::Faults;
use crate::filesystem::{CacheTimes, SteerFs};
use crate::server::Server;
use crate::tree::Tree;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let side = if cli.foreground { Ok(Side::Child(Parent::none())) } else { daemonise::fork_to_background() };
    let mut parent = match side {
        Ok(Side::Parent(code)) => return code,
        Ok(Side::Child(parent)) => parent,
        Err(error) => {
            eprintln!("steerfs: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    match run(&cli, &mut parent) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            parent.failed(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli, parent: &mut Parent) -> anyhow::Result<()> {
    server::prepare_signals(cli.exit_mode).context("signals")?;
    keep_large_buffers_untouched();
    let fs = file_system(cli)?;
    let control = cli.control.as_deref().map(std::path::absolute).transpose()?;
    let control = control.as_deref().map(control::listen).transpose()?;
    if cli.mute {
        let devices =
            cli.mount_points()?.iter().map(|path| device::mount_only(cli, path)).collect::<Result<Vec<_>, _>>()?;
        parent.ready()?;
        loop {
            nix::unistd::pause();
            // The descriptors are ours until a signal ends us.
            std::hint::black_box(&devices);
        }
    }
    let served = match &cli.receive {
        Some(socket) => {
            let listener = control::listen(socket)?;
            parent.ready()?;
            let received = device::receive(&listener)?;
            received.into_iter().map(|device| device::take_over(fs.clone(), device)).collect::<Result<_, _>>()?
        }
        None => mount_all(cli, &fs, &cli.mount_points()?)?,
    };
    let server = Server::start(served, Arc::clone(&fs.faults)).context("threads")?;
    if cli.exit_mode == ExitMode::UnmountOnTerm {
        server::end_on_term(Arc::clone(&server)).context("threads")?;
    }
    if let Some(listener) = control {
        control::serve(listener, Arc::clone(&server)).context("threads")?;
    }
    parent.ready()?;
    server.wait(cli.exit_mode);
    Ok(())
}

/// fuser reads each connection into a zeroed buffer of 16 MiB, of which it touches little. Fresh from the kernel such
/// memory costs nothing; but once one buffer was freed, glibc would keep the next ones in its heap and clear them.
fn keep_large_buffers_untouched() {
    const THRESHOLD: libc::c_int = 1 << 20;
    // SAFETY: mallopt(3) takes two numbers; no other thread allocates yet. Without effect nothing but memory is lost.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, THRESHOLD) };
}

fn file_system(cli: &Cli) -> anyhow::Result<SteerFs> {
    let tree = match &cli.backing {
        Some(backing) => Tree::copied(backing).with_context(|| format!("copy {}", backing.display()))?,
        None => Tree::fixed(),
    };
    Ok(SteerFs {
        tree: Arc::new(Mutex::new(tree)),
        faults: Arc::new(Faults::default()),
        cache: CacheTimes { attributes: cli.attr_timeout, entries: cli.entry_timeout },
        owner: cli.owner(),
    })
}

/// All or nothing: what was mounted already is unmounted when a later one fails.
fn mount_all(cli: &Cli, fs: &SteerFs, mount_points: &[PathBuf]) -> anyhow::Result<Vec<(Connection, Session<SteerFs>)>> {
    let mut served = Vec::with_capacity(mount_points.len());
    for mount_point in mount_points {
        match device::mount_at(cli, fs.clone(), mount_point) {
            Ok(mounted) => served.push(mounted),
            Err(error) => {
                for (connection, _) in &served {
                    let _ = connection.unmount();
                }
                return Err(error);
            }
        }
    }
    Ok(served)
}
