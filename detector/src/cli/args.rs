//! The command line as a type: what clap parses, and nothing else. Examples and exit codes stand in [`super::manual`].

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::kernel::BackendChoice;
use crate::model::BackendKind;

/// The name of the program, as it is typed.
pub const PROGRAM: &str = "fuse-detector";

/// Learns from the kernel that a FUSE file system died, says why, and mounts it again.
///
/// A FUSE file system lives in a process. When that process dies, every path below its mount point fails with "Transport
/// endpoint is not connected" until somebody unmounts and mounts again. fuse-detector hears of the death from the kernel
/// the moment it happens, says who or what caused it, and puts the mount back for everybody who used it, without
/// restarting them.
///
/// Start with `fuse-detector doctor` (what this kernel allows), `fuse-detector mounts` (what is there and how it fares)
/// and `fuse-detector watch` (tell, change nothing).
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// Colour the output: `auto` does so on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Global options")]
    pub color: ColorChoice,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: detect, tell, and heal as the policy says
    ///
    /// Prints one line per transition on standard output (a file system became ready, hangs, died, was recovered);
    /// everything else it has to say goes to standard error, as a log. The log has a line for each transition, too, unless
    /// both lead to the same place. Without a policy it heals nothing.
    ///
    /// Stop it with SIGTERM or SIGINT. It never unmounts anything on the way out.
    Run(RunArgs),
    /// Print what happens to FUSE file systems, change nothing
    ///
    /// As `run` without a policy and without HTTP: for a look at a machine, by hand or from a script.
    Watch(WatchArgs),
    /// List the FUSE connections, how they fare and where they are mounted
    ///
    /// Looks at every mount namespace. Needs no running agent, and never blocks, also with dead and hung file systems
    /// around: each is asked for a sign of life by a process of its own, with a deadline.
    Mounts(MountsArgs),
    /// Say what this kernel and these privileges allow, hook by hook, and what is lost without it
    Doctor(DoctorArgs),
    /// Mount a dead FUSE file system again, now
    ///
    /// Every mount of the dead connection is replaced, in this mount namespace, and success is reported only after the
    /// healed path answered. The directory below the mount point is never visible, not for an instant. Nothing is
    /// deleted.
    ///
    /// The replacement is one of: a command to start the daemon (after `--`), a healthy mount of the same file system
    /// (`--from`), or, with neither, what somebody has mounted at the same place already, or the policy's command. How
    /// the daemon was started is known only to an agent that saw it run.
    Heal(HealArgs),
    /// Work on policy files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual pages, or write them to a directory
    Man(ManArgs),
}

/// Commands on policy files.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check policy files strictly: unknown keys, bad globs and contradictory rules are errors
    ///
    /// Prints each problem as FILE:LINE:COLUMN: MESSAGE, which editors understand.
    Check(ConfigCheckArgs),
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The policy: which mounts to heal, and how; without it nothing is healed
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would print the documentation of a flattened field as help")]
    pub detection: DetectionArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would print the documentation of a flattened field as help")]
    pub output: OutputArgs,
    /// Where to serve /metrics, /livez, /readyz and /status: IP:PORT, or `off`
    #[arg(long, value_name = "ADDR", default_value_t = Listen::default())]
    pub listen: Listen,
    /// Log what the kernel programs have to say for debugging
    #[arg(long)]
    pub kernel_log: bool,
    /// Format of the log on standard error; the default is `text` on a terminal, else `json`
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<Output>,
}

/// Options of `watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would print the documentation of a flattened field as help")]
    pub detection: DetectionArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would print the documentation of a flattened field as help")]
    pub output: OutputArgs,
}

/// How to detect: shared by `run` and `watch`.
#[derive(Debug, Clone, Copy, Args)]
pub struct DetectionArgs {
    /// Which kernel hooks to use; `auto` takes the best that works here
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    pub backend: Backend,
    /// Learn of errors that applications see (ENOTCONN, ECONNABORTED) from the end of every system call
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub vfs_errors: VfsErrors,
}

/// How to print: shared by every listing.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// Format of standard output: `text` for people, `json` for machines
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

/// Options of `mounts`.
#[derive(Debug, Args)]
pub struct MountsArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would print the documentation of a flattened field as help")]
    pub output: OutputArgs,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Judge this backend; `auto` judges the best that works here
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    pub backend: Backend,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would print the documentation of a flattened field as help")]
    pub output: OutputArgs,
}

