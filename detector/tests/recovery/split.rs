//! A recovery that is cut off in the middle.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use fuse_detector::model::Mount;
use fuse_detector::recovery::{Bring, Progress, RecoverJob};
use fuse_detector::worker::Pool;
use nix::mount::MsFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::brought::remember;
use crate::stage::*;

/// Enough that the worker is not done before it is killed.
const BINDS: usize = 300;

/// A dead file system that is bound to many places, and how its daemon was started.
fn dead_in_many_places(stage: &Stage) -> (PathBuf, Bring, Vec<Mount>) {
    let place = stage.place("m");
    let daemon = stage.serve(&place);
    for number in 0..BINDS {
        stage.bind(&place, &stage.place(&format!("bind-{number}")), MsFlags::empty());
    }
    let (spec, dead) = (remember(daemon.pid()), of_same_device(&only(&place)));
    daemon.kill();
    (place, Bring::Respawn(spec), dead)
}

/// The children of a process, or of this thread.
fn children(task: &str) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{task}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// This thread's worker that is at a recovery, and its launcher.
fn busy_worker() -> (u32, u32) {
    let own = children(&format!("self/task/{}", nix::unistd::gettid()));
    let launcher = |worker: u32| children(&format!("{worker}/task/{worker}")).first().copied();
    own.into_iter().find_map(|worker| Some((worker, launcher(worker)?))).expect("a worker with a launcher")
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

/// What is left when a worker was killed after the first of many mounts was healed.
struct Cut {
    daemon: u32,
    healed: Vec<PathBuf>,
}

async fn cut_off(pool: &Pool, bring: Bring, dead: Vec<Mount>) -> Cut {
    let all: Vec<PathBuf> = dead.iter().map(|mount| mount.mount_point.clone()).collect();
    let job = RecoverJob { bring, dead, features: features(true), deadline: Duration::from_secs(60) };
    let mut progress = pool.recover(job);
    let (mut daemon, mut busy) = (None, None);
    loop {
        match progress.recv().await.expect("the recovery goes on") {
            Progress::Launched { .. } => busy = Some(busy_worker()),
            Progress::Ready { pid, .. } => daemon = pid,
            Progress::Healed { .. } => break,
            Progress::Failed { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
    let (worker, launcher) = busy.unwrap();
    signal(worker, Signal::SIGKILL);
    while progress.recv().await != Some(Progress::Finished) {}
    until("the launcher is gone", || !is_running(launcher));
    let lives = |place: &PathBuf| nix::sys::statvfs::statvfs(place).is_ok();
    Cut { daemon: daemon.unwrap(), healed: all.into_iter().filter(lives).collect() }
}

#[test]
fn a_daemon_that_serves_visible_mounts_lives_on() {
    for propagation in [MsFlags::MS_SHARED, MsFlags::MS_PRIVATE] {
        let stage = Stage::new(propagation);
        let (_, bring, dead) = dead_in_many_places(&stage);
        let count = dead.len();
        block_on(async {
            let pool = Pool::start(config()).unwrap();
            let Cut { daemon, healed } = cut_off(&pool, bring, dead).await;
            assert!((1..count).contains(&healed.len()), "{} of {count} are healed", healed.len());
            assert!(is_running(daemon));
            for place in &healed {
                assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "hello");
            }
            // Nothing else keeps it alive.
            for place in &healed {
                nix::mount::umount(place).unwrap();
            }
            until("the daemon exits when its file system is unmounted", || !is_running(daemon));
        });
    }
}
