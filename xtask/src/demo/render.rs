//! The timeline on a terminal or in a file.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, stdout};

use jiff::Timestamp;

use super::timeline::{Entry, Side, Story};

/// Whether to colour: on a terminal that can, unless `NO_COLOR` says otherwise (no-color.org: set and not empty).
pub fn colours_wanted() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stdout().is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Select Graphic Rendition (ECMA-48): red, yellow, green, cyan.
fn code(side: Side) -> &'static str {
    match side {
        Side::Harm => "31",
        Side::Trouble => "33",
        Side::Well => "32",
        Side::Agent => "36",
    }
}

/// The whole story: one entry a line, then the summary.
pub fn render(story: &Story, colours: bool) -> String {
    let entries = story.entries();
    let width = entries.iter().map(|entry| entry.what.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Entry { at, side, what, detail } in &entries {
        let what = format!("{what:<width$}");
        let what = if colours { format!("\x1b[{}m{what}\x1b[0m", code(*side)) } else { what };
        let _ = writeln!(text, "{} ms  {what}  {detail}", offset(story.killed, *at));
    }
    text.push('\n');
    for line in story.summary() {
        let line = if colours { format!("\x1b[1m{line}\x1b[0m") } else { line };
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Milliseconds since the kill, with the sign.
fn offset(kill: Timestamp, at: Timestamp) -> String {
    format!("{:>+11.3}", at.duration_since(kill).as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_colours_are_only_added() {
        let story = super::super::timeline::tests::story();
        let plain = render(&story, false);
        let first: Vec<_> = plain.lines().take(3).collect();
        assert_eq!(
            first,
            [
                "     -0.010 ms  application        last good read, the 2412th",
                "     +0.000 ms  kill               SIGKILL to steerfs (812), the daemon of connection 0:45",
                "     +0.412 ms  kernel event       steerfs (812) ends (backend tracepoint)",
            ]
        );
        let coloured = render(&story, true);
        assert!(coloured.contains("\x1b[31mkill"));
        let stripped = ["31", "32", "33", "36", "0", "1"]
            .iter()
            .fold(coloured, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
        assert_eq!(stripped, plain);
    }
}
