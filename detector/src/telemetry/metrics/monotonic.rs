//! Totals counted elsewhere, which can start again from zero, as increases that only ever add up.

use std::collections::HashMap;
use std::hash::Hash;

/// The last total seen of each key.
#[derive(Debug)]
pub struct Monotonic<K> {
    last: HashMap<K, u64>,
}

impl<K> Default for Monotonic<K> {
    fn default() -> Self {
        Self { last: HashMap::new() }
    }
}

impl<K: Eq + Hash> Monotonic<K> {
    /// By how much the total grew since it was last seen. A smaller total means that counting began anew.
    pub fn increase(&mut self, key: K, total: u64) -> u64 {
        let last = self.last.insert(key, total).unwrap_or(0);
        total.checked_sub(last).unwrap_or(total)
    }

    /// Forgets these keys: their counting begins anew.
    pub fn forget(&mut self, gone: impl Fn(&K) -> bool) {
        self.last.retain(|key, _| !gone(key));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However often the counting begins anew, nothing is subtracted, and nothing counted twice.
        #[test]
        fn increases_add_up(lives in prop::collection::vec(prop::collection::vec(0_u64..100, 1..5), 1..5)) {
            let mut monotonic = Monotonic::default();
            let (mut sum, mut expected) = (0, 0);
            for life in lives {
                let mut total = 0;
                for step in life {
                    total += step;
                    expected += step;
                    sum += monotonic.increase("key", total);
                }
                monotonic.forget(|_| true);
            }
            prop_assert_eq!(sum, expected);
        }
    }

    #[test]
    fn a_smaller_total_is_a_new_count() {
        let mut monotonic = Monotonic::default();
        assert_eq!(monotonic.increase(1, 5), 5);
        assert_eq!(monotonic.increase(1, 7), 2);
        assert_eq!(monotonic.increase(1, 3), 3);
    }
}
