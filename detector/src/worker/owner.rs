//! Acting as a mount's owner.
//!
//! A FUSE mount without `allow_other` serves a process only if its real, effective and saved user and group ids are all
//! the owner's (`fuse_permissible_uidgid` in fs/fuse/dir.c). Others, root included, get EACCES, and from statfs(2) an
//! invented success for which the daemon is not asked (`fuse_statfs` in fs/fuse/inode.c).

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, getresgid, getresuid, setresgid, setresuid};
use rustix::process::Signal;
use rustix::thread::CapabilitiesSecureBits;

/// Runs `act` with all three user and group ids those of `owner` and with the capabilities kept. Ids and secure bits are
/// as before afterwards: a process that is started later as somebody else must lose its capabilities.
///
/// # Errors
/// The ids could not be taken on (no CAP_SETUID, CAP_SETGID or CAP_SETPCAP); `act` was not run then.
pub(crate) fn as_owner<T>(owner: (u32, u32), act: impl FnOnce() -> T) -> Result<T, Errno> {
    let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
    let (uids, gids) = (getresuid()?, getresgid()?);
    let is_owner =
        [uids.real, uids.effective, uids.saved] == [uid; 3] && [gids.real, gids.effective, gids.saved] == [gid; 3];
    if is_owner {
        return Ok(act());
    }
    let bits = rustix::thread::capabilities_secure_bits().map_err(errno)?;
    let keep = CapabilitiesSecureBits::NO_SETUID_FIXUP | CapabilitiesSecureBits::KEEP_CAPS;
    rustix::thread::set_capabilities_secure_bits(bits | keep).map_err(errno)?;

    let taken = setresgid(gid, gid, gid).and_then(|()| setresuid(uid, uid, uid));
    rearm_death_signal();
    let result = taken.map(|()| act());

    let restored = setresuid(uids.real, uids.effective, uids.saved)
        .and_then(|()| setresgid(gids.real, gids.effective, gids.saved))
        .and_then(|()| rustix::thread::set_capabilities_secure_bits(bits).map_err(errno));
    if restored.is_err() {
        // A worker with somebody else's ids must do nothing more. The agent sees it end.
        std::process::exit(super::serve::EXIT_LOST_IDS);
    }
    rearm_death_signal();
    result
}

/// The kernel forgets a process's parent-death signal when its effective or file system ids change (`commit_creds` in
/// kernel/cred.c).
fn rearm_death_signal() {
    // Fails for an invalid signal only.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

fn errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}
