//! The `/dev/fuse` side: mounting by mount(2), and taking over, passing on and closing the descriptor.

use std::ffi::OsString;
use std::fs;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use fuser::{Notifier, Session, SessionACL};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};

use crate::cli::{Cli, FsType};
use crate::filesystem::SteerFs;

/// One message carries at most this many descriptors (`SCM_MAX_FD`, unix(7)).
const MAX_PASSED: usize = 253;

/// A connection whose INIT was answered.
pub struct Connection {
    /// Where this process mounted it; `None` when it took it over.
    pub mount_point: Option<PathBuf>,
    descriptor: RawFd,
    /// Shares the session's descriptor: the number stays ours as long as this lives, also when the session has ended.
    _keeps_open: Notifier,
}

impl Connection {
    /// Answers FUSE_INIT on a descriptor that was mounted just now.
    fn establish(fs: SteerFs, device: OwnedFd, mount_point: Option<PathBuf>) -> io::Result<(Self, Session<SteerFs>)> {
        let descriptor = device.as_raw_fd();
        // Who may ask is the kernel's to decide (allow_other); fuser's own check is off.
        let session = Session::from_fd(fs, device, SessionACL::All, fuser::Config::default())?;
        Ok((Self { mount_point, descriptor, _keeps_open: session.notifier() }, session))
    }

    /// The `/dev/fuse` descriptor.
    pub fn device(&self) -> BorrowedFd<'_> {
        // SAFETY: the session owned this number when it was read, and `_keeps_open` shares that ownership.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }

    /// Puts another open file under the descriptor's number, for the session too.
    fn replace(&self, file: BorrowedFd<'_>) -> nix::Result<()> {
        // SAFETY: the number is owned by the session (see `device`), which goes on to own it with the new file under it.
        let result = unsafe { libc::dup2(file.as_raw_fd(), self.descriptor) };
        nix::errno::Errno::result(result).map(drop)
    }

    /// Closes the device in all but name: /dev/null takes its place. A thread that is reading from it keeps the device
    /// open until a signal interrupts that read.
    pub fn close(&self) -> io::Result<()> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        Ok(self.replace(null.as_fd())?)
    }

    /// Detaches the mount that this process made.
    pub fn unmount(&self) -> nix::Result<()> {
        self.mount_point.as_deref().map_or(Ok(()), |path| umount2(path, MntFlags::MNT_DETACH))
    }
}

/// Mounts the file system and answers FUSE_INIT.
pub fn mount_at(cli: &Cli, fs: SteerFs, mount_point: &Path) -> anyhow::Result<(Connection, Session<SteerFs>)> {
    let device = mount_only(cli, mount_point)?;
    Connection::establish(fs, device.into(), Some(mount_point.to_owned())).with_context(|| {
        let _ = umount2(mount_point, MntFlags::MNT_DETACH);
        format!("FUSE_INIT of {}", mount_point.display())
    })
}

/// Mounts the file system. FUSE_INIT waits to be read from the device.
pub fn mount_only(cli: &Cli, mount_point: &Path) -> anyhow::Result<File> {
    // libfuse looks at the mount point first, and so refuses one where a dead mount hangs.
    let mode = fs::metadata(mount_point)
        .with_context(|| format!("bad mount point {}", mount_point.display()))?
        .permissions()
        .mode();
    let device = File::options().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
    let (user, group) = cli.owner();
    let mut options =
        format!("fd={},rootmode={:o},user_id={user},group_id={group}", device.as_raw_fd(), mode & libc::S_IFMT);
    if !cli.no_allow_other {
        options.push_str(",allow_other");
    }
    let (base, source) = match cli.fstype {
        FsType::Fuse => ("fuse", OsString::from(&cli.source)),
        FsType::Fuseblk => ("fuseblk", cli.device.clone().unwrap_or_default().into_os_string()),
    };
    let fs_type = cli.subtype.as_ref().map_or_else(|| base.to_owned(), |subtype| format!("{base}.{subtype}"));
    mount(Some(source.as_os_str()), mount_point, Some(fs_type.as_str()), MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("mount {fs_type} on {} with {options}", mount_point.display()))?;
    Ok(device)
}

/// Serves on with a descriptor whose FUSE_INIT another process answered.
///
/// fuser insists on a handshake of its own, so it gets one from a socket; then the device takes the socket's place.
pub fn take_over(fs: SteerFs, device: OwnedFd) -> anyhow::Result<(Connection, Session<SteerFs>)> {
    let (kernel, ours) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    nix::unistd::write(&kernel, &init_request()).context("handshake with ourselves")?;
    let (connection, session) = Connection::establish(fs, ours, None).context("handshake with ourselves")?;
    connection.replace(device.as_fd()).context("dup2")?;
    Ok((connection, session))
}

/// A FUSE_INIT request as the kernel would send it, offering no capability: `struct fuse_in_header` and
/// `struct fuse_init_in` of include/uapi/linux/fuse.h.
fn init_request() -> Vec<u8> {
    const HEADER: u32 = 40;
    const INIT_IN: u32 = 64;
    const OPCODE_INIT: u32 = 26;
    let (unique, node, user, group, process, padding) = (2u64, 0u64, 0u32, 0u32, 0u32, 0u32);
    let (major, minor, max_readahead) = (7u32, 31u32, 128u32 << 10);
    let mut request = Vec::new();
    request.extend((HEADER + INIT_IN).to_ne_bytes());
    request.extend(OPCODE_INIT.to_ne_bytes());
    request.extend(unique.to_ne_bytes());
    request.extend(node.to_ne_bytes());
    for field in [user, group, process, padding, major, minor, max_readahead] {
        request.extend(field.to_ne_bytes());
    }
    request.resize((HEADER + INIT_IN) as usize, 0);
    request
}

/// Sends the descriptors to the steerfs that listens on `socket`.
pub fn pass_on(connections: &[Connection], socket: &Path) -> anyhow::Result<()> {
    ensure!(connections.len() <= MAX_PASSED, "more than {MAX_PASSED} descriptors");
    let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
    let descriptors: Vec<RawFd> = connections.iter().map(|connection| connection.device().as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    // A control message needs at least one byte of data to travel with (unix(7)).
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(b"f")], &rights, MsgFlags::empty(), None).context("SCM_RIGHTS")?;
    Ok(())
}

/// Waits for descriptors from [`pass_on`].
pub fn receive(listener: &UnixListener) -> anyhow::Result<Vec<OwnedFd>> {
    let (stream, _) = listener.accept().context("accept")?;
    let mut byte = [0u8];
    let mut data = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([RawFd; MAX_PASSED]);
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut data, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)
        .context("recvmsg")?;
    let mut received = Vec::new();
    for control in message.cmsgs().context("control messages")? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: the kernel installed these descriptors for this process just now, nobody else knows them.
            received.extend(descriptors.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    if received.is_empty() {
        bail!("a message without descriptors");
    }
    Ok(received)
}
