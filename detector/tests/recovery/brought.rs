//! Replacements that the agent itself brings: `respawn` and `command`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fuse_detector::model::Mount;
use fuse_detector::recovery::{Bring, CgroupMembership, LaunchSpec, Progress};
use fuse_detector::worker::{Pool, PoolConfig, ProbeTarget};
use nix::mount::MsFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{Resource, Rlimit};

use crate::stage::*;

/// What the agent remembers of a daemon.
pub fn remember(pid: u32) -> LaunchSpec {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap();
    let split = |bytes: Vec<u8>| -> Vec<OsString> {
        let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        bytes.split(|&byte| byte == 0).map(|part| OsString::from_vec(part.to_vec())).collect()
    };
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    let status = String::from_utf8(read("status")).unwrap();
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    let cgroups = String::from_utf8(read("cgroup")).unwrap();
    let cgroup = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        CgroupMembership { controllers: fields.next().unwrap().into(), path: fields.next().unwrap().into() }
    };
    // Its order means nothing, and programs that start themselves again change it.
    let mut env = split(read("environ"));
    env.retain(|entry| !entry.as_encoded_bytes().starts_with(b"FUSE_DETECTOR_"));
    env.sort();
    let record = fuse_detector::mounts::remember(pid).unwrap();
    LaunchSpec {
        exe: link("exe"),
        argv: split(read("cmdline")),
        env,
        cwd: link("cwd"),
        uid: numbers("Uid:")[0],
        gid: numbers("Gid:")[0],
        groups: numbers("Groups:"),
        cgroups: cgroups.lines().map(cgroup).collect(),
        oom_score_adj: Some(String::from_utf8(read("oom_score_adj")).unwrap().trim().parse().unwrap()),
        umask: record.umask,
        limits: record.limits,
        privileges: Some(record.privileges),
    }
}

/// The same, except for the working directory, which bindfs changes while it starts.
fn started_like(spec: &LaunchSpec, pid: u32) -> LaunchSpec {
    LaunchSpec { cwd: remember(pid).cwd, ..spec.clone() }
}

fn kill_and_wait(pid: u32) {
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
    until("the daemon is gone", || !is_running(pid));
}

pub fn launched(progress: &[Progress]) -> u32 {
    let pid = |progress: &Progress| match progress {
        Progress::Ready { pid, .. } => *pid,
        _ => None,
    };
    progress.iter().find_map(pid).unwrap_or_else(|| panic!("{progress:#?}"))
}

/// Kills a daemon and starts it again, twice, then unmounts: the connection must end with that, so the daemon exits.
fn dies_and_comes_back(stage: &Stage, place: &Path, file: &str, binds: &[&Path], mut daemon: u32) {
    let application = Application::start(&place.join(file));
    let content = fs::read(place.join(file)).unwrap();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        for _ in 0..2 {
            let spec = remember(daemon);
            let dead = of_same_device(&only(place));
            assert_eq!(dead.len(), 1 + binds.len());
            kill_and_wait(daemon);
            let progress = recover(&pool, Bring::Respawn(spec.clone()), dead.clone(), features(true)).await;
            assert_eq!(healed(&progress).len(), dead.len(), "{progress:#?}");
            daemon = launched(&progress);
            assert_eq!(remember(daemon), started_like(&spec, daemon));
            assert_eq!(fs::read(place.join(file)).unwrap(), content);
            assert_eq!(of_same_device(&only(place)).len(), dead.len());
        }
    });
    application.wait_for_answer();
    application.stop();
    for place in binds.iter().chain([&place]) {
        nix::mount::umount(*place).unwrap();
    }
    until("the daemon exits when its file system is unmounted", || !is_running(daemon));
    let left = processes_with(stage.path().as_os_str());
    assert!(left.is_empty(), "{left:?}");
}

