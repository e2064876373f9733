//! A flat map from keys to numbers, of a size that is known.

use crate::seed::mix;

/// In an entry: there is none.
const EMPTY: u32 = u32::MAX;

/// Keys, and for each a number below 2^32 - 1, in one open-addressed array that never grows: probes go on in memory, and what is
/// removed leaves no trace, because whatever it displaced moves back. Keys may be as regular as they like.
#[derive(Debug, Clone)]
pub(crate) struct KeyMap<K> {
    entries: Vec<(K, u32)>,
    mask: usize,
}

impl<K: Copy + Eq + Default + Into<u64>> KeyMap<K> {
    /// An empty map for at most `most` keys, with two places or more for each.
    pub(crate) fn new(most: usize) -> KeyMap<K> {
        let places = (2 * most).max(2).next_power_of_two();
        KeyMap { entries: vec![(K::default(), EMPTY); places], mask: places - 1 }
    }

    /// The number of `key`.
    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<u32> {
        let (at, is_there) = self.find(key);
        is_there.then(|| self.entries[at].1)
    }

    /// Enters a key that is not in the map.
    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: u32) {
        let (at, _) = self.find(key);
        self.entries[at] = (key, value);
    }

    /// Removes a key, if it is in the map, and gives its number.
    #[inline]
    pub(crate) fn remove(&mut self, key: K) -> Option<u32> {
        let (mut hole, is_there) = self.find(key);
        if !is_there {
            return None;
        }
        let removed = self.entries[hole].1;
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let (key, value) = self.entries[at];
            if value == EMPTY {
                break;
            }
            // Whoever would be found at the hole or before it moves there.
            if (at.wrapping_sub(self.home(key)) & self.mask) >= (at.wrapping_sub(hole) & self.mask) {
                self.entries[hole] = (key, value);
                hole = at;
            }
        }
        self.entries[hole].1 = EMPTY;
        Some(removed)
    }

    /// Where `key` is, or would be entered, and whether it is there.
    #[inline]
    fn find(&self, key: K) -> (usize, bool) {
        let mut at = self.home(key);
        loop {
            let (other, value) = self.entries[at];
            if value == EMPTY {
                return (at, false);
            }
            if other == key {
                return (at, true);
            }
            at = (at + 1) & self.mask;
        }
    }

    #[inline]
    fn home(&self, key: K) -> usize {
        mix(key.into()) as usize & self.mask
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(ops in vec((0..3_u8, 0..40_u32), 0..400)) {
            let (mut map, mut model) = (KeyMap::<u32>::new(20), BTreeMap::new());
            for (value, (op, key)) in (0..).zip(ops) {
                match op {
                    0 if !model.contains_key(&key) && model.len() < 20 => {
                        map.insert(key, value);
                        model.insert(key, value);
                    }
                    1 => prop_assert_eq!(map.remove(key), model.remove(&key)),
                    _ => prop_assert_eq!(map.get(key), model.get(&key).copied()),
                }
                for key in 0..40 {
                    prop_assert_eq!(map.get(key), model.get(&key).copied());
                }
            }
        }
    }
}
