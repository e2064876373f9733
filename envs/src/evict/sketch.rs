//! How often keys were seen lately, about.

use crate::seed::mix;

/// Rows of counters; a key's count is the least of its counters, one in each.
const ROWS: usize = 4;
/// Counters of a word.
const PER_WORD: u64 = 16;
/// One in the place of every second and fourth bit of each counter, for halving them all at once.
const LOW_THREE_BITS: u64 = 0x7777_7777_7777_7777;

/// A count-min sketch of four-bit counters, of which all are halved when it has seen ten keys for each block: what was asked for
/// long ago fades.
///
/// Source: G. Einziger, R. Friedman, B. Manes, "`TinyLFU`: a highly efficient cache admission policy", ACM Transactions on Storage
/// 13(4), 2017, section 3.
#[derive(Debug, Clone)]
pub(super) struct Sketch {
    words: Vec<u64>,
    seen: u64,
    sample: u64,
}

impl Sketch {
    /// A sketch for a cache of `capacity` blocks, a word of counters for each.
    pub(super) fn new(capacity: u32) -> Sketch {
        let words = vec![0; (capacity.max(1) as usize).next_power_of_two()];
        Sketch { words, seen: 0, sample: 10 * u64::from(capacity.max(1)) }
    }

    /// Counts a key once more; what has no key is not counted.
    #[inline]
    pub(super) fn see(&mut self, key: u64) {
        if key == 0 {
            return;
        }
        let mut counted = false;
        for row in 0..ROWS {
            let (word, shift) = self.counter(key, row);
            if (self.words[word] >> shift) & 15 < 15 {
                self.words[word] += 1 << shift;
                counted = true;
            }
        }
        self.seen += u64::from(counted);
        if self.seen >= self.sample {
            self.seen /= 2;
            self.words.iter_mut().for_each(|word| *word = (*word >> 1) & LOW_THREE_BITS);
        }
    }

    /// How often a key was seen, at most.
    #[inline]
    pub(super) fn count(&self, key: u64) -> u64 {
        let count = |row| {
            let (word, shift) = self.counter(key, row);
            (self.words[word] >> shift) & 15
        };
        if key == 0 { 0 } else { (0..ROWS).map(count).min().unwrap_or(0) }
    }

    /// Word and shift of a key's counter of a row: each row has a quarter of a word.
    #[inline]
    fn counter(&self, key: u64, row: usize) -> (usize, u64) {
        let hash = mix(key).rotate_left(17 * row as u32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let column = (hash >> 32) as usize & (self.words.len() - 1);
        let counter = row as u64 * (PER_WORD / ROWS as u64) + (hash >> 62);
        (column, 4 * counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_never_too_small_and_fade() {
        let mut sketch = Sketch::new(1000);
        for key in 1..=400_u64 {
            (0..key % 13).for_each(|_| sketch.see(key));
        }
        assert!((1..=400).all(|key| sketch.count(key) >= key % 13));
        let exact = (1..=400).filter(|&key| sketch.count(key) == key % 13).count();
        assert!(exact > 350, "{exact}");
        let before = sketch.count(12);
        (1_000..20_000).for_each(|key| sketch.see(key));
        assert!(sketch.count(12) < before, "{before} became {}", sketch.count(12));
        sketch.see(0);
        assert_eq!(sketch.count(0), 0);
    }
}
