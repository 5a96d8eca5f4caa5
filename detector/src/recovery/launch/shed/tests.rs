use std::time::Duration;

use super::*;
use crate::model::{DeviceNumber, MountFlags, MountId, NamespaceId, Propagation};
use crate::recovery::Features;

fn mount(mount_point: &str) -> Mount {
    Mount {
        namespace: NamespaceId(1),
        id: MountId(7),
        unique_id: None,
        parent: MountId(1),
        device: DeviceNumber { major: 0, minor: 50 },
        root: "/".into(),
        root_deleted: false,
        mount_point: mount_point.into(),
        flags: MountFlags::default(),
        propagation: Propagation::default(),
        fs_type: "fuse".into(),
        source: "src".into(),
        super_options: "".into(),
    }
}

fn told(argv: &[&str], env: &[&str], cwd: &str) -> Told {
    let os = |texts: &[&str]| texts.iter().map(OsString::from).collect();
    let spec = LaunchSpec {
        exe: "/usr/bin/daemon".into(),
        argv: os(argv),
        env: os(env),
        cwd: cwd.into(),
        uid: 0,
        gid: 0,
        groups: vec![],
        cgroups: vec![],
        oom_score_adj: None,
        umask: None,
        limits: vec![],
        privileges: None,
    };
    let job = RecoverJob {
        bring: Bring::Respawn(spec),
        dead: vec![mount("/dead")],
        launched: Vec::new(),
        features: Features { beneath: true, unique_id: true },
        deadline: Duration::from_secs(1),
    };
    Told::of(&job, &[])
}

fn needed(argv: &[&str], place: &str) -> bool {
    told(argv, &[], "/work").needs(&mount(place))
}

#[test]
fn what_is_named_stays() {
    assert!(needed(&["d", "/mnt/a"], "/mnt/a"));
    assert!(needed(&["d", "/mnt/a/deep"], "/mnt/a"));
    assert!(needed(&["d", "-o", "lowerdir=/x:/mnt/a/l,upperdir=/y"], "/mnt/a"));
    assert!(needed(&["d", "-o/mnt/a"], "/mnt/a"));
    assert!(needed(&["d", "a/deep"], "/work/a"));
    assert!(needed(&["d", "../mnt/a"], "/mnt/a"));
    assert!(needed(&[], "/dead"));
}

#[test]
fn what_the_program_serves_along_with_a_directory_stays() {
    assert!(needed(&["d", "/mnt"], "/mnt/a"));
    assert!(needed(&["d", "--dir=/"], "/mnt/a"));
    assert!(needed(&["d", "/"], "/mnt/a"));
}

#[test]
fn the_environment_and_the_working_directory_count() {
    assert!(told(&["d"], &["CACHE=/mnt/a/cache"], "/").needs(&mount("/mnt/a")));
    assert!(told(&["d"], &[], "/mnt/a/x").needs(&mount("/mnt/a")));
    assert!(!told(&["d"], &["HOME=/"], "/").needs(&mount("/mnt/a")));
}

#[test]
fn everything_else_goes() {
    assert!(!needed(&["d", "/mnt/ab", "/mnt/a-2", "host:/", "s3://", "", "-f"], "/mnt/a"));
}

#[test]
fn nothing_is_detached_through_another_mount() {
    let mounts = [mount("/a"), mount("/a/b"), mount("/c/d"), mount("/c/d")];
    let places: Vec<_> = detachable(&mounts, &told(&[], &[], "/")).into_iter().map(|it| &it.mount_point).collect();
    assert_eq!(places, [Path::new("/a"), Path::new("/c/d"), Path::new("/c/d")]);
    let places: Vec<_> = detachable(&mounts, &told(&["d", "/a/x"], &[], "/")).into_iter().collect();
    assert_eq!(places.len(), 2, "what hangs on a mount that stays stays: {places:?}");
}

#[test]
fn links_are_followed_but_not_into_a_mount() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("mounted");
    std::fs::create_dir(&place).unwrap();
    std::os::unix::fs::symlink("mounted/x", directory.path().join("link")).unwrap();
    std::os::unix::fs::symlink("/elsewhere", place.join("x")).unwrap();
    let found = resolve(&directory.path().join("link/y"), &[mount(place.to_str().unwrap())]);
    assert_eq!(found, place.join("x/y"));
    std::os::unix::fs::symlink("loop", directory.path().join("loop")).unwrap();
    assert_eq!(resolve(&directory.path().join("loop"), &[]), directory.path().join("loop"));
}
