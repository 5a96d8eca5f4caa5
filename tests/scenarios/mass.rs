//! Hundreds of connections die at once, and all are healed (S23).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fuse_detector_tests::heal::Before;
use fuse_detector_tests::{Agent, Event, Options, Sandbox, Steerfs, process, scenarios};
use nix::sys::signal::Signal;

scenarios!(one_daemon_with_many_mounts_and_many_daemons_with_one);

/// How many mounts the one daemon has, and how many daemons have one mount each.
const COUNT: &str = "FUSE_DETECTOR_MASS";
const DEFAULT_COUNT: usize = 300;

/// For all of it, on two cores.
const PATIENCE: Duration = Duration::from_secs(60);

fn one_daemon_with_many_mounts_and_many_daemons_with_one(sandbox: &Sandbox) {
    // One backend at a time: either takes all of a small machine.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let count = std::env::var(COUNT).ok().map_or(DEFAULT_COUNT, |text| text.parse().expect(COUNT));
    let mut agent = Agent::start(sandbox, &Options::heal(sandbox, "respawn"));
    let (daemons, paths) = start(sandbox, count);
    // The one with many mounts is given what their paths begin with, and no path.
    if !daemons[0].is_recognisable(sandbox) {
        return;
    }
    for path in &paths {
        let what = format!("ready at {}", path.display());
        agent.wait_within(PATIENCE, &what, |event| event.is("ready", path));
    }
    let before = Before::look(&paths);

    for daemon in &daemons {
        process::signal(daemon.pid(), Signal::SIGKILL);
    }
    for daemon in &daemons {
        assert!(process::reap(daemon.pid()));
    }

    for kind in ["dead", "recovered"] {
        let mut missing: BTreeSet<&PathBuf> = paths.iter().collect();
        for event in agent.seen(|event| event.kind() == kind) {
            missing.retain(|path| !event.is_at(path));
        }
        while !missing.is_empty() {
            let what = format!("{kind} of {} mounts", missing.len());
            let event = agent.wait_new(PATIENCE, &what, |event| {
                event.kind() == kind && missing.iter().any(|path| event.is_at(path))
            });
            missing.retain(|path| !event.is_at(path));
        }
    }
    before.check_all();
    for kind in ["dead", "recovered"] {
        let told = agent.seen_until_sentinel(|event| event.kind() == kind && event.is_below(sandbox.path()));
        let twice: Vec<_> = occurrences(&told).into_iter().filter(|(_, number)| *number > 1).collect();
        let first = twice.first().map(|(path, _)| agent.seen(|event| event.is_at(path.as_ref())));
        assert!(twice.is_empty(), "{kind} told more than once: {twice:?}; first: {first:#?}");
    }
    let mut lost = agent.metrics("fuse_detector_events_lost_total", &[]);
    lost.retain(|sample| sample.value != 0.0);
    assert!(lost.is_empty(), "lost: {lost:#?}");
}

fn occurrences(events: &[Event]) -> BTreeMap<String, usize> {
    let mut occurrences = BTreeMap::new();
    for (mount_point, ..) in events.iter().flat_map(Event::mounts) {
        *occurrences.entry(mount_point.to_owned()).or_default() += 1;
    }
    occurrences
}

/// One daemon with `count` mounts and `count` daemons with one each; and all mount points.
fn start(sandbox: &Sandbox, count: usize) -> (Vec<Steerfs>, Vec<PathBuf>) {
    const AT_A_TIME: usize = 4;
    let many: Vec<PathBuf> = (0..count).map(|number| sandbox.mount_point(format!("many-{number}"))).collect();
    let one: Vec<PathBuf> = (0..count).map(|number| sandbox.mount_point(format!("one-{number}"))).collect();
    let mut daemons = vec![Steerfs::mount_on(sandbox, &sandbox.join("many"), &["--mounts", &count.to_string()])];
    thread::scope(|scope| {
        let share = count.div_ceil(AT_A_TIME).max(1);
        let start =
            |paths: &[PathBuf]| paths.iter().map(|path| Steerfs::mount_on(sandbox, path, &[])).collect::<Vec<_>>();
        let threads: Vec<_> = one.chunks(share).map(|paths| scope.spawn(move || start(paths))).collect();
        daemons.extend(threads.into_iter().flat_map(|thread| thread.join().expect("start daemons")));
    });
    (daemons, many.into_iter().chain(one).collect())
}
