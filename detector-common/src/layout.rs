//! What the programs have to know about the running kernel, as the loader found it in BTF. It lies in `.rodata`, frozen
//! before the programs are verified, so that the verifier knows every value: an offset added to a typed kernel pointer
//! has to be a constant.

/// Byte offsets within kernel structures, named `<structure>_<member>`. The source of each is the member's name in the
/// kernel's BTF, never a kernel version: Linux 7.2 moved half of `fuse_conn` into the new `fuse_chan`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// `fuse_req.fm`, or `.chan` since 7.2: the first of the two pointers that lead to the connection.
    pub request_owner: u32,
    /// `fuse_mount.fc`, or `fuse_chan.conn` since 7.2: the second of them.
    pub owner_connection: u32,
    /// `fuse_conn.dev`: the connection's number, a kernel `dev_t`.
    pub connection_device: u32,
    /// `fuse_conn.connected`, or `fuse_chan.connected` since 7.2; see [`Self::has_chan`].
    pub connected: u32,
    /// No offset: 1 where the kernel has `fuse_chan` (7.2). Functions that were given a `fuse_conn` before then are given a
    /// `fuse_chan` (`fuse_chan_abort`), those that were given a `fuse_mount`, too (`fuse_get_req`).
    pub has_chan: u32,
    /// No offset: which argument of `fuse_get_req` is the `fuse_mount` or `fuse_chan`, 0 or 1.
    pub refused_argument: u32,
    /// `fuse_req.flags`: bits numbered by `enum fuse_req_flag`.
    pub request_flags: u32,
    /// `fuse_req.in.h.opcode`
    pub request_opcode: u32,
    /// `fuse_req.in.h.pid`: who asks, as seen from the daemon's pid namespace; 0 when invisible there.
    pub request_pid: u32,
    /// `fuse_req.out.h.error`
    pub reply_error: u32,
    /// `fuse_req.out.h.unique`: copied from the daemon's answer, so zero in a request that the kernel itself ended.
    pub reply_unique: u32,
    /// `task_struct.tgid`
    pub task_tgid: u32,
    /// `task_struct.flags`: `PF_*`
    pub task_flags: u32,
    /// `task_struct.exit_code`: a wait status
    pub task_exit_code: u32,
    /// `task_struct.signal`
    pub task_signal: u32,
    /// `task_struct.group_leader`
    pub task_leader: u32,
    /// `task_struct.comm`
    pub task_comm: u32,
    /// `signal_struct.live.counter`: threads that have not begun to exit.
    pub signal_live: u32,
    /// `signal_struct.flags`: `SIGNAL_*`
    pub signal_flags: u32,
    /// `signal_struct.group_exit_code`: the wait status of the whole process once it was told to exit.
    pub signal_exit_code: u32,
    /// `kernel_siginfo.si_code`
    pub siginfo_code: u32,
    /// The system call's number in `pt_regs`: `orig_ax` (x86), `syscallno` (arm64).
    pub registers_call: u32,
    /// Its first argument: `di`, `regs[0]`.
    pub registers_first: u32,
    /// Its second argument: `si`, `regs[1]`.
    pub registers_second: u32,
}

impl Layout {
    /// Before the loader has filled it in. The value lies outside every structure, so that a program which would use it
    /// is refused by the verifier instead of reading something else. It is not zero, or the object would have to say
    /// nothing about it and it would land in `.bss`.
    pub const UNKNOWN: Self = Self {
        request_owner: Self::NOWHERE,
        owner_connection: Self::NOWHERE,
        connection_device: Self::NOWHERE,
        connected: Self::NOWHERE,
        has_chan: Self::NOWHERE,
        refused_argument: Self::NOWHERE,
        request_flags: Self::NOWHERE,
        request_opcode: Self::NOWHERE,
        request_pid: Self::NOWHERE,
        reply_error: Self::NOWHERE,
        reply_unique: Self::NOWHERE,
        task_tgid: Self::NOWHERE,
        task_flags: Self::NOWHERE,
        task_exit_code: Self::NOWHERE,
        task_signal: Self::NOWHERE,
        task_leader: Self::NOWHERE,
        task_comm: Self::NOWHERE,
        signal_live: Self::NOWHERE,
        signal_flags: Self::NOWHERE,
        signal_exit_code: Self::NOWHERE,
        siginfo_code: Self::NOWHERE,
        registers_call: Self::NOWHERE,
        registers_first: Self::NOWHERE,
        registers_second: Self::NOWHERE,
    };

    /// Far beyond the end of every structure named here, far below the verifier's own limit for an offset
    /// (`BPF_MAX_VAR_OFF`, 1 << 29).
    pub const NOWHERE: u32 = 1 << 20;
}

/// Name of the programs' constant of type [`Layout`].
pub const LAYOUT_SYMBOL: &str = "LAYOUT";

/// System call numbers below this are told apart; x86-64 and arm64 have fewer than 512.
pub const CALL_LIMIT: u64 = 512;

/// Which system calls matter to the `sys_exit` program. Numbers differ between architectures, so they are data: the
/// agent fills them in from its own `libc`, and the kernel object fits every 64-bit little-endian machine.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallTable {
    /// One bit for each call that names a file by path.
    pub path: [u64; (CALL_LIMIT / 64) as usize],
    /// One bit for each call whose first argument is a file descriptor, and that is practically never used on a socket.
    pub descriptor: [u64; (CALL_LIMIT / 64) as usize],
    /// One bit for each call that sends a signal to a process: kill(2), tgkill(2), rt_sigqueueinfo(2), …
    pub signal: [u64; (CALL_LIMIT / 64) as usize],
    /// `umount2(2)`
    pub umount: u64,
}

impl CallTable {
    /// Before the loader has filled it in: no call matters. `umount` keeps it out of `.bss`.
    pub const UNKNOWN: Self = Self { path: [0; 8], descriptor: [0; 8], signal: [0; 8], umount: CALL_LIMIT };

    /// Marks a call in one of the two sets. A number that is out of bounds is left out.
    pub fn mark(set: &mut [u64; 8], call: u64) {
        if let Some(word) = usize::try_from(call / 64).ok().and_then(|word| set.get_mut(word)) {
            *word |= 1 << (call % 64);
        }
    }

    /// Whether a call is in a set. Written so that the BPF verifier sees the index bounded.
    #[inline(always)]
    pub fn contains(set: &[u64; 8], call: u64) -> bool {
        call < CALL_LIMIT && set[((call / 64) & 7) as usize] & (1 << (call % 64)) != 0
    }
}

const _: () = {
    assert!(size_of::<Layout>() == 24 * 4);
    assert!(size_of::<CallTable>() == 25 * 8);
};

/// Name of the programs' constant of type [`CallTable`].
pub const CALLS_SYMBOL: &str = "CALLS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_call_is_contained_and_no_other() {
        let mut set = [0; 8];
        for call in [0, 63, 64, 511, 512, u64::MAX] {
            CallTable::mark(&mut set, call);
        }
        for call in 0..600 {
            assert_eq!(CallTable::contains(&set, call), [0, 63, 64, 511].contains(&call), "{call}");
        }
        assert!(!CallTable::contains(&set, u64::MAX));
    }
}
