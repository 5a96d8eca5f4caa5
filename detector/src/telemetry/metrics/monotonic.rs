//! Totals counted elsewhere, for something that comes and goes under one name, as increases that only ever add up.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

/// The last total seen of each key, with the generation it belongs to. A key is kept when its generation ends: keys are
/// names that are used again, so their number is bounded by how many there are at once.
#[derive(Debug)]
pub struct Monotonic<K> {
    last: HashMap<K, (u64, u64)>,
}

impl<K> Default for Monotonic<K> {
    fn default() -> Self {
        Self { last: HashMap::new() }
    }
}

impl<K: Eq + Hash> Monotonic<K> {
    /// By how much the total grew since it was last seen. A new generation counts from zero; what is older than what was
    /// seen already (two scrapes can overtake each other) adds nothing.
    pub fn increase(&mut self, key: K, generation: u64, total: u64) -> u64 {
        match self.last.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert((generation, total));
                total
            }
            Entry::Occupied(mut occupied) => {
                let seen = *occupied.get();
                occupied.insert(seen.max((generation, total)));
                match generation.cmp(&seen.0) {
                    std::cmp::Ordering::Greater => total,
                    std::cmp::Ordering::Equal => total.saturating_sub(seen.1),
                    std::cmp::Ordering::Less => 0,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However often the counting begins anew, nothing is lost and nothing counted twice.
        #[test]
        fn increases_add_up(lives in prop::collection::vec(prop::collection::vec(0_u64..100, 1..5), 1..5)) {
            let mut monotonic = Monotonic::default();
            let (mut sum, mut expected) = (0, 0);
            for (generation, life) in (1_u64..).zip(lives) {
                let mut total = 0;
                for step in life {
                    total += step;
                    expected += step;
                    sum += monotonic.increase("key", generation, total);
                }
            }
            prop_assert_eq!(sum, expected);
        }
    }

    #[test]
    fn what_is_older_adds_nothing() {
        let mut monotonic = Monotonic::default();
        assert_eq!(monotonic.increase("key", 2, 7), 7);
        assert_eq!(monotonic.increase("key", 2, 5), 0);
        assert_eq!(monotonic.increase("key", 1, 100), 0);
        assert_eq!(monotonic.increase("key", 2, 8), 1);
    }
}
