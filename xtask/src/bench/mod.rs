//! `cargo xtask bench`: the project's targets, measured on this machine, as tables for `docs/benchmarks.md`.

mod burst;
mod detect;
mod idle;
mod kills;
mod load;
mod overhead;
mod programs;
mod report;

use std::path::Path;

use anyhow::Result;

use crate::agent::{self, Agent};
use crate::sandbox::Scratch;
use crate::workspace::Profile;

/// Figures are those of the optimised agent.
pub const PROFILE: Profile = Profile::Release;

/// What is measured.
#[derive(clap::Subcommand)]
pub enum Bench {
    /// Time from a daemon's death to the decision and to the heal; the agent's idle cost; many deaths at once
    Detect(detect::Options),
    /// What the agent costs other programs: system calls and FUSE requests, with it and without it
    Overhead(overhead::Options),
}

/// Measures, prints the table and, if asked to, puts it into `docs/benchmarks.md`.
///
/// # Errors
/// What failed. A missed target is no error: it stands in the table.
pub fn run(bench: &Bench, scratch: &Scratch) -> Result<()> {
    match bench {
        Bench::Detect(options) => detect::run(options, scratch),
        Bench::Overhead(options) => overhead::run(options, scratch),
    }
}

/// An agent that heals what is mounted below the scratch directory, or only watches.
fn agent(scratch: &Scratch, backend: &str, heal: bool, arguments: &[&str]) -> Result<Agent> {
    let policy = if heal { healing(&scratch.dir) } else { "defaults: { mode: observe }\nrules: []\n".to_owned() };
    Agent::start(&agent::Options {
        program: &scratch.binaries.agent,
        directory: &scratch.dir,
        backend,
        policy: &policy,
        arguments,
    })
}

fn healing(directory: &Path) -> String {
    let glob = directory.join("**");
    format!(
        "defaults: {{ mode: observe }}\n\
         rules:\n\
         \x20 - match: {{ mountPoint: {:?} }}\n\
         \x20   mode: heal\n\
         \x20   strategy: respawn\n",
        glob.to_string_lossy()
    )
}