/// The process with this in its arguments that holds `/dev/fuse`.
fn daemon_at(place: &Path) -> u32 {
    until("it is mounted", || !fuse_at(place).is_empty());
    nix::sys::statvfs::statvfs(place).unwrap();
    let holds = |pid: &u32| {
        fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|entries| {
            entries.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("/dev/fuse")))
        })
    };
    let mut found = None;
    until("one process serves it", || {
        let pids: Vec<u32> = processes_with(place.as_os_str()).into_iter().filter(holds).collect();
        found = pids.first().copied();
        pids.len() == 1
    });
    found.unwrap()
}

fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?}");
}

#[test]
fn bindfs_in_the_foreground_on_a_shared_host() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (place, bind) = (stage.place("m"), stage.place("bind"));
    let daemon = stage.serve(&place);
    stage.bind(&place.join("sub"), &bind, MsFlags::MS_RDONLY);
    let pid = daemon.pid();
    // Reaped while it is waited for below.
    let reaper = std::thread::spawn(move || {
        let mut daemon = daemon;
        let _ = daemon.0.wait();
    });
    dies_and_comes_back(&stage, &place, "f", &[&bind], pid);
    reaper.join().unwrap();
}

#[test]
fn bindfs_as_a_daemon_in_a_private_namespace() {
    let stage = Stage::new(MsFlags::MS_PRIVATE);
    let place = stage.place("m");
    run(Command::new("bindfs").arg(stage.source()).arg(&place));
    dies_and_comes_back(&stage, &place, "f", &[], daemon_at(&place));
}

#[test]
fn gocryptfs() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (place, cipher) = (stage.place("m"), stage.place("cipher"));
    let passfile = stage.path().join("password");
    fs::write(&passfile, "secret").unwrap();
    run(Command::new("gocryptfs").args(["-init", "-q", "-scryptn", "10", "-passfile"]).arg(&passfile).arg(&cipher));
    run(Command::new("gocryptfs").args(["-q", "-allow_other", "-passfile"]).arg(&passfile).arg(&cipher).arg(&place));
    fs::write(place.join("f"), "x").unwrap();
    dies_and_comes_back(&stage, &place, "f", &[], daemon_at(&place));
}

#[test]
fn rclone() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    run(Command::new("rclone")
        .args(["mount", "--daemon", "--allow-other", "--config", ""])
        .arg(stage.source())
        .arg(&place));
    dies_and_comes_back(&stage, &place, "f", &[], daemon_at(&place));
}

#[test]
fn fuse_overlayfs() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let option = format!("lowerdir={}", stage.source().display());
    run(Command::new("fuse-overlayfs").args(["-o", &option]).arg(&place));
    dies_and_comes_back(&stage, &place, "f", &[], daemon_at(&place));
}

/// A daemon of an ordinary user mounts through the set-user-id fusermount, and has that user's ids, groups and no
/// capability.
#[test]
fn an_ordinary_users_daemon_stays_an_ordinary_users() {
    // nobody: fusermount wants a user that has a name.
    const OWNER: u32 = 65_534;
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    std::os::unix::fs::chown(&place, Some(OWNER), Some(OWNER)).unwrap();
    stage.let_everybody_mount();
    run(Command::new("setpriv")
        .args([format!("--reuid={OWNER}"), format!("--regid={OWNER}"), "--groups=61236,61237".into(), "bindfs".into()])
        .arg("--no-allow-other")
        .arg(stage.source())
        .arg(&place));
    until("it is mounted", || !fuse_at(&place).is_empty());
    let daemon = *processes_with(place.as_os_str()).first().unwrap();
    let spec = remember(daemon);
    assert_eq!((spec.uid, spec.gid, spec.groups.as_slice()), (OWNER, OWNER, [61_236, 61_237].as_slice()));
    let mount = only(&place);
    block_on(async {
        let pool = Pool::start(PoolConfig { keep_idle: 1, ..config() }).unwrap();
        for _ in 0..3 {
            pool.probe(ProbeTarget::from(&mount), PATIENCE).await;
        }
        kill_and_wait(daemon);
        let progress = recover(&pool, Bring::Respawn(spec.clone()), vec![mount], features(true)).await;
        assert_eq!(healed(&progress), [place.as_path()], "{progress:#?}");
        let again = launched(&progress);
        assert_eq!(remember(again), started_like(&spec, again));
        let status = fs::read_to_string(format!("/proc/{again}/status")).unwrap();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let line = status.lines().find(|line| line.starts_with(set)).unwrap();
            assert!(line.ends_with("0000000000000000"), "{line}");
        }
        nix::mount::umount(&place).unwrap();
        until("the daemon exits when its file system is unmounted", || !is_running(again));
    });
}

