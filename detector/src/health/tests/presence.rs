//! Unmounting, detaching, recovery.

use super::*;

#[test]
fn libfuse_closes_before_it_unmounts_and_nobody_is_alarmed() {
    let mut bench = Bench::ready();
    assert_eq!(bench.aborted(DAEMON, false, None), [Effect::Probe]);
    assert_eq!(bench.probed(DEAD), [Effect::Arm(Timer::Grace, GRACE)]);
    let gone = bench.on(mounts(0, false));
    assert_eq!(gone, [Effect::Disarm(Timer::Grace), Effect::Tell(Verdict::Unmounted)]);
    assert_eq!(bench.pidfd(Some(code(0))), []);
    assert_eq!(bench.machine.state(), State::Gone);
}

#[test]
fn a_clean_unmount_whose_control_directory_lingers_is_no_detachment() {
    let mut bench = Bench::ready();
    let [Effect::Arm(Timer::Settle, _)] = bench.on(mounts(0, true))[..] else { panic!("not looked at again") };
    assert_eq!(bench.on(mounts(0, true)), [], "believed before it settled");
    assert_eq!(bench.on(Input::Timer(Timer::Settle)), []);
    assert_eq!(bench.on(mounts(0, false)), [Effect::Tell(Verdict::Unmounted)]);
}

#[test]
fn an_unmount_whose_probe_finds_no_mount_waits_for_the_mounts() {
    let mut bench = Bench::ready();
    bench.pidfd(Some(code(0)));
    assert_eq!(verdicts(bench.probed(ProbeOutcome::Gone)), []);
    assert_eq!(bench.told(mounts(0, false)), [Verdict::Unmounted]);
}

#[test]
fn a_vanished_mount_is_replaced_by_another_to_ask_through() {
    let mut bench = Bench::ready();
    bench.on(mounts(2, true));
    bench.pidfd(Some(killed()));
    bench.probed(ProbeOutcome::Gone);
    assert!(bench.on(mounts(1, true)).contains(&Effect::Probe));
    assert_eq!(death(bench.probed(DEAD)), killed_reason());
}

#[test]
fn a_death_told_after_the_mounts_left_ends_by_another_look() {
    let mut bench = Bench::ready();
    let at = bench.now;
    bench.on(Input::AbortWritten { at, actor: Some(process(77)) });
    bench.on(mounts(0, true));
    let effects = bench.probed(DEAD);
    assert!(matches!(effects.last(), Some(Effect::Arm(Timer::Settle, _))), "{effects:?}");
    bench.on(Input::Timer(Timer::Settle));
    assert_eq!(bench.told(mounts(0, false)), [Verdict::Unmounted]);
}

#[test]
fn a_lazy_unmount_in_use_is_detached_until_it_is_closed() {
    let mut bench = Bench::detached();
    let at = bench.now;
    assert_eq!(bench.on(Input::AccessFailed { at }), [], "no mount to probe through");
    bench.on(Input::Timer(Timer::Settle));
    assert_eq!(bench.told(mounts(0, false)), [Verdict::Unmounted]);
}

#[test]
fn a_daemon_that_ends_because_its_detached_connection_did_is_no_alarm() {
    let mut bench = Bench::detached();
    bench.pidfd(Some(code(0)));
    assert_eq!(bench.told(mounts(0, true)), [], "an old look");
    bench.on(Input::Timer(Timer::Settle));
    assert_eq!(bench.told(mounts(0, false)), [Verdict::Unmounted]);
}

#[test]
fn a_daemon_killed_under_a_detached_connection_is_a_death() {
    let mut bench = Bench::detached();
    bench.hook(killed());
    bench.pidfd(None);
    bench.on(Input::Timer(Timer::Settle));
    assert_eq!(bench.on(mounts(0, true)), [Effect::FindHolders]);
    assert_eq!(death(bench.on(holders([]))), killed_reason());
    assert_eq!(bench.told(mounts(0, false)), [Verdict::Unmounted]);
}

#[test]
fn a_detached_connection_that_was_handed_over_is_not_dead() {
    let mut bench = Bench::detached();
    bench.pidfd(Some(code(0)));
    bench.on(Input::Timer(Timer::Settle));
    bench.on(mounts(0, true));
    assert_eq!(bench.told(holders([950])), []);
    assert_eq!(bench.machine.state(), State::Detached);
}

#[test]
fn a_detached_connection_is_looked_at_in_ever_longer_steps() {
    let mut bench = Bench::detached();
    let mut last = Duration::ZERO;
    for _ in 0..20 {
        bench.on(Input::Timer(Timer::Settle));
        let effects = bench.on(mounts(0, true));
        let [Effect::Arm(Timer::Settle, delay)] = effects[..] else { panic!("{effects:?}") };
        assert!(last <= delay && delay <= Duration::from_secs(60), "{last:?} {delay:?}");
        last = delay;
    }
}

#[test]
fn a_connection_on_its_way_into_a_namespace_is_not_detached() {
    let mut bench = Bench::created();
    bench.on(Input::Initialised);
    for _ in 0..3 {
        assert_eq!(bench.told(mounts(0, true)), []);
        bench.on(Input::Timer(Timer::Settle));
    }
    assert_eq!(bench.told(mounts(1, true)), []);
    assert_eq!(bench.machine.state(), State::Ready);
}

#[test]
fn recovery_runs_its_course() {
    let mut bench = Bench::ready();
    bench.pidfd(Some(killed()));
    death(bench.probed(DEAD));
    bench.on(Input::RecoveryStarted);
    assert_eq!(bench.machine.state(), State::Recovering);
    bench.on(Input::RecoveryFailed { gave_up: false });
    assert_eq!(bench.machine.state(), State::Dead);
    bench.on(Input::RecoveryStarted);
    bench.on(Input::RecoveryFailed { gave_up: true });
    assert_eq!(bench.machine.state(), State::Failed);
    bench.on(Input::RecoveryStarted);
    assert_eq!(bench.on(mounts(0, false)), [], "recovery itself took the dead mounts away");
    assert_eq!(bench.on(Input::Recovered), []);
    assert_eq!(bench.machine.state(), State::Gone);
}

#[test]
fn a_dead_connection_that_is_unmounted_is_gone() {
    for during_recovery in [false, true] {
        let mut bench = Bench::ready();
        bench.pidfd(Some(killed()));
        death(bench.probed(DEAD));
        if during_recovery {
            bench.on(Input::RecoveryStarted);
            bench.on(mounts(0, false));
            assert_eq!(bench.told(Input::RecoveryFailed { gave_up: false }), [Verdict::Unmounted]);
        } else {
            assert_eq!(bench.told(mounts(0, true)), [Verdict::Unmounted]);
        }
        assert_eq!(bench.machine.state(), State::Gone);
    }
}

#[test]
fn states_are_written_as_the_contract_says() {
    for state in [
        State::Created,
        State::Ready,
        State::Hung,
        State::Dead,
        State::Recovering,
        State::Failed,
        State::Detached,
        State::Gone,
    ] {
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        assert_eq!(state.to_string(), state.as_str());
    }
}
