//! A request's tokens as seeds of what is written for them.

use crate::kv::Content;
use crate::seed::{finalise, mix};

/// Of each token of a request a seed that binds it and everything before it: in a decoder keys and values depend on
/// exactly that. Requests that share a prefix share its seeds, and nobody else does (but for collisions of 64 bits).
#[derive(Debug, Clone)]
pub(super) struct TextSeeds {
    content: Content,
    seeds: Vec<u64>,
}

impl TextSeeds {
    pub(super) fn new(content: Content) -> TextSeeds {
        TextSeeds { content, seeds: Vec::new() }
    }

    /// Seeds of the first `tokens` tokens.
    pub(super) fn seeds(&mut self, tokens: u32) -> &[u64] {
        let mut seed = self.seeds.last().copied().unwrap_or_else(|| self.content.root());
        while self.seeds.len() < tokens as usize {
            let (stream, end) = self.content.stream_at(self.seeds.len() as u32);
            for _ in self.seeds.len() as u32..end.min(tokens) {
                seed = mix(seed.rotate_left(23) ^ stream);
                self.seeds.push(seed);
            }
        }
        &self.seeds[..tokens as usize]
    }
}

/// The words of a token's row in plane `plane` (see [`KvShape`](super::KvShape)), of `row.len()` words: `SplitMix64`'s
/// finaliser over the seed and the place in the token, lower half. The kernel `kvtide_kv_fill` writes the same.
pub(super) fn draw_row(seed: u64, plane: u32, row: &mut [u32]) {
    let first = u64::from(plane) * row.len() as u64;
    for (place, word) in (first..).zip(row) {
        *word = finalise(seed.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15))) as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kv::Segment;

    fn text(scope: u64, own: u64, segments: &[(u64, u32)]) -> TextSeeds {
        let segments: Arc<[Segment]> = segments.iter().map(|&(stream, end)| Segment { stream, end }).collect();
        TextSeeds::new(Content::new(scope, own, segments))
    }

    #[test]
    fn a_shared_prefix_has_the_same_seeds_and_what_follows_has_not() {
        let (mut a, mut b) = (text(0, 1, &[(7, 5), (8, 9)]), text(0, 2, &[(7, 5)]));
        assert_eq!(a.seeds(5).to_vec(), b.seeds(5).to_vec());
        assert!(a.seeds(12)[5..].iter().zip(&b.seeds(12)[5..]).all(|(a, b)| a != b));
        // One token of another stream in front changes everything behind it.
        let mut c = text(0, 1, &[(6, 1), (7, 5), (8, 9)]);
        assert!(a.seeds(12).iter().zip(c.seeds(12)).all(|(a, c)| a != c));
        let mut other_scope = text(3, 1, &[(7, 5), (8, 9)]);
        assert!(a.seeds(12).iter().zip(other_scope.seeds(12)).all(|(a, b)| a != b));
    }

    #[test]
    fn seeds_do_not_depend_on_how_they_are_asked_for() {
        let mut whole = text(0, 1, &[(7, 5), (8, 9)]);
        let mut pieces = text(0, 1, &[(7, 5), (8, 9)]);
        for tokens in [1, 5, 6, 9, 10, 40] {
            let _ = pieces.seeds(tokens);
        }
        assert_eq!(whole.seeds(40).to_vec(), pieces.seeds(40).to_vec());
        assert_eq!(pieces.seeds(3).len(), 3);
    }
}
