//! `docs/cli.md`, generated from clap and the manual.

use std::fmt::Write as _;

use clap::builder::StyledStr;

use super::manual::{self, ENVIRONMENT, Example, ExitCode, PAGES, Page};

const HEAD: &str = "\
# Command line

<!-- Generated from the code; do not edit. `cargo xtask` writes it and CI compares. -->
";

/// `docs/cli.md`: every command with its options, examples and exit codes.
pub fn reference() -> String {
    let mut command = manual::command();
    command.build();
    let mut text = String::from(HEAD);
    section(&command, &mut Vec::new(), &mut text);
    text.push_str("\n## Environment\n\n| variable | effect |\n|---|---|\n");
    for (name, effect) in ENVIRONMENT {
        let _ = writeln!(text, "| `{name}` | {} |", cell(effect));
    }
    text
}

fn section(command: &clap::Command, path: &mut Vec<String>, text: &mut String) {
    let name = std::iter::once(super::args::PROGRAM).chain(path.iter().map(String::as_str)).collect::<Vec<_>>();
    let about = command.get_long_about().or_else(|| command.get_about()).map(StyledStr::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let _ = write!(text, "\n## {}\n\n{}\n\n```\n{usage}\n```\n", name.join(" "), about.trim());
    options(command, path.is_empty(), text);
    if let Some(page) = PAGES.iter().find(|page| page.command == path) {
        manual_part(page, text);
    }
    for below in command.get_subcommands() {
        path.push(below.get_name().to_owned());
        section(below, path, text);
        path.pop();
    }
}

/// The table of arguments; global options and those of every program are in the program's own section only.
fn options(command: &clap::Command, top: bool, text: &mut String) {
    let own = |argument: &&clap::Arg| {
        let common = argument.is_global_set() || matches!(argument.get_id().as_str(), "help" | "version");
        !argument.is_hide_set() && (top || !common)
    };
    let arguments: Vec<_> = command.get_arguments().filter(own).collect();
    if arguments.is_empty() {
        return;
    }
    text.push_str("\n| argument | default | meaning |\n|---|---|---|\n");
    for argument in arguments {
        let defaults: Vec<_> =
            argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
        let help = argument.get_help().map(StyledStr::to_string).unwrap_or_default();
        let defaults = if takes_value(argument) { defaults.join(" ") } else { String::new() };
        let _ =
            writeln!(text, "| `{}` | {defaults} | {}{} |", cell(&spelling(argument)), cell(&help), values(argument));
    }
}

fn takes_value(argument: &clap::Arg) -> bool {
    argument.get_action().takes_values()
}

/// As the usage line would spell it.
fn spelling(argument: &clap::Arg) -> String {
    let value = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    let many = if argument.get_num_args().is_some_and(|range| range.max_values() > 1) { "…" } else { "" };
    match (argument.get_long(), argument.get_short()) {
        (Some(long), _) if takes_value(argument) => format!("--{long} {value}"),
        (Some(long), Some(short)) => format!("-{short}, --{long}"),
        (Some(long), None) => format!("--{long}"),
        (None, _) if argument.is_last_set() => format!("-- {value}{many}"),
        (None, _) => format!("{value}{many}"),
    }
}

/// What the value can be, where that is a short list with something to say of each.
fn values(argument: &clap::Arg) -> String {
    let values: Vec<_> = (argument.get_possible_values().iter())
        .filter(|_| takes_value(argument))
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}`: {}", value.get_name(), cell(&help.to_string())),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if values.is_empty() { String::new() } else { format!("<br>{}", values.join("<br>")) }
}

fn manual_part(page: &Page, text: &mut String) {
    text.push_str("\nExamples:\n\n");
    for Example { line, purpose } in page.examples {
        let _ = writeln!(text, "- `{line}`: {purpose}");
    }
    text.push_str("\n| exit code | meaning |\n|---|---|\n");
    for ExitCode { code, meaning } in page.exits {
        let _ = writeln!(text, "| {code} | {} |", cell(meaning));
    }
}

/// Text that stays within its field of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_defaults_and_exit_codes_are_in_it() {
        let text = reference();
        for part in [
            "## fuse-detector config check",
            "| `--listen ADDR` | `127.0.0.1:9838` |",
            "| `-- COMMAND…` |",
            "`tracepoint`: BPF programs on tracepoints",
            "| 3 | refused",
            "`FUSE_DETECTOR_LOG`",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn the_committed_references_are_up_to_date() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        for (name, text) in [("cli.md", reference()), ("metrics.md", crate::telemetry::reference())] {
            let committed = std::fs::read_to_string(docs.join(name)).unwrap_or_default();
            assert!(committed == text, "docs/{name} is not what the code says; write it anew");
        }
    }
}
