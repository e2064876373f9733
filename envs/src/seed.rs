//! Named seed streams: every consumer of randomness has its own generator, so adding one disturbs no other.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

/// The generator behind every stream. Its output is fixed by its definition (O'Neill 2014, "PCG", mcg-xsl-rr-128/64).
pub type Stream = Pcg64Mcg;

/// The stream called `name` under `seed`; `index` tells apart streams of one name (environment, iteration, window).
pub fn stream(seed: u64, name: &str, index: u64) -> Stream {
    Stream::seed_from_u64(derive(seed, name, index))
}

/// A seed for something that takes one, from the same naming scheme as [`stream`].
// Not inlined: in a loop with a constant name the chain sends LLVM 22's vectoriser into exponential time.
#[inline(never)]
pub fn derive(seed: u64, name: &str, index: u64) -> u64 {
    let named = name.bytes().fold(mix(seed), |state, byte| mix(state ^ u64::from(byte)));
    mix(named ^ mix(index))
}

/// [`finalise`] of the next Weyl step.
pub(crate) fn mix(state: u64) -> u64 {
    finalise(state.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// The finaliser of `SplitMix64` (Steele, Lea, Flood 2014).
pub(crate) fn finalise(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// A rolling hash of everything that happened in a run: two runs with the same value took the same decisions at the
/// same times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunHash(u64);

impl Default for RunHash {
    fn default() -> RunHash {
        RunHash(0x6b76_7469_6465_2031)
    }
}

impl RunHash {
    /// Absorbs one word.
    pub fn absorb(&mut self, word: u64) {
        self.0 = mix(self.0.rotate_left(23) ^ word);
    }

    /// The hash so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;

    #[test]
    fn streams_are_fixed_for_ever() {
        // A changed value here breaks every committed result: bump the versions that CHANGELOG.md names instead.
        assert_eq!(derive(1, "workload", 0), 3_645_208_316_286_428_159);
        assert_eq!(derive(u64::MAX, "", u64::MAX), 16_294_208_416_658_607_535);
        let mut stream = stream(1, "workload", 0);
        let draws = [stream.next_u64(), stream.next_u64(), stream.next_u64()];
        assert_eq!(draws, [2_918_036_844_919_287_015, 1_523_400_895_482_191_446, 8_943_690_383_136_693_824]);
        let mut hash = RunHash::default();
        for word in [1, 2, 3] {
            hash.absorb(word);
        }
        assert_eq!(hash.value(), 6_734_979_587_339_261_833);
    }

    #[test]
    fn names_and_indices_separate_streams() {
        let draws: Vec<u64> =
            [("a", 0), ("a", 1), ("b", 0)].map(|(name, index)| stream(7, name, index).next_u64()).to_vec();
        assert!(draws[0] != draws[1] && draws[0] != draws[2] && draws[1] != draws[2]);
    }

    #[test]
    fn the_hash_depends_on_order() {
        let hash = |words: [u64; 2]| {
            let mut hash = RunHash::default();
            for word in words {
                hash.absorb(word);
            }
            hash.value()
        };
        assert_ne!(hash([1, 2]), hash([2, 1]));
    }
}
