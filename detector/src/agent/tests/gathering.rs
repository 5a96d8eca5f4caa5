//! One daemon that serves several connections: its end kills them all, one start brings them all back.

use super::*;

const FIRST: ConnectionId = ConnectionId { device: DeviceNumber { major: 0, minor: 45 }, epoch: 1 };
const SECOND: ConnectionId = ConnectionId { device: DeviceNumber { major: 0, minor: 46 }, epoch: 1 };

/// Two connections of one daemon.
fn two() -> Bench {
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    bench.serving(46, "/mnt/b", DAEMON);
    bench
}

/// Both dead, and gathered.
fn gathered() -> (Bench, RecoverJob) {
    let mut bench = two();
    bench.kill(DAEMON);
    let mut did = bench.probed(FIRST, DEAD);
    did.append(bench.probed(SECOND, DEAD));
    assert_eq!((did.brought(), did.pauses().len()), (vec![], 2), "the first one did not wait for the other");
    let job = bench.retry(FIRST).job();
    (bench, job)
}

#[test]
fn one_job_heals_the_mounts_of_all() {
    let (mut bench, job) = gathered();
    let mut healed = places(&job.dead);
    healed.sort();
    assert_eq!(healed, [PathBuf::from("/mnt/a"), PathBuf::from("/mnt/b")]);
    assert!(bench.retry(SECOND).jobs().is_empty(), "the daemon would be started twice");
    bench.work(FIRST, &job, 47);
    let mut told = bench.look().told_of();
    told.sort();
    assert_eq!(told, ["recovered /mnt/a", "recovered /mnt/b"]);
}

#[test]
fn the_failure_of_the_one_job_is_told_of_all() {
    let (mut bench, _) = gathered();
    let did = bench.fail(FIRST, "no such program");
    let mut told = did.told();
    told.sort();
    assert_eq!(told, ["0:45#1 recoveryFailed", "0:46#1 recoveryFailed"]);
    assert_eq!(did.pauses().len(), 2);
    let again = bench.retry(SECOND);
    assert_eq!((again.jobs()[0].0, again.job().dead.len()), (SECOND, 2));
    assert!(bench.retry(FIRST).jobs().is_empty());
}

#[test]
fn a_failure_of_one_mount_is_that_of_its_connection_only() {
    let (mut bench, job) = gathered();
    let (ours, theirs): (Vec<_>, Vec<_>) = job.dead.into_iter().partition(|mount| mount.device == device(45));
    let at = bench.now;
    bench.progress(FIRST, Progress::Ready { dead: device(45), device: device(47), at, pid: None });
    bench.unmount(&ours[0]);
    bench.mount(47, "/mnt/a");
    bench.progress(FIRST, Progress::Healed { mount: ours[0].clone(), device: device(47), at });
    let error = "refused".to_owned();
    bench.progress(FIRST, Progress::Failed { mount: Some(theirs[0].clone()), error, refused: false });
    let mut did = bench.progress(FIRST, Progress::Finished);
    assert_eq!(did.failures()[0].0, "/mnt/b: refused");
    did.append(bench.look());
    assert_eq!(did.told(), ["0:46#1 recoveryFailed", "0:45#1 recovered"]);
}

#[test]
fn one_that_is_not_known_to_be_dead_yet_is_waited_for() {
    let mut bench = two();
    bench.kill(DAEMON);
    assert_eq!(bench.probed(FIRST, DEAD).pauses(), [Duration::from_millis(20)]);
    bench.wait(Duration::from_millis(20));
    let did = bench.retry(FIRST);
    assert_eq!((did.pauses(), did.brought()), (vec![Duration::from_millis(20)], vec![]));
    bench.probed(SECOND, DEAD);
    assert_eq!(bench.retry(FIRST).job().dead.len(), 2);
}

#[test]
fn one_that_lives_on_is_not_waited_for_longer_than_the_limit() {
    let mut bench = two();
    bench.kill(DAEMON);
    let died = bench.now;
    bench.probed(FIRST, DEAD);
    bench.probed(SECOND, ProbeOutcome::TimedOut);
    let mut attempts = (0..200).map(|_| {
        bench.wait(Duration::from_millis(20));
        bench.retry(FIRST)
    });
    let last = attempts.find(|did| did.pauses() != [Duration::from_millis(20)]);
    let job = last.expect("it is waited for without an end").job();
    assert_eq!(places(&job.dead), [PathBuf::from("/mnt/a")]);
    let waited = bench.now - died;
    assert!(waited >= Duration::from_secs(2) && waited < Duration::from_millis(2_100), "{waited:?}");
}

#[test]
fn one_that_answers_without_the_daemon_is_not_waited_for() {
    let mut bench = two();
    bench.kill(DAEMON);
    bench.probed(FIRST, DEAD);
    // Another process took it over.
    let at = bench.now;
    bench.on(Event::Kernel(KernelEvent::DaemonSeen { at, device: device(46), daemon: process(813) }));
    bench.probed(SECOND, ProbeOutcome::Alive);
    assert_eq!(places(&bench.retry(FIRST).job().dead), [PathBuf::from("/mnt/a")]);
}

#[test]
fn another_daemon_with_the_same_arguments_is_none_of_them() {
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    bench.serving(46, "/mnt/b", 813);
    let did = bench.die(FIRST, DAEMON);
    assert_eq!(places(&did.job().dead), [PathBuf::from("/mnt/a")]);
}
