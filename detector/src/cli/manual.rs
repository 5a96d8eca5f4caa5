//! What the manual says beyond the options: examples, exit codes and environment, one source for `--help`, the man pages
//! and `docs/cli.md`.

use std::fmt::Write as _;

/// A command line, and what it is for.
pub struct Example {
    /// As it is typed.
    pub line: &'static str,
    /// One clause.
    pub purpose: &'static str,
}

/// An exit code, and what it means.
pub struct ExitCode {
    /// The number.
    pub code: u8,
    /// One clause.
    pub meaning: &'static str,
}

/// What the manual adds to one command.
pub struct Page {
    /// The command below `fuse-detector`; empty for the program itself.
    pub command: &'static [&'static str],
    /// Examples.
    pub examples: &'static [Example],
    /// Every exit code that the command can have.
    pub exits: &'static [ExitCode],
}

/// Exit code for a wrong command line: clap's own.
pub const USAGE: u8 = 2;

const fn example(line: &'static str, purpose: &'static str) -> Example {
    Example { line, purpose }
}

const fn exit(code: u8, meaning: &'static str) -> ExitCode {
    ExitCode { code, meaning }
}

const USAGE_EXIT: ExitCode = exit(USAGE, "the command line is wrong; the message says what to write instead");

/// Environment variables, with what they do.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("NO_COLOR", "when set and not empty, `--color auto` colours nothing"),
    (
        "FUSE_DETECTOR_LOG",
        "what is logged, as a filter: `warn`, `debug`, or per module, e.g. `info,fuse_detector::recovery=debug`; \
         the default is `info`",
    ),
];

/// Every page.
pub const PAGES: &[Page] = &[
    Page {
        command: &[],
        examples: &[
            example("fuse-detector doctor", "what works on this machine"),
            example("fuse-detector mounts", "which FUSE file systems there are, dead ones included"),
            example("fuse-detector watch", "tell of every death as it happens"),
            example(
                "fuse-detector run --policy /etc/fuse-detector/policy.yaml",
                "the agent, healing as the policy says",
            ),
        ],
        exits: &[
            exit(0, "done"),
            exit(1, "failed; standard error says what and why"),
            USAGE_EXIT,
            exit(3, "`heal` refused; see `fuse-detector heal --help`"),
        ],
    },
    Page {
        command: &["run"],
        examples: &[
            example("fuse-detector run", "observe and tell, heal nothing"),
            example("fuse-detector run --policy policy.yaml --output json", "heal as the policy says, tell machines"),
            example("fuse-detector run --backend portable", "without BPF, as on a node that forbids it"),
            example("fuse-detector run --listen 0.0.0.0:9838", "let Prometheus scrape from another machine"),
        ],
        exits: &[
            exit(0, "stopped by SIGTERM or SIGINT; also where a privilege to heal is missing, of which the log warns"),
            exit(1, "could not start (policy, address in use, no detection possible) or failed while running"),
            USAGE_EXIT,
        ],
    },
    Page {
        command: &["watch"],
        examples: &[
            example("fuse-detector watch", "one line per transition"),
            example(
                "fuse-detector watch --output json | jq -r 'select(.event == \"dead\") | .reason.kind'",
                "only deaths, only their reasons",
            ),
        ],
        exits: &[
            exit(0, "stopped by SIGTERM or SIGINT, or the reader of standard output went away"),
            exit(1, "could not start or failed while running"),
            USAGE_EXIT,
        ],
    },
    Page {
        command: &["mounts"],
        examples: &[
            example("fuse-detector mounts", "a table"),
            example(
                "fuse-detector mounts --output json | jq -r '.[] | select(.state == \"dead\") | .mounts[].mountPoint'",
                "the mount points of dead file systems",
            ),
        ],
        exits: &[
            exit(0, "listed, whatever the state of the file systems"),
            exit(1, "the mounts could not be read"),
            USAGE_EXIT,
        ],
    },
    Page {
        command: &["doctor"],
        examples: &[
            example("fuse-detector doctor", "a table of hooks, and the verdict"),
            example("fuse-detector doctor --output json | jq .backend", "the backend that `run` would use"),
        ],
        exits: &[
            exit(0, "full detection"),
            exit(1, "degraded detection; the last line says why"),
            exit(2, "no detection possible, or the command line is wrong"),
        ],
    },
    Page {
        command: &["heal"],
        examples: &[
            example("fuse-detector heal /mnt/data --dry-run -- bindfs /srv/data /mnt/data", "show the steps only"),
            example(
                "fuse-detector heal /mnt/data -- bindfs /srv/data /mnt/data",
                "start the daemon again and re-attach",
            ),
            example(
                "fuse-detector heal /mnt/bind --from /mnt/data",
                "re-attach a healthy mount of the same file system",
            ),
        ],
        exits: &[
            exit(0, "healed and verified, or there was nothing to heal"),
            exit(1, "failed; what could not be replaced is named, and is as dead as before"),
            USAGE_EXIT,
            exit(3, "refused: it could not be done without hiding or losing something; the message says what"),
        ],
    },
    Page {
        command: &["config", "check"],
        examples: &[example("fuse-detector config check policy.yaml", "before it is deployed, or in CI")],
        exits: &[
            exit(0, "every file is a valid policy"),
            exit(1, "a file can't be read or has problems, which are printed"),
            USAGE_EXIT,
        ],
    },
    Page {
        command: &["completions"],
        examples: &[
            example(
                "fuse-detector completions bash > /etc/bash_completion.d/fuse-detector",
                "for every user of the machine",
            ),
            example("fuse-detector completions fish > ~/.config/fish/completions/fuse-detector.fish", "for yourself"),
        ],
        exits: &[exit(0, "printed"), exit(1, "standard output could not be written"), USAGE_EXIT],
    },
    Page {
        command: &["man"],
        examples: &[
            example("fuse-detector man | man -l -", "read them"),
            example("fuse-detector man /usr/local/share/man/man8", "install them"),
        ],
        exits: &[exit(0, "printed or written"), exit(1, "could not be written"), USAGE_EXIT],
    },
];

