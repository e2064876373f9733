//! Names of blocks as numbers, small for as long as few blocks are known.

use hashbrown::HashTable;

use super::error::IntentFault;
use super::event::EventKind;
use crate::seed::mix;

/// Most blocks that are known at one time.
const MOST: u32 = 1 << 28;

/// A hash of a name, the same everywhere.
pub(super) fn hashed(text: &str) -> u64 {
    seeded(text, 0)
}

fn seeded(text: &str, seed: u64) -> u64 {
    let mut state = mix(seed ^ text.len() as u64);
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    for word in words {
        state = mix(state ^ u64::from_le_bytes(*word));
    }
    let rest = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    mix(state ^ rest)
}

/// Gives every known block a number. What a block took is given back when it is freed, but for its fingerprint, by which different
/// blocks are counted: 16 bytes each.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Numbers by name.
    table: HashTable<u32>,
    /// Per number, the hash of its name and whether its block is known.
    known: Vec<(u64, bool)>,
    /// Numbers of this batch whose blocks may not be known at its end.
    leaving: Vec<u32>,
    free: Vec<u32>,
    /// Fingerprints of all names so far.
    seen: HashTable<u128>,
}

impl Names {
    /// The number of the block called `name`, whose text goes into `texts`.
    pub(super) fn number(
        &mut self,
        name: &str,
        kind: EventKind,
        texts: &mut Vec<Box<str>>,
    ) -> Result<u32, IntentFault> {
        let hash = hashed(name);
        let number = match self.table.find(hash, |&number| &*texts[number as usize] == name) {
            Some(&number) => number,
            None => self.enter(name, hash, texts)?,
        };
        let is_known = &mut self.known[number as usize].1;
        let was_known = *is_known;
        *is_known = kind.makes_known() || (was_known && kind != EventKind::Freed);
        if was_known && !*is_known {
            self.leaving.push(number);
        }
        Ok(number)
    }

    fn enter(&mut self, name: &str, hash: u64, texts: &mut Vec<Box<str>>) -> Result<u32, IntentFault> {
        let number = match self.free.pop() {
            Some(number) => {
                texts[number as usize] = name.into();
                self.known[number as usize] = (hash, false);
                number
            }
            None if texts.len() >= MOST as usize => return Err(IntentFault::TooMany(MOST)),
            None => {
                texts.push(name.into());
                self.known.push((hash, false));
                (texts.len() - 1) as u32
            }
        };
        let known = &self.known;
        self.table.insert_unique(hash, number, |&number| known[number as usize].0);
        // Until it turns out to stay.
        self.leaving.push(number);
        let print = u128::from(hash) << 64 | u128::from(seeded(name, 1));
        let by_print = |print: &u128| (print >> 64) as u64;
        if self.seen.find(hash, |seen| *seen == print).is_none() {
            self.seen.insert_unique(hash, print, by_print);
        }
        Ok(number)
    }

    /// Between batches: numbers of blocks that are not known any more are free for others.
    pub(super) fn recycle(&mut self, texts: &mut [Box<str>]) {
        // A block may have left twice.
        self.leaving.sort_unstable();
        self.leaving.dedup();
        for number in self.leaving.drain(..) {
            let (hash, is_known) = self.known[number as usize];
            if is_known {
                continue;
            }
            if let Ok(entry) = self.table.find_entry(hash, |&other| other == number) {
                entry.remove();
            }
            texts[number as usize] = Box::default();
            self.free.push(number);
        }
    }

    /// Bytes kept for blocks that are known, or were at one time; fingerprints are not among them.
    pub(super) fn bytes(&self) -> usize {
        let Names { table, known, leaving, free, seen: _ } = self;
        table.allocation_size() + size_of_val(&**known) + size_of::<u32>() * (leaving.capacity() + free.capacity())
    }

    /// Different names so far.
    pub(super) fn distinct(&self) -> u64 {
        self.seen.len() as u64
    }
}
