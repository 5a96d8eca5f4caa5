//! Whether it lives, and what it died of.

use super::*;

#[test]
fn an_idle_daemon_that_is_killed_is_dead_as_soon_as_the_kernel_confirms() {
    let mut bench = Bench::ready();
    let killed_at = bench.now;
    assert_eq!(bench.hook(killed()), [], "its descriptor is still open: a probe would wait");
    assert_eq!(bench.pidfd(None), [Effect::Probe]);
    let dead = Verdict::Dead { reason: killed_reason(), since: Some(killed_at), stamped: true };
    assert_eq!(bench.probed(DEAD), [Effect::Tell(dead)]);
    assert_eq!(bench.machine.state(), State::Dead);
    assert_eq!(bench.machine.daemon(), Some(Daemon { pid: DAEMON, comm: Some("p812".into()), alive: false }));
}

#[test]
fn requests_of_the_only_daemon_aborted_while_it_dies_need_no_probe() {
    let mut bench = Bench::ready();
    bench.hook(killed());
    assert_eq!(death(bench.aborted(DAEMON, true, None)), killed_reason());
}

#[test]
fn requests_aborted_prove_nothing_while_another_daemon_serves() {
    let mut bench = Bench::ready();
    bench.on(seen(813));
    bench.hook(killed());
    assert_eq!(bench.aborted(DAEMON, true, None), [Effect::Probe], "it may have closed a clone of the descriptor");
    assert_eq!(bench.probed(ProbeOutcome::Alive), []);
    assert_eq!(bench.machine.state(), State::Ready);
}

#[test]
fn requests_aborted_by_a_daemon_that_exits_by_itself_need_a_probe() {
    let mut bench = Bench::ready();
    bench.hook(code(0));
    assert_eq!(bench.aborted(DAEMON, true, None), [Effect::Probe]);
}

#[test]
fn one_death_whatever_tells_of_it() {
    let mut bench = Bench::ready();
    bench.hook(killed());
    death(bench.aborted(DAEMON, true, None));
    let at = bench.now;
    let mut later = bench.pidfd(Some(killed()));
    later.extend(bench.on(Input::AccessFailed { at }));
    later.extend(bench.on(Input::AbortWritten { at, actor: Some(process(1)) }));
    later.extend(bench.on(Input::ForcedUnmount { at, actor: Some(process(1)) }));
    later.extend(bench.probed(DEAD));
    later.extend(bench.on(Input::Stalled { cause: None }));
    later.extend(bench.on(Input::Initialised));
    for timer in [Timer::Grace, Timer::Settle, Timer::Retry] {
        later.extend(bench.on(Input::Timer(timer)));
    }
    assert_eq!(later, []);
}

#[test]
fn an_exit_by_code_is_held_back_and_then_told() {
    let mut bench = Bench::ready();
    bench.hook(code(0));
    assert_eq!(bench.pidfd(None), [Effect::Probe]);
    assert_eq!(bench.probed(DEAD), [Effect::Arm(Timer::Grace, GRACE)]);
    bench.wait(GRACE);
    assert_eq!(bench.on(Input::Timer(Timer::Grace)), [Effect::Probe]);
    assert_eq!(death(bench.probed(DEAD)), Reason::Exit { code: 0 });
}

#[test]
fn a_death_explained_while_held_back_is_told_at_once() {
    let mut bench = Bench::ready();
    bench.aborted(DAEMON, false, None);
    bench.probed(DEAD);
    assert_eq!(death(bench.hook(killed())), killed_reason());
}

#[test]
fn an_administrators_abort_is_told_with_who_did_it_and_a_living_daemon() {
    let mut bench = Bench::ready();
    let at = bench.now;
    assert_eq!(bench.on(Input::AbortWritten { at, actor: Some(process(77)) }), [Effect::Probe]);
    let reason = death(bench.probed(ProbeOutcome::Dead { errno: libc::ECONNABORTED }));
    assert_eq!(reason, Reason::AdminAbort { actor: Some(process(77)) });
    assert!(bench.machine.daemon().is_some_and(|daemon| daemon.alive));
}

#[test]
fn requests_aborted_within_write_or_umount_name_who_did_it() {
    for (call, reason) in [
        (AbortCall::Write, Reason::AdminAbort { actor: Some(process(77)) }),
        (AbortCall::Umount, Reason::ForcedUnmount { actor: Some(process(77)) }),
    ] {
        let mut bench = Bench::ready();
        assert_eq!(bench.aborted(77, false, Some(call)), [Effect::Probe]);
        assert_eq!(death(bench.probed(DEAD)), reason);
    }
}

