//! The words of the domain as plain values: no I/O, no clock, no tokio.
//!
//! Every other module speaks in these types, and the one task that owns the state ([`crate::agent`]) exchanges
//! nothing else with those that act.

mod connection;
mod mount;
mod process;
mod reason;
mod stall;
mod transition;

pub use connection::{ConnectionId, DeviceNumber, ParseDeviceNumberError};
pub use mount::{FsKind, Mount, MountFlags, MountId, NamespaceId, Propagation};
pub use process::{AbortCall, AbortCause, Daemon, ExitStatus, Process, Signal};
pub use reason::Reason;
pub use stall::{StallCause, WaitingRequest};
pub use transition::{BackendKind, Boottime, Recovery, Transition, TransitionKind, TransitionMount};
