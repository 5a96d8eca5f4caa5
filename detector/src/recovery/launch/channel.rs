use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::recovery::wire::{Bytes, MountForm};

/// The largest message: a mount with three paths of 4,096 bytes (PATH_MAX), each escaped to four times that, and its
/// superblock options of a page.
const MAX_BYTES: usize = 128 << 10;

/// What the worker asks of the launcher.
#[derive(Serialize, Deserialize)]
pub(super) enum ToGuardian {
    /// A clone of a part of the replacement of a dead connection.
    Clone { dead: u32, relative: Bytes, mount_point: Bytes },
    /// Success: end, and leave the daemon alone.
    Release,
}

/// What the launcher tells.
#[derive(Serialize, Deserialize)]
pub(super) enum FromGuardian {
    /// The launcher is in a mount namespace of its own.
    Isolated {
        namespace: u64,
    },
    /// For the log.
    Noted {
        what: String,
    },
    Launched {
        pid: u32,
    },
    /// The replacement of a dead connection answers. For each connection this or `Missing` is told, once.
    Ready {
        dead: u32,
        mount: Box<MountForm>,
        at: u64,
        pid: Option<u32>,
    },
    /// The replacement of a dead connection did not come, while others did.
    Missing {
        dead: u32,
        error: String,
    },
    /// With the descriptor of the clone.
    Cloned {
        is_directory: bool,
    },
    Failed(String),
}

/// Packets of JSON between two processes, with a descriptor if need be.
pub(super) struct Channel(OwnedFd);

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self(one), Self(other)))
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn send(&self, message: &impl Serialize, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let descriptors: Vec<RawFd> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let control = if descriptors.is_empty() { &[] } else { rights.as_slice() };
        sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// # Errors
    /// `UnexpectedEof`: the other process has ended. `InvalidData`: a malformed message.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Option<OwnedFd>)> {
        let mut bytes = vec![0; MAX_BYTES];
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<()>(self.0.as_raw_fd(), &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let descriptor = received.cmsgs()?.find_map(|message| match message {
            // SAFETY: the kernel just made this descriptor for us, and nobody else knows of it.
            ControlMessageOwned::ScmRights(fds) => fds.first().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }),
            _ => None,
        });
        let length = received.bytes;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message = serde_json::from_slice(bytes.get(..length).unwrap_or_default())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok((message, descriptor))
    }
}