#[test]
fn a_daemons_own_write_is_no_administrators_abort() {
    let mut bench = Bench::ready();
    bench.aborted(DAEMON, false, Some(AbortCall::Write));
    assert_eq!(bench.probed(DEAD), [Effect::Arm(Timer::Grace, GRACE)]);
}

#[test]
fn a_forced_unmount_that_was_busy_is_told_at_once() {
    let mut bench = Bench::ready();
    let at = bench.now;
    bench.on(Input::ForcedUnmount { at, actor: Some(process(78)) });
    assert_eq!(death(bench.probed(DEAD)), Reason::ForcedUnmount { actor: Some(process(78)) });
}

#[test]
fn a_daemon_that_exits_because_of_the_abort_is_not_to_blame() {
    // The exit is told first, the abort a moment later: fanotify and pidfd are not ordered.
    let mut bench = Bench::ready();
    bench.pidfd(Some(code(0)));
    bench.probed(DEAD);
    let at = bench.now;
    let reason = death(bench.on(Input::AbortWritten { at, actor: Some(process(77)) }));
    assert_eq!(reason, Reason::AdminAbort { actor: Some(process(77)) });
}

#[test]
fn an_abort_long_after_the_exit_is_not_the_cause() {
    let mut bench = Bench::ready();
    bench.pidfd(Some(code(1)));
    bench.probed(DEAD);
    bench.wait(GRACE * 2);
    let at = bench.now;
    bench.on(Input::AbortWritten { at, actor: Some(process(77)) });
    bench.on(Input::Timer(Timer::Grace));
    assert_eq!(death(bench.probed(DEAD)), Reason::Exit { code: 1 });
}

#[test]
fn a_signal_outranks_an_abort_and_memory_outranks_a_signal() {
    for (oom, reason) in [(false, killed_reason()), (true, Reason::Oom { cgroup: None })] {
        let mut bench = Bench::ready();
        let at = bench.now;
        bench.on(Input::AbortWritten { at, actor: Some(process(77)) });
        bench.hook(DaemonEnd { oom, ..killed() });
        assert_eq!(death(bench.probed(DEAD)), reason);
    }
}

#[test]
fn an_abort_that_did_not_kill_is_forgotten() {
    let mut bench = Bench::ready();
    let at = bench.now;
    bench.on(Input::AbortWritten { at, actor: Some(process(77)) });
    bench.probed(ProbeOutcome::Alive);
    bench.pidfd(Some(code(3)));
    bench.probed(DEAD);
    bench.on(Input::Timer(Timer::Grace));
    assert_eq!(death(bench.probed(DEAD)), Reason::Exit { code: 3 });
}

#[test]
fn slowness_is_never_death() {
    for outcome in [
        ProbeOutcome::TimedOut,
        ProbeOutcome::Denied,
        ProbeOutcome::Failed,
        // The daemon's own answer to statfs: no errno of a dead connection.
        ProbeOutcome::Dead { errno: libc::EIO },
    ] {
        let mut bench = Bench::ready();
        let at = bench.now;
        bench.on(Input::AccessFailed { at });
        for _ in 0..20 {
            assert_eq!(verdicts(bench.probed(outcome)), [], "{outcome:?}");
            bench.on(Input::Timer(Timer::Retry));
        }
        assert_eq!(bench.machine.state(), State::Ready);
    }
}

#[test]
fn a_failed_probe_after_an_exit_is_repeated_ever_more_slowly() {
    let mut bench = Bench::ready();
    bench.pidfd(Some(killed()));
    let mut last = Duration::ZERO;
    for _ in 0..40 {
        let effects = bench.probed(ProbeOutcome::Failed);
        let [Effect::Arm(Timer::Retry, delay)] = effects[..] else { panic!("not repeated: {effects:?}") };
        assert!(last <= delay && delay <= Duration::from_secs(30), "{last:?} {delay:?}");
        last = delay;
        assert_eq!(bench.on(Input::Timer(Timer::Retry)), [Effect::Probe]);
    }
    assert_eq!(death(bench.probed(DEAD)), killed_reason());
}

#[test]
fn a_planned_hand_over_is_silent() {
    let mut bench = Bench::ready();
    bench.hook(code(0));
    assert_eq!(bench.pidfd(None), [Effect::Probe]);
    assert_eq!(bench.probed(ProbeOutcome::Alive), []);
    assert_eq!(bench.on(seen(900)), []);
    let pids: Vec<u32> = bench.machine.daemons().map(|daemon| daemon.pid).collect();
    assert_eq!(pids, [900]);
}

