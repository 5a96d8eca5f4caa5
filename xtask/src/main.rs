//! The project's own tasks, run as `cargo xtask TASK`. Each task is a module of its own; this file only dispatches.

mod agent;
mod demo;
mod leftovers;
mod process;
mod sandbox;
mod stats;
mod steerfs;
mod transition;
mod workspace;

use std::process::ExitCode;

use clap::Parser;
use workspace::Profile;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "fuse-detector's own tasks", version)]
struct Arguments {
    #[command(flatten)]
    inside: sandbox::Inside,
    #[command(subcommand)]
    task: Task,
}

#[derive(clap::Subcommand)]
enum Task {
    /// Kill a real FUSE daemon and watch the mount come back, as a timeline
    Demo(demo::Options),
}

fn main() -> ExitCode {
    let Arguments { inside, task } = Arguments::parse();
    let done = match task {
        Task::Demo(options) => sandbox::run(inside, Profile::Dev, |scratch| demo::run(&options, scratch)),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
