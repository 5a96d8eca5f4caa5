//! Numbers that are used again, mounts that no look has identified yet, mounts that are nobody's.

use super::*;

/// A dead connection that nobody heals: the policy observes.
fn dead() -> (Bench, Mount) {
    let mut bench = Bench::with("rules: []");
    let mount = bench.serving(45, "/mnt/a", DAEMON);
    assert_eq!(bench.die(connection(45, 1), DAEMON).told(), ["0:45#1 dead"]);
    (bench, mount)
}

/// One whose first attempt to heal failed: the next is due.
fn dead_and_to_be_healed() -> (Bench, Mount) {
    let mut bench = Bench::with(HEAL);
    let mount = bench.serving(45, "/mnt/a", DAEMON);
    bench.die(connection(45, 1), DAEMON).job();
    assert_eq!(bench.fail(connection(45, 1), "no such program").told(), ["0:45#1 recoveryFailed"]);
    (bench, mount)
}

#[test]
fn a_number_whose_mounts_are_all_others_is_another_connections() {
    let (mut bench, old) = dead_and_to_be_healed();
    bench.unmount(&old);
    bench.mount(45, "/mnt/a");
    let mut did = bench.look();
    assert_eq!(did.told(), ["0:45#1 unmounted"]);
    did.append(bench.initialised(45, 900));
    did.append(bench.remembered(900, "testfs"));
    assert_eq!(did.told(), ["0:45#1 unmounted", "0:45#2 ready"]);
    did.append(bench.retry(connection(45, 1)));
    did.append(bench.look());
    assert_eq!(did.brought(), [""; 0], "a mount that serves was to be healed");
}

#[test]
fn a_number_that_is_used_again_at_another_place_is_another_connections() {
    let (mut bench, old) = dead_and_to_be_healed();
    bench.unmount(&old);
    let look = bench.begin(Scope::Own);
    bench.end(look);
    bench.mount(45, "/mnt/b");
    let mut did = bench.control(connection(45, 1), false);
    assert_eq!(did.told(), ["0:45#1 unmounted"]);
    did = bench.look();
    did.append(bench.initialised(45, 900));
    did.append(bench.remembered(900, "testfs"));
    did.append(bench.retry(connection(45, 1)));
    assert_eq!(did.told(), ["0:45#2 ready"]);
    assert_eq!(did.brought(), [""; 0]);
}

#[test]
fn an_init_that_comes_before_the_look_is_another_connections() {
    let (mut bench, old) = dead_and_to_be_healed();
    bench.unmount(&old);
    bench.mount(45, "/mnt/a");
    let mut did = bench.initialised(45, 900);
    assert_eq!(did.told(), ["0:45#1 unmounted"]);
    did.append(bench.remembered(900, "testfs"));
    did.append(bench.look());
    did.append(bench.retry(connection(45, 1)));
    assert_eq!(did.told(), ["0:45#1 unmounted", "0:45#2 ready"]);
    assert_eq!(did.brought(), [""; 0]);
    // And it can die itself.
    assert_eq!(bench.die(connection(45, 2), 900).told()[0], "0:45#2 dead");
}

#[test]
fn a_number_is_used_again_while_a_worker_is_at_the_dead() {
    let mut bench = Bench::with(HEAL);
    let old = bench.serving(45, "/mnt/a", DAEMON);
    bench.die(connection(45, 1), DAEMON).job();
    bench.unmount(&old);
    bench.mount(45, "/mnt/a");
    let mut did = bench.initialised(45, 900);
    did.append(bench.remembered(900, "testfs"));
    did.append(bench.look());
    did.append(bench.progress(connection(45, 1), Progress::Gone { mount: old }));
    did.append(bench.progress(connection(45, 1), Progress::Finished));
    did.append(bench.look());
    assert_eq!(did.told(), ["0:45#2 ready", "0:45#1 unmounted"]);
    assert_eq!(did.brought(), [""; 0]);
}

