//! Aligned columns.

use super::style::{Painter, Style};

/// Between columns.
const GAP: &str = "  ";

/// One field of a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    text: String,
    style: Option<Style>,
}

impl Cell {
    /// Text as it is; it must be printable.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: None }
    }

    /// Text with a meaning.
    pub fn styled(style: Style, text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Some(style) }
    }

    fn columns(&self) -> usize {
        self.text.chars().count()
    }
}

/// A table. The last column is never padded and never cut.
#[derive(Debug)]
pub struct Table<const COLUMNS: usize> {
    headings: [&'static str; COLUMNS],
    rows: Vec<[Cell; COLUMNS]>,
    /// The column that is cut when the terminal is too narrow.
    elastic: usize,
}

/// An elastic column is cut to no fewer characters.
const MIN_ELASTIC: usize = 8;

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// A table without rows. The column `elastic` gives way when the terminal is too narrow.
    pub const fn new(headings: [&'static str; COLUMNS], elastic: usize) -> Self {
        Self { headings, rows: Vec::new(), elastic }
    }

    /// Adds a row.
    pub fn row(&mut self, row: [Cell; COLUMNS]) {
        self.rows.push(row);
    }

    /// The lines, within this many columns where that is possible.
    pub fn render(&self, painter: Painter, terminal: Option<usize>) -> String {
        let headings = self.headings.map(|heading| Cell::styled(Style::Heading, heading));
        let lines = || std::iter::once(&headings).chain(&self.rows);
        let mut widths = [0; COLUMNS];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.columns());
            }
        }
        if let Some(terminal) = terminal {
            let total = widths.iter().sum::<usize>() + GAP.len() * COLUMNS.saturating_sub(1);
            if let Some(width) = widths.get_mut(self.elastic) {
                *width = width.saturating_sub(total.saturating_sub(terminal)).max(MIN_ELASTIC.min(*width));
            }
        }
        lines().map(|line| render_line(line, &widths, painter) + "\n").collect()
    }
}

fn render_line(line: &[Cell], widths: &[usize], painter: Painter) -> String {
    let last = line.len().saturating_sub(1);
    let fields: Vec<_> = (line.iter().zip(widths).enumerate())
        .map(|(index, (cell, width))| {
            if index == last {
                painter.column(cell.style, &cell.text, 0)
            } else {
                painter.column(cell.style, &cut(&cell.text, *width), *width)
            }
        })
        .collect();
    fields.join(GAP).trim_end().to_owned()
}

/// At most this many characters, with an ellipsis in place of those that were cut.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<3> {
        let mut table = Table::new(["STATE", "SOURCE", "PATH"], 1);
        table.row([Cell::styled(Style::Bad, "dead"), Cell::plain("user@host:/a/b"), Cell::plain("/mnt/very/long")]);
        table.row([Cell::plain("ready"), Cell::default(), Cell::plain("/b")]);
        table
    }

    #[test]
    fn columns_align() {
        assert_eq!(
            table().render(Painter::PLAIN, None),
            "STATE  SOURCE          PATH\n\
             dead   user@host:/a/b  /mnt/very/long\n\
             ready                  /b\n"
        );
    }

    #[test]
    fn a_narrow_terminal_cuts_the_elastic_column_only() {
        assert_eq!(
            table().render(Painter::PLAIN, Some(32)),
            "STATE  SOURCE     PATH\n\
             dead   user@hos…  /mnt/very/long\n\
             ready             /b\n"
        );
        assert!(table().render(Painter::PLAIN, Some(1)).contains("user@ho…"));
    }
}
