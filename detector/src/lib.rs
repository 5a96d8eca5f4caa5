//! `fuse-detector`: learns from the kernel that a FUSE file system died, says why, and mounts it again.
//!
//! One way through: [`kernel`] and [`mounts`] turn what the kernel says into events; the one task of [`agent`] owns all
//! state and asks the pure [`health`] machine what an event means; [`recovery`] plans, [`worker`] processes carry out
//! everything that can block; [`telemetry`] tells of it. `docs/architecture.md` walks through it.

pub mod agent;
pub mod cli;
pub mod health;
pub mod kernel;
pub mod model;
pub mod mounts;
pub mod policy;
pub mod recovery;
pub mod telemetry;
pub mod text;
pub mod worker;
