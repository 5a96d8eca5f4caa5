//! What can be learnt about FUSE mounts, connections and daemons without a kernel program and without touching any
//! FUSE file system: inventory of all mount namespaces ([`Scanner`]), notification of changes ([`MountWatch`]), the control
//! file system ([`ControlFs`], [`AbortWatch`]), and the daemons ([`holders`](fn@holders), [`remember`], [`ProcessWatch`]).
//!
//! All but the `async` functions are plain system calls on /proc and the control file system, quick but synchronous; the
//! ones that look at every process ([`Scanner::scan`], [`holders`](fn@holders)) belong on a thread that may take its time.

mod abort;
mod control;
mod exit;
mod holders;
#[cfg(test)]
mod measure;
pub mod mountinfo;
mod proc;
mod ready;
mod record;
mod scan;
mod stalled;
mod sys;
#[cfg(test)]
pub(crate) mod testing;
mod unique;
mod watch;

pub use abort::{AbortNotice, AbortWatch, AbortWatchError};
pub use control::{ControlError, ControlFs};
pub use exit::{ProcessWatch, ProcessWatchError};
pub use holders::{Holders, holders, holders_of};
pub use mountinfo::ChildMount;
pub use proc::comm;
pub(crate) use proc::pids;
pub(crate) use record::environment;
pub use record::{CgroupMembership, Credentials, DaemonRecord, Limit, Privileges, RecordError, remember};
pub use scan::{NamespaceMounts, Problem, Scanner, Snapshot, own_namespace};
pub use stalled::stall_cause;
pub(crate) use unique::newest_mount;
pub use watch::MountWatch;
