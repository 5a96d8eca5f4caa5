//! The metrics: counted as things happen, or read at the scrape, and written as OpenMetrics text.
//!
//! [`describe`] is the one list of names, types, units and help texts; `docs/metrics.md` is generated from it. Labels are
//! bounded by [`bounds`], totals that the kernel side counts become monotonic in [`monotonic`].

mod bounds;
pub mod describe;
mod gauges;
mod monotonic;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use self::bounds::{Bounded, OTHER};
use self::describe::Description;
use self::monotonic::Monotonic;
use super::status::{ConnectionGauges, Gauges, Hook, Loss, RequestErrors};
use crate::model::{ConnectionId, DeviceNumber, Recovery, Transition, TransitionKind};
use crate::mounts::Problem;
use crate::recovery::Strategy;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    reason: &'static str,
    fs_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RecoveryLabels {
    strategy: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrnoLabels {
    errno: String,
    fs_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LossLabels {
    stage: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookLabels {
    hook: &'static str,
    backend: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
    arch: &'static str,
}

/// The metrics of one agent. Clones share their values.
#[derive(Debug, Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    failures: Family<FailureLabels, Counter>,
    recoveries: Family<RecoveryLabels, Counter>,
    detection: Histogram,
    recovery: Histogram,
    outage: Histogram,
    vfs_errors: Family<ErrnoLabels, Counter>,
    request_errors: Family<ErrnoLabels, Counter>,
    events_lost: Family<LossLabels, Counter>,
    hook_attached: Family<HookLabels, Gauge>,
    state: Mutex<State>,
}

/// The kernel side counts losses as long as the agent runs.
const ONLY_GENERATION: u64 = 0;

/// What has to be remembered to keep labels bounded and totals monotonic.
#[derive(Debug, Default)]
struct State {
    fs_types: Bounded<String>,
    errors: Bounded<(String, String)>,
    request_errors: Monotonic<(DeviceNumber, i32)>,
    losses: Monotonic<(&'static str, &'static str)>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at zero.
    pub fn new() -> Self {
        let build = Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION"), arch: std::env::consts::ARCH });
        let mut inner = Inner {
            registry: Registry::with_prefix(describe::PREFIX),
            failures: Family::default(),
            recoveries: Family::default(),
            detection: Histogram::new(describe::DETECTION_BUCKETS),
            recovery: Histogram::new(describe::RECOVERY_BUCKETS),
            outage: Histogram::new(describe::OUTAGE_BUCKETS),
            vfs_errors: Family::default(),
            request_errors: Family::default(),
            events_lost: Family::default(),
            hook_attached: Family::default(),
            state: Mutex::default(),
        };
        let registry = &mut inner.registry;
        register(registry, &describe::FAILURES, inner.failures.clone());
        register(registry, &describe::RECOVERIES, inner.recoveries.clone());
        register(registry, &describe::DETECTION, inner.detection.clone());
        register(registry, &describe::RECOVERY, inner.recovery.clone());
        register(registry, &describe::OUTAGE, inner.outage.clone());
        register(registry, &describe::VFS_ERRORS, inner.vfs_errors.clone());
        register(registry, &describe::REQUEST_ERRORS, inner.request_errors.clone());
        register(registry, &describe::EVENTS_LOST, inner.events_lost.clone());
        register(registry, &describe::HOOK_ATTACHED, inner.hook_attached.clone());
        register(registry, &describe::BUILD, build);
        let metrics = Self { inner: Arc::new(inner) };
        metrics.begin();
        metrics
    }

    /// Series whose labels are known begin at 0 with the agent: `increase()` does not see a series that begins at 1. A file
    /// system type is met with its first connection: until then that of daemons without a subtype stands for all.
    fn begin(&self) {
        for strategy in Strategy::ALL {
            for outcome in describe::OUTCOMES {
                let labels = RecoveryLabels { strategy: strategy.as_str(), outcome };
                drop(self.inner.recoveries.get_or_create(&labels));
            }
        }
        for reason in Problem::REASONS {
            self.lost("mounts", reason, 0);
        }
        self.begin_type("fuse");
    }

    /// Counts a transition. A death that no mount suffers from (after `umount -l`) is no failure.
    pub fn transition(&self, transition: &Transition) {
        if let Some(fs_type) = &transition.fs_type {
            self.begin_type(fs_type);
        }
        match &transition.kind {
            TransitionKind::Dead(reason) if !transition.mounts.is_empty() => {
                let fs_type = self.fs_type(transition.fs_type.as_deref());
                self.inner.failures.get_or_create(&FailureLabels { reason: reason.kind(), fs_type }).inc();
                if let Some(detection) = transition.detection {
                    self.inner.detection.observe(detection.as_secs_f64());
                }
            }
            TransitionKind::Recovered(Recovery { strategy, recovery, outage, replacement: _ }) => {
                self.count_recovery(strategy, "recovered");
                self.inner.recovery.observe(recovery.as_secs_f64());
                if let Some(outage) = outage {
                    self.inner.outage.observe(outage.as_secs_f64());
                }
            }
            TransitionKind::RecoveryFailed { strategy, retry_in, error: _, flapping: _ } => {
                self.count_recovery(strategy, if retry_in.is_some() { "failed" } else { "gaveUp" });
            }
            TransitionKind::Dead(_)
            | TransitionKind::Ready
            | TransitionKind::Hung(_)
            | TransitionKind::Recovering { .. }
            | TransitionKind::Unmounted
            | TransitionKind::Detached => {}
        }
    }

    fn count_recovery(&self, strategy: &'static str, outcome: &'static str) {
        self.inner.recoveries.get_or_create(&RecoveryLabels { strategy, outcome }).inc();
    }

    /// Counts events that user space lost just now.
    pub fn lost(&self, stage: &'static str, reason: &'static str, count: u64) {
        self.inner.events_lost.get_or_create(&LossLabels { stage, reason }).inc_by(count);
    }

    /// Counts errors that applications saw (`errno` positive).
    pub fn vfs_error(&self, errno: i32, fs_type: Option<&str>, count: u64) {
        let labels = self.errno_labels(errno, fs_type);
        self.inner.vfs_errors.get_or_create(&labels).inc_by(count);
    }

    /// Takes over the kernel side's totals.
    fn request_errors(&self, totals: &[RequestErrors]) {
        for RequestErrors { connection: ConnectionId { device, epoch }, fs_type, errno, total } in totals {
            let increase = self.with_state(|state| state.request_errors.increase((*device, *errno), *epoch, *total));
            if increase > 0 {
                let labels = self.errno_labels(*errno, Some(fs_type));
                self.inner.request_errors.get_or_create(&labels).inc_by(increase);
            }
        }
    }

    /// The OpenMetrics text: what was counted, and these values.
    ///
    /// # Errors
    /// None that can happen: a `String` takes everything; the error is the encoder's own type.
    pub fn encode(&self, gauges: Gauges) -> Result<String, std::fmt::Error> {
        let Gauges { connections, request_errors, losses, hooks } = gauges;
        self.set_hooks(&hooks);
        self.begin_failures(&connections);
        self.request_errors(&request_errors);
        for Loss { stage, reason, total } in losses {
            let increase = self.with_state(|state| state.losses.increase((stage, reason), ONLY_GENERATION, total));
            self.lost(stage, reason, increase);
        }
        let mut output = String::new();
        text::encode_registry(&mut output, &self.inner.registry)?;
        let mut snapshot = Registry::with_prefix(describe::PREFIX);
        snapshot.register_collector(Box::new(gauges::ConnectionCollector::new(connections, |fs_type| {
            self.fs_type(Some(fs_type))
        })));
        text::encode_registry(&mut output, &snapshot)?;
        text::encode_eof(&mut output)?;
        Ok(output)
    }

    fn set_hooks(&self, hooks: &[Hook]) {
        self.inner.hook_attached.clear();
        for Hook { name, backend, attached } in hooks {
            let labels = HookLabels { hook: name, backend: backend.as_str() };
            self.inner.hook_attached.get_or_create(&labels).set(i64::from(*attached));
        }
    }

    /// Those of a type that is met at a scrape, or by a transition, begin at 0, too.
    fn begin_failures(&self, connections: &[ConnectionGauges]) {
        let fs_types: BTreeSet<&str> = connections.iter().map(|connection| connection.fs_type.as_str()).collect();
        fs_types.into_iter().for_each(|fs_type| self.begin_type(fs_type));
    }

    fn begin_type(&self, fs_type: &str) {
        for errno in describe::VFS_ERRNOS {
            self.vfs_error(errno, Some(fs_type), 0);
        }
        let fs_type = self.fs_type(Some(fs_type));
        for reason in describe::REASONS {
            drop(self.inner.failures.get_or_create(&FailureLabels { reason, fs_type: fs_type.clone() }));
        }
    }

    fn fs_type(&self, fs_type: Option<&str>) -> String {
        let text = fs_type.map_or_else(|| OTHER.to_owned(), bounds::label_text);
        self.with_state(|state| if state.fs_types.admit(&text) { text } else { OTHER.to_owned() })
    }

    fn errno_labels(&self, errno: i32, fs_type: Option<&str>) -> ErrnoLabels {
        let (errno, fs_type) = (errno_name(errno), self.fs_type(fs_type));
        let pair = (errno, fs_type);
        let admitted = self.with_state(|state| state.errors.admit(&pair));
        let (errno, fs_type) = if admitted { pair } else { (OTHER.to_owned(), OTHER.to_owned()) };
        ErrnoLabels { errno, fs_type }
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // A panic inside leaves sets and numbers behind: still good to use.
        act(&mut self.inner.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn register(registry: &mut Registry, description: &Description, metric: impl Metric) {
    // The encoder adds the full stop.
    match description.unit {
        Some(_) => registry.register_with_unit(description.name, description.help, Unit::Seconds, metric),
        None => registry.register(description.name, description.help, metric),
    }
}

/// `ENOTCONN` for 107. A daemon can answer any number up to 511 (`fuse_dev_do_write` in fs/fuse/dev.c); those that have
/// no name are [`OTHER`].
fn errno_name(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => OTHER.to_owned(),
        known => format!("{known:?}"),
    }
}

/// Seconds, for a gauge.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests;
