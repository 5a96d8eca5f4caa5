//! Manual pages in roff, one for each command.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap_mangen::Man;

use super::manual::{self, ENVIRONMENT, Example, ExitCode, PAGES, Page};

/// Commands for the administrator (man-pages(7)).
const SECTION: &str = "8";

/// A page can't be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct WriteError {
    /// The file or directory.
    path: PathBuf,
    error: io::Error,
}

/// A page: the name of its file, and its text.
pub type Rendered = (String, Vec<u8>);

/// Every page, the program's own first.
///
/// # Errors
/// None that can happen: memory takes everything.
pub fn pages() -> io::Result<Vec<Rendered>> {
    let mut command = manual::command();
    command.build();
    let mut pages = Vec::new();
    render_below(&command, &mut Vec::new(), &mut pages)?;
    Ok(pages)
}

fn render_below(command: &clap::Command, path: &mut Vec<String>, pages: &mut Vec<Rendered>) -> io::Result<()> {
    pages.push(render(command, PAGES.iter().find(|page| page.command == path))?);
    for below in command.get_subcommands() {
        path.push(below.get_name().to_owned());
        render_below(below, path, pages)?;
        path.pop();
    }
    Ok(())
}

fn render(command: &clap::Command, page: Option<&Page>) -> io::Result<Rendered> {
    let man = Man::new(command.clone())
        .section(SECTION)
        .source(format!("{} {}", super::args::PROGRAM, env!("CARGO_PKG_VERSION")))
        .manual("System administration");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(page) = page {
        render_manual(page, &mut text)?;
    }
    Ok((man.get_filename(), text))
}

/// The sections that clap knows nothing of.
fn render_manual(page: &Page, text: &mut impl Write) -> io::Result<()> {
    writeln!(text, ".SH \"EXIT STATUS\"")?;
    for ExitCode { code, meaning } in page.exits {
        writeln!(text, ".TP\n\\fB{code}\\fR\n{}", escape(meaning))?;
    }
    if page.command.is_empty() {
        writeln!(text, ".SH ENVIRONMENT")?;
        for (name, effect) in ENVIRONMENT {
            writeln!(text, ".TP\n\\fB{}\\fR\n{}", escape(name), escape(effect))?;
        }
    }
    writeln!(text, ".SH EXAMPLES")?;
    for Example { line, purpose } in page.examples {
        writeln!(text, ".TP\n\\fB{}\\fR\n{}", escape(line), escape(purpose))?;
    }
    Ok(())
}

/// Text as roff prints it as it is (groff_char(7)): `-` would be a hyphen and `'` a closing quote, neither of which can
/// be copied to a shell.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\e"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '`' => escaped.push_str("\\(ga"),
            '~' => escaped.push_str("\\(ti"),
            '^' => escaped.push_str("\\(ha"),
            other => escaped.push(other),
        }
    }
    // A full stop in the first column would begin a request.
    if escaped.starts_with('.') { format!("\\&{escaped}") } else { escaped }
}

/// Writes every page to a directory, which is made if it is missing.
///
/// # Errors
/// The directory or a file can't be written.
pub fn write(directory: &Path) -> Result<Vec<PathBuf>, WriteError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |error| WriteError { path, error }
    };
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    let mut written = Vec::new();
    for (name, text) in pages().map_err(failed(directory))? {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(failed(&path))?;
        written.push(path);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_exit_status_and_examples() {
        let pages = pages().unwrap();
        let names: Vec<_> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["fuse-detector.8", "fuse-detector-run.8", "fuse-detector-heal.8", "fuse-detector-config-check.8"] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        for (name, text) in &pages {
            let text = String::from_utf8(text.clone()).unwrap();
            // troff reads bytes; what is beyond ASCII comes out garbled without a preprocessor.
            assert!(text.is_ascii(), "{name}");
            let group = name == "fuse-detector-config.8";
            assert!(group || (text.contains(".SH EXAMPLES") && text.contains("EXIT STATUS")), "{name}");
        }
    }

    #[test]
    fn command_lines_survive_roff() {
        assert_eq!(escape("a --b 'c' \\d"), "a \\-\\-b \\(aqc\\(aq \\ed");
        assert_eq!(escape(".x"), "\\&.x");
    }

    #[test]
    fn a_directory_is_filled_and_a_bad_one_named() {
        let directory = tempfile::tempdir().unwrap();
        let written = write(&directory.path().join("man8")).unwrap();
        assert!(written.iter().all(|path| path.exists()));
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(write(&file).unwrap_err().to_string().contains("file"));
    }
}
