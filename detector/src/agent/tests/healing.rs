//! One attempt: what it is about, and when it has succeeded.

use super::*;
use crate::recovery::Bring;

/// One that died, with the job to heal it.
fn at_work() -> (Bench, Did) {
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    let did = bench.die(connection(45, 1), DAEMON);
    assert_eq!(did.told(), ["0:45#1 dead", "0:45#1 recovering"]);
    (bench, did)
}

#[test]
fn a_daemon_that_was_seen_is_started_again() {
    let (mut bench, did) = at_work();
    let job = did.job();
    let Bring::Respawn(spec) = &job.bring else { panic!("{:?}", job.bring) };
    assert_eq!(spec.argv, ["testfs"]);
    assert_eq!(places(&job.dead), [PathBuf::from("/mnt/a")]);
    let did = bench.work(connection(45, 1), &job, 46);
    assert!(did.told().is_empty() && did.looks(Scope::Own), "the check is missing");
    let did = bench.look();
    assert_eq!(did.told_of(), ["recovered /mnt/a"]);
    assert!(did.forgets_connection(45), "{did:?}");
    assert_eq!(bench.look().told_of(), [""; 0]);
}

#[test]
fn what_was_healed_can_die_and_be_healed_again() {
    let (mut bench, did) = at_work();
    bench.work(connection(45, 1), &did.job(), 46);
    bench.look();
    // How its daemon was started is known from the first one; what runs in a namespace of its own would not tell.
    bench.initialised(46, 900);
    bench.on(Event::Remembered { pid: 900, record: None });
    let job = bench.die(connection(46, 1), 900).job();
    assert!(matches!(&job.bring, Bring::Respawn(spec) if spec.argv == ["testfs"]), "{:?}", job.bring);
}

#[test]
fn a_look_older_than_the_end_of_the_work_is_no_check() {
    let (mut bench, did) = at_work();
    let stale = bench.begin(Scope::Own);
    bench.work(connection(45, 1), &did.job(), 46);
    let did = bench.end(stale);
    assert!(did.told().is_empty() && did.brought().is_empty(), "it saw the mount that is healed by now: {did:?}");
    assert_eq!(bench.look().told(), ["0:45#1 recovered"]);
}

#[test]
fn a_look_that_saw_nothing_dead_before_the_end_of_the_work_is_no_check() {
    let (mut bench, did) = at_work();
    let job = did.job();
    let stale = Look { mounts: Vec::new(), ..bench.begin(Scope::Own) };
    bench.work(connection(45, 1), &job, 46);
    assert_eq!(bench.end(stale).told(), [""; 0], "others may have been made since");
    assert_eq!(bench.look().told(), ["0:45#1 recovered"]);
}

#[test]
fn a_dead_mount_that_the_check_finds_is_healed_too() {
    let (mut bench, did) = at_work();
    bench.mount(45, "/mnt/b");
    bench.work(connection(45, 1), &did.job(), 46);
    let did = bench.look();
    assert!(did.told().is_empty(), "{:?}", did.told());
    let job = did.job();
    assert_eq!((did.brought(), places(&job.dead)), (vec!["existing"], vec![PathBuf::from("/mnt/b")]));
    bench.work(connection(45, 1), &job, 46);
    assert_eq!(bench.look().told_of(), ["recovered /mnt/a /mnt/b"]);
}

#[test]
fn who_makes_dead_mounts_faster_than_they_are_healed_is_told() {
    let (mut bench, did) = at_work();
    let (mut job, mut rounds) = (did.job(), 0);
    let did = loop {
        rounds += 1;
        bench.mount(45, "/mnt/b");
        assert!(bench.look().told().is_empty());
        bench.work(connection(45, 1), &job, 46);
        let did = bench.look();
        if did.jobs().is_empty() {
            break did;
        }
        job = did.job();
    };
    assert_eq!((rounds, did.told()), (5, vec!["0:45#1 recoveryFailed".to_owned()]));
    let (error, retry_in) = did.failures()[0];
    assert_eq!(error, "1 dead mounts are still there after each attempt");
    assert!(retry_in.is_some());
    // The next attempt counts anew, and whoever made them has stopped.
    let job = bench.retry(connection(45, 1)).job();
    bench.work(connection(45, 1), &job, 46);
    assert_eq!(bench.look().told(), ["0:45#1 recovered"]);
}

#[test]
fn a_number_that_is_used_again_right_after_the_work_is_none_of_the_dead() {
    let (mut bench, did) = at_work();
    bench.work(connection(45, 1), &did.job(), 46);
    bench.mount(45, "/mnt/b");
    let did = bench.look();
    assert_eq!((did.told_of(), did.brought()), (vec!["recovered /mnt/a".to_owned()], vec![]));
    assert_eq!(did.probed(), [connection(45, 2)]);
}

#[test]
fn a_dead_mount_that_is_covered_is_a_guard_and_not_left_over() {
    let (mut bench, did) = at_work();
    let guard = bench.mount(45, "/mnt/a");
    bench.work(connection(45, 1), &did.job(), 46);
    bench.cover(&guard);
    assert_eq!(bench.look().told(), ["0:45#1 recovered"]);
}

#[test]
fn a_mount_that_is_taken_away_while_it_is_healed_is_told_as_unmounted() {
    let (mut bench, did) = at_work();
    let mount = did.job().dead[0].clone();
    bench.unmount(&mount);
    assert!(bench.look().checks_control());
    let mut did = bench.control(connection(45, 1), false);
    did.append(bench.progress(connection(45, 1), Progress::Gone { mount }));
    did.append(bench.progress(connection(45, 1), Progress::Finished));
    did.append(bench.look());
    assert_eq!(did.told_of(), ["unmounted /mnt/a"]);
    assert!(did.forgets_connection(45));
}