/// Options of `heal`.
#[derive(Debug, Args)]
pub struct HealArgs {
    /// The dead mount point, or a path below it; links and `..` are followed as far as no FUSE file system has to be asked
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub path: PathBuf,
    /// Print the steps, do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// A healthy mount of the same file system, to be attached wherever the dead one is
    #[arg(long, value_name = "MOUNT", value_hint = ValueHint::DirPath, conflicts_with = "daemon")]
    pub from: Option<PathBuf>,
    /// The policy whose first matching rule names the strategy
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["from", "daemon"])]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would print the documentation of a flattened field as help")]
    pub output: OutputArgs,
    /// The command that starts the daemon again at the same mount point
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub daemon: Vec<OsString>,
}

/// Options of `config check`.
#[derive(Debug, Args)]
pub struct ConfigCheckArgs {
    /// The policy files
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
}

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write one file per command here; without it all pages go to standard output
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: Option<PathBuf>,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set or TERM is `dumb`
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// A format of text: standard output's or the log's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For machines
    Json,
}

/// Which set of kernel hooks to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The best that works here
    Auto,
    /// BPF programs at the entry of FUSE's functions, by trampoline
    Fentry,
    /// The same by breakpoint: for kernels that don't describe FUSE's types
    Kprobe,
    /// BPF programs on tracepoints only
    Tracepoint,
    /// No BPF: pidfd and mountinfo notification
    Portable,
}

impl From<Backend> for BackendChoice {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Auto => Self::Auto,
            Backend::Fentry => Self::Only(BackendKind::Fentry),
            Backend::Kprobe => Self::Only(BackendKind::Kprobe),
            Backend::Tracepoint => Self::Only(BackendKind::Tracepoint),
            Backend::Portable => Self::Only(BackendKind::Portable),
        }
    }
}

/// Whether to hook the end of every system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VfsErrors {
    /// Only while something is wrong
    Auto,
    /// Always: every system call of the machine takes longer, measured: about 120 ns (docs/benchmarks.md)
    On,
    /// Never
    Off,
}

/// Where HTTP is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// On this address.
    Address(SocketAddr),
}

impl Listen {
    /// Loopback: the agent knows paths and process names, so nobody else is told unless somebody asks for it.
    const DEFAULT: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), Self::DEFAULT_PORT);
    /// Free in the list of ports that Prometheus exporters use.
    const DEFAULT_PORT: u16 = 9838;
}

impl Default for Listen {
    fn default() -> Self {
        Self::Address(Self::DEFAULT)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The text is neither `off` nor an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give IP:PORT, for example 127.0.0.1:9838, 0.0.0.0:9838 or [::1]:9838, or `off`; names are not looked up")]
pub struct ParseListenError;

impl FromStr for Listen {
    type Err = ParseListenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::Address).map_err(|_| ParseListenError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once(&PROGRAM).chain(line))
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn run_has_the_documented_defaults() {
        let Command::Run(run) = parse(&["run"]).unwrap().command else { panic!("not run") };
        assert_eq!(run.listen.to_string(), "127.0.0.1:9838");
        assert_eq!((run.detection.backend, run.detection.vfs_errors), (Backend::Auto, VfsErrors::Auto));
        assert_eq!((run.output.output, run.log_format), (Output::Text, None));
        assert!(run.policy.is_none() && !run.kernel_log);
    }

    #[test]
    fn listen_is_an_address_or_off() {
        assert_eq!("off".parse(), Ok(Listen::Off));
        assert_eq!("[::1]:80".parse::<Listen>().unwrap().to_string(), "[::1]:80");
        for bad in ["", "localhost:9838", "9838", ":9838", "127.0.0.1", "127.0.0.1:65536", "OFF"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn heal_takes_one_source_of_the_replacement() {
        let Command::Heal(heal) = parse(&["heal", "/mnt", "--dry-run", "--", "sshfs", "-o", "ro"]).unwrap().command
        else {
            panic!("not heal")
        };
        assert_eq!(heal.daemon, ["sshfs", "-o", "ro"]);
        assert!(heal.dry_run);
        assert!(parse(&["heal", "/mnt", "--from", "/a", "--", "sshfs"]).is_err());
        assert!(parse(&["heal", "/mnt", "--from", "/a", "--policy", "/p"]).is_err());
        assert!(parse(&["heal"]).is_err());
    }

    #[test]
    fn the_colour_option_goes_anywhere() {
        assert_eq!(parse(&["mounts", "--color", "never"]).unwrap().color, ColorChoice::Never);
        assert_eq!(parse(&["--color=always", "mounts"]).unwrap().color, ColorChoice::Always);
    }
}
