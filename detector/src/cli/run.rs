//! `run` and `watch`: the one place where the agent's parts are put together.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use jiff::Timestamp;
use nix::sys::stat::fstat;
use tokio::signal::unix::{SignalKind, signal};

use super::Ui;
use super::args::{DetectionArgs, Listen, Output, RunArgs, VfsErrors};
use super::transitions::Printer;
use crate::agent::{self, Options, Shell};
use crate::kernel::{self, Detection, Healing, HookState, LoadOptions};
use crate::model::Transition;
use crate::policy::Policy;
use crate::telemetry::log::{self, LogFormat};
use crate::telemetry::sink::LineSink;
use crate::telemetry::status::Loss;
use crate::telemetry::{Metrics, http, query};

/// How long the last lines may take to be read by whoever reads them.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How many threads read /proc at the same time at most. One that waits for a stuck process's memory lock holds up nobody as
/// long as there are others.
const READERS: usize = 16;

/// What `run` and `watch` differ in.
pub(super) struct Plan {
    pub policy: Policy,
    pub heal: bool,
    pub detection: DetectionArgs,
    pub output: Output,
    pub listen: Listen,
    pub kernel_log: bool,
    pub log_format: Option<Output>,
}

/// Carries out the command and gives the exit code.
///
/// # Errors
/// What went wrong, for people.
pub fn main(arguments: RunArgs, ui: &Ui) -> Result<u8, String> {
    let policy = match &arguments.policy {
        Some(file) => Policy::load(file).map_err(|error| error.to_string())?,
        None => Policy::builtin(),
    };
    let plan = Plan {
        policy,
        heal: true,
        detection: arguments.detection,
        output: arguments.output.output,
        listen: arguments.listen,
        kernel_log: arguments.kernel_log,
        log_format: arguments.log_format,
    };
    start(plan, ui)
}

/// Runs the agent until it is told to stop.
pub(super) fn start(plan: Plan, ui: &Ui) -> Result<u8, String> {
    share_heaps();
    let format = match plan.log_format {
        Some(Output::Json) => LogFormat::Json,
        Some(Output::Text) => LogFormat::Text { colored: ui.error.is_colored() },
        None => log::default_format(ui.error.is_colored()),
    };
    let log = log::start(format).map_err(|error| error.to_string())?;
    let output = LineSink::stdout().map_err(|error| format!("standard output: {error}"))?;
    // One thread: the state has one owner, and whatever can block is another process.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(READERS).build();
    let runtime = runtime.map_err(|error| format!("the event loop can't be made: {error}"))?;
    let printer = Printer::new(output.clone(), plan.output, ui.output);
    let outcome = runtime.block_on(serve(plan, printer, [output.clone(), log.clone()]));
    // Threads that are stuck in a read of /proc must not keep the process.
    runtime.shutdown_background();
    output.finish(LAST_LINES);
    log.finish(LAST_LINES);
    outcome.map(|()| 0)
}

/// The threads that read mount tables and /proc come and go. glibc would give each a heap of its own, and keep what was once
/// needed there: with a thousand mounts as much as everything else the agent holds.
fn share_heaps() {
    // SAFETY: mallopt(3) takes two numbers, and no other thread is there yet. Without effect nothing but memory is lost.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

async fn serve(plan: Plan, printer: Printer, sinks: [LineSink; 2]) -> Result<(), String> {
    let options = LoadOptions { backend: plan.detection.backend.into(), kernel_log: plan.kernel_log };
    let detection = kernel::load(&options).map_err(|error| error.to_string())?;
    announce(&detection, &plan);
    warn_of_missing_privilege(&plan);
    let metrics = Metrics::new();
    let (asker, queries) = query::channel();
    if let Listen::Address(address) = plan.listen {
        let listener = http::bind(address).await.map_err(|error| error.to_string())?;
        let served = listener.local_addr().unwrap_or(address);
        tracing::info!(address = %served, "serving HTTP");
        tokio::spawn(http::serve(listener, asker, metrics.clone()));
    }
    let broken = sinks[0].clone();
    let logged = !one_stream();
    let shell = Shell::start(Options {
        detection,
        policy: plan.policy,
        heal: plan.heal,
        vfs_errors: vfs_errors(plan.detection.vfs_errors),
        tell: Box::new(move |transition: &Transition| {
            if logged {
                log::log_transition(transition);
            }
            printer.print(transition, Timestamp::now());
        }),
        metrics,
        queries,
        output_losses: Box::new(move || losses(&sinks)),
    });
    let shell = shell.map_err(|error| error.to_string())?;
    let stop = stopped(broken, plan.heal).map_err(|error| format!("signals can't be received: {error}"))?;
    shell.run(stop).await;
    Ok(())
}

/// Standard output and standard error lead to the same terminal, file or socket: the log would tell each transition there a
/// second time.
fn one_stream() -> bool {
    let file = |descriptor: BorrowedFd<'_>| fstat(descriptor).map(|status| (status.st_dev, status.st_ino));
    matches!((file(io::stdout().as_fd()), file(io::stderr().as_fd())), (Ok(output), Ok(log)) if output == log)
}

/// Resolves when the agent is to stop. When the reader of standard output goes away, `watch` has nobody left to tell; an
/// agent that heals goes on, since the mounts still need somebody.
fn stopped(output: LineSink, heal: bool) -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let unread = async {
            output.broken().await;
            if !heal {
                return;
            }
            tracing::warn!("nobody reads standard output any more; going on without it");
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = terminate.recv() => tracing::info!(signal = "SIGTERM", "stopping"),
            _ = interrupt.recv() => tracing::info!(signal = "SIGINT", "stopping"),
            () = unread => {}
        }
    })
}

/// One line that sums up: version, kernel, backend, hooks attached and left out with the reason.
fn announce(detection: &Detection, plan: &Plan) {
    let attached: Vec<_> =
        detection.hooks.iter().filter(|hook| hook.status == HookState::Attached).map(|hook| hook.name).collect();
    let missing = detection.hooks.iter().filter(|hook| hook.lost.is_some());
    let missing: Vec<_> =
        missing.map(|hook| format!("{}: {}", hook.name, hook.why.as_deref().unwrap_or("unknown"))).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        kernel = kernel::release(),
        backend = detection.backend.as_str(),
        attached = attached.join(","),
        missing = missing.join("; "),
        rules = plan.policy.rule_count(),
        "fuse-detector starts"
    );
}

/// The agent goes on all the same: it tells what dies. A start that fails would lose that, too.
fn warn_of_missing_privilege(plan: &Plan) {
    if !plan.heal || !plan.policy.heals() {
        return;
    }
    match Healing::read() {
        Healing::Possible => {}
        Healing::Limited(why) => tracing::warn!(why, "the policy asks for healing; no daemon can be started for it"),
        Healing::Impossible(why) => {
            tracing::warn!(
                why,
                "the policy asks for healing, but nothing can be healed: every recovery will be given up"
            );
        }
    }
}

fn losses(sinks: &[LineSink; 2]) -> Vec<Loss> {
    let mut losses = Vec::new();
    for (stage, sink) in ["output", "log"].into_iter().zip(sinks) {
        let dropped = sink.dropped();
        losses.push(Loss { stage, reason: "full", total: dropped.full });
        losses.push(Loss { stage, reason: "closed", total: dropped.closed });
    }
    losses
}

const fn vfs_errors(when: VfsErrors) -> agent::VfsErrors {
    match when {
        VfsErrors::Auto => agent::VfsErrors::Auto,
        VfsErrors::On => agent::VfsErrors::On,
        VfsErrors::Off => agent::VfsErrors::Off,
    }
}
