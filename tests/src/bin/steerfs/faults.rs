use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuse_detector_tests::steer::{Opcode, Stats};
use fuser::Errno;

/// What happens to a request instead of a prompt and proper answer.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    Delay(Duration),
    Never,
    Errno(i32),
}

/// The faults in force and what was served, shared by every connection of the process.
#[derive(Debug, Default)]
pub struct Faults {
    table: Mutex<HashMap<Opcode, Fault>>,
    seen: Mutex<BTreeMap<Opcode, u64>>,
    held: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faults {
    pub fn set(&self, opcode: Opcode, fault: Fault) {
        locked(&self.table).insert(opcode, fault);
    }

    pub fn reset(&self) {
        locked(&self.table).clear();
    }

    pub fn stats(&self) -> Stats {
        Stats { requests: locked(&self.seen).clone(), held: self.held.load(Ordering::SeqCst) }
    }

    fn of(&self, opcode: Opcode) -> Option<Fault> {
        *locked(&self.seen).entry(opcode).or_default() += 1;
        let table = locked(&self.table);
        table.get(&opcode).or_else(|| table.get(&Opcode::Any)).copied()
    }

    /// Answers a request as the fault in force wants it. A held request waits in a thread of its own, so that the others
    /// go on.
    pub fn answer<R: Reply>(self: &Arc<Self>, opcode: Opcode, reply: R, answer: impl FnOnce(R) + Send + 'static) {
        match self.of(opcode) {
            None => answer(reply),
            Some(Fault::Errno(errno)) => reply.fail(Errno::from_i32(errno)),
            Some(Fault::Never) => {
                self.held.fetch_add(1, Ordering::SeqCst);
                // Dropped, the reply would answer EIO.
                std::mem::forget(reply);
            }
            Some(Fault::Delay(delay)) => {
                self.held.fetch_add(1, Ordering::SeqCst);
                let faults = Arc::clone(self);
                std::thread::spawn(move || {
                    std::thread::sleep(delay);
                    answer(reply);
                    faults.held.fetch_sub(1, Ordering::SeqCst);
                });
            }
        }
    }
}

/// A reply of fuser that can be kept for later and can say an error.
pub trait Reply: Send + 'static {
    fn fail(self, errno: Errno);
}

macro_rules! replies {
    ($($reply:ident),*) => {
        $(impl Reply for fuser::$reply {
            fn fail(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

replies!(ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite);
