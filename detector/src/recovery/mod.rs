//! Puts the mounts of a dead connection back: what to do is decided by pure functions ([`plan`], [`choose`],
//! [`Backoff`], [`FlapWatch`]), done in a worker process ([`crate::worker`]) that may block without harm.
//!
//! The way of one recovery: [`Bring`] says where the living replacement comes from. The worker clones the replacement
//! once for each dead mount, gives each clone the flags and the propagation of the mount that it replaces, moves it
//! beneath that mount, detaches the dead one, and asks the file system through the path before it reports success.

mod backoff;
mod choose;
mod dress;
mod error;
mod features;
mod flapping;
mod heal;
mod job;
mod launch;
mod plan;
pub(crate) mod run;
mod sys;
mod table;
pub(crate) mod wire;

pub use backoff::{Backoff, BackoffSettings};
pub use choose::{Facts, NoStrategy, Strategy, StrategyChoice, choose};
pub use error::{RecoverError, Stage};
pub use features::Features;
pub use flapping::{FlapSettings, FlapWatch};
pub use job::{Bring, CgroupMembership, LaunchSpec, Progress, RecoverJob};
pub use launch::Mark;
pub use plan::{Placement, Plan, Refusal, Refused, Replacement, Step, plan};
pub use sys::MountTarget;
pub(crate) use sys::{Looked, is_of_the_dead, look_at};
