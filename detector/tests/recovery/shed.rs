//! What a daemon that is started again finds in the namespace made for it.

use std::fs;

use fuse_detector::recovery::Bring;
use fuse_detector::worker::Pool;
use nix::mount::MsFlags;

use crate::brought::{launched, remember};
use crate::stage::*;

/// Where the parent is private an unmount on the host reaches no copy: one in the daemon's namespace would keep the other
/// connection alive.
#[test]
fn a_daemon_is_given_no_other_file_systems() {
    let stage = Stage::new(MsFlags::MS_PRIVATE);
    let (place, other, nested) = (stage.place("m"), stage.place("other"), stage.source().join("sub"));
    let live = stage.serve_from(&stage.place("elsewhere"), &other, &[]);
    // Twice at one place.
    stage.bind(&other, &other, MsFlags::empty());
    let daemon = stage.serve(&place);
    let inner = stage.serve_from(&stage.place("inner"), &nested, &["-o", "nonempty"]);
    let (spec, dead) = (remember(daemon.pid()), vec![only(&place)]);
    daemon.kill();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Respawn(spec), dead, features(true)).await;
        assert_eq!(healed(&progress), [place.as_path()], "{progress:#?}");
        let again = launched(&progress);
        let table = fs::read_to_string(format!("/proc/{again}/mountinfo")).unwrap();
        assert!(!table.contains(other.to_str().unwrap()), "{table}");
        assert!(table.contains(nested.to_str().unwrap()), "what lies in its source is no longer there: {table}");
        assert_eq!(fuse_at(&other).len(), 2);
        for _ in 0..2 {
            nix::mount::umount(&other).unwrap();
        }
        until("the other file system ends with its last mount on the host", || !is_running(live.pid()));
        nix::mount::umount(&place).unwrap();
        until("the daemon exits when its file system is unmounted", || !is_running(again));
    });
    drop(inner);
}

/// The new daemon reads from another FUSE mount, named by a link.
#[test]
fn a_daemon_keeps_the_file_system_that_it_reads_from() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (place, below, link) = (stage.place("m"), stage.place("below"), stage.path().join("link"));
    let _below = stage.serve(&below);
    std::os::unix::fs::symlink(below.join("sub"), &link).unwrap();
    for source in [below.as_path(), &link] {
        let daemon = stage.serve_from(source, &place, &[]);
        let content = fs::read_dir(&place).unwrap().count();
        let (spec, dead) = (remember(daemon.pid()), vec![only(&place)]);
        daemon.kill();
        block_on(async {
            let pool = Pool::start(config()).unwrap();
            let progress = recover(&pool, Bring::Respawn(spec), dead, features(true)).await;
            assert_eq!(healed(&progress), [place.as_path()], "{progress:#?}");
            assert_eq!(fs::read_dir(&place).unwrap().count(), content);
            nix::mount::umount(&place).unwrap();
            until("the daemon exits", || !is_running(launched(&progress)));
        });
    }
}
