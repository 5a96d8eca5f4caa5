//! Who serves: found by looks at descriptors, watched, forgotten.

use super::*;
use crate::model::{Reason, TransitionKind};

impl Bench {
    /// A look for holders that began now has found these.
    pub(super) fn holders<const N: usize>(&mut self, holders: [(u32, u32); N]) -> Did {
        let began = self.now;
        self.holders_since(began, holders)
    }

    fn holders_since<const N: usize>(&mut self, began: Boottime, holders: [(u32, u32); N]) -> Did {
        let by_connection = holders.into_iter().map(|(minor, pid)| (device(minor), vec![process(pid)])).collect();
        self.on(Event::HoldersFound(Found { began, by_connection, ..Found::default() }))
    }

    /// A mount that serves, as the look sees it that follows. Nobody knows whose it is.
    fn found(&mut self) -> Did {
        self.mount(45, "/mnt/a");
        let mut did = self.look();
        assert_eq!(did.probed(), [connection(45, 1)]);
        did.append(self.probed(connection(45, 1), ProbeOutcome::Alive));
        did
    }
}

#[test]
fn a_look_for_holders_older_than_the_mount_says_nothing_of_it() {
    let mut bench = Bench::portable("rules: []");
    let before = bench.now;
    let mut did = bench.found();
    assert!(did.looks_for_holders());
    let late = bench.holders_since(before, []);
    assert!(late.looks_for_holders(), "it is not repeated");
    did.append(late);
    assert!(did.told().is_empty(), "nobody can know yet who serves it");
    did = bench.holders([(45, DAEMON)]);
    assert_eq!(did.watched(), [DAEMON]);
    did.append(bench.remembered(DAEMON, "testfs"));
    assert_eq!(did.told(), ["0:45#1 ready"]);
    assert!(!did.looks_for_holders() && did.probed().is_empty());
}

#[test]
fn who_serves_without_a_holder_to_be_seen_is_introduced_and_probed_once() {
    let mut bench = Bench::portable("rules: []");
    bench.found();
    let did = bench.holders([]);
    assert_eq!(did.told(), ["0:45#1 ready"]);
    let mut probed = did.probed();
    assert!(!did.looks_for_holders(), "asked again and again");
    for _ in 0..3 {
        bench.wait(Duration::from_secs(2));
        let armed = bench.on(Event::Timer { connection: connection(45, 1), timer: Timer::Retry });
        probed.extend(armed.probed());
        if !armed.probed().is_empty() {
            bench.probed(connection(45, 1), ProbeOutcome::Alive);
        }
        bench.look();
        probed.extend(bench.holders([]).probed());
    }
    assert_eq!(probed, [connection(45, 1)], "one probe, and no more");
}

#[test]
fn a_daemon_that_died_before_it_was_found_leaves_a_dead_mount() {
    let mut bench = Bench::portable("rules: []");
    bench.mount(45, "/mnt/a");
    bench.look();
    bench.probed(connection(45, 1), ProbeOutcome::TimedOut);
    assert_eq!(bench.holders([]).probed(), [connection(45, 1)]);
    assert_eq!(bench.probed(connection(45, 1), DEAD).told(), ["0:45#1 dead"]);
}

#[test]
fn a_look_for_holders_is_repeated_if_it_was_asked_for_meanwhile() {
    let mut bench = Bench::portable("rules: []");
    bench.found();
    bench.mount(46, "/mnt/b");
    assert!(!bench.look().looks_for_holders(), "two at a time");
    assert!(bench.holders([(45, DAEMON)]).looks_for_holders());
}

#[test]
fn candidates_are_watched_and_their_end_is_a_hint() {
    let mut bench = Bench::portable("rules: []");
    bench.found();
    let (began, at) = (bench.now, bench.now);
    let holders = Found { began, unattributed: [813, 814].map(process).to_vec(), ..Found::default() };
    let did = bench.on(Event::HoldersFound(holders.clone()));
    assert_eq!(did.watched(), [813, 814]);
    assert_eq!(did.probed(), [""; 0].map(|_| connection(0, 0)), "somebody holds it, who knows which");
    bench.look();
    assert_eq!(bench.on(Event::HoldersFound(holders)).watched(), [0; 0], "watched twice");
    bench.wait(Duration::from_secs(2));
    let did = bench.on(Event::ProcessEnded { pid: 813, status: None, at });
    assert_eq!(did.probed(), [connection(45, 1)]);
}

