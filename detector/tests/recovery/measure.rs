//! Figures, printed with `--nocapture`. The limits are far above the targets: a debug build on a busy machine keeps them.

use std::fs;
use std::time::{Duration, Instant};

use fuse_detector::recovery::Bring;
use fuse_detector::worker::{Pool, PoolConfig, ProbeOutcome, ProbeTarget};
use nix::mount::{MntFlags, MsFlags, umount2};

use crate::stage::*;

fn summary(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{what}: median {:?}, p99 {:?}, max {:?} of {}", at(50), at(99), at(100), times.len());
    at(50)
}

#[test]
fn probes_one_after_another_and_a_thousand_at_once() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let places: Vec<_> = (0..1_000).map(|number| stage.place(&number.to_string())).collect();
    let daemon = stage.serve(&places[0]);
    for place in &places[1..] {
        stage.bind(&places[0], place, MsFlags::empty());
    }
    let mut targets: Vec<ProbeTarget> = of_same_device(&only(&places[0])).iter().map(ProbeTarget::from).collect();
    targets.truncate(1_000);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let mut times = Vec::new();
        for target in targets.iter().cycle().take(2_000) {
            let start = Instant::now();
            assert_eq!(pool.probe(target.clone(), PATIENCE).await, ProbeOutcome::Alive);
            times.push(start.elapsed());
        }
        assert!(summary("a probe of a living mount", times) < Duration::from_millis(5));
        daemon.kill();
        let start = Instant::now();
        let probes: Vec<_> = targets
            .iter()
            .map(|target| {
                let (pool, target) = (pool.clone(), target.clone());
                tokio::spawn(async move { pool.probe(target, PATIENCE).await })
            })
            .collect();
        for probe in probes {
            assert!(matches!(probe.await.unwrap(), ProbeOutcome::Dead { .. }));
        }
        println!("1,000 probes of dead mounts at once: {:?}, {:?}", start.elapsed(), pool.stats());
        assert!(start.elapsed() < Duration::from_secs(3));
        for worker in fs::read_to_string("/proc/thread-self/children").unwrap().split_whitespace() {
            let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap_or_default();
            let rss: Vec<&str> =
                status.lines().filter(|line| line.starts_with("Rss") || line.starts_with("VmRSS")).collect();
            println!("worker {worker}: {rss:?}");
        }
    });
}

#[test]
fn from_a_ready_replacement_to_a_verified_heal() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (place, new) = (stage.place("m"), stage.place("new"));
    let mut daemon = stage.serve(&place);
    block_on(async {
        let pool = Pool::start(PoolConfig { keep_idle: 2, ..config() }).unwrap();
        let mut times = Vec::new();
        for _ in 0..50 {
            let dead = vec![only(&place)];
            daemon.kill();
            daemon = stage.serve(&new);
            let replacement = only(&new);
            let start = Instant::now();
            let progress = recover(&pool, Bring::Existing(replacement), dead, features(true)).await;
            times.push(start.elapsed());
            assert_eq!(healed(&progress), [place.as_path()], "{progress:?}");
            umount2(&new, MntFlags::MNT_DETACH).unwrap();
        }
        assert!(summary("replacement ready to verified heal", times) < Duration::from_millis(100));
    });
}
