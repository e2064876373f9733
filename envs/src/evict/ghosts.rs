//! Ghosts: keys of what was evicted not long ago.

use super::key_map::KeyMap;
use super::queues::Queues;

/// Lists of keys without their blocks, each in the order of eviction. What has no key is not remembered.
#[derive(Debug, Clone)]
pub(super) struct Ghosts {
    queues: Queues,
    /// Per place its key and its list.
    keys: Vec<(u64, u8)>,
    unused: Vec<u32>,
    place: KeyMap<u64>,
    lengths: [usize; 2],
}

impl Ghosts {
    /// Two empty lists that together hold at most `most` keys.
    pub(super) fn new(most: usize) -> Ghosts {
        let most = most as u32;
        Ghosts {
            queues: Queues::new(2, most),
            keys: vec![(0, 0); most as usize],
            unused: (0..most).rev().collect(),
            place: KeyMap::new(most as usize),
            lengths: [0; 2],
        }
    }

    /// Keys in a list.
    pub(super) fn len(&self, list: u8) -> usize {
        self.lengths[list as usize]
    }

    /// Appends the key of what is evicted; where there is no room, the oldest of its list goes, or else of the other.
    pub(super) fn remember(&mut self, list: u8, key: u64) {
        if key == 0 || self.keys.is_empty() {
            return;
        }
        // Two copies of one content may be cached: the later eviction counts.
        self.recall(key);
        if self.unused.is_empty() && !self.forget_oldest(list) {
            self.forget_oldest(1 - list);
        }
        if let Some(place) = self.unused.pop() {
            self.keys[place as usize] = (key, list);
            self.place.insert(key, place);
            self.queues.push(u32::from(list), place);
            self.lengths[list as usize] += 1;
        }
    }

    /// The list that `key` is in; it is then in none.
    pub(super) fn recall(&mut self, key: u64) -> Option<u8> {
        let place = self.place.remove(key)?;
        self.queues.remove(place);
        Some(self.free(place))
    }

    /// Forgets the key of a list that was evicted first. Whether there was any.
    pub(super) fn forget_oldest(&mut self, list: u8) -> bool {
        let Some(place) = self.queues.pop(u32::from(list)) else { return false };
        self.place.remove(self.keys[place as usize].0);
        self.free(place);
        true
    }

    fn free(&mut self, place: u32) -> u8 {
        let list = self.keys[place as usize].1;
        self.lengths[list as usize] -= 1;
        self.unused.push(place);
        list
    }
}