#[test]
fn a_look_that_is_older_than_an_init_says_nothing_of_that_connection() {
    let (mut bench, old) = dead_and_to_be_healed();
    let stale = bench.begin(Scope::Everything);
    bench.unmount(&old);
    bench.mount(45, "/mnt/b");
    let mut did = bench.initialised(45, 900);
    did.append(bench.remembered(900, "testfs"));
    did.append(bench.end(stale));
    did.append(bench.look());
    assert_eq!(did.told_of(), ["unmounted /mnt/a", "ready /mnt/b"]);
    did.append(bench.look());
    assert_eq!(bench.die(connection(45, 2), 900).told()[0], "0:45#2 dead");
}

#[test]
fn an_init_that_was_taken_for_that_of_the_one_before_is_made_up_for() {
    let mut bench = Bench::with(HEAL);
    let never = bench.mount(45, "/mnt/a");
    bench.look();
    bench.unmount(&never);
    bench.mount(45, "/mnt/a");
    bench.initialised(45, 900);
    bench.remembered(900, "testfs");
    assert_eq!(bench.look().probed(), [connection(45, 2)], "nobody would ever learn that it serves");
}

#[test]
fn a_mount_that_is_gone_when_it_is_asked_is_asked_through_another_one() {
    for answer_first in [false, true] {
        let mut bench = Bench::portable("rules: []");
        let gone = bench.mount(45, "/mnt/a");
        bench.mount(45, "/mnt/b");
        assert_eq!(bench.look().probed(), [connection(45, 1)]);
        bench.unmount(&gone);
        // As many as before.
        bench.mount(45, "/mnt/c");
        let mut did = Did::default();
        if answer_first {
            did.append(bench.probed(connection(45, 1), ProbeOutcome::Gone));
            did.append(bench.look());
        } else {
            did.append(bench.look());
            did.append(bench.probed(connection(45, 1), ProbeOutcome::Gone));
        }
        assert_eq!(did.probed(), [connection(45, 1)], "answer first: {answer_first}");
    }
}

#[test]
fn a_mount_that_is_covered_when_it_is_to_be_asked_is_asked_when_it_shows() {
    let mut bench = Bench::portable("rules: []");
    let mount = bench.mount(45, "/mnt/a");
    assert_eq!(bench.look().probed(), [connection(45, 1)]);
    bench.cover(&mount);
    bench.look();
    assert_eq!(bench.probed(connection(45, 1), ProbeOutcome::Gone).probed(), []);
    bench.children.clear();
    assert_eq!(bench.look().probed(), [connection(45, 1)]);
}

#[test]
fn a_mount_without_a_unique_id_is_nobodys_before_another_look() {
    let (mut bench, _) = dead();
    bench.unmount_all(45);
    bench.mount(45, "/mnt/a");
    let mut look = bench.begin(Scope::Own);
    look.mounts[0].unique_id = None;
    let did = bench.end(look);
    assert!(did.looks(Scope::Own), "it is never identified");
    assert!(did.checks_control(), "the dead one has lost its mount");
    let mut did = bench.look();
    assert_eq!(did.told(), ["0:45#1 unmounted"]);
    did = bench.initialised(45, 900);
    did.append(bench.remembered(900, "testfs"));
    assert_eq!(did.told(), ["0:45#2 ready"]);
}

#[test]
fn a_bind_without_a_unique_id_is_not_healed_with_the_others_before_it_has_one() {
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    bench.mount(45, "/mnt/b");
    let mut look = bench.begin(Scope::Own);
    look.mounts[1].unique_id = None;
    assert!(bench.end(look).looks(Scope::Own));
    assert_eq!(places(&bench.die(connection(45, 1), DAEMON).job().dead), [PathBuf::from("/mnt/a")]);
}

