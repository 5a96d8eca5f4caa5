//! What follows when an attempt fails, or the daemon dies again and again.

use super::*;

const DEAD_ONE: ConnectionId = ConnectionId { device: DeviceNumber { major: 0, minor: 45 }, epoch: 1 };

fn policy(give_up_after: &str) -> String {
    format!("defaults: {{ mode: heal, backoff: {{ initial: 1s, max: 4s, giveUpAfter: {give_up_after} }} }}\n")
}

fn dead(policy: &str) -> Bench {
    let mut bench = Bench::with(policy);
    bench.serving(45, "/mnt/a", DAEMON);
    assert_eq!(bench.die(DEAD_ONE, DAEMON).brought(), ["respawn"]);
    bench
}

#[test]
fn a_failure_is_told_and_followed_by_another_attempt() {
    let mut bench = dead(&policy("1h"));
    for pause in [1, 2, 4, 4].map(Duration::from_secs) {
        let did = bench.fail(DEAD_ONE, "no such program");
        assert_eq!(did.failures(), [("no such program", Some(pause))]);
        assert_eq!(did.pauses(), [pause]);
        bench.wait(pause);
        assert_eq!(bench.retry(DEAD_ONE).brought(), ["respawn"]);
    }
}

#[test]
fn after_the_policys_limit_it_is_given_up() {
    let mut bench = dead(&policy("5s"));
    for _ in 0..2 {
        let did = bench.fail(DEAD_ONE, "no such program");
        bench.wait(did.pauses()[0]);
        bench.retry(DEAD_ONE).job();
    }
    let did = bench.fail(DEAD_ONE, "no such program");
    assert_eq!((did.failures(), did.pauses()), (vec![("no such program", None)], vec![]));
    let mut later = bench.retry(DEAD_ONE);
    later.append(bench.look());
    later.append(bench.serving_as_well());
    assert_eq!(later.brought(), [""; 0], "given up is given up");
    bench.unmount_all(45);
    bench.look();
    assert_eq!(bench.control(DEAD_ONE, false).told(), ["0:45#1 unmounted"]);
}

#[test]
fn a_failure_of_each_mount_is_named() {
    let mut bench = Bench::with(&policy("1h"));
    bench.serving(45, "/mnt/a", DAEMON);
    bench.mount(45, "/mnt/b");
    bench.look();
    let job = bench.die(DEAD_ONE, DAEMON).job();
    for mount in job.dead {
        bench.progress(DEAD_ONE, Progress::Failed { mount: Some(mount), error: "refused".to_owned(), refused: true });
    }
    let did = bench.progress(DEAD_ONE, Progress::Finished);
    assert_eq!(did.failures()[0].0, "/mnt/a: refused; /mnt/b: refused");
}

#[test]
fn a_replacement_that_comes_during_the_pause_is_taken_at_once() {
    let mut bench = dead(&policy("1h"));
    bench.fail(DEAD_ONE, "no such program");
    let did = bench.serving_as_well();
    assert_eq!(did.brought(), ["existing"]);
    bench.work(DEAD_ONE, &did.job(), 46);
    assert_eq!(bench.look().told(), ["0:45#1 recovered"]);
    assert!(bench.retry(DEAD_ONE).jobs().is_empty(), "the pause is over, and so is the recovery");
}

#[test]
fn a_mount_that_is_taken_away_while_a_replacement_is_waited_for_is_told_as_unmounted() {
    for reused in [false, true] {
        let mut bench = Bench::with("defaults: { mode: heal, strategy: rebind }");
        let mount = bench.serving(45, "/mnt/a", DAEMON);
        assert_eq!(bench.die(DEAD_ONE, DAEMON).told(), ["0:45#1 dead", "0:45#1 recovering"]);
        bench.unmount(&mount);
        let did = if reused {
            bench.mount(45, "/mnt/b");
            bench.look()
        } else {
            assert!(bench.look().checks_control());
            bench.control(DEAD_ONE, false)
        };
        assert_eq!(did.told_of(), ["unmounted /mnt/a"], "reused: {reused}");
    }
}

#[test]
fn an_attempt_under_way_is_not_joined_by_another() {
    let mut bench = dead(&policy("1h"));
    let mut did = bench.retry(DEAD_ONE);
    did.append(bench.look());
    did.append(bench.serving_as_well());
    assert_eq!(did.brought(), [""; 0]);
}

#[test]
fn each_attempt_is_about_what_is_mounted_then() {
    let mut bench = dead(&policy("1h"));
    bench.fail(DEAD_ONE, "no such program");
    bench.mount(45, "/mnt/b");
    bench.look();
    assert_eq!(places(&bench.retry(DEAD_ONE).job().dead).len(), 2);
}

#[test]
fn the_third_death_within_minutes_waits_longer_and_longer() {
    let mut bench = Bench::with(&policy("1h"));
    bench.serving(45, "/mnt/a", DAEMON);
    let mut pauses = Vec::new();
    for (minor, pid) in (45..50).zip(DAEMON..) {
        let id = connection(minor, 1);
        let mut did = bench.die(id, pid);
        let pause = did.pauses().first().copied().unwrap_or_default();
        pauses.push(pause);
        if !pause.is_zero() {
            assert!(did.jobs().is_empty());
            bench.wait(pause);
            did = bench.retry(id);
        }
        bench.work(id, &did.job(), minor + 1);
        bench.look();
        bench.initialised(minor + 1, pid + 1);
        bench.on(Event::Remembered { pid: pid + 1, record: None });
    }
    assert_eq!(pauses, [0, 0, 1, 2, 4].map(Duration::from_secs));
}

#[test]
fn a_replacement_during_the_rest_of_one_that_flaps_is_taken_at_once() {
    let mut bench = Bench::with(&policy("1h"));
    bench.serving(45, "/mnt/a", DAEMON);
    for (minor, pid) in [(45, DAEMON), (46, DAEMON + 1)] {
        let job = bench.die(connection(minor, 1), pid).job();
        bench.work(connection(minor, 1), &job, minor + 1);
        bench.look();
        bench.initialised(minor + 1, pid + 1);
        bench.on(Event::Remembered { pid: pid + 1, record: None });
    }
    assert_eq!(bench.die(connection(47, 1), DAEMON + 2).pauses(), [Duration::from_secs(1)]);
    bench.mount(48, "/mnt/a");
    let mut did = bench.look();
    did.append(bench.initialised(48, 900));
    did.append(bench.remembered(900, "testfs"));
    assert_eq!(did.brought(), ["existing"]);
}

#[test]
fn who_dies_rarely_does_not_flap() {
    let mut bench = Bench::with(&policy("1h"));
    bench.serving(45, "/mnt/a", DAEMON);
    for (minor, pid) in (45..50).zip(DAEMON..) {
        let id = connection(minor, 1);
        let did = bench.die(id, pid);
        bench.work(id, &did.job(), minor + 1);
        bench.look();
        bench.initialised(minor + 1, pid + 1);
        bench.on(Event::Remembered { pid: pid + 1, record: None });
        bench.wait(Duration::from_secs(301));
    }
}

impl Bench {
    /// Somebody brings a replacement to `/mnt/a`.
    fn serving_as_well(&mut self) -> Did {
        self.mount(46, "/mnt/a");
        let mut did = self.look();
        did.append(self.initialised(46, 900));
        did.append(self.remembered(900, "testfs"));
        did
    }
}
