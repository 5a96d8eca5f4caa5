//! fuse-detector's own tasks.

mod build_ebpf;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "fuse-detector's own tasks")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    BuildEbpf(build_ebpf::Options),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::BuildEbpf(options) => build_ebpf::run(&options),
    }
}
