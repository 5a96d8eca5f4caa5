//! Descriptors that the runtime waits for. Apart from [`super::sys`] the only unsafe code of this module: tokio wants
//! a promise about the descriptor that its type can't give.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::fanotify::Fanotify;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A type that owns its descriptor, always gives the same one, and keeps it open as long as it lives: what
/// [`AsyncFd::register`] requires.
///
/// # Safety
/// All three must hold, whatever is done through a shared reference.
pub unsafe trait OwnsDescriptor: AsRawFd {}

// SAFETY: it owns one descriptor, which it closes when dropped, and can't exchange it through a shared reference.
unsafe impl OwnsDescriptor for OwnedFd {}
// SAFETY: it is an `OwnedFd`.
unsafe impl OwnsDescriptor for File {}
// SAFETY: it is an `OwnedFd` in a private field that nothing exchanges.
unsafe impl OwnsDescriptor for Fanotify {}

/// Registers the descriptor with the runtime of the caller.
///
/// # Errors
/// The kernel can't poll it, or has no room left.
pub fn register<T: OwnsDescriptor>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: `OwnsDescriptor`.
    let registered = unsafe { AsyncFd::register_with_interest(descriptor, interest) };
    registered.map_err(|error| error.into_parts().1)
}
