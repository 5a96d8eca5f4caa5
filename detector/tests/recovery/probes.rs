use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use fuse_detector::worker::{Pool, ProbeOutcome, ProbeTarget};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::*;

fn signal(daemon: &Daemon, signal: Signal) {
    kill(Pid::from_raw(daemon.pid().try_into().unwrap()), signal).unwrap();
}

/// Stops it. A thread that has not stopped yet could still read a request, and whoever waits for that can't be killed.
fn stop(daemon: &Daemon) {
    signal(daemon, Signal::SIGSTOP);
    let stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    until("each of its threads has stopped", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
        tasks.flatten().all(|task| fs::read_to_string(task.path().join("stat")).is_ok_and(stopped))
    });
}

#[test]
fn a_probe_tells_alive_from_dead_from_gone() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("a b\n\\");
    let daemon = stage.serve(&place);
    let target = ProbeTarget::from(&only(&place));
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        assert_eq!(pool.probe(target.clone(), PATIENCE).await, ProbeOutcome::Alive);
        daemon.kill();
        let dead = ProbeOutcome::Dead { errno: Errno::ENOTCONN as i32 };
        assert_eq!(pool.probe(target.clone(), PATIENCE).await, dead);
        umount2(&place, MntFlags::MNT_DETACH).unwrap();
        assert_eq!(pool.probe(target.clone(), PATIENCE).await, ProbeOutcome::Gone);
        // The kernel gives the same mount id and device number to the next mount; the unique id tells them apart.
        let _daemon = stage.serve(&place);
        let again = only(&place);
        let recycled = ProbeTarget::from(&again) == target;
        let found = pool.probe(target.clone(), PATIENCE).await;
        assert_eq!(found, if recycled { ProbeOutcome::Alive } else { ProbeOutcome::Gone });
    });
}

#[test]
fn the_unique_id_decides_where_it_is_known() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let _daemon = stage.serve(&place);
    let mut target = ProbeTarget::from(&only(&place));
    target.mount.unique_id = Some(1);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        assert_eq!(pool.probe(target, PATIENCE).await, ProbeOutcome::Gone);
    });
}

/// Root gets a success from statfs without the daemon being asked; so a stopped daemon must make the probe wait.
#[test]
fn an_owners_daemon_is_really_asked() {
    // nobody: fusermount wants a user that has a name.
    const OWNER: u32 = 65_534;
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    std::os::unix::fs::chown(&place, Some(OWNER), Some(OWNER)).unwrap();
    std::os::unix::fs::chown(stage.source(), Some(OWNER), Some(OWNER)).unwrap();
    stage.let_everybody_mount();
    let child = Command::new("setpriv")
        .args([format!("--reuid={OWNER}"), format!("--regid={OWNER}"), "--clear-groups".into(), "bindfs".into()])
        .args(["--no-allow-other", "-f"])
        .arg(stage.source())
        .arg(&place)
        .spawn()
        .unwrap();
    let daemon = Daemon(child);
    until("bindfs has mounted", || !fuse_at(&place).is_empty());
    let mount = only(&place);
    assert_eq!(mount.owner_only(), Some((OWNER, OWNER)), "{mount:?}");
    let target = ProbeTarget::from(&mount);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        assert_eq!(pool.probe(target.clone(), PATIENCE).await, ProbeOutcome::Alive);
        // The same worker is root again afterwards.
        assert_eq!(pool.probe(target.clone(), PATIENCE).await, ProbeOutcome::Alive);
        assert_eq!(pool.stats().spawned, pool.stats().alive);
        stop(&daemon);
        let short = Duration::from_millis(100);
        assert_eq!(pool.probe(target.clone(), short).await, ProbeOutcome::TimedOut);
        let as_root = ProbeTarget { owner: None, ..target.clone() };
        assert_eq!(pool.probe(as_root, PATIENCE).await, ProbeOutcome::Alive, "statfs tells root the truth now");
        daemon.kill();
        let dead = ProbeOutcome::Dead { errno: Errno::ENOTCONN as i32 };
        assert_eq!(pool.probe(target, PATIENCE).await, dead);
    });
}

#[test]
fn a_hung_mount_costs_one_worker_and_delays_nobody() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (hung, well) = (stage.place("hung"), stage.place("well"));
    let (stopped, _daemon) = (stage.serve(&hung), stage.serve(&well));
    let (hung, well) = (ProbeTarget::from(&only(&hung)), ProbeTarget::from(&only(&well)));
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        stop(&stopped);
        let deadline = Duration::from_millis(300);
        let slow = tokio::spawn({
            let pool = pool.clone();
            async move { pool.probe(hung, deadline).await }
        });
        tokio::task::yield_now().await;
        let start = Instant::now();
        for _ in 0..100 {
            assert_eq!(pool.probe(well.clone(), PATIENCE).await, ProbeOutcome::Alive);
        }
        assert!(start.elapsed() < deadline, "{:?}", start.elapsed());
        assert_eq!(slow.await.unwrap(), ProbeOutcome::TimedOut);
        assert_eq!(pool.stats().killed, 1);
        // The daemon is stopped before it reads the request, so SIGKILL ends the worker.
        let deadline = Instant::now() + PATIENCE;
        while pool.stats().stuck > 0 {
            assert!(Instant::now() < deadline, "{:?}", pool.stats());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        signal(&stopped, Signal::SIGCONT);
    });
}

/// Starting a worker costs more than a hundred probes.
#[test]
fn many_probes_at_once_share_few_workers() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let _daemon = stage.serve(&place);
    let target = ProbeTarget::from(&only(&place));
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let probe = |pool: Pool, target| async move { pool.probe(target, PATIENCE).await };
        let probes: Vec<_> = (0..500).map(|_| tokio::spawn(probe(pool.clone(), target.clone()))).collect();
        for probe in probes {
            assert_eq!(probe.await.unwrap(), ProbeOutcome::Alive);
        }
        let spawned = pool.stats().spawned;
        assert!(spawned <= config().probes / 4, "{spawned} workers were started");
    });
}

#[test]
fn workers_end_with_the_pool_and_a_killed_one_is_replaced() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let _daemon = stage.serve(&place);
    let target = ProbeTarget::from(&only(&place));
    let mine = || {
        let list = fs::read_to_string("/proc/thread-self/children").unwrap();
        let pids = list.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
        pids.filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("__worker"))
        })
        .collect::<Vec<_>>()
    };
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        assert_eq!(pool.probe(target.clone(), PATIENCE).await, ProbeOutcome::Alive);
        let workers = mine();
        assert!(!workers.is_empty());
        for worker in &workers {
            // One that was started ahead may still be on its way.
            let descriptors = || fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count();
            until("a worker has its three standard descriptors and its socket, no more", || descriptors() == 4);
            kill(Pid::from_raw((*worker).try_into().unwrap()), Signal::SIGKILL).unwrap();
        }
        assert_eq!(pool.probe(target.clone(), PATIENCE).await, ProbeOutcome::Alive);
        drop(pool);
        let deadline = Instant::now() + PATIENCE;
        while !mine().is_empty() {
            assert!(Instant::now() < deadline, "workers outlive the pool");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
}
