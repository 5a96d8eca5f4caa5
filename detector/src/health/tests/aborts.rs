//! The abort itself is seen: no question is left.

use super::*;
use crate::model::AbortCause;

impl Bench {
    fn severed(&mut self, by: u32, cause: AbortCause) -> Vec<Effect> {
        let at = self.now;
        self.on(Input::Aborted { at, by: process(by), cause })
    }
}

const DYING: AbortCause = AbortCause::Closed { exiting: true };

fn death(effects: &[Effect]) -> Reason {
    match effects {
        [Effect::Tell(Verdict::Dead { reason, .. })] => reason.clone(),
        other => panic!("no death alone: {other:?}"),
    }
}

#[test]
fn the_abort_of_a_killed_daemons_connection_is_its_death() {
    let mut bench = Bench::ready();
    bench.hook(killed());
    let signal = Reason::Signal { signal: Signal::KILL, sender: Some(process(900)) };
    assert_eq!(death(&bench.severed(DAEMON, DYING)), signal);
    assert_eq!(bench.pidfd(None), [], "nobody is asked");
}

#[test]
fn who_aborts_on_purpose_and_the_kernels_own_limit_are_told_at_once() {
    for (cause, reason) in [
        (AbortCause::Call(AbortCall::Write), Reason::AdminAbort { actor: Some(process(7)) }),
        (AbortCause::Call(AbortCall::Umount), Reason::ForcedUnmount { actor: Some(process(7)) }),
        (AbortCause::RequestTimeout, Reason::RequestTimeout),
    ] {
        let mut bench = Bench::ready();
        assert_eq!(death(&bench.severed(7, cause)), reason);
        assert!(bench.machine.daemons().any(|daemon| daemon.alive), "the daemon has not ended");
    }
}

#[test]
fn a_close_that_nothing_explains_waits_for_a_clean_unmount() {
    let mut bench = Bench::ready();
    let closed = AbortCause::Closed { exiting: false };
    assert_eq!(bench.severed(DAEMON, closed), [Effect::Arm(Timer::Grace, GRACE)]);
    assert_eq!(verdicts(bench.on(mounts(0, false))), [Verdict::Unmounted], "libfuse closes before it unmounts");

    let mut bench = Bench::ready();
    let at = bench.now;
    bench.severed(DAEMON, closed);
    bench.wait(GRACE);
    let dead = Verdict::Dead { reason: Reason::Unknown, since: Some(at), stamped: true };
    assert_eq!(bench.on(Input::Timer(Timer::Grace)), [Effect::Tell(dead)], "without a probe");
}

#[test]
fn an_exit_that_left_the_mount_behind_is_told_with_its_code() {
    let mut bench = Bench::ready();
    bench.hook(code(3));
    assert_eq!(bench.severed(DAEMON, DYING), [Effect::Arm(Timer::Grace, GRACE)]);
    assert_eq!(bench.pidfd(None), []);
    bench.wait(GRACE);
    assert_eq!(death(&bench.on(Input::Timer(Timer::Grace))), Reason::Exit { code: 3 });
}

#[test]
fn no_late_answer_brings_an_aborted_connection_back() {
    let mut bench = Bench::ready();
    let at = bench.now;
    assert_eq!(bench.on(Input::AccessFailed { at }), [Effect::Probe]);
    bench.severed(DAEMON, AbortCause::Closed { exiting: false });
    assert_eq!(bench.probed(ProbeOutcome::Alive), []);
    bench.wait(GRACE);
    assert_eq!(death(&bench.on(Input::Timer(Timer::Grace))), Reason::Unknown);
}

#[test]
fn the_end_of_the_last_mount_is_no_death() {
    let mut bench = Bench::ready();
    assert_eq!(verdicts(bench.severed(7, AbortCause::LastUnmount)), []);
    assert_eq!(verdicts(bench.on(mounts(0, false))), [Verdict::Unmounted]);
}

#[test]
fn one_that_dies_before_it_answered_init_never_served() {
    let mut bench = Bench::created();
    bench.on(mounts(1, true));
    bench.severed(DAEMON, AbortCause::Closed { exiting: false });
    bench.wait(GRACE);
    assert_eq!(death(&bench.on(Input::Timer(Timer::Grace))), Reason::NeverInitialised { end: None });
}

#[test]
fn a_detached_connection_dies_of_its_daemons_violent_end() {
    let mut bench = Bench::detached();
    bench.hook(killed());
    let told = verdicts(bench.severed(DAEMON, DYING));
    assert!(matches!(told.as_slice(), [Verdict::Dead { reason: Reason::Signal { .. }, .. }]), "{told:?}");
    let mut bench = Bench::detached();
    bench.hook(code(0));
    assert_eq!(verdicts(bench.severed(DAEMON, DYING)), [], "the regular end of what is no longer used");
}
