use std::fs;

use fuse_detector::model::{Mount, MountFlags, Propagation};
use fuse_detector::recovery::{Bring, Progress};
use fuse_detector::worker::Pool;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::stage::*;

/// What must not change of a mount.
fn looks(mount: &Mount) -> (std::path::PathBuf, MountFlags, bool, bool) {
    let Propagation { shared, master, unbindable: _ } = mount.propagation;
    (mount.root.clone(), mount.flags, shared.is_some(), master.is_some())
}

/// Binds of the root, of a part with other flags, and of a file; 20 deaths.
fn every_kind_of_mount(propagation: MsFlags, beneath: bool) {
    let stage = Stage::new(propagation);
    let (main, part, whole, new) = (stage.place("main"), stage.place("part"), stage.place("whole"), stage.place("new"));
    let file = stage.path().join("file");
    fs::write(&file, "").unwrap();
    let mut daemon = stage.serve(&main);
    stage.bind(&main.join("sub"), &part, MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
    stage.bind(&main, &whole, MsFlags::MS_NOEXEC | MsFlags::MS_NOATIME | MsFlags::MS_NODIRATIME);
    stage.bind(&main.join("f"), &file, MsFlags::empty());
    change(&whole, MsFlags::MS_PRIVATE);
    let places = [&main, &part, &whole, &file];
    let before = places.map(|place| looks(&only(place)));
    let mut current = only(&main);
    let entries = mount_count();
    let applications = [main.join("f"), part.join("inner"), whole.join("f")].map(|file| Application::start(&file));

    block_on(async {
        let pool = Pool::start(config()).unwrap();
        for round in 0..20 {
            let mut dead = of_same_device(&current);
            dead.retain(|mount| mount.mount_point != new);
            assert_eq!(dead.len(), 4, "round {round}");
            daemon.kill();
            applications.iter().for_each(Application::wait_for_death);
            let _ = umount2(&new, MntFlags::MNT_DETACH);
            daemon = stage.serve(&new);
            let replacement = only(&new);

            let progress = recover(&pool, Bring::Existing(replacement.clone()), dead, features(beneath)).await;
            let mut found = healed(&progress);
            found.sort();
            let mut expected = places.map(|place| place.as_path());
            expected.sort();
            assert_eq!(found, expected, "round {round}: {progress:#?}");
            for (place, before) in places.iter().zip(&before) {
                let mounts = fuse_at(place);
                let live = mounts.iter().find(|mount| mount.device == replacement.device).unwrap();
                assert_eq!(&looks(live), before, "round {round}");
                assert_eq!(mounts.len(), if beneath { 1 } else { 2 }, "round {round}: {mounts:#?}");
            }
            applications.iter().for_each(Application::wait_for_answer);
            assert_eq!(fs::read_to_string(main.join("f")).unwrap(), "hello");
            assert_eq!(fs::read_to_string(part.join("inner")).unwrap(), "inner");
            assert_eq!(fs::read_to_string(&file).unwrap(), "hello");
            assert!(fs::write(part.join("inner"), "x").is_err(), "a read-only mount came back writable");
            assert_eq!(mount_count(), entries + 1 + if beneath { 0 } else { 4 }, "round {round}");
            current = replacement;
        }
    });
    applications.into_iter().for_each(Application::stop);
}

#[test]
fn every_kind_of_mount_on_a_shared_host() {
    every_kind_of_mount(MsFlags::MS_SHARED, true);
}

#[test]
fn every_kind_of_mount_in_a_private_namespace() {
    every_kind_of_mount(MsFlags::MS_PRIVATE, true);
}

#[test]
fn every_kind_of_mount_with_a_guard_on_a_shared_host() {
    every_kind_of_mount(MsFlags::MS_SHARED, false);
}

#[test]
fn every_kind_of_mount_with_a_guard_in_a_private_namespace() {
    every_kind_of_mount(MsFlags::MS_PRIVATE, false);
}

#[test]
fn a_part_that_vanished_fails_alone_and_kinds_must_agree() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (main, part, new) = (stage.place("main"), stage.place("part"), stage.place("new"));
    let file = stage.path().join("file");
    fs::write(&file, "").unwrap();
    let daemon = stage.serve(&main);
    stage.bind(&main.join("sub"), &part, MsFlags::empty());
    stage.bind(&main.join("f"), &file, MsFlags::empty());
    let dead = of_same_device(&only(&main));
    daemon.kill();
    fs::remove_dir_all(stage.source().join("sub")).unwrap();
    fs::remove_file(stage.source().join("f")).unwrap();
    fs::create_dir(stage.source().join("f")).unwrap();
    let _daemon = stage.serve(&new);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Existing(only(&new)), dead, features(true)).await;
        assert_eq!(healed(&progress), [main.as_path()]);
        let failures = failures(&progress);
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert!(failures.iter().any(|error| error.contains("/sub") && error.contains("ENOENT")), "{failures:?}");
        assert!(failures.iter().any(|error| error.contains("is a directory in the replacement")), "{failures:?}");
    });
    assert_eq!(fuse_at(&part).len(), 1);
}