#[test]
fn a_candidate_that_names_the_mount_point_is_the_daemon() {
    let mut bench = Bench::portable("rules: []");
    bench.found();
    bench.mount(46, "/mnt/b");
    bench.look();
    let unattributed = [813, 814, 815].map(process).to_vec();
    bench.on(Event::HoldersFound(Found { began: bench.now, unattributed, ..Found::default() }));
    let daemons = |bench: &Bench| {
        [45, 46].map(|minor| bench.node.connections[&connection(minor, 1)].daemon.clone().map(|known| known.pid))
    };
    bench.remembered(813, "testfs source /mnt/a");
    assert_eq!(daemons(&bench), [None, None], "others may name it, too");
    bench.remembered(814, "testfs /mnt/b");
    bench.remembered(815, "testfs /mnt/b");
    assert_eq!(daemons(&bench), [Some(813), None], "one of the two is a child of the other, who knows which");
    let at = bench.now;
    bench.on(Event::ProcessEnded { pid: 814, status: None, at });
    let unattributed = [813, 815].map(process).to_vec();
    bench.on(Event::HoldersFound(Found { began: bench.now, unattributed, ..Found::default() }));
    assert_eq!(daemons(&bench), [Some(813), Some(815)]);
}

/// Two connections, of whose daemons one has ended; the kernel does not say whose a descriptor is.
#[test]
fn a_holder_is_named_if_nobody_else_can_be_it() {
    let held = |unattributed: &[u32], denied| -> Option<Option<u32>> {
        let mut bench = Bench::portable("rules: []");
        bench.found();
        bench.mount(46, "/mnt/b");
        bench.look();
        let began = bench.now;
        let both = [DAEMON, 813].map(process).to_vec();
        bench.on(Event::HoldersFound(Found { began, unattributed: both, ..Found::default() }));
        bench.remembered(DAEMON, "testfs source /mnt/a");
        bench.remembered(813, "testfs source /mnt/b");
        let at = bench.now;
        bench.on(Event::ProcessEnded { pid: DAEMON, status: None, at });
        bench.on(Event::Probed { connection: connection(45, 1), outcome: ProbeOutcome::TimedOut, at });
        let unattributed = unattributed.iter().copied().map(process).collect();
        bench.on(Event::HoldersFound(Found { began: bench.now, unattributed, denied, ..Found::default() }));
        match bench.node.connections[&connection(45, 1)].machine.reason() {
            Some(Reason::DescriptorHeld { holder }) => Some(holder.as_ref().map(|holder| holder.pid)),
            _ => None,
        }
    };
    assert_eq!(held(&[813], 0), None, "it has one for what it serves, and no other");
    assert_eq!(held(&[813, 950], 0), Some(Some(950)));
    assert_eq!(held(&[813, 813], 0), Some(Some(813)), "it serves one and has two");
    assert_eq!(held(&[813, 813, 950], 0), Some(None), "either can be it");
    assert_eq!(held(&[813, 950], 1), Some(None), "or one that hides");
}

#[test]
fn a_daemon_is_watched_until_its_last_connection_is_gone() {
    let mut bench = Bench::with("rules: []");
    let first = bench.serving(45, "/mnt/a", DAEMON);
    let second = bench.mount(46, "/mnt/b");
    bench.look();
    bench.initialised(46, DAEMON);
    bench.unmount(&first);
    assert!(bench.look().checks_control());
    let did = bench.control(connection(45, 1), false);
    assert_eq!(did.told(), ["0:45#1 unmounted"]);
    assert!(did.forgets_connection(45) && !did.forgets_process(DAEMON), "{did:?}");
    bench.unmount(&second);
    bench.look();
    let did = bench.control(connection(46, 1), false);
    assert!(did.forgets_connection(46) && did.forgets_process(DAEMON), "{did:?}");
}

#[test]
fn a_number_that_another_connection_has_is_not_forgotten() {
    let mut bench = Bench::with("rules: []");
    let old = bench.serving(45, "/mnt/a", DAEMON);
    bench.unmount(&old);
    bench.mount(45, "/mnt/a");
    let mut did = bench.initialised(45, 900);
    did.append(bench.look());
    assert_eq!(did.told(), ["0:45#1 unmounted"]);
    assert!(!did.forgets_connection(45), "the kernel's tables would lose the new one");
    assert!(did.forgets_process(DAEMON));
}

