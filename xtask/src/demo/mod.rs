//! `cargo xtask demo`: a file system's daemon is killed, the agent tells why and puts the mount back, and an application
//! that reads a file all the while tells what it saw.

mod application;
mod render;
mod timeline;

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;

use self::application::Application;
use self::timeline::Story;
use crate::agent::{self, Agent};
use crate::process;
use crate::sandbox::Scratch;
use crate::steerfs;
use crate::transition::{Event, Line};
use crate::workspace::Profile;

/// A quick first run matters more here than the agent's last microseconds.
pub const PROFILE: Profile = Profile::Dev;

/// For the agent to tell of a mount that has just been made.
const READY_PATIENCE: Duration = Duration::from_secs(10);

/// For the agent to tell of the death: thousands of times what it takes.
const DEAD_PATIENCE: Duration = Duration::from_secs(5);

/// For the heal, a busy machine and one retry included.
const HEAL_PATIENCE: Duration = Duration::from_secs(20);

/// For the application's next read once the mount serves again.
const READ_PATIENCE: Duration = Duration::from_secs(5);

/// How long the application reads before the daemon is killed and after the heal: some thousand reads.
const QUIET: Duration = Duration::from_millis(300);

/// Options of `demo`.
#[derive(clap::Args)]
pub struct Options {
    /// Which kernel hooks to use: auto, tracepoint or portable
    #[arg(long, default_value = "auto")]
    backend: String,
}

/// Runs it and prints the timeline.
///
/// # Errors
/// The step that failed, or what the application should never have seen.
pub fn run(options: &Options, scratch: &Scratch) -> Result<()> {
    let story = play(options, scratch)?;
    println!("{}", render::render(&story, render::colours_wanted()));
    ensure!(story.seen.wrong == 0, "the application read a wrong file");
    Ok(())
}

fn play(options: &Options, scratch: &Scratch) -> Result<Story> {
    let data = steerfs::mount_point(&scratch.dir, "data")?;
    let policy = policy(&data.to_string_lossy());
    let agent = Agent::start(&agent::Options {
        program: &scratch.binaries.agent,
        directory: &scratch.dir,
        backend: &options.backend,
        policy: &policy,
        arguments: &[],
    })?;
    steerfs::mount(&scratch.binaries.steerfs, &data, &["--source", "demo"])?;
    agent.wait("the mount to be ready", READY_PATIENCE, |line| line.event == Event::Ready && line.is_about(&data))?;
    println!("steerfs is mounted on {}; an application reads a file from it in a loop\n", data.display());

    let application = Application::start(&data.join(steerfs::FILE))?;
    sleep(QUIET);
    let daemon = steerfs::daemon(&data)?;
    let killed = Timestamp::now();
    process::kill_child(daemon)?;
    let dead = agent.wait("the death", DEAD_PATIENCE, |line| line.event == Event::Dead && line.is_about(&data))?;
    let (recovering, recovered) = wait_for_heal(&agent, &dead)?;
    application.wait_until_good_again(READ_PATIENCE).map_err(|error| agent.explain(error))?;
    sleep(QUIET);
    let seen = application.finish()?;
    agent.stop()?;
    Ok(Story { killed, daemon, dead, recovering, recovered, seen })
}

/// The lines about the heal of the connection that `dead` tells of.
fn wait_for_heal(agent: &Agent, dead: &Line) -> Result<(Option<Line>, Line)> {
    let ours = |line: &Line| line.connection == dead.connection && line.epoch == dead.epoch;
    let is_step = |line: &Line| match line.event {
        Event::Recovering | Event::Recovered => true,
        Event::RecoveryFailed => line.gave_up,
        Event::Ready | Event::Hung | Event::Dead | Event::Unmounted | Event::Detached => false,
    };
    let mut recovering = None;
    loop {
        let line = agent.wait("the heal", HEAL_PATIENCE, |line| ours(line) && is_step(line))?;
        match line.event {
            Event::Recovered => return Ok((recovering, line)),
            Event::RecoveryFailed => {
                let error = line.error.unwrap_or_else(|| "no reason given".to_owned());
                bail!(agent.explain(anyhow::anyhow!("the agent could not heal the mount: {error}")));
            }
            _ => recovering = Some(line),
        }
    }
}

/// Heals what is mounted at the path, by starting the daemon again, and leaves everything else on the machine alone.
fn policy(mount_point: &str) -> String {
    format!(
        "defaults: {{ mode: observe }}\n\
         rules:\n\
         \x20 - match: {{ mountPoint: {mount_point:?} }}\n\
         \x20   mode: heal\n\
         \x20   strategy: respawn\n"
    )
}
