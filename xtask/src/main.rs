//! The project's own tasks, run as `cargo xtask TASK`. Each task is a module of its own; this file only dispatches.

mod agent;
mod bench;
mod build_ebpf;
mod ci;
mod demo;
mod docs;
mod leftovers;
mod packages;
mod process;
mod sandbox;
mod stats;
mod steerfs;
mod test;
mod transition;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

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
    /// Install what the tests need, run them, and check that they left nothing behind
    Test(test::Options),
    /// Measure the project's targets on this machine
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Build the kernel object, or check that the committed one is what the source builds
    BuildEbpf(build_ebpf::Options),
    /// Generate the reference pages in docs/, or check that they are up to date
    Docs(docs::Options),
    /// Run the scenarios on other kernels, in virtual machines
    Vm(vm::Options),
    /// Run what a change has to pass
    Ci,
}

fn main() -> ExitCode {
    let Arguments { inside, task } = Arguments::parse();
    let done = match task {
        Task::Demo(options) => sandbox::run(inside, demo::PROFILE, |scratch| demo::run(&options, scratch)),
        Task::Test(options) => test::run(&options),
        Task::Bench(bench) => sandbox::run(inside, bench::PROFILE, |scratch| bench::run(&bench, scratch)),
        Task::BuildEbpf(options) => build_ebpf::run(&options).map(|()| ExitCode::SUCCESS),
        Task::Docs(options) => docs::run(&options),
        Task::Vm(options) => vm::run(&options),
        Task::Ci => ci::run(),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
