//! Figures, printed by
//! `cargo test --release -p fuse-detector -- --ignored --nocapture --test-threads=1 mounts::measure`.
//! They are ignored otherwise, because a busy machine makes them meaningless; what must hold anywhere is tested elsewhere.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};

use super::testing::{FuseMount, in_private_namespace};
use super::unique::UniqueIds;
use super::{ProcessWatch, Scanner, holders, holders_of, mountinfo, remember};
use crate::model::NamespaceId;

/// Median of some rounds.
fn median<T>(rounds: usize, mut act: impl FnMut() -> T) -> Duration {
    let times = (0..rounds).map(|_| {
        let start = Instant::now();
        std::hint::black_box(act());
        start.elapsed()
    });
    middle(times.collect())
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn parsing_10_000_entries() {
    let line = |number: usize, fs_type: &str| {
        format!(
            "{number} 1 0:{number} / /var/lib/kubelet/pods/5f1d3c2e-0000-4000-8000-{number:012}/volumes/v/mount \
             rw,nosuid,nodev,relatime shared:{number} master:1 - {fs_type} source-{number} rw,user_id=0,group_id=0\n"
        )
    };
    for (every, what) in [(1000, "10 of them FUSE"), (1, "all of them FUSE")] {
        let text: String =
            (2..10_002).map(|number| line(number, if number % every == 0 { "fuse.x" } else { "overlay" })).collect();
        let time = median(51, || mountinfo::parse(text.as_bytes(), NamespaceId(1)));
        println!("parse 10,000 entries ({} KiB), {what}: {time:?}", text.len() / 1024);
    }
}

#[test]
#[ignore = "a measurement"]
fn looking_at_1_000_fuse_mounts() {
    in_private_namespace(|directory| {
        let fuse = FuseMount::new(directory, "m");
        for number in 0..1000 {
            let target = directory.join(number.to_string());
            std::fs::create_dir(&target).unwrap();
            mount(Some(&fuse.mount_point), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        }
        let first = median(21, || UniqueIds::default().refresh());
        let mut known = UniqueIds::default();
        known.refresh().unwrap();
        println!("unique ids of 1,000 mounts: {first:?} at first, {:?} again", median(21, || known.refresh()));
        println!("reading mountinfo: {:?}", median(21, || std::fs::read("/proc/thread-self/mountinfo").unwrap().len()));
        let mut scanner = Scanner::default();
        println!("scan_own, all of it: {:?}", median(21, || scanner.scan_own().unwrap().mounts.len()));
        println!("scan: {:?}", median(21, || scanner.scan().mounts.len()));
    });
}

#[test]
#[ignore = "a measurement"]
fn looking_at_processes() {
    let own = std::process::id();
    let processes = super::proc::pids().unwrap().len();
    println!("holders of {processes} processes: {:?}", median(21, || holders().unwrap()));
    println!("holders_of one: {:?}", median(201, || holders_of(&[own])));
    println!("remember: {:?}", median(201, || remember(own).unwrap()));
}

#[tokio::test]
#[ignore = "a measurement"]
async fn from_kill_to_exit() {
    let mut times = Vec::new();
    for _ in 0..200 {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let mut watch = ProcessWatch::open(child.id()).unwrap();
        let killed = Instant::now();
        child.kill().unwrap();
        assert!(watch.exited().await.unwrap().is_some());
        times.push(killed.elapsed());
        child.wait().unwrap();
    }
    times.sort_unstable();
    println!("kill(2) to status: median {:?}, p99 {:?}, max {:?}", times[100], times[197], times[199]);
}
