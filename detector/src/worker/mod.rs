//! Disposable processes for everything that can block for ever.
//!
//! A call into a hung FUSE file system can put its caller into a state that SIGKILL does not end. So the agent never makes
//! one: it asks a worker, a copy of its own program that runs nothing but the loop in `serve`, and gives the worker up when
//! the answer doesn't come in time. [`Pool`] is the agent's side.

mod frame;
mod owner;
mod pool;
mod probe;
mod process;
mod protocol;
mod serve;

pub use pool::{Pool, PoolConfig, PoolStats};
pub use probe::{ProbeOutcome, ProbeTarget};
pub use serve::{is_worker_invocation, main};

pub(crate) use owner::as_owner;
pub(crate) use probe::{AskError, ask};