fn dead_bindfs(stage: &Stage, place: &Path) -> (LaunchSpec, Vec<Mount>) {
    let daemon = stage.serve(place);
    let (spec, dead) = (remember(daemon.pid()), vec![only(place)]);
    daemon.kill();
    (spec, dead)
}

#[test]
fn a_daemon_that_does_not_come_up_leaves_the_dead_mount_and_says_why() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let (mut spec, dead) = dead_bindfs(&stage, &place);
    let application = Application::start(&place.join("f"));
    let shell = |script: &str| ["sh".into(), "-c".into(), script.into()].to_vec();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        spec.exe = "/bin/sh".into();
        for (script, expected) in [
            ("echo first >&2; echo 'bad config' >&2; exit 3", ["sh exited with code 3", "it said: first / bad config"]),
            ("kill -SEGV $$", ["sh was killed by SIGSEGV", ""]),
            ("exit 0", ["sh exited with code 0", "before it mounted"]),
        ] {
            spec.argv = shell(script);
            let progress = recover(&pool, Bring::Respawn(spec.clone()), dead.clone(), features(true)).await;
            let failures = failures(&progress);
            assert!(failures.len() == 1 && expected.iter().all(|part| failures[0].contains(part)), "{failures:?}");
        }
        // Nothing that was started is left, neither what detached itself.
        spec.argv = shell("echo slow >&2; setsid sleep 4242 & sleep 4242");
        let short = Duration::from_millis(300);
        let progress = recover_within(&pool, Bring::Respawn(spec.clone()), dead.clone(), features(true), short).await;
        let failures = failures(&progress);
        assert!(failures[0].contains("sh mounted nothing") && failures[0].contains("it said: slow"), "{failures:?}");
        assert!(processes_with("4242".as_ref()).is_empty());
        spec.exe = "/nowhere/bindfs".into();
        let progress = recover(&pool, Bring::Respawn(spec), dead.clone(), features(true)).await;
        assert!(crate::stage::failures(&progress)[0].contains("ENOENT"), "{progress:?}");
    });
    drop(application);
    assert_eq!(only(&place).id, dead[0].id);
}

#[test]
fn the_agents_end_ends_what_is_not_yet_ready() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let (mut spec, dead) = dead_bindfs(&stage, &place);
    spec.exe = "/bin/sh".into();
    spec.argv = vec!["sh".into(), "-c".into(), "setsid sleep 4243 & sleep 4243".into()];
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let job = fuse_detector::recovery::RecoverJob {
            bring: Bring::Respawn(spec),
            dead,
            launched: Vec::new(),
            features: features(true),
            deadline: Duration::from_secs(60),
        };
        let mut progress = pool.recover(job);
        assert!(matches!(progress.recv().await, Some(Progress::Isolated { .. })));
        assert!(matches!(progress.recv().await, Some(Progress::Launched { .. })));
        until("both are there", || processes_with("4243".as_ref()).len() >= 3);
        // The runtime ends here, and with it the worker, which is killed in the middle of its job.
    });
    until("nothing that was launched is left", || processes_with("4243".as_ref()).is_empty());
}

/// A cgroup's directory, removed also when the test fails, with the processes in it.
struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL);
        }
        let deadline = Instant::now() + PATIENCE;
        while self.0.exists() && fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}

