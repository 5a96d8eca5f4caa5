//! When people are told, and of which mounts.

use super::*;

#[test]
fn a_death_before_the_mount_is_known_is_told_after_the_look() {
    let mut bench = Bench::with("rules: []");
    bench.initialised(45, DAEMON);
    bench.remembered(DAEMON, "testfs");
    let mut did = bench.kill(DAEMON);
    let (at, by) = (bench.now, process(DAEMON));
    let aborted =
        KernelEvent::RequestsAborted { at, device: device(45), by, exiting: true, kernel_thread: false, syscall: None };
    did.append(bench.on(Event::Kernel(aborted)));
    assert!(did.told().is_empty(), "{:?}", did.told());
    assert!(did.looks(Scope::Own));
    bench.mount(45, "/mnt/a");
    assert_eq!(bench.look().told_of(), ["ready /mnt/a", "dead /mnt/a"]);
    assert_eq!(bench.look().told_of(), [""; 0], "told twice");
}

#[test]
fn a_death_while_a_look_is_under_way_is_told_with_what_it_sees() {
    let mut bench = Bench::with(HEAL);
    bench.serving(45, "/mnt/a", DAEMON);
    bench.mount(45, "/mnt/b");
    bench.node.looking = true;
    let did = bench.die(connection(45, 1), DAEMON);
    assert!(did.told().is_empty() && did.brought().is_empty());
    let look = bench.begin(Scope::Own);
    bench.node.looking = false;
    let did = bench.end(look);
    assert_eq!(did.told_of(), ["dead /mnt/a /mnt/b", "recovering /mnt/a /mnt/b"]);
    assert_eq!(places(&did.job().dead), places(&bench.mounts));
    let mut later = bench.look();
    later.append(bench.look_everywhere());
    assert_eq!(later.told_of(), [""; 0]);
}

#[test]
fn a_death_is_told_at_once_where_no_look_is_under_way() {
    let mut bench = Bench::with("rules: []");
    bench.serving(45, "/mnt/a", DAEMON);
    assert_eq!(bench.die(connection(45, 1), DAEMON).told_of(), ["dead /mnt/a"]);
    assert_eq!(bench.look().told_of(), [""; 0]);
}

#[test]
fn a_death_that_waits_for_a_look_is_not_told_of_what_that_look_finds_replaced() {
    let mut bench = Bench::portable("rules: []");
    let mount = bench.mount(45, "/mnt/a");
    bench.look();
    bench.holders([]);
    bench.node.looking = true;
    assert!(bench.probed(connection(45, 1), DEAD).told().is_empty());
    bench.unmount(&mount);
    bench.mount(45, "/mnt/b");
    bench.node.looking = false;
    assert_eq!(bench.look().told_of(), [""; 0], "nobody had heard of it, and it is mounted nowhere");
}

#[test]
fn what_came_and_went_between_two_looks_is_not_told() {
    let mut bench = Bench::with("rules: []");
    let mut did = bench.initialised(45, DAEMON);
    did.append(bench.remembered(DAEMON, "testfs"));
    did.append(bench.initialised(45, 813));
    assert!(did.told().is_empty());
    bench.mount(45, "/mnt/a");
    did.append(bench.remembered(813, "testfs"));
    did.append(bench.look());
    assert_eq!(did.told(), ["0:45#2 ready"]);
}

#[test]
fn a_connection_that_went_before_any_look_is_forgotten() {
    let mut bench = Bench::with("rules: []");
    bench.initialised(45, DAEMON);
    assert!(bench.look().looks(Scope::Everything));
    assert!(bench.look_everywhere().checks_control(), "it is looked for everywhere at each change from now on");
    let did = bench.control(connection(45, 1), false);
    assert!(did.forgets_connection(45) && did.told().is_empty(), "{did:?}");
    assert!(!bench.look().looks(Scope::Everything));
}

#[test]
fn a_connection_that_is_not_mounted_here_is_looked_for_elsewhere() {
    let mut bench = Bench::with("rules: []");
    bench.mount_in(OTHER, 45, "/data");
    let mut did = bench.initialised(45, DAEMON);
    assert!(did.looks(Scope::Own));
    did.append(bench.remembered(DAEMON, "testfs"));
    let stale = Look { began: Boottime(0), ..bench.begin(Scope::Own) };
    did = bench.end(stale);
    assert!(did.looks(Scope::Own) && !did.looks(Scope::Everything), "that look is older than the connection");
    did = bench.look();
    assert!(did.looks(Scope::Everything));
    did.append(bench.look_everywhere());
    assert_eq!(did.told_of(), ["ready /data"]);
}

#[test]
fn a_mount_that_left_here_is_looked_for_elsewhere() {
    let mut bench = Bench::with("rules: []");
    let here = bench.serving(45, "/mnt/a", DAEMON);
    bench.mount_in(OTHER, 45, "/data");
    bench.look_everywhere();
    bench.unmount(&here);
    assert!(bench.look().looks(Scope::Everything));
}

#[test]
fn ready_waits_until_it_is_known_who_serves() {
    let mut bench = Bench::with("rules: []");
    bench.mount(45, "/mnt/a");
    bench.look();
    let did = bench.initialised(45, DAEMON);
    assert_eq!(did.watched(), [DAEMON]);
    assert!(did.told().is_empty());
    let did = bench.on(Event::Remembered { pid: DAEMON, record: None });
    assert_eq!(did.told(), ["0:45#1 ready"], "who can't be read is told all the same");
}

#[test]
fn a_connection_that_lost_its_mounts_is_told_with_those_it_had() {
    let mut bench = Bench::with("rules: []");
    let mount = bench.serving(45, "/mnt/a", DAEMON);
    bench.unmount(&mount);
    assert!(bench.look().checks_control());
    assert_eq!(bench.control(connection(45, 1), false).told_of(), ["unmounted /mnt/a"]);
}

#[test]
fn a_connection_that_is_used_without_a_mount_is_detached() {
    let mut bench = Bench::with("rules: []");
    let mount = bench.serving(45, "/mnt/a", DAEMON);
    bench.unmount(&mount);
    let mut did = bench.look();
    did.append(bench.control(connection(45, 1), true));
    let settled = bench.on(Event::Timer { connection: connection(45, 1), timer: Timer::Settle });
    assert!(settled.checks_control());
    did.append(bench.control(connection(45, 1), true));
    assert_eq!(did.told_of(), ["detached /mnt/a"]);
}

#[test]
fn a_covered_mount_is_not_probed_by_its_path() {
    let mut bench = Bench::with("rules: []");
    let below = bench.serving(45, "/mnt/a", DAEMON);
    bench.mount(45, "/mnt/b");
    bench.cover(&below);
    bench.look();
    let did = bench.kill(DAEMON);
    let probed = did.0.iter().filter_map(|action| match action {
        Action::Probe { target, .. } => Some(target.mount.mount_point.clone()),
        _ => None,
    });
    assert_eq!(probed.collect::<Vec<_>>(), [PathBuf::from("/mnt/b")]);
}

impl Bench {
    /// Somebody mounts another file system over it.
    pub(super) fn cover(&mut self, below: &Mount) {
        self.children.push(ChildMount {
            namespace: below.namespace,
            id: MountId(9_000),
            parent: below.id,
            mount_point: below.mount_point.clone(),
            fs_type: "tmpfs".to_owned(),
        });
    }
}