impl Page {
    /// The page's text below the options of `--help`.
    pub fn help(&self) -> String {
        let mut text = String::from("Examples:\n");
        for Example { line, purpose } in self.examples {
            let _ = write!(text, "  {line}\n      {purpose}\n");
        }
        text.push_str("\nExit codes:\n");
        for ExitCode { code, meaning } in self.exits {
            let _ = writeln!(text, "  {code}  {meaning}");
        }
        if self.command.is_empty() {
            text.push_str("\nEnvironment:\n");
            for (name, effect) in ENVIRONMENT {
                let _ = write!(text, "  {name}\n      {effect}\n");
            }
        }
        text
    }
}

/// The clap command with the manual's parts added to each `--help`.
pub fn command() -> clap::Command {
    use clap::CommandFactory as _;
    PAGES.iter().fold(super::args::Cli::command(), |command, page| add(command, page.command, page))
}

fn add(command: clap::Command, path: &[&'static str], page: &Page) -> clap::Command {
    match path {
        [] => command.after_long_help(page.help()),
        [name, rest @ ..] => command.mut_subcommand(name, |below| add(below, rest, page)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(command: &clap::Command, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
        if !command.has_subcommands() {
            found.push(path.clone());
        }
        for below in command.get_subcommands() {
            path.push(below.get_name().to_owned());
            leaves(below, path, found);
            path.pop();
        }
    }

    #[test]
    fn every_command_has_a_page_with_examples_and_exit_codes() {
        let mut found = Vec::new();
        leaves(&command(), &mut Vec::new(), &mut found);
        for path in found {
            let page = PAGES.iter().find(|page| page.command == path).unwrap_or_else(|| panic!("{path:?} has no page"));
            assert!(!page.examples.is_empty() && page.exits.len() > 1, "{path:?}");
        }
    }

    #[test]
    fn examples_parse() {
        for example in PAGES.iter().flat_map(|page| page.examples) {
            let own = example.line.split(" | ").next().and_then(|line| line.split(" > ").next()).unwrap();
            command().try_get_matches_from(own.split(' ')).unwrap_or_else(|error| panic!("{own}: {error}"));
        }
    }
}
