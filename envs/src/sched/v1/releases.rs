//! What became of each release: samples to learn from, labelled by the run's own future.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use kvtide_rules::Micros;
use kvtide_runtime::{Part, ReleaseObservation, Retention};

use crate::seed::mix;

/// A part of a request's blocks that was given back, and what became of it in the rest of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReleaseSample {
    /// When.
    pub at: Micros,
    /// Which part.
    pub part: Part,
    /// What was seen.
    pub seen: ReleaseObservation,
    /// The class that was chosen.
    pub class: Retention,
    /// Blocks of the part.
    pub blocks: u32,
    /// How many of them somebody asked for before anybody gave them back again.
    pub asked_again: u32,
    /// How many of those were still cached.
    pub found: u32,
    /// Blocks evicted, since the pool was made, when it was given back and when one of them was first asked for again.
    pub evicted: u64,
    /// `None` if none was.
    pub asked_at: Option<u64>,
}

/// Collects samples. It grows with the run, which is why only who learns has one.
#[derive(Debug, Clone, Default)]
pub(super) struct ReleaseLog {
    samples: Vec<ReleaseSample>,
    /// By key, the sample of the release in which its block was last given back.
    owners: HashTable<(u64, usize)>,
}

impl ReleaseLog {
    /// Somebody asks for `keys`, of which the first `hits` are cached.
    pub(super) fn asked(&mut self, keys: &[u64], hits: u32, evicted: u64) {
        for (block, &key) in (0..).zip(keys) {
            if let Ok(entry) = self.owners.find_entry(mix(key), |owner| owner.0 == key) {
                let ((_, sample), _) = entry.remove();
                let sample = &mut self.samples[sample];
                sample.asked_again += 1;
                sample.found += u32::from(block < hits);
                sample.asked_at.get_or_insert(evicted);
            }
        }
    }

    /// A part with these `keys`, as far as it has any, is given back.
    pub(super) fn released(&mut self, sample: ReleaseSample, keys: &[u64]) {
        for &key in keys {
            let owner = (key, self.samples.len());
            match self.owners.entry(mix(key), |known| known.0 == key, |known| mix(known.0)) {
                Entry::Occupied(mut entry) => *entry.get_mut() = owner,
                Entry::Vacant(entry) => drop(entry.insert(owner)),
            }
        }
        self.samples.push(sample);
    }

    pub(super) fn samples(&self) -> &[ReleaseSample] {
        &self.samples
    }
}
