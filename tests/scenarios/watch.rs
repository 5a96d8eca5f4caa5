//! `watch`, as it is used in a pipe.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use fuse_detector_tests::backend::Backend;
use fuse_detector_tests::{Sandbox, Steerfs, agent, wait};

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
