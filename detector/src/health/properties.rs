//! What holds for every sequence of inputs, however senseless.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::{AbortCall, AbortCause, Boottime, ConnectionId, Daemon, DeviceNumber, ExitStatus, Process, Signal};

fn process() -> impl Strategy<Value = Process> {
    (1_u32..5).prop_map(|pid| Process { pid, comm: None })
}

fn moment() -> impl Strategy<Value = Boottime> {
    (0_u64..2_000_000_000).prop_map(Boottime)
}

fn end() -> impl Strategy<Value = DaemonEnd> {
    let status = prop_oneof![
        any::<u8>().prop_map(ExitStatus::Code),
        (1_u8..65).prop_map(|signal| ExitStatus::Signal(Signal(signal)))
    ];
    (status, prop::option::of(process()), prop::bool::weighted(0.1)).prop_map(|(status, sender, oom)| DaemonEnd {
        status,
        sender,
        oom,
    })
}

fn outcome() -> impl Strategy<Value = ProbeOutcome> {
    prop_oneof![
        Just(ProbeOutcome::Alive),
        Just(ProbeOutcome::Dead { errno: libc::ENOTCONN }),
        Just(ProbeOutcome::Dead { errno: libc::ECONNABORTED }),
        Just(ProbeOutcome::Dead { errno: libc::ECONNREFUSED }),
        Just(ProbeOutcome::Dead { errno: libc::EIO }),
        Just(ProbeOutcome::Gone),
        Just(ProbeOutcome::TimedOut),
        Just(ProbeOutcome::Denied),
        Just(ProbeOutcome::Failed),
    ]
}

fn others() -> impl Strategy<Value = Others> {
    prop_oneof![Just(Others::Nobody), process().prop_map(Others::One), Just(Others::Several)]
}

fn timer() -> impl Strategy<Value = Timer> {
    prop_oneof![Just(Timer::Grace), Just(Timer::Settle), Just(Timer::Retry)]
}

