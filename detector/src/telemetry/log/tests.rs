//! Lines as they come out of a pipe.

use std::io::Read;
use std::time::Duration;

use super::*;
use crate::model::{BackendKind, ConnectionId, Daemon, DeviceNumber, Process, Reason, Signal};

fn logged(format: LogFormat, act: impl FnOnce()) -> String {
    let (mut reader, writer) = io::pipe().unwrap();
    let sink = LineSink::start("test", writer.into()).unwrap();
    tracing::subscriber::with_default(subscriber(format, EnvFilter::new(DEFAULT_FILTER), sink.clone()), act);
    assert!(sink.finish(Duration::from_secs(20)));
    drop(sink);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

fn transition(kind: TransitionKind) -> Transition {
    Transition {
        kind,
        connection: ConnectionId { device: DeviceNumber { major: 0, minor: 45 }, epoch: 3 },
        backend: BackendKind::Tracepoint,
        fs_type: Some("fuse.bindfs".into()),
        source: Some("/srv/data".into()),
        daemon: Some(Daemon { pid: 812, comm: Some("bindfs".into()), alive: false }),
        detection: Some(Duration::from_micros(74)),
        aborted_requests: Some(1),
        oldest_request: None,
        mounts: vec![crate::model::TransitionMount {
            namespace: crate::model::NamespaceId(1),
            mount_point: "/mnt/a\n\x1b[2J".into(),
            root: "/".into(),
            flags: crate::model::MountFlags::default(),
        }],
    }
}

fn killed() -> TransitionKind {
    let sender = Some(Process { pid: 900, comm: Some("bash".into()) });
    TransitionKind::Dead(Reason::Signal { signal: Signal::KILL, sender })
}

#[test]
fn a_death_is_one_json_object_with_the_contracts_names() {
    let text = logged(LogFormat::Json, || log_transition(&transition(killed())));
    assert_eq!(text.lines().count(), 1, "{text}");
    let mut line: serde_json::Value = serde_json::from_str(&text).unwrap();
    let time = line["timestamp"].take();
    assert!(time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{time}");
    assert_eq!(
        line,
        serde_json::json!({
            "timestamp": null, "level": "WARN", "target": "fuse_detector::telemetry::log", "message": "dead",
            "event": "dead", "connection": "0:45", "epoch": 3, "backend": "tracepoint", "fsType": "fuse.bindfs",
            "source": "/srv/data", "daemon.pid": 812, "daemon.comm": "bindfs",
            "reason": "killed by SIGKILL from bash (900)", "reason.kind": "signal",
            "detectionMicros": 74, "abortedRequests": 1, "mounts": "/mnt/a\\n\\u{1b}[2J",
        })
    );
}

#[test]
fn people_get_one_line_without_anybody_elses_escapes() {
    let text = logged(LogFormat::Text { colored: false }, || log_transition(&transition(killed())));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(" WARN dead event=\"dead\""), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
}

#[test]
fn what_could_not_be_mended_is_an_error() {
    let failed = |retry_in| TransitionKind::RecoveryFailed {
        strategy: "respawn",
        error: "ENOENT".into(),
        retry_in,
        flapping: false,
    };
    let level = |kind| {
        let text = logged(LogFormat::Json, || log_transition(&transition(kind)));
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["level"].as_str().unwrap().to_owned()
    };
    assert_eq!(level(failed(Some(Duration::from_millis(200)))), "WARN");
    assert_eq!(level(failed(None)), "ERROR");
    assert_eq!(level(TransitionKind::Unmounted), "INFO");
}

#[test]
fn a_long_list_of_mounts_is_cut() {
    let mut many = transition(killed());
    many.mounts = vec![many.mounts[0].clone(); NAMED_MOUNTS];
    assert!(!mount_points(&many).contains("more"));
    many.mounts.push(many.mounts[0].clone());
    assert!(mount_points(&many).ends_with(", and 1 more"));
}
