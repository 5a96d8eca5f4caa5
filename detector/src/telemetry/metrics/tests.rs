//! The text is read back by a small strict parser of OpenMetrics and compared with the descriptions.

use std::collections::BTreeMap;

use super::describe::{ALL, Kind};
use super::*;
use crate::model::{
    BackendKind, DeviceNumber, MountFlags, NamespaceId, Reason, Signal, TransitionKind, TransitionMount,
};
use crate::telemetry::status::ConnectionState;

/// Sample (name with labels, sorted) to value; and family to type.
#[derive(Debug, Default)]
struct Parsed {
    samples: BTreeMap<String, f64>,
    types: BTreeMap<String, String>,
    units: BTreeMap<String, String>,
}

impl Parsed {
    fn of(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("the text must end with # EOF");
        let mut parsed = Self::default();
        let mut family = String::new();
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let [keyword, name, value] = rest.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
                match keyword {
                    "HELP" => assert!(value.ends_with('.') && !value.ends_with(".."), "{line}"),
                    "TYPE" => {
                        family = name.to_owned();
                        let twice = parsed.types.insert(name.to_owned(), value.to_owned());
                        assert_eq!(twice, None, "family {name} occurs twice");
                    }
                    "UNIT" => assert_eq!(parsed.units.insert(name.to_owned(), value.to_owned()), None),
                    _ => panic!("unknown keyword: {line}"),
                }
            } else {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                assert!(sample.starts_with(&family), "{line} is not in its family {family}");
                let twice = parsed.samples.insert(sample.to_owned(), value.parse().unwrap());
                assert_eq!(twice, None, "sample {sample} occurs twice");
            }
        }
        parsed
    }

    fn value(&self, sample: &str) -> f64 {
        *self.samples.get(sample).unwrap_or_else(|| panic!("no {sample} in {:#?}", self.samples))
    }
}

fn connection(minor: u32, epoch: u64) -> ConnectionId {
    ConnectionId { device: DeviceNumber { major: 0, minor }, epoch }
}

fn transition(kind: TransitionKind) -> Transition {
    Transition {
        kind,
        connection: connection(45, 1),
        backend: BackendKind::Tracepoint,
        fs_type: Some("fuse.bindfs".into()),
        source: None,
        daemon: None,
        detection: Some(Duration::from_micros(74)),
        aborted_requests: None,
        oldest_request: None,
        mounts: vec![TransitionMount {
            namespace: NamespaceId(1),
            mount_point: "/mnt".into(),
            root: "/".into(),
            flags: MountFlags::default(),
        }],
    }
}

fn death() -> TransitionKind {
    TransitionKind::Dead(Reason::Signal { signal: Signal::KILL, sender: None })
}

fn gauges(minor: u32) -> ConnectionGauges {
    ConnectionGauges {
        connection: connection(minor, 1),
        fs_type: "fuse.bindfs".into(),
        state: ConnectionState::Ready,
        requests_in_flight: Some(2),
        oldest_request: Some(Duration::from_millis(1500)),
    }
}

fn encode(metrics: &Metrics, gauges: Gauges) -> Parsed {
    Parsed::of(&metrics.encode(gauges).unwrap())
}

/// After everything that can be counted was.
fn everything() -> Parsed {
    let metrics = Metrics::new();
    metrics.transition(&transition(death()));
    metrics.transition(&transition(TransitionKind::RecoveryFailed {
        strategy: "respawn",
        error: "ENOENT".into(),
        retry_in: None,
        flapping: false,
    }));
    metrics.vfs_error(107, Some("fuse.bindfs"), 3);
    metrics.lost("kernel", "ring_full", 2);
    let hooks = vec![Hook { name: "sys_exit", backend: BackendKind::Tracepoint, attached: false }];
    let errors = RequestErrors { connection: connection(45, 1), fs_type: "fuse".into(), errno: 5, total: 1 };
    encode(&metrics, Gauges { connections: vec![gauges(45)], request_errors: vec![errors], losses: Vec::new(), hooks })
}

#[test]
fn every_described_metric_is_there_with_its_type_and_unit_and_no_other() {
    let parsed = everything();
    let described: BTreeMap<_, _> = ALL.iter().map(|one| (one.family(), one.kind.as_str().to_owned())).collect();
    assert_eq!(parsed.types, described);
    let units: BTreeMap<_, _> = ALL.iter().filter_map(|one| Some((one.family(), one.unit?.to_owned()))).collect();
    assert_eq!(parsed.units, units);
}

