//! The log on standard error: for people on a terminal, JSON elsewhere; one line per transition, with the contract's
//! field names.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use super::sink::LineSink;
use crate::model::{Recovery, Transition, TransitionKind};
use crate::text;

/// The environment variable with the filter.
pub const FILTER_VARIABLE: &str = "FUSE_DETECTOR_LOG";

/// What is logged when nobody says otherwise.
const DEFAULT_FILTER: &str = "info";

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people, coloured or not.
    Text {
        /// Whether to colour.
        colored: bool,
    },
    /// One JSON object a line.
    Json,
}

/// The log can't be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// [`FILTER_VARIABLE`] is no filter.
    #[error(
        "{FILTER_VARIABLE}: {0}; write a level (error, warn, info, debug, trace) or MODULE=LEVEL, separated by commas"
    )]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// [`FILTER_VARIABLE`] is not UTF-8.
    #[error("{FILTER_VARIABLE} is not UTF-8")]
    FilterText,
    /// Standard error can't be written to.
    #[error("standard error: {0}")]
    Stream(#[from] io::Error),
    /// There is a log already.
    #[error(transparent)]
    Twice(#[from] tracing::subscriber::SetGlobalDefaultError),
}

/// The format for a standard error that is a terminal, or is none.
pub fn default_format(colored: bool) -> LogFormat {
    if io::stderr().is_terminal() { LogFormat::Text { colored } } else { LogFormat::Json }
}

/// Starts the log of this process. The sink counts what a stuck reader made it drop, and must be finished at the end.
///
/// # Errors
/// A bad filter, no standard error, or a second call.
pub fn start(format: LogFormat) -> Result<LineSink, LogError> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(text) => EnvFilter::try_new(text)?,
        Err(std::env::VarError::NotPresent) => EnvFilter::new(DEFAULT_FILTER),
        Err(std::env::VarError::NotUnicode(_)) => return Err(LogError::FilterText),
    };
    let sink = LineSink::stderr()?;
    tracing::subscriber::set_global_default(subscriber(format, filter, sink.clone()))?;
    Ok(sink)
}

fn subscriber(format: LogFormat, filter: EnvFilter, sink: LineSink) -> Box<dyn tracing::Subscriber + Send + Sync> {
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_timer(Clock).with_writer(sink);
    match format {
        LogFormat::Text { colored } => Box::new(builder.with_ansi(colored).with_target(false).finish()),
        LogFormat::Json => {
            Box::new(builder.json().flatten_event(true).with_current_span(false).with_span_list(false).finish())
        }
    }
}

/// Wall-clock time as in the contract: UTC, microseconds.
struct Clock;

impl tracing_subscriber::fmt::time::FormatTime for Clock {
    fn format_time(&self, writer: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        write!(writer, "{:.6}", jiff::Timestamp::now())
    }
}

/// The fields of a transition's line, flat: what is an object in the contract has a dot in its name here.
struct Fields {
    mounts: String,
    source: Option<String>,
    reason: Option<String>,
    kind: Option<&'static str>,
    daemon: Option<u32>,
    comm: Option<String>,
    detection_micros: Option<u64>,
}

impl Fields {
    fn of(transition: &Transition) -> Self {
        let reason = match &transition.kind {
            TransitionKind::Dead(reason) | TransitionKind::Hung(reason) => Some(reason),
            TransitionKind::Ready
            | TransitionKind::Recovering { .. }
            | TransitionKind::Recovered(_)
            | TransitionKind::RecoveryFailed { .. }
            | TransitionKind::Unmounted
            | TransitionKind::Detached => None,
        };
        let daemon = transition.daemon.as_ref();
        Self {
            mounts: mount_points(transition),
            source: transition.source.as_deref().map(text::printable),
            reason: reason.map(|reason| text::printable(reason.to_string().as_ref())),
            kind: reason.map(crate::model::Reason::kind),
            daemon: daemon.map(|daemon| daemon.pid),
            comm: daemon.and_then(|daemon| daemon.comm.as_deref()).map(|comm| text::printable(comm.as_ref())),
            detection_micros: transition.detection.map(micros),
        }
    }
}