#[test]
fn a_loss_is_made_up_for_by_a_full_look_and_a_question_to_each() {
    let mut bench = Bench::with("rules: []");
    bench.serving(45, "/mnt/a", DAEMON);
    bench.serving(46, "/mnt/b", 813);
    bench.serving(47, "/mnt/c", 814);
    // The looks that the mounts gave rise to are over: nothing is asked twice at a time.
    while bench.holders([]).looks_for_holders() {}
    bench.die(connection(47, 1), 814);
    let did = bench.on(Event::Lost);
    assert!(did.looks(Scope::Everything) && did.looks_for_holders());
    assert_eq!(did.probed(), [connection(45, 1), connection(46, 1)]);
    // A death whose every report was lost is told all the same.
    bench.probed(connection(46, 1), ProbeOutcome::Alive);
    let mut did = bench.probed(connection(45, 1), DEAD);
    did.append(bench.on(Event::Timer { connection: connection(45, 1), timer: Timer::Grace }));
    did.append(bench.probed(connection(45, 1), DEAD));
    assert_eq!(did.told(), ["0:45#1 dead"]);
}

#[test]
fn errors_of_applications_cost_one_probe_a_connection_and_second() {
    let mut bench = Bench::with("rules: []");
    bench.serving(45, "/mnt/a", DAEMON);
    let mut probes = Vec::new();
    for _ in 0..100 {
        bench.wait(Duration::from_millis(49));
        let at = bench.now;
        let event =
            KernelEvent::VfsError { at, device: None, process: process(5), errno: libc::ENOTCONN, descriptor: None };
        let mut did = bench.on(Event::Kernel(event));
        if did.pauses_for(Timer::Retry) {
            did.append(bench.on(Event::Timer { connection: connection(45, 1), timer: Timer::Retry }));
        }
        for id in did.probed() {
            probes.push(at);
            bench.probed(id, ProbeOutcome::Alive);
        }
    }
    assert!((4..=6).contains(&probes.len()), "{} probes in five seconds", probes.len());
}

#[test]
fn the_dead_are_named_with_the_daemon_that_served_them() {
    let mut bench = Bench::with("rules: []");
    bench.serving(45, "/mnt/a", DAEMON);
    let did = bench.die(connection(45, 1), DAEMON);
    let Some(Action::Tell(dead)) = did.0.iter().find(|action| matches!(action, Action::Tell(_))) else { panic!() };
    let daemon = dead.daemon.clone().unwrap();
    assert_eq!((daemon.pid, daemon.comm.as_deref(), daemon.alive), (DAEMON, Some("p812"), false));
    assert!(matches!(dead.kind, TransitionKind::Dead(_)) && dead.detection.is_some());
}

impl Did {
    fn pauses_for(&self, wanted: Timer) -> bool {
        self.0.iter().any(|action| matches!(action, Action::Arm { timer, .. } if *timer == wanted))
    }
}

/// Reading how a daemon was started is work for a thread, and what comes of it takes memory: once is enough for a daemon
/// with a thousand mounts.
#[test]
fn a_daemon_is_read_once_for_all_its_connections() {
    let mut bench = Bench::with("rules: []");
    let reads = |did: &Did| did.0.iter().filter(|action| matches!(action, Action::Remember(_))).count();
    for minor in [45, 46] {
        bench.mount(minor, &format!("/mnt/{minor}"));
    }
    bench.look();
    let mut did = bench.initialised(45, DAEMON);
    did.append(bench.initialised(46, DAEMON));
    assert_eq!((reads(&did), did.watched()), (1, vec![DAEMON, DAEMON]), "each is known to the kernel programs");
    assert_eq!(bench.remembered(DAEMON, "testfs").told().len(), 2);
    bench.mount(47, "/mnt/47");
    bench.look();
    let did = bench.initialised(47, DAEMON);
    assert_eq!((reads(&did), did.told()), (0, vec!["0:47#1 ready".to_owned()]));
}

#[test]
fn a_daemon_that_could_not_be_read_is_tried_again_for_its_next_connection() {
    let mut bench = Bench::with("rules: []");
    bench.mount(45, "/mnt/a");
    bench.look();
    bench.initialised(45, DAEMON);
    bench.on(Event::Remembered { pid: DAEMON, record: None });
    let did = bench.initialised(46, DAEMON);
    assert!(did.0.iter().any(|action| matches!(action, Action::Remember(pid) if *pid == DAEMON)), "{did:?}");
}