#[test]
fn what_is_taken_away_here_while_it_is_healed_stays_dead_elsewhere() {
    let (mut bench, did) = at_work();
    let mount = did.job().dead[0].clone();
    let copy = bench.mount_in(OTHER, 45, "/data");
    bench.unmount(&mount);
    bench.look_everywhere();
    bench.progress(connection(45, 1), Progress::Gone { mount });
    let mut did = bench.progress(connection(45, 1), Progress::Finished);
    did.append(bench.look());
    assert_eq!(did.told_of(), [""; 0]);
    bench.unmount(&copy);
    assert!(bench.look_everywhere().checks_control());
    assert_eq!(bench.control(connection(45, 1), false).told_of(), ["unmounted /data"]);
}

#[test]
fn the_replacement_is_named_that_has_the_number_in_the_end() {
    let (mut bench, did) = at_work();
    // Its number is free again before anybody here has noticed.
    let gone = bench.serving(46, "/mnt/c", 813);
    bench.unmount(&gone);
    bench.work(connection(45, 1), &did.job(), 46);
    let did = bench.look();
    let replacement = did.0.iter().find_map(|action| match action {
        Action::Tell(told) => match &told.kind {
            crate::model::TransitionKind::Recovered(recovery) => Some(recovery.replacement),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(replacement, Some(connection(46, 2)), "{:?}", did.told());
}

#[test]
fn a_living_mount_at_the_place_of_the_dead_is_taken_instead_of_a_new_daemon() {
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    bench.serving(46, "/mnt/a", 813);
    let did = bench.die(connection(45, 1), DAEMON);
    assert_eq!(did.brought(), ["existing"]);
    assert!(matches!(did.job().bring, Bring::Existing(mount) if mount.device == device(46)));
}

#[test]
fn who_waits_for_a_replacement_takes_it_when_it_serves() {
    let mut bench = Bench::with("defaults: { mode: heal, strategy: rebind }");
    bench.serving(45, "/mnt/a", DAEMON);
    let did = bench.die(connection(45, 1), DAEMON);
    assert_eq!((did.told().len(), did.brought()), (2, vec![]));
    bench.mount(46, "/mnt/a");
    let mut did = bench.look();
    did.append(bench.initialised(46, 900));
    assert!(did.brought().is_empty(), "it is not known to serve");
    did.append(bench.remembered(900, "testfs"));
    assert_eq!((did.told(), did.brought()), (vec!["0:46#1 ready".to_owned()], vec!["existing"]));
    assert_eq!(did.jobs()[0].0, connection(45, 1));
}

#[test]
fn a_mount_of_something_else_is_no_replacement() {
    let mut bench = Bench::with("defaults: { mode: heal, strategy: rebind }");
    bench.serving(45, "/mnt/a", DAEMON);
    bench.die(connection(45, 1), DAEMON);
    let mut did = Did::default();
    for (minor, source, root) in [(46, "other", "/"), (47, "data", "/part")] {
        bench.mount(minor, "/mnt/a");
        let mount = bench.mounts.last_mut().unwrap();
        (mount.source, mount.root) = (source.into(), root.into());
        did.append(bench.look());
        did.append(bench.initialised(minor, 900 + minor));
        did.append(bench.remembered(900 + minor, "testfs"));
    }
    bench.serving(48, "/mnt/b", 900);
    assert_eq!((did.told().len(), did.brought()), (2, vec![]));
}

/// Nobody heals what hangs in a container yet. It is no second death either.
#[test]
fn a_containers_copy_that_stays_dead_does_not_die_again() {
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    bench.mount_in(OTHER, 45, "/data");
    bench.look_everywhere();
    let job = bench.die(connection(45, 1), DAEMON).job();
    assert_eq!(places(&job.dead), [PathBuf::from("/mnt/a")]);
    bench.work(connection(45, 1), &job, 46);
    assert_eq!(bench.look().told_of(), ["recovered /mnt/a"]);
    let mut did = bench.look_everywhere();
    did.append(bench.holders([(46, 900)]));
    did.append(bench.look_everywhere());
    assert!(did.told().is_empty() && did.probed().is_empty() && did.brought().is_empty(), "{did:?}");
}

/// Another agent, or this one before it was started anew, has healed it once: its daemon lives in a namespace made for it.
#[test]
fn a_daemon_that_an_agent_launched_before_is_started_again() {
    const PRIVATE: NamespaceId = NamespaceId(4_026_532_200);
    let mut bench = Bench::with(HEAL);
    bench.mount(45, "/mnt/a");
    // What hangs there is nobody's.
    bench.namespaces.insert(PRIVATE, DAEMON);
    bench.mount_in(PRIVATE, 45, "/mnt/a");
    bench.look_everywhere();
    bench.initialised(45, DAEMON);
    let mark = format!("FUSE_DETECTOR_NAMESPACE={}", OWN.0);
    let env = vec!["A=b".into(), mark.into()];
    let launched = DaemonRecord { mount_namespace: PRIVATE, env, ..record(DAEMON, "testfs") };
    bench.on(Event::Remembered { pid: DAEMON, record: Some(Box::new(launched)) });
    let did = bench.die(connection(45, 1), DAEMON);
    assert_eq!(did.told_of()[0], "dead /mnt/a");
    assert!(matches!(did.job().bring, Bring::Respawn(spec) if spec.env == ["A=b"]), "{did:?}");
}
