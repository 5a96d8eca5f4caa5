//! What the scenarios on real FUSE daemons and mount namespaces are written with, and the protocol that commands the
//! file system whose faults can be chosen while it runs (`steerfs`).
//!
//! A scenario runs in a [`Sandbox`]: a thread with a mount namespace and a temporary directory of its own. It starts
//! daemons ([`Steerfs`], [`daemons`]) and an [`Agent`], does something, and waits for what the agent has to say about it.

pub mod agent;
pub mod backend;
pub mod cgroup;
pub mod daemons;
pub mod event;
pub mod heal;
pub mod http;
pub mod loopdev;
pub mod mountinfo;
pub mod process;
pub mod reader;
pub mod sandbox;
pub mod steer;
pub mod steerfs;
pub mod wait;

pub use agent::{Agent, Options};
pub use backend::Backend;
pub use event::Event;
pub use reader::Reader;
pub use sandbox::Sandbox;
pub use steerfs::Steerfs;