#[test]
fn a_held_descriptor_is_a_hang_and_its_holders_end_is_the_death() {
    let mut bench = Bench::ready();
    bench.hook(killed());
    bench.pidfd(None);
    assert_eq!(bench.probed(ProbeOutcome::TimedOut), [Effect::FindHolders]);
    let held = Reason::DescriptorHeld { holder: Some(process(950)) };
    assert_eq!(bench.told(holders([950])), [Verdict::Hung(held)]);
    let at = bench.now;
    assert!(bench.on(exited(950, at, false, None, ExitSource::Pidfd)).contains(&Effect::Probe));
    assert_eq!(death(bench.probed(DEAD)), killed_reason());
}

/// Before Linux 6.18 the kernel doesn't say whose a descriptor is.
#[test]
fn of_those_who_may_hold_the_descriptor_one_is_named_and_several_are_not() {
    let bereaved = || {
        let mut bench = Bench::ready();
        bench.hook(killed());
        bench.pidfd(None);
        assert_eq!(bench.probed(ProbeOutcome::TimedOut), [Effect::FindHolders]);
        bench
    };
    let held = |holder| [Verdict::Hung(Reason::DescriptorHeld { holder })];
    let answer = |others| Input::Holders { named: Vec::new(), others };
    assert_eq!(bereaved().told(answer(Others::One(process(950)))), held(Some(process(950))));
    assert_eq!(bereaved().told(answer(Others::Several)), held(None));
    assert_eq!(bereaved().told(answer(Others::Nobody)), []);

    let mut bench = bereaved();
    bench.on(seen(951));
    assert_eq!(bench.told(answer(Others::Several)), [], "another daemon of it lives");

    let mut bench = bereaved();
    bench.told(answer(Others::Several));
    let at = bench.now;
    assert!(bench.on(Input::AccessFailed { at }).contains(&Effect::Probe), "the holder has ended, perhaps");
    assert_eq!(death(bench.probed(DEAD)), killed_reason());
}

#[test]
fn a_held_descriptor_whose_holder_begins_to_serve_is_ready() {
    let mut bench = Bench::ready();
    bench.pidfd(Some(code(0)));
    bench.probed(ProbeOutcome::TimedOut);
    bench.on(holders([950]));
    let effects = bench.on(Input::Progress);
    assert!(effects.contains(&Effect::Tell(Verdict::Ready)) && effects.contains(&Effect::Probe), "{effects:?}");
    bench.probed(ProbeOutcome::Alive);
    bench.on(seen(950));
    let at = bench.now;
    bench.on(exited(950, at, false, Some(killed()), ExitSource::Pidfd));
    assert_eq!(death(bench.probed(DEAD)), killed_reason());
}

#[test]
fn an_abort_that_frees_a_held_connection_is_the_cause() {
    let mut bench = Bench::ready();
    bench.pidfd(Some(killed()));
    bench.probed(ProbeOutcome::TimedOut);
    bench.on(holders([950]));
    bench.wait(Duration::from_secs(60));
    let at = bench.now;
    assert!(bench.on(Input::AbortWritten { at, actor: Some(process(77)) }).contains(&Effect::Probe));
    assert_eq!(death(bench.probed(DEAD)), Reason::AdminAbort { actor: Some(process(77)) });
}

#[test]
fn late_reports_of_a_replaced_daemon_change_nothing() {
    let mut bench = Bench::ready();
    bench.pidfd(None);
    bench.probed(ProbeOutcome::Alive);
    bench.hook(code(0));
    bench.on(seen(DAEMON));
    assert_eq!(bench.machine.daemons().count(), 0);
}

#[test]
fn nobody_holding_it_is_no_verdict() {
    let mut bench = Bench::ready();
    bench.pidfd(None);
    bench.probed(ProbeOutcome::TimedOut);
    let effects = bench.on(holders([]));
    assert!(matches!(effects[..], [Effect::Arm(Timer::Retry, _)]), "{effects:?}");
}

#[test]
fn a_stalled_daemon_hangs_and_comes_back() {
    let mut bench = Bench::ready();
    assert_eq!(bench.told(Input::Stalled { cause: None }), [Verdict::Hung(Reason::Stalled { cause: None })]);
    assert_eq!(bench.told(Input::Stalled { cause: None }), []);
    assert_eq!(bench.told(Input::Progress), [Verdict::Ready]);
    assert_eq!(bench.told(Input::Stalled { cause: None }), [Verdict::Hung(Reason::Stalled { cause: None })]);
    assert_eq!(verdicts(bench.probed(ProbeOutcome::Alive)), [Verdict::Ready]);
}

