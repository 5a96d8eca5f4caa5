//! A recovery that is cut off in the middle.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuse_detector::model::{Mount, NamespaceId};
use fuse_detector::mounts::{Scanner, mountinfo};
use fuse_detector::recovery::{Bring, Progress, RecoverJob};
use fuse_detector::worker::Pool;
use nix::mount::MsFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::brought::{launched, remember};
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
    let (spec, dead) = (remember(daemon.pid()), identified(&place));
    daemon.kill();
    (place, Bring::Respawn(spec), dead)
}

/// All mounts of the file system that is mounted at a place, with their unique ids, as the agent has them.
fn identified(place: &Path) -> Vec<Mount> {
    let (device, all) = (only(place).device, Scanner::default().scan_own().unwrap().mounts);
    all.into_iter().filter(|mount| mount.device == device).collect()
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
    let job =
        RecoverJob { bring, dead, launched: Vec::new(), features: features(true), deadline: Duration::from_secs(60) };
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

/// The next attempt goes on with the daemon that is there.
#[test]
fn the_rest_is_healed_from_the_same_daemon() {
    for propagation in [MsFlags::MS_SHARED, MsFlags::MS_PRIVATE] {
        let stage = Stage::new(propagation);
        let (place, bring, dead) = dead_in_many_places(&stage);
        let count = dead.len();
        block_on(async {
            let pool = Pool::start(config()).unwrap();
            let Cut { daemon, healed: before } = cut_off(&pool, bring.clone(), dead.clone()).await;
            let left: Vec<_> = dead.into_iter().filter(|mount| !before.contains(&mount.mount_point)).collect();
            let progress = recover(&pool, bring, left.clone(), features(true)).await;
            assert_eq!(failures(&progress), Vec::<String>::new());
            assert!(!progress.iter().any(|it| matches!(it, Progress::Launched { .. })), "a second daemon was started");
            assert_eq!((launched(&progress), healed(&progress).len()), (daemon, left.len()));
            assert_eq!(of_same_device(&only(&place)).len(), count, "the volume is in two parts");
        });
        assert_eq!(processes_with(stage.path().as_os_str()).len(), 1);
        nix::mount::umount2(stage.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

/// A launcher that is killed can't end what it launched; the next attempt does.
#[test]
fn what_a_killed_launcher_leaves_is_ended() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let daemon = stage.serve(&place);
    let (bring, dead) = (Bring::Respawn(remember(daemon.pid())), identified(&place));
    daemon.kill();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let mut orphans = Vec::new();
        for _ in 0..2 {
            let job = RecoverJob {
                bring: bring.clone(),
                dead: dead.clone(),
                launched: Vec::new(),
                features: features(true),
                deadline: Duration::from_secs(60),
            };
            let mut progress = pool.recover(job);
            let orphan = loop {
                if let Some(Progress::Launched { pid }) = progress.recv().await {
                    break pid;
                }
            };
            signal(busy_worker().1, Signal::SIGKILL);
            while progress.recv().await != Some(Progress::Finished) {}
            until("it serves where nobody sees it", || {
                let table = fs::read(format!("/proc/{orphan}/mountinfo")).unwrap_or_default();
                let mounts = mountinfo::parse(&table, NamespaceId(1)).mounts;
                mounts.iter().any(|mount| mount.mount_point == place && mount.device != dead[0].device)
            });
            orphans.push(orphan);
            let running: Vec<_> = orphans.iter().filter(|pid| is_running(**pid)).collect();
            assert_eq!(running, [&orphan], "one more at each attempt");
        }
        let progress = recover(&pool, bring, dead, features(true)).await;
        assert_eq!(healed(&progress), [place.as_path()], "{progress:#?}");
        assert!(!is_running(orphans[1]) && is_running(launched(&progress)));
        assert!(progress.iter().any(|it| matches!(it, Progress::Noted { .. })), "{progress:#?}");
        nix::mount::umount(&place).unwrap();
        until("the daemon exits", || processes_with(stage.path().as_os_str()).is_empty());
    });
}

/// Nothing is started where nothing could be done with it.
#[test]
fn what_will_be_refused_is_refused_before_anything_is_launched() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (place, runs) = (stage.place("m"), stage.path().join("runs"));
    let daemon = stage.serve(&place);
    let dead = identified(&place);
    nix::mount::mount(Some("t"), &place.join("sub"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    daemon.kill();
    let argv = ["sh", "-c", r#"echo >> "$0"; exit 3"#].map(OsString::from).into_iter().chain([runs.clone().into()]);
    let bring = Bring::Command { argv: argv.collect(), timeout: PATIENCE, cgroups: vec![] };
    let progress = block_on(async { recover(&Pool::start(config()).unwrap(), bring, dead, features(true)).await });
    assert!(
        matches!(&progress[..], [Progress::Failed { mount: Some(_), refused: true, error }] if error.contains("tmpfs is mounted below")),
        "{progress:?}"
    );
    assert!(!runs.exists(), "it was started");
}