#[test]
fn a_mount_that_never_gets_a_unique_id_is_accepted() {
    let mut bench = Bench::with("rules: []");
    bench.mount(45, "/mnt/a");
    bench.initialised(45, DAEMON);
    bench.remembered(DAEMON, "testfs");
    for told in [&[][..], &["0:45#1 ready"], &[]] {
        let mut look = bench.begin(Scope::Own);
        look.mounts[0].unique_id = None;
        let did = bench.end(look);
        assert_eq!(did.told(), told);
    }
}

#[test]
fn no_mount_waits_for_a_unique_id_that_the_kernel_does_not_give() {
    let mut bench = Bench::with("rules: []");
    bench.mount(45, "/mnt/a");
    let mut look = bench.begin(Scope::Own);
    look.mounts[0].unique_id = None;
    look.problems.push(Problem::UniqueIds(std::io::ErrorKind::PermissionDenied.into()));
    let mut did = bench.end(look);
    did.append(bench.initialised(45, DAEMON));
    did.append(bench.remembered(DAEMON, "testfs"));
    assert_eq!(did.told(), ["0:45#1 ready"], "listmount(2) is refused");

    let without = Features { beneath: true, unique_id: false };
    let mut bench = Bench::new(BackendKind::Tracepoint, without, "rules: []");
    bench.mount(45, "/mnt/a");
    assert!(!bench.look_everywhere().looks(Scope::Own), "before Linux 6.8");
    assert_eq!(bench.remembered_first(45).told(), ["0:45#1 ready"], "before Linux 6.8");
}

#[test]
fn what_hangs_in_a_namespace_made_for_a_daemon_is_nobodys() {
    const PRIVATE: NamespaceId = NamespaceId(4_026_532_200);
    let mut bench = Bench::with("rules: []");
    let mount = bench.mount_in(PRIVATE, 46, "/mnt/a");
    let stale = bench.begin(Scope::Everything);
    bench.on(Event::Progress { connection: connection(45, 1), progress: Progress::Isolated { namespace: PRIVATE } });
    // A look that had passed over /proc before the namespace was there does not have it forgotten.
    let mut did = bench.end(Look { mounts: Vec::new(), ..stale });
    bench.namespaces.insert(PRIVATE, 900);
    did.append(bench.look_everywhere());
    assert!(did.told().is_empty() && !did.looks_for_holders(), "{did:?}");
    // Its number is another's once it is gone.
    bench.unmount(&mount);
    bench.namespaces.remove(&PRIVATE);
    bench.look_everywhere();
    bench.namespaces.insert(PRIVATE, 901);
    bench.mount_in(PRIVATE, 46, "/mnt/a");
    assert!(bench.look_everywhere().looks_for_holders(), "it is passed over for ever");
}

#[test]
fn what_a_look_could_not_see_is_not_taken_for_gone() {
    let mut bench = Bench::with("rules: []");
    bench.serving(45, "/mnt/a", DAEMON);
    bench.mount_in(OTHER, 45, "/data");
    bench.look_everywhere();
    let io = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    let table = |namespace| Problem::MountTable { namespace, pid: OTHER_PID, source: io() };
    for (problem, blind) in [(Problem::Own(io()), true), (Problem::Proc(io()), false), (table(OTHER), false)] {
        let mut look = bench.begin(Scope::Everything);
        look.mounts.retain(|mount| !blind && mount.namespace == OWN);
        look.problems.push(problem);
        let did = bench.end(look);
        assert!(did.told().is_empty() && !did.checks_control(), "{did:?}");
        assert!(did.0.iter().any(|action| matches!(action, Action::Report(_))), "nobody is told");
    }
    assert_eq!(bench.die(connection(45, 1), DAEMON).told_of(), ["dead /mnt/a /data"]);
}

