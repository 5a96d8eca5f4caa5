//! Facts in, reports out.

use super::*;
use crate::model::{MountFlags, MountId, Propagation};

fn device(minor: u32) -> DeviceNumber {
    DeviceNumber { major: 0, minor }
}

fn mount(minor: u32, namespace: u64, mount_point: &str, root: &str) -> Mount {
    Mount {
        namespace: NamespaceId(namespace),
        id: MountId(1),
        unique_id: None,
        parent: MountId(0),
        device: device(minor),
        root: root.into(),
        root_deleted: false,
        mount_point: mount_point.into(),
        flags: MountFlags::default(),
        propagation: Propagation::default(),
        fs_type: "fuse.x".into(),
        source: "x".into(),
        super_options: "allow_other".into(),
    }
}

fn facts(mounts: Vec<Mount>) -> Facts {
    Facts {
        snapshot: Snapshot { own: Some(NamespaceId(1)), mounts, ..Snapshot::default() },
        control: BTreeMap::new(),
        holders: Holders::default(),
        lives: BTreeMap::new(),
    }
}

fn reported(facts: &Facts) -> Vec<ConnectionReport> {
    reports(facts, |pid| Some(format!("p{pid}")))
}

#[test]
fn a_connection_is_asked_through_its_own_whole_mount_or_else_through_a_process_elsewhere() {
    let mut snapshot = facts(vec![
        mount(45, 2, "/container", "/"),
        mount(45, 1, "/part", "/sub"),
        mount(45, 1, "/whole", "/"),
        mount(45, 1, "/whole-too", "/"),
        mount(46, 2, "/elsewhere", "/"),
        mount(47, 3, "/nobody-lives-there", "/"),
    ])
    .snapshot;
    snapshot.namespaces = BTreeMap::from([(NamespaceId(1), 1), (NamespaceId(2), 70)]);
    let asked: Vec<_> = to_ask(&snapshot).into_values().map(|target| target.mount.mount_point).collect();
    assert_eq!(asked, [std::path::PathBuf::from("/whole"), "/proc/70/root/elsewhere".into()]);
}

#[test]
fn mounts_are_grouped_with_the_own_namespace_first() {
    let mut facts = facts(vec![mount(45, 2, "/b", "/"), mount(46, 1, "/c", "/"), mount(45, 1, "/a", "/")]);
    facts.control = BTreeMap::from([(device(45), Some(3)), (device(46), None)]);
    facts.holders.by_connection = BTreeMap::from([(device(45), vec![7, 9])]);
    facts.lives = BTreeMap::from([(device(45), Life::Answered), (device(46), Life::Dead)]);
    let reports = reported(&facts);
    let [first, second] = &reports[..] else { panic!("{reports:?}") };
    let points: Vec<_> = first.mounts.iter().map(|mount| mount.mount_point.to_str().unwrap()).collect();
    assert_eq!((first.connection, first.state, points), (device(45), ConnectionState::Ready, vec!["/a", "/b"]));
    assert_eq!(first.daemon, Some(Daemon { pid: 7, comm: Some("p7".into()), alive: true }));
    assert_eq!(first.requests_in_flight, Some(3));
    assert_eq!((second.state, second.requests_in_flight, &second.daemon), (ConnectionState::Dead, None, &None));
}

#[test]
fn a_connection_that_is_mounted_nowhere_is_listed() {
    let mut facts = facts(Vec::new());
    facts.control = BTreeMap::from([(device(45), Some(0))]);
    let reports = reported(&facts);
    assert_eq!((reports.len(), &reports[0].fs_type, &reports[0].mounts), (1, &None, &Vec::new()));
}

#[test]
fn without_an_answer_only_what_is_certain_is_concluded() {
    let with = |held, attributes, requests| state(Life::NotAsked, Evidence { held, attributes, requests });
    assert_eq!(with(false, true, None), ConnectionState::Dead);
    assert_eq!(with(false, false, Some(0)), ConnectionState::Unknown);
    assert_eq!(with(true, true, Some(0)), ConnectionState::Ready);
    assert_eq!(with(true, true, Some(1)), ConnectionState::Unknown);
    assert_eq!(with(true, true, None), ConnectionState::Unknown);
}

#[test]
fn one_hidden_descriptor_makes_absence_no_proof() {
    assert!(attributes(&Holders::default()));
    assert!(!attributes(&Holders { unattributed: vec![1], ..Holders::default() }));
    assert!(!attributes(&Holders { denied: 1, ..Holders::default() }));
}
