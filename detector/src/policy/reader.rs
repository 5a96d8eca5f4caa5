//! Typed values from the tree. Whatever is wrong is noted and reading goes on, so that one look shows every problem.

use std::ffi::OsString;
use std::time::Duration;

use super::error::{Position, Problems};
use super::yaml::{Key, Node, Value};

/// No duration of a policy is longer: a month without an attempt is no policy, and sums of a few such durations stay far
/// from the end of any clock.
const MAX_DURATION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located<T> {
    pub at: Position,
    pub value: T,
}

/// The entries of a mapping whose keys are all known.
pub(super) struct Fields<'tree> {
    entries: Vec<(&'tree Key, &'tree Node)>,
}

impl<'tree> Fields<'tree> {
    /// Takes a mapping apart; unknown and repeated keys are problems. `what` is what the mapping should be.
    pub fn of(node: &'tree Node, what: &str, known: &[&str], problems: &mut Problems) -> Option<Self> {
        let Value::Mapping(mapping) = &node.value else {
            problems.add(node.at, format!("{what} must be a mapping, found {}", node.value.describe()));
            return None;
        };
        let mut entries: Vec<(&Key, &Node)> = Vec::new();
        for (key, value) in mapping {
            if !known.contains(&key.name.as_str()) {
                problems.add(key.at, unknown("key", &key.name, known));
            } else if let Some((first, _)) = entries.iter().find(|(first, _)| first.name == key.name) {
                problems.add(key.at, format!("{} is given twice, first on line {}", key.name, first.at.line));
            } else {
                entries.push((key, value));
            }
        }
        Some(Self { entries })
    }

    pub fn get(&self, name: &str) -> Option<&'tree Node> {
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, value)| *value)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// One of a few words. `unbuilt`: words that are known but can't be carried out.
pub(super) fn word<T: Copy>(
    key: &str,
    node: &Node,
    words: &[(&str, T)],
    unbuilt: &[&str],
    problems: &mut Problems,
) -> Option<Located<T>> {
    let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
    let Value::Scalar(text) = &node.value else {
        let found = node.value.describe();
        problems.add(node.at, format!("{key} must be one of {}; found {found}", names.join(", ")));
        return None;
    };
    if let Some((_, value)) = words.iter().find(|(name, _)| name == text) {
        return Some(Located { at: node.at, value: *value });
    }
    if unbuilt.contains(&text.as_str()) {
        let names = names.join(", ");
        problems.add(node.at, format!("{key} {text} is not available in this version; available: {names}"));
    } else {
        problems.add(node.at, unknown(key, text, &names));
    }
    None
}

/// A duration with its unit, longer than zero.
pub(super) fn duration(key: &str, node: &Node, problems: &mut Problems) -> Option<Located<Duration>> {
    const EXAMPLES: &str = "such as 200ms, 30s, 15m or 1h30m";
    let Value::Scalar(text) = &node.value else {
        problems.add(node.at, format!("{key} must be a duration {EXAMPLES}; found {}", node.value.describe()));
        return None;
    };
    let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|signed| Duration::try_from(signed).ok());
    match parsed {
        None => problems.add(node.at, format!("{key} must be a duration with a unit, {EXAMPLES}; found {text:?}")),
        Some(Duration::ZERO) => problems.add(node.at, format!("{key} must be longer than zero")),
        Some(value) if value > MAX_DURATION => {
            problems.add(node.at, format!("{key} must not be longer than 30 days (720h); found {text:?}"));
        }
        Some(value) => return Some(Located { at: node.at, value }),
    }
    None
}

/// Text that is not empty.
pub(super) fn text<'tree>(key: &str, node: &'tree Node, problems: &mut Problems) -> Option<&'tree str> {
    match &node.value {
        Value::Scalar(text) if text.is_empty() => problems.add(node.at, format!("{key} must not be empty")),
        Value::Scalar(text) => return Some(text),
        other => problems.add(node.at, format!("{key} must be text, found {}", other.describe())),
    }
    None
}

/// A program and its arguments.
pub(super) fn arguments(key: &str, node: &Node, problems: &mut Problems) -> Option<Located<Vec<OsString>>> {
    let Value::Sequence(items) = &node.value else {
        let found = node.value.describe();
        problems.add(
            node.at,
            format!("{key} must be a list: [program, argument, …]; it is not run by a shell; found {found}"),
        );
        return None;
    };
    let mut arguments = Vec::with_capacity(items.len());
    let mut complete = true;
    for item in items {
        match &item.value {
            Value::Scalar(text) if text.contains('\0') => {
                problems.add(item.at, "an argument can't hold a zero byte");
                complete = false;
            }
            Value::Scalar(text) => arguments.push(OsString::from(text)),
            other => {
                let found = other.describe();
                problems
                    .add(item.at, format!("an argument must be text, found {found}; quote it if it is meant as text"));
                complete = false;
            }
        }
    }
    if !complete {
        return None;
    }
    if arguments.first().is_none_or(|program| program.is_empty()) {
        problems.add(node.at, format!("{key} names no program"));
        return None;
    }
    Some(Located { at: node.at, value: arguments })
}

fn unknown(what: &str, found: &str, known: &[&str]) -> String {
    match nearest(found, known) {
        Some(nearest) => format!("unknown {what} {found:?}; did you mean {nearest}?"),
        None => format!("unknown {what} {found:?}; known: {}", known.join(", ")),
    }
}

/// The known word that a slip of the pen could have turned into `found`: another notation (`hung_after`), or at most a
/// third of its letters wrong.
fn nearest<'word>(found: &str, known: &[&'word str]) -> Option<&'word str> {
    // No known word is longer: what is much longer resembles none, and is not worth comparing.
    const LONGEST: usize = 32;
    if found.len() > LONGEST {
        return None;
    }
    let plain = |word: &str| word.replace(['_', '-'], "").to_lowercase();
    let found = plain(found);
    known
        .iter()
        .map(|word| (distance(&found, &plain(word)), *word))
        .filter(|(distance, word)| distance * 3 <= word.len())
        .min()
        .map(|(_, word)| word)
}

/// Levenshtein's distance: how many letters to insert, remove or change.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut diagonal = index;
        let mut left = index + 1;
        for (cell, other) in row.iter_mut().skip(1).zip(to.chars()) {
            let changed = diagonal + usize::from(letter != other);
            diagonal = *cell;
            left = changed.min(left + 1).min(*cell + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = index + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_letters() {
        for (from, to, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("heal", "heel", 1),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn a_slip_of_the_pen_is_recognised() {
        let known = ["mountPoint", "fsType", "source"];
        assert_eq!(nearest("mount_point", &known), Some("mountPoint"));
        assert_eq!(nearest("fstype", &known), Some("fsType"));
        assert_eq!(nearest("sorce", &known), Some("source"));
        assert_eq!(nearest("namespace", &known), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), &known), None);
    }
}
