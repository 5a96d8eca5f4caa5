//! Kernels whose types say one thing and whose memory is another: this one, with an offset changed. Needs the privileges that
//! the agent needs.

use detector_common::layout::Layout;

use super::*;

/// How the hooks fare when the programs are given a layout like this; `None` where they don't work anyway.
fn hooks_with(change: fn(&mut Layout)) -> Option<Vec<HookStatus>> {
    let environment = Environment::read();
    let mut types = layout::read().ok()?;
    let works = |hooks: &[HookStatus]| [SEND, ANSWER].iter().all(|name| status(hooks, name) == HookState::Attached);
    let unchanged = attach(layout::read().ok()?, &environment, BackendChoice::Auto, false).ok()?;
    if !works(&unchanged.hooks) {
        return None;
    }
    drop(unchanged);
    change(&mut types.layout);
    attach(types, &environment, BackendChoice::Auto, false).ok().map(|loaded| loaded.hooks)
}

fn row<'a>(hooks: &'a [HookStatus], name: &str) -> &'a HookStatus {
    hooks.iter().find(|hook| hook.name == name).unwrap()
}

fn status(hooks: &[HookStatus], name: &str) -> HookState {
    row(hooks, name).status
}

macro_rules! hooks_with_or_skip {
    ($change:expr) => {
        match hooks_with($change) {
            Some(hooks) => hooks,
            None => {
                eprintln!("skipped: the programs do not work here");
                return;
            }
        }
    };
}

#[test]
fn the_trial_leaves_what_works_as_it_was() {
    let hooks = hooks_with_or_skip!(|_| {});
    let is_typed = |name| row(&hooks, name).why.as_deref().is_some_and(|why| why.contains("tp_btf"));
    assert_eq!(status(&hooks, SYS_EXIT), HookState::NotNeeded);
    assert!(!is_typed(ANSWER) || is_typed(SYS_EXIT), "{:?}", row(&hooks, SYS_EXIT));
}

#[test]
fn a_number_read_from_elsewhere_is_not_taken_for_the_connections() {
    let hooks = hooks_with_or_skip!(|layout| layout.connection_device += 4);
    for name in [SEND, ANSWER] {
        assert_eq!(status(&hooks, name), HookState::Refused, "{hooks:?}");
        let why = row(&hooks, name).why.as_deref().unwrap_or_default();
        assert!(why.contains("made for a trial"), "{why}");
        assert!(row(&hooks, name).lost.is_some());
    }
    assert_eq!(status(&hooks, "sched_process_exit"), HookState::Attached, "it reads nothing of FUSE's");
}

#[test]
fn an_error_read_from_elsewhere_is_not_taken_for_the_requests() {
    let hooks = hooks_with_or_skip!(|layout| layout.reply_error -= 4);
    assert_eq!((status(&hooks, SEND), status(&hooks, ANSWER)), (HookState::Attached, HookState::Refused), "{hooks:?}");
}

#[test]
fn an_opcode_read_from_elsewhere_is_not_taken_for_the_requests() {
    let hooks = hooks_with_or_skip!(|layout| layout.request_opcode += 4);
    assert_eq!((status(&hooks, SEND), status(&hooks, ANSWER)), (HookState::Refused, HookState::Refused), "{hooks:?}");
}
