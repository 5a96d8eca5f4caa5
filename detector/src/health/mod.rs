//! The health of one connection: a state machine over plain values, without I/O and without a clock.
//!
//! The shell ([`crate::agent`]) feeds a [`Machine`] with what it learns ([`Input`]) and does what the machine asks for
//! ([`Effect`]). What the machine rests on:
//!
//! - Only evidence from the kernel makes a connection dead: a probe that the kernel answered as it does every request on a
//!   dead connection ([`is_of_the_dead`]), or requests aborted while their only daemon dies of a signal. A slow, refused or failed probe never
//!   does.
//! - libfuse closes `/dev/fuse` before it unmounts (`fuse_session_unmount`), so a death that nothing violent explains is
//!   held back for [`GRACE`], and dropped when the mounts leave.
//! - Several sources tell of one event, in any order: the exit of a daemon comes from the kernel hook and from a pidfd,
//!   an abort from the hook and from fanotify. Whatever comes after the verdict changes nothing.
//!
//! What the shell owes the machine:
//!
//! - every [`Effect::Probe`] is answered by one [`Input::Probed`], every [`Effect::FindHolders`] by one
//!   [`Input::Holders`], every [`Effect::Arm`] by [`Input::Timer`] once its time has passed, unless it was disarmed or
//!   armed anew;
//! - [`Timer::Settle`] is followed by a fresh [`Input::Mounts`], and so is every change of the mounts;
//! - the exits of all processes it named in [`Input::DaemonSeen`] and [`Input::Holders`] are reported.

mod evidence;
mod input;
mod machine;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use input::{
    DaemonEnd, Effect, ExitSource, Input, Origin, Others, ProbeOutcome, State, Timer, Verdict, is_of_the_dead,
};
pub use machine::{GRACE, Machine};
