//! Colour for a terminal: the eight colours that every terminal has, and nothing when it isn't one.

use std::ffi::OsStr;

use super::args::ColorChoice;

/// What a piece of text means, not how it looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Broken.
    Bad,
    /// Needs an eye.
    Warning,
    /// As it should be.
    Good,
    /// Under way.
    Busy,
    /// Less important than the rest.
    Faint,
    /// A heading.
    Heading,
}

impl Style {
    /// The parameters of "select graphic rendition" (ECMA-48, 8.3.117).
    const fn parameters(self) -> &'static str {
        match self {
            Self::Bad => "1;31",
            Self::Warning => "33",
            Self::Good => "32",
            Self::Busy => "36",
            Self::Faint => "2",
            Self::Heading => "1",
        }
    }
}

/// Paints, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Painter {
    colored: bool,
}

impl Painter {
    /// Paints nothing.
    pub const PLAIN: Self = Self { colored: false };
    /// Paints whatever it is given.
    pub const COLORED: Self = Self { colored: true };

    /// For a stream that is, or isn't, a terminal, in an environment where NO_COLOR (no-color.org: present and not empty)
    /// and TERM have these values.
    pub fn choose(choice: ColorChoice, terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> Self {
        let colored = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
            }
        };
        Self { colored }
    }

    /// As [`Self::choose`], from this process's environment.
    pub fn for_stream(choice: ColorChoice, stream: &impl std::io::IsTerminal) -> Self {
        let variable = |name| std::env::var_os(name);
        Self::choose(choice, stream.is_terminal(), variable("NO_COLOR").as_deref(), variable("TERM").as_deref())
    }

    /// Whether it paints.
    pub const fn is_colored(self) -> bool {
        self.colored
    }

    /// The text, painted.
    pub fn paint(self, style: Style, text: &str) -> String {
        if self.colored && !text.is_empty() {
            format!("\x1b[{}m{text}\x1b[0m", style.parameters())
        } else {
            text.to_owned()
        }
    }

    /// The text, padded with spaces to `width` characters and then painted, so that columns align in either case.
    pub fn column(self, style: Option<Style>, text: &str, width: usize) -> String {
        let padding = " ".repeat(width.saturating_sub(text.chars().count()));
        let painted = style.map_or_else(|| text.to_owned(), |style| self.paint(style, text));
        painted + &padding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(choice: ColorChoice, terminal: bool, no_color: Option<&str>, term: &str) -> bool {
        Painter::choose(choice, terminal, no_color.map(OsStr::new), Some(OsStr::new(term))).is_colored()
    }

    #[test]
    fn auto_colours_a_terminal_only_and_honours_no_color() {
        assert!(chosen(ColorChoice::Auto, true, None, "xterm"));
        assert!(chosen(ColorChoice::Auto, true, Some(""), "xterm"));
        assert!(!chosen(ColorChoice::Auto, true, Some("1"), "xterm"));
        assert!(!chosen(ColorChoice::Auto, false, None, "xterm"));
        assert!(!chosen(ColorChoice::Auto, true, None, "dumb"));
    }

    #[test]
    fn an_explicit_choice_wins() {
        assert!(chosen(ColorChoice::Always, false, Some("1"), "dumb"));
        assert!(!chosen(ColorChoice::Never, true, None, "xterm"));
    }

    #[test]
    fn columns_are_as_wide_in_colour_as_without() {
        assert_eq!(Painter::PLAIN.column(Some(Style::Bad), "ä", 3), "ä  ");
        assert_eq!(Painter::COLORED.column(Some(Style::Bad), "ä", 3), "\x1b[1;31mä\x1b[0m  ");
    }
}