fn cause() -> impl Strategy<Value = AbortCause> {
    prop_oneof![
        any::<bool>().prop_map(|exiting| AbortCause::Closed { exiting }),
        Just(AbortCause::Call(AbortCall::Write)),
        Just(AbortCause::Call(AbortCall::Umount)),
        Just(AbortCause::LastUnmount),
        Just(AbortCause::RequestTimeout),
        Just(AbortCause::Stalled),
        Just(AbortCause::Unknown),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    let source = prop_oneof![Just(ExitSource::Hook), Just(ExitSource::Pidfd)];
    let call =
        prop::option::of(prop_oneof![Just(AbortCall::Write), Just(AbortCall::Umount), Just(AbortCall::KernelThread)]);
    let exited = (1_u32..5, moment(), any::<bool>(), prop::option::of(end()), source)
        .prop_map(|(pid, at, stamped, end, source)| Input::DaemonExited { pid, at, stamped, end, source });
    prop_oneof![
        1 => Just(Input::Initialised),
        1 => (process(), any::<bool>()).prop_map(|(Process { pid, comm }, alive)| {
            Input::DaemonSeen(Daemon { pid, comm, alive })
        }),
        3 => exited,
        2 => (moment(), process(), any::<bool>(), call)
            .prop_map(|(at, by, exiting, call)| Input::RequestsAborted { at, by, exiting, call }),
        1 => (moment(), process(), cause()).prop_map(|(at, by, cause)| Input::Aborted { at, by, cause }),
        1 => (moment(), process()).prop_map(|(at, actor)| Input::AbortWritten { at, actor: Some(actor) }),
        1 => (moment(), process()).prop_map(|(at, actor)| Input::ForcedUnmount { at, actor: Some(actor) }),
        1 => moment().prop_map(|at| Input::AccessFailed { at }),
        6 => (outcome(), moment(), prop::bool::weighted(0.1))
            .prop_map(|(outcome, at, first_look)| Input::Probed { outcome, at, first_look }),
        1 => Just(Input::Stalled { cause: None }),
        1 => Just(Input::Progress),
        3 => (0_usize..3, any::<bool>()).prop_map(|(count, control)| Input::Mounts { count, control }),
        1 => (prop::collection::vec(process(), 0..3), others()).prop_map(|(named, others)| Input::Holders { named, others }),
        4 => timer().prop_map(Input::Timer),
        1 => Just(Input::RecoveryStarted),
        1 => prop_oneof![
            Just(Input::Recovered),
            any::<bool>().prop_map(|gave_up| Input::RecoveryFailed { gave_up })
        ],
    ]
}

fn machine(origin: Origin) -> Machine {
    Machine::new(ConnectionId { device: DeviceNumber { major: 0, minor: 45 }, epoch: 1 }, origin)
}

/// Could this input, by itself or with what came before, prove a death?
fn proves(input: &Input, state: State) -> bool {
    match input {
        Input::Probed { outcome: ProbeOutcome::Dead { errno }, .. } => is_of_the_dead(*errno),
        Input::RequestsAborted { exiting, .. } => *exiting,
        Input::Aborted { cause, .. } => *cause != AbortCause::LastUnmount,
        // A connection without mounts that outlives its daemon, and that nobody holds.
        Input::Holders { named, .. } => state == State::Detached && named.is_empty(),
        _ => false,
    }
}

#[derive(Default)]
struct Watcher {
    deaths: u32,
    ends: u32,
    evidence: bool,
    probe_outstanding: bool,
    holders_outstanding: bool,
}

impl Watcher {
    fn check(&mut self, input: &Input, before: State, effects: &[Effect], after: State) {
        match input {
            Input::Probed { .. } => self.probe_outstanding = false,
            Input::Holders { .. } => self.holders_outstanding = false,
            _ => {}
        }
        self.evidence |= proves(input, before);
        for effect in effects {
            assert_ne!(before, State::Gone, "gone is final: {effect:?}");
            match effect {
                Effect::Probe => {
                    assert!(!std::mem::replace(&mut self.probe_outstanding, true), "two probes at a time");
                    assert!(matches!(after, State::Created | State::Ready | State::Hung), "nothing to ask in {after}");
                }
                Effect::FindHolders => {
                    assert!(!std::mem::replace(&mut self.holders_outstanding, true), "asked twice");
                }
                Effect::Arm(_, delay) => assert!(*delay > Duration::ZERO && *delay <= Duration::from_secs(60)),
                Effect::Disarm(_) => {}
                Effect::Tell(verdict) => self.told(verdict, input, before),
            }
        }
        assert!(before != State::Gone || after == State::Gone);
    }

    fn told(&mut self, verdict: &Verdict, input: &Input, before: State) {
        let dead = self.deaths > 0;
        match verdict {
            Verdict::Dead { .. } => {
                self.deaths += 1;
                assert_eq!(self.deaths, 1, "two deaths");
                assert!(self.evidence, "dead without evidence at {input:?}");
                if let Input::Probed { outcome, .. } = input {
                    assert!(matches!(outcome, ProbeOutcome::Dead { .. }), "{outcome:?} is no death");
                }
            }
            Verdict::Ready | Verdict::Hung(_) | Verdict::Detached => assert!(!dead, "{verdict:?} after death"),
            Verdict::Unmounted => {
                self.ends += 1;
                assert_eq!(self.ends, 1);
            }
        }
        assert_ne!(before, State::Gone);
    }
}

proptest! {
    #[test]
    fn nothing_breaks_the_machine(found in any::<bool>(), inputs in prop::collection::vec((0_u64..500_000_000, input()), 0..60)) {
        let mut machine = machine(if found { Origin::Found } else { Origin::Seen });
        let mut watcher = Watcher::default();
        let mut now = Boottime(0);
        for (passed, input) in inputs {
            now = now + Duration::from_nanos(passed);
            let before = machine.state();
            let effects = machine.on(now, input.clone());
            watcher.check(&input, before, &effects, machine.state());
            match machine.state() {
                State::Created | State::Ready | State::Detached => prop_assert!(machine.reason().is_none()),
                State::Hung | State::Dead | State::Recovering | State::Failed => prop_assert!(machine.reason().is_some()),
                State::Gone => {}
            }
        }
    }

    /// Whatever looks dead, if no daemon was killed and nobody aborted it, nobody is told before the grace is over.
    #[test]
    fn a_clean_unmount_never_alarms(noise in prop::collection::vec(clean(), 0..20)) {
        let mut machine = machine(Origin::Seen);
        let mut now = Boottime(0);
        let mut told = Vec::new();
        for input in [Input::Initialised, Input::Mounts { count: 1, control: true }]
            .into_iter()
            .chain(noise)
            .chain([Input::Mounts { count: 0, control: false }])
        {
            now = now + Duration::from_millis(1);
            told.extend(machine.on(now, input));
        }
        prop_assert!(!told.iter().any(|effect| matches!(effect, Effect::Tell(Verdict::Dead { .. }))), "{:?}", told);
        prop_assert_eq!(machine.state(), State::Gone);
    }
}

/// What a libfuse daemon that unmounts in good order gives rise to, in any order.
fn clean() -> impl Strategy<Value = Input> {
    let source = prop_oneof![Just(ExitSource::Hook), Just(ExitSource::Pidfd)];
    let end = prop::option::of(Just(DaemonEnd { status: ExitStatus::Code(0), sender: None, oom: false }));
    prop_oneof![
        (moment(), end, source).prop_map(|(at, end, source)| Input::DaemonExited {
            pid: 1,
            at,
            stamped: false,
            end,
            source
        }),
        (moment(), any::<bool>()).prop_map(|(at, exiting)| Input::RequestsAborted {
            at,
            by: Process { pid: 1, comm: None },
            exiting,
            call: None
        }),
        moment().prop_map(|at| Input::AccessFailed { at }),
        (outcome(), moment()).prop_map(|(outcome, at)| Input::Probed { outcome, at, first_look: false }),
        Just(Input::Mounts { count: 1, control: true }),
        Just(Input::DaemonSeen(Daemon { pid: 1, comm: None, alive: true })),
    ]
}
