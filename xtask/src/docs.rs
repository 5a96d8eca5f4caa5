//! `cargo xtask docs`: the reference pages, generated from the code that they describe.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::workspace;

/// A page below the workspace's root, and what makes its text.
struct Page {
    path: &'static str,
    generate: fn() -> String,
}

const PAGES: &[Page] = &[
    Page { path: "docs/cli.md", generate: fuse_detector::cli::reference },
    Page { path: "docs/metrics.md", generate: fuse_detector::telemetry::reference },
];

/// Options of `docs`.
#[derive(clap::Args)]
pub struct Options {
    /// Change nothing: fail if a committed page is not what the code generates
    #[arg(long)]
    check: bool,
}

/// Writes the pages, or compares them.
///
/// # Errors
/// A page cannot be read or written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let root = workspace::root()?;
    let mut stale = false;
    for Page { path, generate } in PAGES {
        let (file, text) = (root.join(path), generate());
        if options.check {
            if let Some(difference) = difference(&file, &text)? {
                eprintln!("{path}:{difference}\n  run `cargo xtask docs` and commit the result");
                stale = true;
            }
        } else {
            fs::write(&file, text).with_context(|| format!("cannot write {path}"))?;
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The number and both texts of the first line that differs; `None` if the file has that text.
fn difference(file: &Path, text: &str) -> Result<Option<String>> {
    let committed = match fs::read_to_string(file) {
        Ok(committed) => committed,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    if committed == text {
        return Ok(None);
    }
    let (mut ours, mut theirs) = (committed.lines(), text.lines());
    let mut number = 1;
    loop {
        match (ours.next(), theirs.next()) {
            (Some(one), Some(other)) if one == other => number += 1,
            // Only the line feed at the end differs.
            (None, None) => return Ok(Some(format!("{number}: the end of the file differs"))),
            (one, other) => {
                let (one, other) = (one.unwrap_or("(nothing)"), other.unwrap_or("(nothing)"));
                return Ok(Some(format!("{number}: committed {one:?}, generated {other:?}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_different_line_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("page.md");
        let told = |text: &str| difference(&file, text).unwrap();
        assert_eq!(told("a\n").as_deref(), Some("1: committed \"(nothing)\", generated \"a\""));
        fs::write(&file, "a\nb\n").unwrap();
        assert_eq!(told("a\nb\n"), None);
        assert_eq!(told("a\nc\n").as_deref(), Some("2: committed \"b\", generated \"c\""));
        assert_eq!(told("a\n").as_deref(), Some("2: committed \"b\", generated \"(nothing)\""));
        assert_eq!(told("a\nb").as_deref(), Some("3: the end of the file differs"));
    }
}