/// How many mount points a line names.
const NAMED_MOUNTS: usize = 8;

fn mount_points(transition: &Transition) -> String {
    let mut named: Vec<String> = (transition.mounts.iter().take(NAMED_MOUNTS))
        .map(|mount| text::printable(mount.mount_point.as_os_str()))
        .collect();
    if let Some(more) = transition.mounts.len().checked_sub(NAMED_MOUNTS + 1) {
        named.push(format!("and {} more", more + 1));
    }
    named.join(", ")
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// One event with the fields that every transition has, and those given.
macro_rules! transition_event {
    ($level:ident, $transition:expr, $fields:expr, $message:literal $(, $name:ident = $value:expr)*) => {
        tracing::$level!(
            event = $transition.kind.event(),
            connection = %$transition.connection.device,
            epoch = $transition.connection.epoch,
            backend = $transition.backend.as_str(),
            fsType = $transition.fs_type.as_deref().map(|fs_type| text::printable(fs_type.as_ref())),
            source = $fields.source,
            daemon.pid = $fields.daemon,
            daemon.comm = $fields.comm,
            reason = $fields.reason,
            reason.kind = $fields.kind,
            detectionMicros = $fields.detection_micros,
            abortedRequests = $transition.aborted_requests,
            $($name = $value,)*
            mounts = $fields.mounts,
            $message
        )
    };
}

/// Logs a transition: at `warn` what somebody has to look at, at `error` what the agent could not mend, else at `info`.
pub fn log_transition(transition: &Transition) {
    let fields = Fields::of(transition);
    match &transition.kind {
        TransitionKind::Ready => transition_event!(info, transition, fields, "ready"),
        TransitionKind::Hung(_) => transition_event!(warn, transition, fields, "hung"),
        // After `umount -l` nobody but those with open files suffers.
        TransitionKind::Dead(_) if transition.mounts.is_empty() => {
            transition_event!(info, transition, fields, "dead, with no mount");
        }
        TransitionKind::Dead(_) => transition_event!(warn, transition, fields, "dead"),
        TransitionKind::Recovering { strategy, flapping: false } => {
            transition_event!(info, transition, fields, "recovering", strategy = *strategy);
        }
        TransitionKind::Recovering { strategy, flapping: true } => {
            transition_event!(
                warn,
                transition,
                fields,
                "recovering after a pause: it dies again soon after each recovery",
                strategy = *strategy,
                flapping = true
            );
        }
        TransitionKind::Recovered(Recovery { strategy, recovery, outage, replacement }) => {
            transition_event!(
                info,
                transition,
                fields,
                "recovered",
                strategy = *strategy,
                recoveryMicros = micros(*recovery),
                outageMicros = outage.map(micros),
                replacement = replacement.device.to_string()
            );
        }
        TransitionKind::RecoveryFailed { strategy, error, retry_in: Some(delay), flapping } => {
            transition_event!(
                warn,
                transition,
                fields,
                "recovery failed, will try again",
                strategy = *strategy,
                error = text::printable(error.as_ref()),
                retryInMillis = micros(*delay) / 1000,
                flapping = *flapping
            );
        }
        TransitionKind::RecoveryFailed { strategy, error, retry_in: None, flapping } => {
            transition_event!(
                error,
                transition,
                fields,
                "recovery failed, given up",
                strategy = *strategy,
                error = text::printable(error.as_ref()),
                gaveUp = true,
                flapping = *flapping
            );
        }
        TransitionKind::Unmounted => transition_event!(info, transition, fields, "unmounted"),
        TransitionKind::Detached => transition_event!(info, transition, fields, "detached"),
    }
}

#[cfg(test)]
mod tests;
