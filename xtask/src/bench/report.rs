//! Figures as Markdown, and their place in `docs/benchmarks.md`.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::workspace;

/// Where the tables stand, below the workspace's root.
const FILE: &str = "docs/benchmarks.md";

/// A table of Markdown with its columns aligned, so that it reads as plain text too.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these column heads.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|&head| head.to_owned()).collect()] }
    }

    /// One more row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table's text.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            line(&mut text, row.iter().map(String::as_str), &widths);
            if number == 0 {
                let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                line(&mut text, rules.iter().map(String::as_str), &widths);
            }
        }
        text
    }
}

fn line<'a>(text: &mut String, cells: impl Iterator<Item = &'a str>, widths: &[usize]) {
    for (cell, width) in cells.zip(widths) {
        let _ = write!(text, "| {cell:<width$} ");
    }
    text.push_str("|\n");
}

/// Whether a target is reached.
pub fn verdict(reached: bool) -> String {
    if reached { "PASS".to_owned() } else { "MISS".to_owned() }
}

/// A time with the unit that suits it, three digits or more.
pub fn time(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    match nanos {
        0..10_000 => format!("{nanos} ns"),
        10_000..10_000_000 => format!("{} µs", nanos / 1_000),
        _ => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
    }
}

/// The kernel and the machine's class, which every figure depends on.
pub fn machine() -> String {
    // Without the builder's suffix.
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.split('-').next().unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let model = model.trim_start_matches([' ', '\t', ':']);
    format!("Linux {}, {}, {cpus} CPUs ({model})", kernel.trim(), std::env::consts::ARCH)
}

/// Prints the section and, if `write`, replaces the one of that name in the file.
///
/// # Errors
/// The file cannot be read or written, or has no such section.
pub fn publish(section: &str, command: &str, body: &str, write: bool) -> Result<()> {
    let text = format!("`{command}` on {}:\n\n{body}", machine());
    println!("\n{text}");
    if !write {
        return Ok(());
    }
    let path = workspace::root()?.join(FILE);
    let old = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let new = replace(&old, section, &text).with_context(|| format!("{FILE} has no section {section:?}"))?;
    fs::write(&path, new).with_context(|| format!("cannot write {}", path.display()))
}

/// The document with the text between the section's marks replaced.
fn replace(document: &str, section: &str, text: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- begin: {section} -->\n"), format!("<!-- end: {section} -->"));
    let (before, rest) = document.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{}\n\n{end}{after}", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_by_characters() {
        let mut table = Table::new(&["what", "median"]);
        table.row(["kill to decision".to_owned(), "74 µs".to_owned()]);
        assert_eq!(
            table.render(),
            "| what             | median |\n| ---------------- | ------ |\n| kill to decision | 74 µs  |\n"
        );
    }

    #[test]
    fn only_the_section_of_that_name_is_replaced() {
        let document = "# T\n<!-- begin: a -->\nold\n<!-- end: a -->\n<!-- begin: b -->\nkept\n<!-- end: b -->\n";
        let once = replace(document, "a", "new\n").unwrap();
        assert_eq!(
            once,
            "# T\n<!-- begin: a -->\n\nnew\n\n<!-- end: a -->\n<!-- begin: b -->\nkept\n<!-- end: b -->\n"
        );
        assert_eq!(replace(&once, "a", "new\n").unwrap(), once);
        assert_eq!(replace(document, "c", "x"), None);
    }

    #[test]
    fn times_have_a_suitable_unit() {
        let times = [74, 9_999, 74_000, 2_500_000, 250_000_000].map(|nanos| time(Duration::from_nanos(nanos)));
        assert_eq!(times, ["74 ns", "9999 ns", "74 µs", "2500 µs", "250.0 ms"]);
    }
}
