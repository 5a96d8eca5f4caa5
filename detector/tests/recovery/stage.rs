//! A mount namespace that ends with the test, daemons that end with it, and an eye on what an application sees.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuse_detector::model::{Mount, NamespaceId};
use fuse_detector::mounts::mountinfo;
use fuse_detector::recovery::{Bring, Features, Progress, RecoverJob};
use fuse_detector::worker::{Pool, PoolConfig};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

pub const PATIENCE: Duration = Duration::from_secs(10);

/// A directory in a mount namespace of the calling thread's own. What is mounted in it vanishes with the thread.
pub struct Stage {
    directory: tempfile::TempDir,
}

impl Stage {
    /// `propagation` is that of everything in the namespace, as on a host: shared, or private.
    pub fn new(propagation: MsFlags) -> Self {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).expect("these tests need root");
        change("/".as_ref(), MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        change("/".as_ref(), MsFlags::MS_REC | propagation);
        let stage = Self { directory: tempfile::tempdir().unwrap() };
        mount(Some("stage"), stage.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        fs::create_dir_all(stage.path().join("src/sub")).unwrap();
        fs::write(stage.path().join("src/f"), "hello").unwrap();
        fs::write(stage.path().join("src/sub/inner"), "inner").unwrap();
        stage
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn source(&self) -> PathBuf {
        self.path().join("src")
    }

    /// An empty directory to mount on.
    pub fn place(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// bindfs in the foreground, serving `src` at `place`.
    pub fn serve(&self, place: &Path) -> Daemon {
        self.serve_from(&self.source(), place, &[])
    }

    pub fn serve_from(&self, source: &Path, place: &Path, options: &[&str]) -> Daemon {
        let child = Command::new("bindfs")
            .arg("-f")
            .args(options)
            .arg(source)
            .arg(place)
            .stdin(Stdio::null())
            .spawn()
            .expect("these tests need bindfs");
        let daemon = Daemon(child);
        until("bindfs has mounted", || !fuse_at(place).is_empty());
        // The mount shows before FUSE_INIT is answered; this waits for the answer.
        nix::sys::statvfs::statvfs(place).unwrap();
        daemon
    }

    /// Ordinary users may open `/dev/fuse`, as on most machines, and reach the stage.
    pub fn let_everybody_mount(&self) {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        fs::set_permissions(self.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let device = self.path().join("fuse");
        // Documentation/admin-guide/devices.txt
        mknod(&device, SFlag::S_IFCHR, Mode::empty(), makedev(10, 229)).unwrap();
        fs::set_permissions(&device, PermissionsExt::from_mode(0o666)).unwrap();
        self.bind(&device, "/dev/fuse".as_ref(), MsFlags::empty());
    }

    pub fn bind(&self, from: &Path, to: &Path, flags: MsFlags) {
        mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        if !flags.is_empty() {
            let remount = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags;
            mount(None::<&str>, to, None::<&str>, remount, None::<&str>).unwrap();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Everything below goes with it; the temporary directory itself is then empty.
        let _ = nix::mount::umount2(self.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

pub fn change(place: &Path, propagation: MsFlags) {
    mount(None::<&str>, place, None::<&str>, propagation, None::<&str>).unwrap();
}

/// A process that is killed with its handle.
pub struct Daemon(pub Child);

impl Daemon {
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Number of mounts in the calling thread's namespace.
pub fn mount_count() -> usize {
    parsed().entries
}

fn parsed() -> mountinfo::Parsed {
    mountinfo::parse(&fs::read("/proc/thread-self/mountinfo").unwrap(), NamespaceId(1))
}

/// The FUSE mounts at a place, in the order in which they are listed.
pub fn fuse_at(place: &Path) -> Vec<Mount> {
    parsed().mounts.into_iter().filter(|mount| mount.mount_point == place).collect()
}

pub fn only(place: &Path) -> Mount {
    let mut mounts = fuse_at(place);
    assert_eq!(mounts.len(), 1, "{mounts:#?}");
    mounts.remove(0)
}

/// All mounts of the file system that is mounted at a place.
pub fn of_same_device(mount: &Mount) -> Vec<Mount> {
    parsed().mounts.into_iter().filter(|other| other.device == mount.device).collect()
}

pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn features(beneath: bool) -> Features {
    let found = Features::detect();
    Features { beneath: beneath && found.beneath, ..found }
}

/// The worker processes are children of this thread, hence in its mount namespace.
pub fn config() -> PoolConfig {
    PoolConfig { exe: env!("CARGO_BIN_EXE_fuse-detector").into(), ..PoolConfig::default() }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Runs one recovery to its end.
pub async fn recover(pool: &Pool, bring: Bring, dead: Vec<Mount>, features: Features) -> Vec<Progress> {
    recover_within(pool, bring, dead, features, PATIENCE).await
}

pub async fn recover_within(
    pool: &Pool,
    bring: Bring,
    dead: Vec<Mount>,
    features: Features,
    deadline: Duration,
) -> Vec<Progress> {
    let mut receiver = pool.recover(RecoverJob { bring, dead, launched: Vec::new(), features, deadline });
    let mut all = Vec::new();
    while let Some(progress) = receiver.recv().await {
        all.push(progress);
    }
    assert_eq!(all.pop(), Some(Progress::Finished));
    all
}

pub fn healed(progress: &[Progress]) -> Vec<&Path> {
    let mut places = Vec::new();
    for progress in progress {
        if let Progress::Healed { mount, .. } = progress {
            places.push(mount.mount_point.as_path());
        }
    }
    places
}

pub fn failures(progress: &[Progress]) -> Vec<String> {
    let error = |progress: &Progress| match progress {
        Progress::Failed { error, .. } => Some(error.clone()),
        _ => None,
    };
    progress.iter().filter_map(error).collect()
}

/// An application that opens a file below a mount point again and again: unlike stat(2), that is never answered from a
/// cache. It may be told that the connection is dead; that the file doesn't exist would mean that it saw the bare directory.
pub struct Application {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    dead: AtomicU64,
}

impl Application {
    pub fn start(file: &Path) -> Self {
        let (shared, file) = (Arc::new(Shared::default()), file.to_owned());
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !seen.stop.load(Ordering::Relaxed) {
                let counter = match fs::File::open(&file) {
                    Ok(_) => &seen.answered,
                    Err(error) if error.kind() == ErrorKind::NotFound => panic!("the bare directory was visible"),
                    Err(error) if is_dead(&error) => &seen.dead,
                    Err(error) => panic!("{error}"),
                };
                counter.fetch_add(1, Ordering::Release);
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Waits until it was told of a death once more than before.
    pub fn wait_for_death(&self) {
        self.wait_for_one_more(&self.shared.dead, "that the mount is dead");
    }

    /// Waits until a file was opened once more than before.
    pub fn wait_for_answer(&self) {
        self.wait_for_one_more(&self.shared.answered, "that the mount serves");
    }

    fn wait_for_one_more(&self, counter: &AtomicU64, what: &str) {
        let (before, deadline) = (counter.load(Ordering::Acquire), Instant::now() + PATIENCE);
        while counter.load(Ordering::Acquire) == before {
            assert!(self.thread.as_ref().is_some_and(|thread| !thread.is_finished()), "the application gave up");
            assert!(Instant::now() < deadline, "the application never saw {what}");
            std::thread::yield_now();
        }
    }

    /// # Panics
    /// If it was told anything but that the mount serves or that it is dead.
    pub fn stop(mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn is_dead(error: &std::io::Error) -> bool {
    error
        .raw_os_error()
        .map(Errno::from_raw)
        .is_some_and(|errno| matches!(errno, Errno::ENOTCONN | Errno::ECONNABORTED))
}

pub fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
}

/// The processes whose arguments contain a text: those of this test's daemons, whose directories are theirs alone.
pub fn processes_with(text: &OsStr) -> Vec<u32> {
    let text = text.as_encoded_bytes();
    let has = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.windows(text.len()).any(|part| part == text))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has).collect()
}