#[test]
fn what_is_mounted_below_is_not_hidden() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (main, other, new) = (stage.place("main"), stage.place("other"), stage.place("new"));
    let daemon = stage.serve(&main);
    stage.bind(&main, &other, MsFlags::empty());
    change(&other, MsFlags::MS_PRIVATE);
    mount(Some("t"), &main.join("sub"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    // The bind is no longer in the peer group, so only `main` has the tmpfs.
    let dead = of_same_device(&only(&main));
    daemon.kill();
    let _daemon = stage.serve(&new);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Existing(only(&new)), dead, features(true)).await;
        assert_eq!(healed(&progress), [other.as_path()]);
        assert!(
            matches!(&progress[..], [Progress::Failed { refused: true, error, .. }, _] if error.contains("tmpfs is mounted below")),
            "{progress:?}"
        );
    });
    assert_ne!(only(&main).device, only(&new).device);
}

#[test]
fn what_is_gone_is_not_made_again() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (unmounted, removed, replaced, new) =
        (stage.place("unmounted"), stage.place("removed"), stage.place("replaced"), stage.place("new"));
    let daemon = stage.serve(&unmounted);
    stage.bind(&unmounted, &removed, MsFlags::empty());
    stage.bind(&unmounted, &replaced, MsFlags::empty());
    let dead = of_same_device(&only(&unmounted));
    daemon.kill();
    for place in [&unmounted, &removed, &replaced] {
        umount2(place, MntFlags::MNT_DETACH).unwrap();
    }
    fs::remove_dir_all(&removed).unwrap();
    mount(Some("t"), &replaced, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let _daemon = stage.serve(&new);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        for beneath in [true, false] {
            let progress = recover(&pool, Bring::Existing(only(&new)), dead.clone(), features(beneath)).await;
            let gone = |progress: &Progress| matches!(progress, Progress::Gone { .. });
            assert!(progress.len() == 3 && progress.iter().all(gone), "{progress:?}");
        }
    });
    assert!(!removed.exists());
    assert!(fuse_at(&unmounted).is_empty() && fuse_at(&replaced).is_empty());
}

#[test]
fn another_file_system_is_refused() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (main, new) = (stage.place("main"), stage.place("new"));
    let daemon = stage.serve(&main);
    let dead = vec![only(&main)];
    daemon.kill();
    let _daemon = stage.serve_from(stage.path(), &new, &[]);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Existing(only(&new)), dead.clone(), features(true)).await;
        assert!(
            matches!(&progress[..], [Progress::Failed { refused: true, error, .. }] if error.starts_with("another source")),
            "{progress:?}"
        );
    });
    assert_eq!(only(&main).id, dead[0].id);
}

#[test]
fn the_drivers_own_mount_on_top_is_used_for_the_others() {
    let stage = Stage::new(MsFlags::MS_PRIVATE);
    let (main, other, new) = (stage.place("main"), stage.place("other"), stage.place("new"));
    let daemon = stage.serve(&main);
    stage.bind(&main, &other, MsFlags::empty());
    let dead = of_same_device(&only(&main));
    daemon.kill();
    let _daemon = stage.serve(&new);
    mount(Some(&new), &main, None::<&str>, MsFlags::MS_MOVE, None::<&str>).unwrap();
    let on_top = fuse_at(&main).into_iter().find(|mount| mount.device != dead[0].device).unwrap();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Existing(on_top), dead, features(true)).await;
        assert_eq!(healed(&progress).len(), 2, "{progress:?}");
    });
    assert_eq!(fuse_at(&main).len(), 2, "what the driver made was changed");
    assert_eq!(only(&other).device, fuse_at(&main)[1].device);
}

#[test]
fn stacked_mounts_of_the_dead_connection_become_one() {
    for beneath in [true, false] {
        let stage = Stage::new(MsFlags::MS_PRIVATE);
        let (main, new) = (stage.place("main"), stage.place("new"));
        let daemon = stage.serve(&main);
        stage.bind(&main, &main, MsFlags::empty());
        stage.bind(&main, &main, MsFlags::empty());
        let dead = fuse_at(&main);
        assert_eq!(dead.len(), 3);
        let application = Application::start(&main.join("f"));
        daemon.kill();
        let _daemon = stage.serve(&new);
        block_on(async {
            let pool = Pool::start(config()).unwrap();
            let progress = recover(&pool, Bring::Existing(only(&new)), dead, features(beneath)).await;
            assert_eq!(healed(&progress).len(), 3, "{progress:?}");
        });
        application.stop();
        assert_eq!(fuse_at(&main).len(), if beneath { 1 } else { 2 });
    }
}

#[test]
fn a_mount_that_serves_is_never_replaced() {
    for beneath in [true, false] {
        let stage = Stage::new(MsFlags::MS_SHARED);
        let (place, other) = (stage.place("place"), stage.place("other"));
        let (_serving, _replacement) = (stage.serve(&place), stage.serve(&other));
        let (before, replacement) = (only(&place), only(&other));
        block_on(async {
            let pool = Pool::start(config()).unwrap();
            // Somebody took it for a mount of a dead connection.
            let progress = recover(&pool, Bring::Existing(replacement), vec![before.clone()], features(beneath)).await;
            let failures = failures(&progress);
            assert!(failures.len() == 1 && failures[0].contains("alive"), "{progress:#?}");
        });
        assert_eq!(fuse_at(&place), [before], "it was touched");
    }
}
