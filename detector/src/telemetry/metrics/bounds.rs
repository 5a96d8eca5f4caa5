//! Labels with a bound: an ordinary user can mount any number of file systems under any subtype, and must not be able to
//! fill the memory of the agent or of Prometheus with series.

use std::collections::HashSet;
use std::hash::Hash;

/// The label value of everything beyond a bound.
pub const OTHER: &str = "other";

/// How many different values are told apart. A node has a handful of drivers and each answers a handful of errors; a
/// series takes about 200 bytes here, so a full set takes 25 KiB.
const CAPACITY: usize = 128;

/// The longest file system type that is a label as it is: longer than any real one.
const TEXT_BYTES: usize = 48;

/// The first [`CAPACITY`] different values.
#[derive(Debug)]
pub struct Bounded<T> {
    known: HashSet<T>,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self { known: HashSet::new() }
    }
}

impl<T: Eq + Hash + Clone> Bounded<T> {
    /// Whether the value is one of those that are told apart.
    pub fn admit(&mut self, value: &T) -> bool {
        if self.known.contains(value) {
            return true;
        }
        let room = self.known.len() < CAPACITY;
        if room {
            self.known.insert(value.clone());
        }
        room
    }
}

/// The file system type as a label's value: itself, if it is short and made of letters, digits and `._-+`; else
/// [`OTHER`].
pub fn label_text(fs_type: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "._-+".contains(character);
    if !fs_type.is_empty() && fs_type.len() <= TEXT_BYTES && fs_type.chars().all(plain) {
        fs_type.to_owned()
    } else {
        OTHER.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_stays_known_when_the_set_is_full() {
        let mut bounded = Bounded::default();
        for number in 0..CAPACITY {
            assert!(bounded.admit(&number));
        }
        assert!(!bounded.admit(&CAPACITY));
        assert!(bounded.admit(&0));
    }

    #[test]
    fn only_plain_text_is_a_label() {
        assert_eq!(label_text("fuse.s3fs"), "fuse.s3fs");
        for odd in ["", "fuse.a b", "fuse.\"}", "fuse.ä", "fuse.\n", &"f".repeat(TEXT_BYTES + 1)] {
            assert_eq!(label_text(odd), OTHER, "{odd:?}");
        }
    }
}
