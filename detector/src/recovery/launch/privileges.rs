//! The privileges that a daemon had when it was seen: taken on between fork and exec.

use std::io;

use crate::mounts::Privileges;

/// include/uapi/linux/capability.h: two words for each set.
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The three sets that capset(2) takes.
#[derive(Clone, Copy)]
struct Sets {
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

impl Sets {
    fn of_this_process() -> io::Result<Self> {
        let mut header = Header { version: VERSION_3, pid: 0 };
        let mut words = [Word::default(); 2];
        // SAFETY: capget(2) writes a header and, of this version, two words.
        let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let [low, high] = words;
        let join = |of: fn(Word) -> u32| u64::from(of(low)) | u64::from(of(high)) << 32;
        Ok(Self {
            effective: join(|word| word.effective),
            permitted: join(|word| word.permitted),
            inheritable: join(|word| word.inheritable),
        })
    }

    fn apply(self) -> io::Result<()> {
        let mut header = Header { version: VERSION_3, pid: 0 };
        let word = |shift: u32| {
            let part = |set: u64| u32::try_from(set >> shift & u64::from(u32::MAX)).unwrap_or(0);
            Word {
                effective: part(self.effective),
                permitted: part(self.permitted),
                inheritable: part(self.inheritable),
            }
        };
        let words = [word(0), word(32)];
        // SAFETY: capset(2) reads a header and, of this version, two words.
        let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// What needs the launcher's rights: its niceness, and what it can never have.
pub(super) fn before_ids(privileges: &Privileges) -> io::Result<()> {
    // To be favoured needs CAP_SYS_NICE: without it the daemon is as nice as the launcher.
    // SAFETY: setpriority(2) takes three numbers, and changes this process only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, privileges.nice) };
    for capability in 0..u64::BITS {
        let number = u64::from(capability);
        let never = privileges.bounding >> capability & 1 == 0;
        // An unknown capability is an error, which is not 1.
        if never && prctl(libc::PR_CAPBSET_READ, number, 0).is_ok_and(|has| has == 1) {
            prctl(libc::PR_CAPBSET_DROP, number, 0)?;
        }
    }
    prctl(libc::PR_CAP_AMBIENT, clear_all(), 0)?;
    let inheritable = privileges.inheritable & privileges.bounding;
    Sets { inheritable, ..Sets::of_this_process()? }.apply()?;
    // Otherwise they are lost when the ids change; execve(2) resets this.
    prctl(libc::PR_SET_KEEPCAPS, 1, 0).map(drop)
}

/// What the program gets beside what its file and its user bring (`P'(permitted)` in capabilities(7)).
pub(super) fn after_ids(privileges: &Privileges, is_root: bool) -> io::Result<()> {
    let now = Sets::of_this_process()?;
    let ambient = privileges.ambient & now.inheritable & now.permitted;
    if !is_root {
        Sets { effective: ambient, permitted: ambient, ..now }.apply()?;
    }
    for capability in (0..u64::BITS).filter(|capability| ambient >> capability & 1 == 1) {
        prctl(libc::PR_CAP_AMBIENT, raise(), u64::from(capability))?;
    }
    if privileges.no_new_privs {
        prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    }
    Ok(())
}

fn clear_all() -> u64 {
    libc::PR_CAP_AMBIENT_CLEAR_ALL.unsigned_abs().into()
}

fn raise() -> u64 {
    libc::PR_CAP_AMBIENT_RAISE.unsigned_abs().into()
}

fn prctl(option: i32, first: u64, second: u64) -> io::Result<i32> {
    // SAFETY: the options used here take numbers only.
    let result = unsafe { libc::prctl(option, first, second, 0_u64, 0_u64) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