#[test]
fn the_daemon_is_put_into_its_cgroup_and_session() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let hierarchy = Path::new("/sys/fs/cgroup/pids");
    let Ok(cgroup) = tempfile::Builder::new().prefix("fuse-detector-test-").tempdir_in(hierarchy) else {
        eprintln!("skipped: no cgroup version 1 hierarchy of pids here");
        return;
    };
    let cgroup = Cgroup(cgroup.keep());
    let daemon = stage.serve(&place);
    fs::write(cgroup.0.join("cgroup.procs"), daemon.pid().to_string()).unwrap();
    fs::write(format!("/proc/{}/oom_score_adj", daemon.pid()), "321").unwrap();
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed());
    let files = Rlimit { current: Some(321), maximum: Some(654) };
    rustix::process::prlimit(pid, Resource::Nofile, files).unwrap();
    let (original, dead) = (remember(daemon.pid()), vec![only(&place)]);
    // bindfs sets its own mask, so the shell before it says which one it was given.
    let mask = stage.path().join("mask");
    let shell = ["sh", "-c", r#"umask > "$0" && exec "$@""#].map(OsString::from);
    let argv = shell.into_iter().chain([mask.clone().into()]).chain(original.argv.clone()).collect();
    let spec = LaunchSpec { exe: "/bin/sh".into(), argv, umask: Some(0o27), ..original.clone() };
    assert!(spec.limits.iter().any(|limit| (limit.soft, limit.hard) == (Some(321), Some(654))));
    daemon.kill();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Respawn(spec.clone()), dead, features(true)).await;
        let pid = launched(&progress);
        // A shell leaves out of the environment what can't be one of its variables.
        let expected = LaunchSpec { env: remember(pid).env, ..started_like(&original, pid) };
        assert_eq!(remember(pid), expected);
        assert_eq!(fs::read_to_string(&mask).unwrap(), "0027\n");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        assert_eq!(fields[3], pid.to_string(), "it doesn't lead a session of its own");
        for (descriptor, target) in [(0, "/dev/null"), (1, "/dev/null")] {
            assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap(), Path::new(target));
        }
        assert_ne!(
            fs::metadata(format!("/proc/{pid}/ns/mnt")).unwrap().ino(),
            fs::metadata("/proc/thread-self/ns/mnt").unwrap().ino()
        );
        nix::mount::umount(&place).unwrap();
        until("the daemon exits", || !is_running(pid));
    });
    // Its files can't be removed one by one; rmdir(2) takes them along.
    until("the cgroup is empty", || fs::remove_dir(&cgroup.0).is_ok());
}

/// A service manager removes the cgroup of a service when its last process has ended.
#[test]
fn a_cgroup_that_is_gone_is_made_again_or_replaced_by_the_nearest() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let hierarchy = Path::new("/sys/fs/cgroup/pids");
    let Ok(cgroup) = tempfile::Builder::new().prefix("fuse-detector-test-").tempdir_in(hierarchy) else {
        eprintln!("skipped: no cgroup version 1 hierarchy of pids here");
        return;
    };
    let parent = Cgroup(cgroup.keep());
    let (inner, deep) = (Cgroup(parent.0.join("inner")), Cgroup(parent.0.join("inner/deep")));
    let name = |cgroup: &Cgroup| Path::new("/").join(cgroup.0.strip_prefix(hierarchy).unwrap());
    let of_pids = |spec: &LaunchSpec| spec.cgroups.iter().find(|it| it.controllers == "pids").unwrap().path.clone();
    fs::create_dir(&inner.0).unwrap();
    fs::create_dir(&deep.0).unwrap();
    let daemon = stage.serve(&place);
    fs::write(deep.0.join("cgroup.procs"), daemon.pid().to_string()).unwrap();
    let (spec, mut dead) = (remember(daemon.pid()), vec![only(&place)]);
    assert_eq!(of_pids(&spec), name(&deep));
    daemon.kill();
    fs::remove_dir(&deep.0).unwrap();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        for (gone, expected) in [(None, &deep), (Some([&deep, &inner]), &parent)] {
            for cgroup in gone.into_iter().flatten() {
                until("the cgroup is empty", || fs::remove_dir(&cgroup.0).is_ok());
            }
            let progress = recover(&pool, Bring::Respawn(spec.clone()), dead, features(true)).await;
            let pid = launched(&progress);
            assert_eq!(of_pids(&remember(pid)), name(expected), "{progress:#?}");
            let noted = |it: &&Progress| matches!(it, Progress::Noted { what } if what.contains("inner/deep"));
            assert_eq!(progress.iter().filter(noted).count(), 1, "{progress:#?}");
            dead = vec![only(&place)];
            kill_and_wait(pid);
        }
    });
}

