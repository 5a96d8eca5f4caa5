//! One launch that serves several dead connections.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fuse_detector::model::{DeviceNumber, Mount};
use fuse_detector::recovery::{Bring, LaunchSpec, Progress};
use fuse_detector::worker::Pool;
use nix::mount::MsFlags;

use crate::brought::remember;
use crate::stage::*;

/// Looks at every place first, as a daemon with several mount points does: it starts only if none of them is dead.
const LOOKS_FIRST: &str =
    r#"s=$1; shift; for m; do stat "$m" >&2 || exit 1; done; for m; do bindfs "$s" "$m" || exit 1; done"#;

/// Dead connections, each with a bind of a part of it, and how a program that serves all places would be started.
fn dead_together(stage: &Stage, script: &str, count: usize) -> (LaunchSpec, Vec<PathBuf>, Vec<Mount>) {
    let places: Vec<_> = (0..count).map(|number| stage.place(&format!("m-{number}"))).collect();
    let daemons: Vec<_> = places.iter().map(|place| stage.serve(place)).collect();
    let mut spec = remember(daemons[0].pid());
    let mut dead = Vec::new();
    for (number, place) in places.iter().enumerate() {
        stage.bind(&place.join("sub"), &stage.place(&format!("bind-{number}")), MsFlags::MS_RDONLY);
        dead.extend(of_same_device(&only(place)));
    }
    daemons.into_iter().for_each(Daemon::kill);
    spec.exe = "/bin/sh".into();
    let fixed: [OsString; 5] = ["sh".into(), "-c".into(), script.into(), "sh".into(), stage.source().into()];
    spec.argv = fixed.into_iter().chain(places.iter().map(OsString::from)).collect();
    (spec, places, dead)
}

/// What each dead connection was replaced by.
fn replaced(progress: &[Progress]) -> Vec<(DeviceNumber, DeviceNumber)> {
    let ready = |progress: &Progress| match progress {
        Progress::Ready { dead, device, .. } => Some((*dead, *device)),
        _ => None,
    };
    progress.iter().filter_map(ready).collect()
}

fn unmount_all(stage: &Stage, places: &[PathBuf]) {
    for place in places {
        let bind = place.file_name().unwrap().to_str().unwrap().replace('m', "bind");
        for mounted in [place, &stage.path().join(bind)] {
            nix::mount::umount2(mounted, nix::mount::MntFlags::MNT_DETACH).unwrap();
        }
    }
    until("every daemon exits when its file system is unmounted", || {
        processes_with(stage.path().as_os_str()).is_empty()
    });
}

#[test]
fn one_start_heals_them_all() {
    const COUNT: usize = 30;
    for propagation in [MsFlags::MS_SHARED, MsFlags::MS_PRIVATE] {
        let stage = Stage::new(propagation);
        let (spec, places, dead) = dead_together(&stage, LOOKS_FIRST, COUNT);
        let application = Application::start(&places[COUNT - 1].join("f"));
        block_on(async {
            let pool = Pool::start(config()).unwrap();
            let began = Instant::now();
            let progress = recover(&pool, Bring::Respawn(spec), dead.clone(), features(true)).await;
            println!("{COUNT} connections with {} mounts took {:?}", dead.len(), began.elapsed());
            assert_eq!(failures(&progress), Vec::<String>::new());
            assert_eq!(healed(&progress).len(), 2 * COUNT);
            let launched = progress.iter().filter(|it| matches!(it, Progress::Launched { .. })).count();
            assert_eq!(launched, 1);
            let replaced = replaced(&progress);
            let by_dead: BTreeSet<_> = replaced.iter().map(|(dead, _)| *dead).collect();
            assert_eq!((replaced.len(), by_dead.len()), (COUNT, COUNT));
            for (number, place) in places.iter().enumerate() {
                let (now, bind) = (only(place), only(&stage.path().join(format!("bind-{number}"))));
                let before = dead.iter().find(|mount| mount.mount_point == *place).unwrap();
                assert!(replaced.contains(&(before.device, now.device)), "{place:?}");
                assert!(bind.device == now.device && bind.flags.read_only);
                assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "hello");
            }
        });
        application.stop();
        unmount_all(&stage, &places);
    }
}

/// The program no longer serves one place, and serves something else at another.
#[test]
fn what_goes_wrong_with_one_is_no_matter_of_the_others() {
    const ALL_BUT_TWO: &str = r#"s=$1; bindfs "$s" "$2" && bindfs / "$3" && bindfs "$s" "$4"; true"#;
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (spec, places, dead) = dead_together(&stage, ALL_BUT_TWO, 4);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Respawn(spec), dead.clone(), features(true)).await;
        assert_eq!(healed(&progress).len(), 4, "{progress:#?}");
        let failed: Vec<_> = progress
            .iter()
            .filter_map(|progress| match progress {
                Progress::Failed { mount: Some(mount), error, .. } => Some((mount.device, error.as_str())),
                _ => None,
            })
            .collect();
        let of = |place: &Path| -> Vec<&str> {
            let device = dead.iter().find(|mount| mount.mount_point == place).unwrap().device;
            failed.iter().filter(|(failed, _)| *failed == device).map(|(_, error)| *error).collect()
        };
        assert!(of(&places[1]).iter().all(|error| error.starts_with("another source")), "{failed:?}");
        let nothing = format!("mounted nothing at {}", places[3].display());
        assert!(of(&places[3]).iter().all(|error| error.contains(&nothing)), "{failed:?}");
        assert_eq!((of(&places[1]).len(), of(&places[3]).len()), (2, 2));
        for (number, alive) in [true, false, true, false].into_iter().enumerate() {
            assert_eq!(fs::metadata(places[number].join("f")).is_ok(), alive, "{number}");
        }
    });
    unmount_all(&stage, &places);
}

/// Connections of which one was replaced, and another unmounted, since they died.
#[test]
fn only_what_is_still_dead_is_waited_for() {
    let stage = Stage::new(MsFlags::MS_PRIVATE);
    let (mut spec, places, dead) = dead_together(&stage, LOOKS_FIRST, 3);
    let aside = stage.place("aside");
    let faster = stage.serve(&aside);
    nix::mount::mount(Some(&aside), &places[0], None::<&str>, MsFlags::MS_MOVE, None::<&str>).unwrap();
    for path in [&places[1], &stage.path().join("bind-1")] {
        nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
    // It serves the last one only.
    spec.argv.drain(5..7);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Respawn(spec), dead, features(true)).await;
        assert_eq!((healed(&progress).len(), failures(&progress).len()), (4, 0), "{progress:#?}");
        assert_eq!(progress.iter().filter(|it| matches!(it, Progress::Gone { .. })).count(), 2);
        for place in [&places[0], &places[2]] {
            assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "hello");
        }
    });
    faster.kill();
    unmount_all(&stage, &places[2..]);
}
