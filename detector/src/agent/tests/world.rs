//! Whatever happens, in whatever order it becomes known: nothing that serves is to be replaced, a death is told once, and
//! in the end what was told is true.

use proptest::prelude::*;

use super::machine::Machine;
use super::{OTHER, OWN};
use crate::model::BackendKind;

const PLACES: [&str; 3] = ["/mnt/a", "/mnt/b", "/mnt/c"];

#[derive(Debug, Clone, Copy)]
enum Act {
    Mount(usize),
    Bind(usize, usize),
    Copy(usize, usize),
    Unmount(usize),
    UnmountElsewhere(usize),
    Kill(usize),
    Look,
    HearTheKernel,
    HearAWorker,
    Answer(usize),
    WorkerFails,
    ApplicationFails,
}

fn act() -> impl Strategy<Value = Act> {
    let place = 0..PLACES.len();
    prop_oneof![
        3 => place.clone().prop_map(Act::Mount),
        2 => (0_usize..4, place.clone()).prop_map(|(which, place)| Act::Bind(which, place)),
        1 => (0_usize..4, place.clone()).prop_map(|(which, place)| Act::Copy(which, place)),
        3 => place.clone().prop_map(Act::Unmount),
        1 => place.prop_map(Act::UnmountElsewhere),
        3 => (0_usize..8).prop_map(Act::Kill),
        8 => Just(Act::Look),
        3 => Just(Act::HearTheKernel),
        3 => Just(Act::HearAWorker),
        8 => (0_usize..8).prop_map(Act::Answer),
        1 => Just(Act::WorkerFails),
        1 => Just(Act::ApplicationFails),
    ]
}

fn happens(machine: &mut Machine, act: Act) {
    match act {
        Act::Mount(place) => machine.mount(PLACES[place]),
        Act::Bind(which, place) => machine.bind(which, PLACES[place]),
        Act::Copy(which, place) => machine.copy(which, PLACES[place]),
        Act::Unmount(place) => machine.unmount(OWN, PLACES[place]),
        Act::UnmountElsewhere(place) => machine.unmount(OTHER, PLACES[place]),
        Act::Kill(which) => machine.kill(which),
        Act::Look => machine.look(),
        Act::HearTheKernel => drop(machine.kernel()),
        Act::HearAWorker => drop(machine.report()),
        Act::Answer(which) => drop(machine.answer(which)),
        Act::WorkerFails => machine.fail(),
        Act::ApplicationFails => machine.access_failed(),
    }
}

proptest! {
    #[test]
    fn nothing_that_serves_is_replaced_and_the_truth_is_told_in_the_end(
        hooks in any::<bool>(),
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let mut machine = Machine::new(if hooks { BackendKind::Tracepoint } else { BackendKind::Portable });
        for act in acts {
            happens(&mut machine, act);
        }
        machine.settle();
        machine.check();
    }
}
