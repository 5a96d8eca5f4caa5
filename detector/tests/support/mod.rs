//! A FUSE file system without libfuse: mount(2) by hand, and a forked daemon that answers a handful of requests.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use fuse_detector::model::DeviceNumber;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use tempfile::TempDir;

/// include/uapi/linux/fuse.h
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;

/// A LOOKUP of this name is never answered, one of any other name is answered with an error.
pub const NEVER: &str = "never";

/// A LOOKUP of this name is answered with ECONNABORTED, as if by the kernel.
pub const PRETENDER: &str = "pretender";

/// The test's thread gets a mount namespace of its own; its children inherit it. Nothing is left when they are gone.
pub fn private_namespace() {
    assert!(
        nix::unistd::geteuid().is_root() && Path::new("/dev/fuse").exists(),
        "this test needs root and /dev/fuse: run it as root, or leave it out with `--skip`; it does not pass unseen"
    );
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
}

/// A mounted file system and its daemon. Dropped: daemon killed, mount gone.
pub struct FileSystem {
    pub device: DeviceNumber,
    pub daemon: Pid,
    mount_point: TempDir,
}

impl FileSystem {
    pub fn mount() -> Self {
        let mount_point = tempfile::tempdir().unwrap();
        let fuse = open("/dev/fuse", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", fuse.as_raw_fd());
        mount(Some("raw"), mount_point.path(), Some("fuse.raw"), MsFlags::empty(), Some(options.as_str())).unwrap();
        // SAFETY: the child makes system calls and touches its stack, nothing else.
        let daemon = match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => child,
            ForkResult::Child => serve(&fuse),
        };
        drop(fuse);
        let device = device_of(mount_point.path());
        Self { device, daemon, mount_point }
    }

    pub fn path(&self) -> &Path {
        self.mount_point.path()
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = kill(self.daemon, Signal::SIGKILL);
        let _ = waitpid(self.daemon, None);
        let _ = umount2(self.mount_point.path(), MntFlags::MNT_DETACH);
    }
}

/// From mountinfo: stat would ask the daemon.
fn device_of(mount_point: &Path) -> DeviceNumber {
    let mountinfo = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let line = mountinfo.lines().find(|line| line.contains(mount_point.to_str().unwrap())).unwrap();
    line.split(' ').nth(2).unwrap().parse().unwrap()
}

fn word(buffer: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(buffer[at..at + 4].try_into().unwrap())
}

/// Answers until the connection is gone.
fn serve(fuse: &OwnedFd) -> ! {
    // SAFETY: async-signal-safe. Rust's own handler, inherited from the parent, would swallow a SIGSEGV that was sent.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    let mut buffer = [0_u8; 1 << 17];
    loop {
        // SAFETY: the buffer is as long as said. After fork, only plain system calls.
        let length = unsafe { libc::read(fuse.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        let Ok(length) = usize::try_from(length) else {
            // SAFETY: no exit handlers, which belong to the parent.
            unsafe { libc::_exit(0) }
        };
        let (opcode, unique) = (word(&buffer, 4), &buffer[8..16]);
        let name = buffer[40..length].split(|byte| *byte == 0).next().unwrap_or_default();
        let (error, body): (i32, usize) = match opcode {
            INIT => (0, 64),
            GETATTR => (0, 104),
            STATFS => (0, 80),
            FORGET | BATCH_FORGET => continue,
            LOOKUP if name == NEVER.as_bytes() => continue,
            LOOKUP if name == PRETENDER.as_bytes() => (-libc::ECONNABORTED, 0),
            _ => (-libc::ENOENT, 0),
        };
        let mut reply = [0_u8; 120];
        let total = 16 + body;
        reply[..4].copy_from_slice(&u32::try_from(total).unwrap_or(0).to_ne_bytes());
        reply[4..8].copy_from_slice(&error.to_ne_bytes());
        reply[8..16].copy_from_slice(unique);
        match opcode {
            // fuse_init_out: major, minor, max_readahead, flags, max_background, max_write.
            INIT => {
                reply[16..20].copy_from_slice(&7_u32.to_ne_bytes());
                reply[20..24].copy_from_slice(&31_u32.to_ne_bytes());
                reply[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
            }
            // fuse_attr_out: valid, valid_nsec, dummy, then fuse_attr with ino first and mode at 60.
            GETATTR => {
                reply[32] = 1;
                reply[16 + 16 + 60..16 + 16 + 64].copy_from_slice(&0o40755_u32.to_ne_bytes());
            }
            _ => {}
        }
        // SAFETY: as above.
        unsafe { libc::write(fuse.as_raw_fd(), reply.as_ptr().cast(), total) };
    }
}
