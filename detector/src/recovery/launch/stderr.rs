use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, getsockname, recv, setsockopt, socket,
    sockopt,
};

use crate::recovery::error::Tail;

/// How much of it is worth telling.
const TOLD: usize = 512;
/// More than a datagram can be by default (`net.core.wmem_default`).
const DATAGRAM: usize = 256 << 10;
/// How much a daemon may write at once when nobody listens any more.
const AT_ONCE: usize = 4 << 20;

/// What a program writes to standard error until it answers. Nobody wants to know the rest, which a daemon may go on writing for
/// years: no write of it may fail, wait, or take memory.
///
/// A pipe ends its writer by SIGPIPE when its reader has gone, and a file grows. So it is a datagram socket that is connected to
/// itself, which needs no reader, and gets a filter in the end that drops everything: the kernel then throws away what is written
/// and says that it was sent (`unix_dgram_sendmsg` in net/unix/af_unix.c). As with systemd's journal, it can't be opened by the
/// name `/dev/stderr`.
pub(super) struct Stderr {
    socket: OwnedFd,
    tail: RefCell<Vec<u8>>,
}

impl Stderr {
    pub fn new() -> io::Result<Self> {
        let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        // The kernel chooses an address without a name in the file system ("autobind" in unix(7)). Nobody else can send to a
        // socket that has another peer.
        bind(socket.as_raw_fd(), &UnixAddr::new_unnamed())?;
        connect(socket.as_raw_fd(), &getsockname::<UnixAddr>(socket.as_raw_fd())?)?;
        Ok(Self { socket, tail: RefCell::default() })
    }

    /// A descriptor for the program.
    pub fn writer(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Readable when something was written: it has to be taken then, or the program waits.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes what was written.
    pub fn take(&self) {
        let mut tail = self.tail.borrow_mut();
        let mut datagram = vec![0; DATAGRAM];
        while let Ok(length) = recv(self.socket.as_raw_fd(), &mut datagram, MsgFlags::MSG_DONTWAIT) {
            tail.extend_from_slice(datagram.get(..length).unwrap_or_default());
            let excess = tail.len().saturating_sub(TOLD);
            tail.drain(..excess);
        }
    }

    /// The last of what was written.
    pub fn tail(&self) -> Tail {
        self.take();
        Tail(self.tail.borrow().clone())
    }

    fn drop_everything(&self) {
        // One instruction: of each datagram keep 0 bytes, that is, none (SO_ATTACH_FILTER in socket(7)).
        const RETURN: u16 = 0x06;
        let mut filter = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut filter };
        let length = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0);
        // SAFETY: the kernel copies one structure of this length, and the one instruction that it points to; both outlive the call.
        unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                length,
            )
        };
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        self.drop_everything();
        // What was written before takes memory, and its writer's allowance.
        self.take();
        // Without CAP_NET_ADMIN as much as the machine allows (`net.core.wmem_max`).
        if setsockopt(&self.socket, sockopt::SndBufForce, &AT_ONCE).is_err() {
            let _ = setsockopt(&self.socket, sockopt::SndBuf, &AT_ONCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_end_is_told() {
        let stderr = Stderr::new().unwrap();
        let mut writer = File::from(stderr.writer().unwrap());
        assert_eq!(stderr.tail(), Tail::default());
        writer.write_all(b"first line\n").unwrap();
        writer.write_all(b"last line\n").unwrap();
        assert_eq!(stderr.tail().to_string(), "; it said: first line / last line");
        writer.write_all(&[b'x'; 100_000]).unwrap();
        assert_eq!(stderr.tail().0, [b'x'; 512]);
    }

    #[test]
    fn when_nobody_listens_any_more_a_writer_does_not_notice() {
        let stderr = Stderr::new().unwrap();
        let mut writer = File::from(stderr.writer().unwrap());
        writer.write_all(b"not read").unwrap();
        drop(stderr);
        for _ in 0..10_000 {
            assert_eq!(writer.write(&[b'x'; 4096]).unwrap(), 4096);
        }
        assert_eq!(writer.write(&[b'x'; 1 << 20]).unwrap(), 1 << 20);
        let mut left = [0; 16];
        assert!(recv(writer.as_raw_fd(), &mut left, MsgFlags::MSG_DONTWAIT).is_err(), "something is kept");
    }
}
