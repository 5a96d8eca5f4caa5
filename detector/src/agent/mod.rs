//! The agent: one task owns all state and consumes one queue.
//!
//! [`Node`] is the state, without I/O: an event goes in, actions come out. [`Shell`] owns it, feeds it with what
//! [`sources`] report, and carries out its actions; whatever can block is done by worker processes and comes back as an
//! event like any other.

mod answers;
mod candidates;
mod connection;
mod daemons;
mod event;
mod healing;
mod launch;
mod node;
mod scan;
mod shell;
mod sources;
mod stall;
mod telling;
#[cfg(test)]
mod tests;
mod watching;

pub use event::{Action, Event, Found, Scope};
pub use node::{Node, Setting, VfsErrors};
pub use shell::{Options, Shell, StartError};
pub use stall::Requests;
