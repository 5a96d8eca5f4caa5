//! `watch`, as people use it: in a pipe, on a terminal.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use fuse_detector_tests::backend::Backend;
use fuse_detector_tests::{Sandbox, Steerfs, agent, wait};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// `fuse-detector watch | head -1`: who only tells has nothing left to do when nobody reads.
#[test]
fn watch_ends_with_its_reader() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let mut watch = sandbox.command(agent::program());
        watch.args(["watch", "--output", "json", "--backend", "portable"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut watch = watch.spawn().unwrap();
        let first = Steerfs::mount(sandbox, "first", &[]);
        let mut line = String::new();
        let mut reader = BufReader::new(watch.stdout.take().unwrap());
        while !line.contains(&*first.mount_point().to_string_lossy()) {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "watch ended before it told of the mount");
        }
        drop(reader);
        let second = Steerfs::mount(sandbox, "second", &[]);
        let ended = wait::until_within(Duration::from_secs(10), || watch.try_wait().unwrap());
        let _ = watch.kill();
        let _ = watch.wait();
        drop(second);
        assert!(ended.is_some_and(|status| status.success()), "watch goes on without a reader");
    });
}

/// On a terminal, both streams lead to the same place: each transition is to be read there once, not printed and logged.
#[test]
fn each_transition_is_told_once_in_one_stream() {
    Sandbox::run(Backend::Portable, |sandbox| {
        let log = sandbox.join("log");
        let stream = File::create(&log).unwrap();
        let mut watch = sandbox.command(agent::program());
        watch.args(["watch", "--output", "text", "--backend", "portable"]);
        watch.stdout(stream.try_clone().unwrap()).stderr(stream);
        let mut watch = watch.spawn().unwrap();
        let daemon = Steerfs::mount(sandbox, "data", &[]);
        let place = daemon.mount_point().to_string_lossy().into_owned();
        let lines = || fs::read_to_string(&log).unwrap().lines().filter(|line| line.contains(&place)).count();
        let told = wait::until_within(Duration::from_secs(10), || (lines() > 0).then_some(()));
        nix::sys::signal::kill(Pid::from_raw(watch.id().cast_signed()), Signal::SIGTERM).unwrap();
        // What it had to say is written before it ends.
        watch.wait().unwrap();
        assert!(told.is_some() && lines() == 1, "{}", fs::read_to_string(&log).unwrap());
    });
}