/// A look can find the namespace before the worker's message that it made it is read.
#[test]
fn a_namespace_found_while_one_is_being_made_belongs_to_nobody_yet() {
    const PRIVATE: NamespaceId = NamespaceId(4_026_532_200);
    const CONTAINER: NamespaceId = NamespaceId(4_026_532_300);
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    bench.serving(46, "/mnt/b", 900);
    bench.serving(47, "/mnt/c", 901);
    let healed = connection(45, 1);
    bench.die(healed, DAEMON);
    for (namespace, copied) in [(PRIVATE, 46), (CONTAINER, 47)] {
        bench.namespaces.insert(namespace, 902);
        bench.mount_in(namespace, copied, "/copy");
    }
    bench.look_everywhere();
    assert_eq!(bench.die(connection(46, 1), 900).told_of()[0], "dead /mnt/b");
    bench.progress(healed, Progress::Isolated { namespace: PRIVATE });
    let did = bench.progress(connection(46, 1), Progress::Isolated { namespace: PRIVATE });
    assert!(did.looks(Scope::Everything), "whose the others are can be told now");
    bench.look_everywhere();
    assert_eq!(bench.die(connection(47, 1), 901).told_of()[0], "dead /mnt/c /copy");
}

#[test]
fn an_attempt_that_ends_without_a_namespace_makes_nobody_wait_for_one() {
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    bench.die(connection(45, 1), DAEMON);
    bench.namespaces.insert(NamespaceId(4_026_532_300), 901);
    bench.look_everywhere();
    assert!(bench.fail(connection(45, 1), "no worker").looks(Scope::Everything));
}

#[test]
fn a_connection_that_died_in_other_namespaces_only_is_told_and_not_healed() {
    let mut bench = Bench::with(HEAL);
    bench.mount_in(OTHER, 45, "/data");
    let mut did = bench.look_everywhere();
    did.append(bench.initialised(45, DAEMON));
    did.append(bench.remembered(DAEMON, "testfs"));
    did.append(bench.look_everywhere());
    let id = did.known_as(45);
    let did = bench.die(id, DAEMON);
    assert_eq!(did.told_of(), ["dead /data"]);
    assert_eq!(did.brought(), [""; 0]);
}

/// A look read the own mount table before the replacement was there, and the other namespace's after its copy was.
#[test]
fn a_copy_that_was_seen_first_is_of_the_same_connection() {
    let mut bench = Bench::with(HEAL);
    bench.mount_in(OTHER, 45, "/data");
    let mut did = bench.look_everywhere();
    did.append(bench.initialised(45, DAEMON));
    did.append(bench.remembered(DAEMON, "testfs"));
    did.append(bench.look_everywhere());
    let id = did.known_as(45);
    bench.mount(45, "/mnt/a");
    bench.kill(DAEMON);
    let here = bench.look();
    assert!(here.looks(Scope::Everything), "what is elsewhere has to be seen");
    assert_eq!(here.told(), [""; 0]);
    bench.look_everywhere();
    let did = bench.probed(id, DEAD);
    assert_eq!(did.told_of(), ["dead /data /mnt/a", "recovering /data /mnt/a"]);
    assert_eq!(did.brought().len(), 1, "it is healed here");
}

#[test]
fn a_look_here_keeps_what_is_known_of_other_namespaces() {
    let mut bench = Bench::with("rules: []");
    bench.mount_in(OTHER, 45, "/data");
    bench.serving(45, "/mnt/a", DAEMON);
    bench.look_everywhere();
    bench.look();
    assert_eq!(bench.die(connection(45, 1), DAEMON).told_of(), ["dead /mnt/a /data"]);
}

impl Bench {
    /// The first look has found it: it is asked for a sign of life, and gives one.
    fn remembered_first(&mut self, minor: u32) -> Did {
        let mut did = self.probed(connection(minor, 1), ProbeOutcome::Alive);
        did.append(self.holders([(minor, DAEMON)]));
        did.append(self.remembered(DAEMON, "testfs"));
        did
    }
}

impl Did {
    /// The connection that was told to be ready with this number.
    fn known_as(&self, minor: u32) -> ConnectionId {
        let told = self.told();
        let epoch = |epoch: &u64| told.contains(&format!("{} ready", connection(minor, *epoch)));
        connection(minor, (1..5).find(epoch).unwrap())
    }
}