#[test]
fn the_daemon_has_the_privileges_that_it_had() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let mut command = Command::new("setpriv");
    let kept = "-sys_time,-net_admin";
    command.args(["--no-new-privs", "--bounding-set", kept, "--inh-caps", "+kill", "nice", "-n", "7"]);
    run(command.arg("bindfs").arg(stage.source()).arg(&place));
    let daemon = daemon_at(&place);
    let privileges = remember(daemon).privileges.unwrap();
    assert!(privileges.no_new_privs && privileges.nice == 7 && privileges.inheritable != 0, "{privileges:?}");
    assert_eq!((privileges.bounding >> 25 & 1, privileges.bounding >> 12 & 1), (0, 0), "{privileges:?}");
    dies_and_comes_back(&stage, &place, "f", &[], daemon);
}

/// A daemon can go on talking for years when nobody listens any more.
#[test]
fn what_is_said_after_the_start_is_no_error_and_takes_no_memory() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let (place, go, done) = (stage.place("m"), stage.path().join("go"), stage.path().join("done"));
    let (mut spec, dead) = dead_bindfs(&stage, &place);
    spec.exe = "/bin/sh".into();
    let script = r#"bindfs -f "$0" "$1" & until [ -e "$2" ]; do sleep 0.01; done
        head -c 1048576 /dev/zero >&2; echo $? > "$3"; wait"#;
    let paths = [stage.source(), place.clone(), go.clone(), done.clone()].map(OsString::from);
    spec.argv = ["sh", "-c", script].map(OsString::from).into_iter().chain(paths).collect();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, Bring::Respawn(spec), dead, features(true)).await;
        assert_eq!(healed(&progress), [place.as_path()], "{progress:#?}");
    });
    fs::write(&go, "").unwrap();
    until("all is said", || fs::read_to_string(&done).is_ok_and(|text| text.ends_with('\n')));
    assert_eq!(fs::read_to_string(&done).unwrap(), "0\n", "head failed");
    nix::mount::umount(&place).unwrap();
    until("the daemon exits", || processes_with(stage.path().as_os_str()).is_empty());
}

#[test]
fn a_command_brings_the_replacement() {
    let stage = Stage::new(MsFlags::MS_SHARED);
    let place = stage.place("m");
    let (_, dead) = dead_bindfs(&stage, &place);
    let application = Application::start(&place.join("f"));
    let shell = |script: &str, timeout| Bring::Command {
        argv: ["sh".into(), "-c".into(), script.into()].to_vec(),
        timeout,
        cgroups: vec![],
    };
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let progress = recover(&pool, shell("echo no >&2; exit 5", PATIENCE), dead.clone(), features(true)).await;
        assert!(failures(&progress)[0].contains("exited with code 5"), "{progress:?}");
        let blocked = shell("sleep 4244", Duration::from_millis(200));
        let progress = recover(&pool, blocked, dead.clone(), features(true)).await;
        assert!(failures(&progress)[0].contains("mounted nothing"), "{progress:?}");
        assert!(processes_with("4244".as_ref()).is_empty());
        let script =
            r#"test "$FUSE_DETECTOR_FS_TYPE" = fuse && bindfs "$FUSE_DETECTOR_SOURCE" "$FUSE_DETECTOR_MOUNT_POINT""#;
        let progress = recover(&pool, shell(script, PATIENCE), dead.clone(), features(true)).await;
        assert_eq!(healed(&progress), [place.as_path()], "{progress:?}");
        assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "hello");
        // The wrong file system is not taken, and does not stay.
        let dead = vec![only(&place)];
        kill_and_wait(daemon_at(&place));
        let script = r#"bindfs / "$FUSE_DETECTOR_MOUNT_POINT""#;
        let progress = recover(&pool, shell(script, PATIENCE), dead.clone(), features(true)).await;
        assert!(failures(&progress)[0].starts_with("another source"), "{progress:?}");
        until("it is ended", || processes_with(stage.path().as_os_str()).is_empty());
    });
    application.stop();
}

