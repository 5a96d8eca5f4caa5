//! The command line: parses, calls, prints, and gives the exit code.

pub mod args;
mod config;
pub mod doctor;
mod heal;
mod inventory;
mod man;
pub mod manual;
pub mod mounts;
mod place;
mod reference;
mod run;
mod sources;
pub mod style;
mod table;
mod terminal;
pub mod transitions;
mod units;
mod watch;

pub use reference::reference;

use std::process::ExitCode;

use clap::FromArgMatches as _;

use self::args::{Cli, Command, ConfigCommand, Output, PROGRAM};
use self::style::{Painter, Style};
use crate::kernel;

/// How to talk to whoever sits in front of it.
#[derive(Debug, Clone, Copy)]
pub struct Ui {
    /// For standard output.
    pub output: Painter,
    /// For standard error.
    pub error: Painter,
}

/// Failed: standard error says why.
const FAILED: u8 = 1;

/// Carries out the command line of this process.
pub fn main() -> ExitCode {
    let cli = match manual::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // Prints help and version to standard output with code 0, errors to standard error with [`manual::USAGE`].
        Err(error) => error.exit(),
    };
    let ui = Ui {
        output: Painter::for_stream(cli.color, &std::io::stdout()),
        error: Painter::for_stream(cli.color, &std::io::stderr()),
    };
    match dispatch(cli.command, &ui) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("{PROGRAM}: {}: {message}", ui.error.paint(Style::Bad, "error"));
            ExitCode::from(FAILED)
        }
    }
}

fn dispatch(command: Command, ui: &Ui) -> Result<u8, String> {
    match command {
        Command::Run(arguments) => run::main(arguments, ui),
        Command::Watch(arguments) => watch::main(arguments, ui),
        Command::Heal(arguments) => heal::main(arguments, ui),
        Command::Mounts(arguments) => list_mounts(arguments.output.output, ui),
        Command::Doctor(arguments) => report_doctor(&arguments, ui),
        Command::Config(ConfigCommand::Check(arguments)) => {
            let (text, good) = config::check(&arguments.files, ui.output, sources::policy_rules);
            print(&text)?;
            Ok(if good { 0 } else { FAILED })
        }
        Command::Completions(arguments) => {
            let mut script = Vec::new();
            clap_complete::generate(arguments.shell, &mut manual::command(), PROGRAM, &mut script);
            print_bytes(&script)
        }
        Command::Man(arguments) => write_man(&arguments),
    }
}

fn list_mounts(output: Output, ui: &Ui) -> Result<u8, String> {
    let sources::Listing { reports, own, problems } = sources::connections()?;
    for problem in problems {
        eprintln!("{PROGRAM}: {}: {problem}", ui.error.paint(Style::Warning, "warning"));
    }
    match output {
        Output::Text => print(&mounts::table(&reports, own, ui.output, terminal::columns())),
        Output::Json => print(&mounts::json(&reports).map_err(|error| error.to_string())?),
    }
}

fn report_doctor(arguments: &args::DoctorArgs, ui: &Ui) -> Result<u8, String> {
    let report = kernel::examine(arguments.backend.into());
    match arguments.output.output {
        Output::Text => print(&doctor::table(&report, ui.output, terminal::columns()))?,
        Output::Json => print(&doctor::json(&report).map_err(|error| error.to_string())?)?,
    };
    Ok(doctor::exit_code(report.verdict()))
}

fn write_man(arguments: &args::ManArgs) -> Result<u8, String> {
    let Some(directory) = &arguments.directory else {
        let pages = man::pages().map_err(|error| error.to_string())?;
        return print_bytes(&pages.into_iter().flat_map(|(_, text)| text).collect::<Vec<_>>());
    };
    let written = man::write(directory).map_err(|error| error.to_string())?;
    print(&written.iter().map(|path| format!("{}\n", path.display())).collect::<String>())
}

fn print(text: &str) -> Result<u8, String> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> Result<u8, String> {
    terminal::print(bytes).map_err(|error| format!("standard output: {error}"))?;
    Ok(0)
}