#[test]
fn what_was_never_initialised_is_said_so() {
    let mut bench = Bench::created();
    bench.on(mounts(1, true));
    assert_eq!(bench.told(Input::Stalled { cause: None }), [Verdict::Hung(Reason::NeverInitialised { end: None })]);
    assert_eq!(bench.told(Input::Initialised), [Verdict::Ready]);

    let mut bench = Bench::created();
    bench.on(mounts(1, true));
    let at = bench.now;
    bench.on(Input::AccessFailed { at });
    bench.probed(DEAD);
    bench.on(Input::Timer(Timer::Grace));
    assert_eq!(death(bench.probed(DEAD)), Reason::NeverInitialised { end: None });
}

#[test]
fn a_daemon_that_ends_before_it_serves_is_said_to_and_how() {
    let never = |end| Reason::NeverInitialised { end: Some(Box::new(end)) };
    let created = || {
        let mut bench = Bench::created();
        bench.on(seen(DAEMON));
        bench.on(mounts(1, true));
        bench
    };
    let mut bench = created();
    bench.hook(killed());
    assert_eq!(death(bench.aborted(DAEMON, true, None)), never(killed_reason()));

    let mut bench = created();
    assert_eq!(bench.told(Input::Stalled { cause: None }), [Verdict::Hung(Reason::NeverInitialised { end: None })]);
    bench.hook(killed());
    assert_eq!(death(bench.aborted(DAEMON, true, None)), never(killed_reason()), "it hung before");

    let mut bench = created();
    bench.on(Input::Initialised);
    bench.hook(killed());
    assert_eq!(death(bench.aborted(DAEMON, true, None)), killed_reason(), "it served");

    let mut bench = created();
    bench.hook(DaemonEnd { oom: true, ..killed() });
    assert_eq!(death(bench.aborted(DAEMON, true, None)), Reason::Oom { cgroup: None });
}

#[test]
fn found_dead_at_the_first_look_is_unknown_at_once() {
    let mut bench = Bench::created();
    bench.machine = Machine::new(bench.machine.id(), Origin::Found);
    bench.on(mounts(1, true));
    let at = bench.now;
    let told = bench.told(Input::Probed { outcome: DEAD, at, first_look: true });
    assert_eq!(told, [Verdict::Dead { reason: Reason::Unknown, since: None, stamped: false }]);
}

#[test]
fn a_device_closed_by_a_living_daemon_is_unknown_after_the_grace() {
    let mut bench = Bench::ready();
    let at = bench.now;
    bench.on(Input::AccessFailed { at });
    let found = bench.now;
    bench.probed(DEAD);
    bench.on(Input::Timer(Timer::Grace));
    let told = verdicts(bench.probed(DEAD));
    assert_eq!(told, [Verdict::Dead { reason: Reason::Unknown, since: Some(found), stamped: false }]);
}

#[test]
fn a_probe_older_than_the_exit_does_not_acquit() {
    let mut bench = Bench::ready();
    let at = bench.now;
    assert_eq!(bench.on(Input::AccessFailed { at }), [Effect::Probe]);
    bench.hook(killed());
    assert_eq!(bench.pidfd(None), [], "one probe at a time");
    assert_eq!(bench.probed(ProbeOutcome::Alive), [Effect::Probe]);
    assert_eq!(death(bench.probed(DEAD)), killed_reason());
}

#[test]
fn a_daemon_that_answers_with_enotconn_does_not_cause_a_storm_of_probes() {
    let mut bench = Bench::ready();
    let mut probes = 0;
    for _ in 0..1000 {
        let at = bench.now;
        if bench.on(Input::AccessFailed { at }).contains(&Effect::Probe) {
            probes += 1;
            bench.probed(ProbeOutcome::Alive);
        }
    }
    assert!(probes <= 2, "{probes} probes within a second");
    assert!(bench.on(Input::Timer(Timer::Retry)).contains(&Effect::Probe), "the last hint is not lost");
}

#[test]
fn a_late_sighting_does_not_revive_a_daemon() {
    let mut bench = Bench::ready();
    bench.hook(killed());
    bench.on(seen(DAEMON));
    assert_eq!(death(bench.aborted(DAEMON, true, None)), killed_reason());
}

#[test]
fn a_connection_whose_init_failed_is_dead_and_was_never_initialised() {
    for origin in [Origin::Seen, Origin::Found] {
        let id = ConnectionId { device: DeviceNumber { major: 0, minor: 45 }, epoch: 1 };
        let mut bench = Bench { machine: Machine::new(id, origin), now: Boottime(1_000_000_000) };
        bench.on(mounts(1, true));
        let at = bench.now;
        assert_eq!(bench.on(Input::AccessFailed { at }), [Effect::Probe]);
        let outcome = ProbeOutcome::Dead { errno: libc::ECONNREFUSED };
        let found = bench.on(Input::Probed { outcome, at, first_look: true });
        assert_eq!(death(found), Reason::NeverInitialised { end: None });
    }
}