#[test]
fn samples_carry_exactly_the_described_labels() {
    let parsed = everything();
    for one in ALL.iter().filter(|one| one.kind != Kind::Histogram) {
        let prefix = one.sample();
        let of_family = parsed.samples.keys().filter_map(|sample| sample.strip_prefix(&prefix));
        let labels: Vec<_> = of_family
            .filter(|rest| rest.is_empty() || rest.starts_with('{'))
            .map(|rest| {
                let inner = rest.trim_start_matches('{').trim_end_matches('}');
                inner.split(',').filter_map(|pair| Some(pair.split_once('=')?.0)).collect::<Vec<_>>()
            })
            .collect();
        assert!(!labels.is_empty(), "{prefix} has no sample");
        assert!(labels.iter().all(|found| found == one.labels), "{prefix}: {labels:?}");
    }
    assert_eq!(parsed.value(r#"fuse_detector_vfs_errors_total{errno="ENOTCONN",fs_type="fuse.bindfs"}"#), 3.0);
    assert_eq!(parsed.value(r#"fuse_detector_oldest_request_seconds{connection="0:45",fs_type="fuse.bindfs"}"#), 1.5);
    assert_eq!(parsed.value(r#"fuse_detector_recoveries_total{strategy="respawn",outcome="gaveUp"}"#), 1.0);
}

#[test]
fn deaths_count_unless_nothing_was_mounted() {
    let metrics = Metrics::new();
    metrics.transition(&transition(death()));
    metrics.transition(&Transition { mounts: Vec::new(), ..transition(death()) });
    for harmless in [TransitionKind::Ready, TransitionKind::Unmounted, TransitionKind::Detached] {
        metrics.transition(&transition(harmless));
    }
    let parsed = encode(&metrics, Gauges::default());
    assert_eq!(parsed.value(r#"fuse_detector_failures_total{reason="signal",fs_type="fuse.bindfs"}"#), 1.0);
    assert_eq!(parsed.value("fuse_detector_detection_seconds_count"), 1.0);
    assert_eq!(parsed.value(r#"fuse_detector_detection_seconds_bucket{le="0.00005"}"#), 0.0);
    assert_eq!(parsed.value(r#"fuse_detector_detection_seconds_bucket{le="0.0001"}"#), 1.0);
}

#[test]
fn every_reason_begins_at_zero_once_its_file_system_type_is_met() {
    let metrics = Metrics::new();
    let parsed = encode(&metrics, Gauges { connections: vec![gauges(45)], ..Gauges::default() });
    let reasons = [
        Reason::Signal { signal: Signal::KILL, sender: None },
        Reason::Exit { code: 1 },
        Reason::Oom { cgroup: None },
        Reason::AdminAbort { actor: None },
        Reason::ForcedUnmount { actor: None },
        Reason::RequestTimeout,
        Reason::DescriptorHeld { holder: None },
        Reason::NeverInitialised { end: None },
        Reason::Unknown,
    ];
    assert_eq!(reasons.each_ref().map(Reason::kind), describe::REASONS);
    for reason in reasons.each_ref().map(Reason::kind) {
        let sample = format!(r#"fuse_detector_failures_total{{reason="{reason}",fs_type="fuse.bindfs"}}"#);
        assert_eq!(parsed.value(&sample), 0.0);
    }
}

#[test]
fn a_recovery_is_measured() {
    let metrics = Metrics::new();
    metrics.transition(&transition(TransitionKind::Recovered(Recovery {
        strategy: "rebind",
        recovery: Duration::from_millis(3),
        outage: Some(Duration::from_secs(2)),
        replacement: connection(46, 1),
    })));
    let parsed = encode(&metrics, Gauges::default());
    assert_eq!(parsed.value("fuse_detector_recovery_seconds_sum"), 0.003);
    assert_eq!(parsed.value("fuse_detector_outage_seconds_sum"), 2.0);
    assert_eq!(parsed.value(r#"fuse_detector_recoveries_total{strategy="rebind",outcome="recovered"}"#), 1.0);
}

#[test]
fn request_errors_stay_monotonic_when_a_number_is_reused() {
    let metrics = Metrics::new();
    let errors = |epoch, total| Gauges {
        request_errors: vec![RequestErrors {
            connection: connection(45, epoch),
            fs_type: "fuse.x".into(),
            errno: 2,
            total,
        }],
        ..Gauges::default()
    };
    let sample = r#"fuse_detector_request_errors_total{errno="ENOENT",fs_type="fuse.x"}"#;
    assert_eq!(encode(&metrics, errors(1, 5)).value(sample), 5.0);
    assert_eq!(encode(&metrics, errors(1, 5)).value(sample), 5.0);
    assert_eq!(encode(&metrics, Gauges::default()).value(sample), 5.0);
    // The new connection under the number has already counted more than the old one ever did.
    assert_eq!(encode(&metrics, errors(2, 9)).value(sample), 14.0);
}

#[test]
fn losses_are_totals_and_user_space_adds_its_own() {
    let metrics = Metrics::new();
    let losses =
        |total| Gauges { losses: vec![Loss { stage: "kernel", reason: "ring_full", total }], ..Gauges::default() };
    let sample = r#"fuse_detector_events_lost_total{stage="kernel",reason="ring_full"}"#;
    assert_eq!(encode(&metrics, losses(3)).value(sample), 3.0);
    assert_eq!(encode(&metrics, losses(4)).value(sample), 4.0);
    metrics.lost("kernel", "ring_full", 1);
    assert_eq!(encode(&metrics, losses(4)).value(sample), 5.0);
}

#[test]
fn series_vanish_with_the_connection() {
    let metrics = Metrics::new();
    let sample = r#"fuse_detector_requests_in_flight{connection="0:45",fs_type="fuse.bindfs"}"#;
    let with = encode(&metrics, Gauges { connections: vec![gauges(45)], ..Gauges::default() });
    assert_eq!(with.value(sample), 2.0);
    assert_eq!(with.value(r#"fuse_detector_connections{state="ready"}"#), 1.0);
    let without = encode(&metrics, Gauges::default());
    assert!(!without.samples.contains_key(sample));
    assert_eq!(without.value(r#"fuse_detector_connections{state="ready"}"#), 0.0);
}

#[test]
fn hostile_subtypes_make_neither_bad_text_nor_endless_series() {
    let metrics = Metrics::new();
    metrics.vfs_error(107, Some("fuse.\"} 1\n# EOF"), 1);
    for number in 0..10_000 {
        metrics.vfs_error(number % 600, Some(&format!("fuse.{number}")), 1);
    }
    let parsed = encode(&metrics, Gauges::default());
    let series = parsed.samples.iter().filter(|(name, _)| name.starts_with("fuse_detector_vfs_errors"));
    let (count, sum) = series.fold((0, 0.0), |(count, sum), (_, value)| (count + 1, sum + value));
    assert!(count < 200, "{count} series");
    assert_eq!(sum, 10_001.0, "errors beyond the bound must still be counted");
}

#[test]
fn a_flood_of_connections_keeps_the_worst_and_says_how_many_are_left_out() {
    let mut connections: Vec<_> = (0..2_500).map(gauges).collect();
    connections[7].oldest_request = Some(Duration::from_secs(99));
    let parsed = encode(&Metrics::new(), Gauges { connections, ..Gauges::default() });
    assert_eq!(parsed.value("fuse_detector_connection_series_omitted"), 500.0);
    assert_eq!(parsed.value(r#"fuse_detector_oldest_request_seconds{connection="0:7",fs_type="fuse.bindfs"}"#), 99.0);
    assert_eq!(parsed.value(r#"fuse_detector_connections{state="ready"}"#), 2500.0);
}

#[test]
fn a_number_that_two_connections_have_is_its_latest() {
    let new = ConnectionGauges { connection: connection(45, 2), requests_in_flight: Some(0), ..gauges(45) };
    let parsed = encode(&Metrics::new(), Gauges { connections: vec![gauges(45), new], ..Gauges::default() });
    let sample = r#"fuse_detector_requests_in_flight{connection="0:45",fs_type="fuse.bindfs"}"#;
    assert_eq!(parsed.value(sample), 0.0);
}

#[test]
fn what_can_happen_first_begins_at_zero() {
    let metrics = Metrics::new();
    let at_start = Parsed::of(&metrics.encode(Gauges::default()).unwrap());
    for sample in [
        r#"fuse_detector_recoveries_total{strategy="respawn",outcome="recovered"}"#,
        r#"fuse_detector_recoveries_total{strategy="rebind",outcome="gaveUp"}"#,
        r#"fuse_detector_failures_total{reason="signal",fs_type="fuse"}"#,
        r#"fuse_detector_vfs_errors_total{errno="ENOTCONN",fs_type="fuse"}"#,
        r#"fuse_detector_events_lost_total{stage="mounts",reason="proc_unreadable"}"#,
    ] {
        assert_eq!(at_start.value(sample), 0.0, "{sample}");
    }
    // A type is met with the first that is told of it.
    metrics.transition(&transition(TransitionKind::Ready));
    let met = Parsed::of(&metrics.encode(Gauges::default()).unwrap());
    assert_eq!(met.value(r#"fuse_detector_failures_total{reason="oom",fs_type="fuse.bindfs"}"#), 0.0);
    assert_eq!(met.value(r#"fuse_detector_vfs_errors_total{errno="ECONNABORTED",fs_type="fuse.bindfs"}"#), 0.0);
}

#[test]
fn the_losses_of_looks_are_all_described() {
    use crate::mounts::Problem;
    let error = || std::io::Error::other("x");
    let namespace = NamespaceId(1);
    let all = [
        Problem::Proc(error()),
        Problem::Own(error()),
        Problem::Denied { processes: 1, first: 1 },
        Problem::Namespace { pid: 1, source: error() },
        Problem::MountTable { namespace, pid: 1, source: error() },
        Problem::PartialView { namespace, pid: 1 },
        Problem::UniqueIds(error()),
    ];
    for problem in all {
        assert_eq!(problem.is_of_the_moment(), Problem::REASONS.contains(&problem.reason()), "{problem}");
    }
}