/// A command can do its work in the host's namespace, and leave its daemon there.
#[test]
fn a_commands_daemon_that_serves_on_the_host_is_not_ended() {
    let stage = Stage::new(MsFlags::MS_PRIVATE);
    let (place, other) = (stage.place("m"), stage.place("other"));
    let daemon = stage.serve(&place);
    stage.bind(&place, &other, MsFlags::empty());
    let dead = of_same_device(&only(&place));
    daemon.kill();
    let script = r#"nsenter --mount="$0" sh -c 'umount -l "$2" && bindfs "$1" "$2"' sh "$1" "$2""#;
    let namespace = format!("/proc/{}/ns/mnt", nix::unistd::gettid());
    let paths = [namespace.into(), stage.source().into(), place.clone().into()];
    let argv = ["sh", "-c", script].map(OsString::from).into_iter().chain(paths).collect();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let bring = Bring::Command { argv, timeout: PATIENCE, cgroups: vec![] };
        let progress = recover(&pool, bring, dead, features(true)).await;
        assert_eq!(healed(&progress), [other.as_path()], "{progress:#?}");
    });
    for place in [&place, &other] {
        assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "hello");
        nix::mount::umount(place).unwrap();
    }
    until("the daemon exits", || processes_with(stage.path().as_os_str()).is_empty());
}

/// The kernel gives the number of a connection to the next one as soon as its last mount is gone.
#[test]
fn a_command_may_unmount_the_dead_one_first_and_get_its_number() {
    let stage = Stage::new(MsFlags::MS_PRIVATE);
    let place = stage.place("m");
    let (_, dead) = dead_bindfs(&stage, &place);
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        let bring = Bring::Command { argv: vec!["true".into()], timeout: PATIENCE, cgroups: vec![] };
        let job = fuse_detector::recovery::RecoverJob {
            bring,
            dead: dead.clone(),
            launched: Vec::new(),
            features: features(true),
            deadline: PATIENCE,
        };
        let mut progress = pool.recover(job);
        while !matches!(progress.recv().await, Some(Progress::Launched { .. })) {}
        nix::mount::umount2(&place, nix::mount::MntFlags::MNT_DETACH).unwrap();
        let _daemon = stage.serve(&place);
        assert_eq!(only(&place).device, dead[0].device, "this test is about a number that is used again");
        let mut all = Vec::new();
        while let Some(progress) = progress.recv().await {
            all.push(progress);
        }
        assert_eq!(failures(&all), Vec::<String>::new());
        assert!(all.iter().any(|it| matches!(it, Progress::Gone { .. })), "{all:#?}");
        assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "hello");
    });
}

#[test]
fn a_command_may_mount_on_the_host_itself() {
    let stage = Stage::new(MsFlags::MS_PRIVATE);
    let (place, other, aside) = (stage.place("m"), stage.place("other"), stage.place("aside"));
    let daemon = stage.serve(&place);
    stage.bind(&place, &other, MsFlags::MS_RDONLY);
    let dead = of_same_device(&only(&place));
    daemon.kill();
    block_on(async {
        let pool = Pool::start(config()).unwrap();
        // As a service manager would: somebody outside mounts, the command itself only asks for it.
        let bring = Bring::Command { argv: vec!["true".into()], timeout: PATIENCE, cgroups: vec![] };
        let job = tokio::spawn({
            let pool = pool.clone();
            let dead = dead.clone();
            async move { recover(&pool, bring, dead, features(true)).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let _daemon = stage.serve(&aside);
        nix::mount::mount(Some(&aside), &place, None::<&str>, MsFlags::MS_MOVE, None::<&str>).unwrap();
        let progress = job.await.unwrap();
        assert_eq!(healed(&progress).len(), 2, "{progress:?}");
        assert!(only(&other).flags.read_only);
        assert_eq!(fs::read_to_string(other.join("f")).unwrap(), "hello");
    });
}
