//! What the policy leaves alone.

use super::*;

/// Everything told, asked and started over the life of one connection that dies.
fn life(policy: &str, prepare: impl FnOnce(&mut Bench)) -> Did {
    let mut bench = Bench::with(policy);
    bench.mount(45, "/mnt/a");
    prepare(&mut bench);
    let mut did = bench.look();
    did.append(bench.initialised(45, DAEMON));
    did.append(bench.remembered(DAEMON, "testfs"));
    did.append(bench.kill(DAEMON));
    did.append(bench.probed(connection(45, 1), DEAD));
    did
}

#[test]
fn an_ignored_mount_is_never_told_and_never_healed() {
    let did = life("defaults: { mode: ignore }", |_| ());
    assert_eq!((did.told(), did.brought()), (vec![], vec![]));
}

#[test]
fn an_ignored_mount_is_never_probed() {
    let mut bench = Bench::portable("defaults: { mode: ignore }");
    bench.mount(45, "/mnt/a");
    let mut did = bench.look();
    did.append(bench.holders([]));
    did.append(bench.on(Event::Lost));
    let at = bench.now;
    let event =
        KernelEvent::VfsError { at, device: None, process: process(5), errno: libc::ENOTCONN, descriptor: None };
    did.append(bench.on(Event::Kernel(event)));
    assert_eq!(did.probed(), []);
    let died = life("defaults: { mode: ignore }", |_| ());
    assert_eq!(died.probed(), []);
}

#[test]
fn a_mount_of_an_ignored_connection_that_is_not_ignored_is_asked() {
    let mut bench = Bench::portable("rules: [{ match: { mountPoint: /mnt/a }, mode: ignore }]");
    bench.mount(45, "/mnt/a");
    let mut did = bench.look();
    did.append(bench.on(Event::Lost));
    assert_eq!((did.probed(), did.told()), (vec![], vec![]));
    bench.mount(45, "/mnt/b");
    assert_eq!(bench.look().probed(), [connection(45, 1)]);
}

#[test]
fn an_observed_mount_is_told_and_not_healed() {
    let did = life("defaults: { mode: observe }", |_| ());
    assert_eq!((did.told(), did.brought()), (vec!["0:45#1 ready".into(), "0:45#1 dead".into()], vec![]));
}

#[test]
fn one_of_two_mounts_is_healed_where_the_policy_says_so_of_one() {
    let policy = "defaults: { mode: heal }\nrules: [{ match: { mountPoint: /mnt/b }, mode: observe }]";
    let did = life(policy, |bench| drop(bench.mount(45, "/mnt/b")));
    assert_eq!(places(&did.job().dead), [PathBuf::from("/mnt/a")]);
    assert_eq!(did.told_of().last().unwrap(), "recovering /mnt/a /mnt/b");
}

#[test]
fn a_policy_for_read_only_mounts_leaves_the_others_alone() {
    let policy = "defaults: { mode: heal, access: readOnly }";
    let writable = life(policy, |_| ());
    assert_eq!((writable.told().len(), writable.brought()), (2, vec![]));
    let both = life(policy, |bench| {
        bench.mount(45, "/mnt/b");
        bench.mounts[1].flags.read_only = true;
    });
    assert_eq!(places(&both.job().dead), [PathBuf::from("/mnt/b")]);
}

#[test]
fn who_only_watches_heals_nothing() {
    let setting = Setting {
        backend: BackendKind::Tracepoint,
        answers: true,
        own: OWN,
        features: Features { beneath: true, unique_id: true },
        heal: false,
        may_mount: true,
        vfs_errors: VfsErrors::Auto,
    };
    let mut bench = Bench::with(HEAL);
    bench.node = Node::new(setting, Policy::parse(HEAL, "policy.yaml").unwrap());
    bench.look_everywhere();
    bench.serving(45, "/mnt/a", DAEMON);
    let did = bench.die(connection(45, 1), DAEMON);
    assert_eq!((did.told(), did.brought()), (vec!["0:45#1 dead".into()], vec![]));
}

#[test]
fn what_somebody_aborted_on_purpose_is_healed_only_if_the_policy_says_so() {
    for (policy, brought) in [(HEAL, vec![]), ("defaults: { mode: heal, onAbort: heal }", vec!["respawn"])] {
        let mut bench = Bench::with(policy);
        bench.serving(45, "/mnt/a", DAEMON);
        let (at, actor) = (bench.now, Some(process(ADMIN)));
        let did = bench.on(Event::AbortWritten { device: device(45), actor, at });
        assert_eq!(did.probed(), [connection(45, 1)]);
        let did = bench.probed(connection(45, 1), DEAD);
        assert_eq!((did.told()[0].as_str(), did.brought()), ("0:45#1 dead", brought), "{policy}");
    }
}

#[test]
fn a_command_of_the_policy_is_run() {
    let policy = "defaults: { mode: heal, strategy: command, command: [remount, it], commandTimeout: 5s }";
    let did = life(policy, |_| ());
    assert_eq!(did.brought(), ["command"]);
    assert!(did.job().deadline > Duration::from_secs(5));
}

#[test]
fn a_strategy_that_can_not_be_carried_out_is_given_up_at_once() {
    let mut bench = Bench::portable("defaults: { mode: heal, strategy: respawn }");
    bench.mount(45, "/mnt/a");
    bench.look();
    let did = bench.probed(connection(45, 1), DEAD);
    assert_eq!(did.told(), ["0:45#1 dead", "0:45#1 recoveryFailed"]);
    assert_eq!((did.failures()[0].1, did.brought()), (None, vec![]));
}

#[test]
fn without_the_privilege_to_mount_each_recovery_is_given_up_at_once_and_says_why() {
    let mut bench = Bench::with(HEAL);
    let setting = Setting { may_mount: false, ..bench.node.setting };
    bench.node = Node::new(setting, Policy::parse(HEAL, "policy.yaml").unwrap());
    bench.look_everywhere();
    bench.serving(45, "/mnt/a", DAEMON);
    let did = bench.die(connection(45, 1), DAEMON);
    assert_eq!((did.told(), did.brought()), (vec!["0:45#1 dead".into(), "0:45#1 recoveryFailed".into()], vec![]));
    let [(error, retry)] = did.failures()[..] else { panic!("{did:?}") };
    assert!(error.starts_with("no privilege: CAP_SYS_ADMIN is missing") && retry.is_none(), "{error}");
}

/// `umount -l` while a file is open, then the daemon ends: nobody suffers, and nothing flaps.
#[test]
fn deaths_without_a_mount_are_not_counted_as_flapping() {
    let mut bench = Bench::with(HEAL);
    for epoch in 1..=4 {
        let mount = bench.serving(45, "/mnt/a", DAEMON);
        bench.unmount(&mount);
        bench.look();
        bench.look_everywhere();
        let id = connection(45, epoch);
        bench.control(id, true);
        bench.on(Event::Timer { connection: id, timer: Timer::Settle });
        assert_eq!(bench.control(id, true).told(), [format!("{id} detached")]);
        let mut did = bench.kill(DAEMON);
        did.append(bench.on(Event::Timer { connection: id, timer: Timer::Settle }));
        did.append(bench.control(id, true));
        did.append(bench.holders([]));
        assert_eq!(did.told_of(), ["dead"], "of no mount");
        bench.on(Event::Timer { connection: id, timer: Timer::Settle });
        bench.control(id, false);
    }
    bench.serving(45, "/mnt/a", DAEMON);
    let did = bench.die(connection(45, 5), DAEMON);
    assert_eq!((did.brought(), did.pauses()), (vec!["respawn"], vec![]), "{did:?}");
}
