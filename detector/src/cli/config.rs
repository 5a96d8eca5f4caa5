//! `config check`: every problem of every file.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::style::{Painter, Style};
use super::units;

/// Checks each file with `check`, which gives the number of rules, or the problems as text in lines of
/// `FILE:LINE:COLUMN: MESSAGE`. Gives what to print, and whether all files are good.
pub fn check<E: Display>(
    files: &[PathBuf],
    painter: Painter,
    check: impl Fn(&Path) -> Result<usize, E>,
) -> (String, bool) {
    let mut output = String::new();
    let mut good = true;
    for file in files {
        match check(file) {
            Ok(rules) => {
                let rules = units::count(u64::try_from(rules).unwrap_or(u64::MAX), "rule");
                output += &format!("{}: {}: {rules}\n", file.display(), painter.paint(Style::Good, "ok"));
            }
            Err(problems) => {
                good = false;
                output += &format!("{problems}\n");
            }
        }
    }
    (output, good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_and_bad_files_are_both_told() {
        let (output, good) = check(&["a".into(), "b".into(), "c".into()], Painter::PLAIN, |file| {
            if file == Path::new("b") { Err("b:3:5: unknown key `mod`; did you mean `mode`?") } else { Ok(2) }
        });
        assert_eq!(output, "a: ok: 2 rules\nb:3:5: unknown key `mod`; did you mean `mode`?\nc: ok: 2 rules\n");
        assert!(!good);
        assert_eq!(
            check(&["a".into()], Painter::COLORED, |_| Ok::<_, String>(1)),
            ("a: \x1b[32mok\x1b[0m: 1 rule\n".to_owned(), true)
        );
    }
}
