//! FNV-1a, 64 bit, as a `const fn`: names of features and choices become the schema and action-set hashes at compile time.
//!
//! Source: Fowler, Noll, Vo; constants as in draft-eastlake-fnv-17, section 5.

pub(crate) const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Absorbs `bytes` and a terminating zero, so that `("ab", "c")` and `("a", "bc")` differ.
pub(crate) const fn absorb(mut state: u64, bytes: &[u8]) -> u64 {
    let mut index = 0;
    while index < bytes.len() {
        state = (state ^ bytes[index] as u64).wrapping_mul(PRIME);
        index += 1;
    }
    state.wrapping_mul(PRIME)
}

#[cfg(test)]
mod tests {
    use super::{OFFSET_BASIS, absorb};

    #[test]
    fn agrees_with_the_published_vector() {
        // FNV-1a 64 of "a" is 0xaf63dc4c8601ec8c; the terminating zero is one more round.
        assert_eq!(absorb(OFFSET_BASIS, b"a"), 0xaf63_dc4c_8601_ec8c_u64.wrapping_mul(0x0000_0100_0000_01b3));
    }

    #[test]
    fn boundaries_count() {
        let left = absorb(absorb(OFFSET_BASIS, b"ab"), b"c");
        let right = absorb(absorb(OFFSET_BASIS, b"a"), b"bc");
        assert_ne!(left, right);
    }
}
