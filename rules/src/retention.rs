//! How long a retention class is in force, and which class a block has that several requests have given back.
//!
//! **Ageing.** Nothing is kept for ever. A term is counted in turnovers of the pool, as many evicted blocks as it has, so
//! that it means the same in a pool of any size under any load, and nothing at all while nothing is evicted: `keep` lasts for
//! [`KEEP_TURNOVERS`], `keep-long` for [`KEEP_LONG_TURNOVERS`] and is `keep` after that. A block whose term is over is the most
//! recent of the class below.
//!
//! Chosen by hits on Mooncake's conversations (39 minutes, blocks of 512 tokens, every request gives back at once, what it hit is
//! kept and the rest is normal). Percent of blocks hit, LRU, then terms of 1, 2, 4 and 8 turnovers: 820 blocks 4.3, 4.3, 4.3, 4.4,
//! 4.5; 3,280 blocks 7.0, 7.8, 8.2, 8.6, 9.0; 6,500 blocks 14.7, 15.7, 16.0, 15.2, 13.8. Two gains everywhere; eight gains most
//! where a pool is small for its traffic and loses where it is large, which is for a policy to see.
//!
//! **Shared blocks.** A table is given back from its last block to its first, and [`Walk`] goes along. Where no other text
//! branches off behind a block, the last release decides. Where one does, the block keeps whatever is in force for it, and
//! is never less than normal: others are behind it. And no block has less than what continues it, so that a prefix outlives
//! its continuations, as it does in a queue in the order of use.

use kvtide_runtime::Retention;

/// How many turnovers `keep` lasts.
pub const KEEP_TURNOVERS: u64 = 2;

/// How many turnovers `keep-long` lasts before it is `keep`.
pub const KEEP_LONG_TURNOVERS: u64 = 8;

/// What a block was given, and until when: counts of blocks evicted since the pool was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    is_first: bool,
    keep_until: u64,
    keep_long_until: u64,
}

impl Term {
    /// What a block has that nobody has given back yet: less than anything in force.
    pub const NONE: Term = Term { is_first: true, keep_until: 0, keep_long_until: 0 };

    /// A block of a pool of `num_blocks` is given `class` once `evicted` blocks have been evicted.
    pub const fn of(class: Retention, evicted: u64, num_blocks: u32) -> Term {
        let pool = num_blocks as u64;
        let keep_long_until = match class {
            Retention::KeepLong => evicted + KEEP_LONG_TURNOVERS * pool,
            _ => 0,
        };
        let keep_until = match class {
            Retention::EvictFirst | Retention::Normal => 0,
            Retention::Keep => evicted + KEEP_TURNOVERS * pool,
            Retention::KeepLong => keep_long_until + KEEP_TURNOVERS * pool,
        };
        Term { is_first: matches!(class, Retention::EvictFirst), keep_until, keep_long_until }
    }

    /// The class that is in force once `evicted` blocks have been evicted.
    pub const fn class(self, evicted: u64) -> Retention {
        if evicted < self.keep_long_until {
            Retention::KeepLong
        } else if evicted < self.keep_until {
            Retention::Keep
        } else if self.is_first {
            Retention::EvictFirst
        } else {
            Retention::Normal
        }
    }

    /// Whatever of the two is in force longer, class by class.
    #[must_use]
    pub fn or_longer(self, other: Term) -> Term {
        Term {
            is_first: self.is_first && other.is_first,
            keep_until: self.keep_until.max(other.keep_until),
            keep_long_until: self.keep_long_until.max(other.keep_long_until),
        }
    }
}

/// A table on its way back, from its last block to its first.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    /// What the block behind has.
    floor: Term,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk { floor: Term::NONE }
    }
}

impl Walk {
    /// The term of the next block towards the front: `given` is this release's, `before` what the block had, and
    /// `is_branch` says whether cached text other than this table's continues it.
    pub fn next(&mut self, given: Term, before: Term, is_branch: bool) -> Term {
        let mut term = given.or_longer(self.floor);
        if is_branch {
            term = Term { is_first: false, ..term.or_longer(before) };
        }
        self.floor = term;
        term
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Retention::{EvictFirst, Keep, KeepLong, Normal};

    #[test]
    fn a_class_falls_one_by_one_as_the_pool_turns_over() {
        let check = |class, expected: [Retention; 7]| {
            let term = Term::of(class, 1000, 100);
            let counts = [1000, 1199, 1200, 1799, 1800, 1999, 2000];
            assert_eq!(counts.map(|evicted| term.class(evicted)), expected, "{class}");
        };
        check(EvictFirst, [EvictFirst; 7]);
        check(Normal, [Normal; 7]);
        check(Keep, [Keep, Keep, Normal, Normal, Normal, Normal, Normal]);
        check(KeepLong, [KeepLong, KeepLong, KeepLong, KeepLong, Keep, Keep, Normal]);
    }

    fn walk(blocks: &[(Retention, Term, bool)]) -> alloc::vec::Vec<Retention> {
        let mut walk = Walk::default();
        let terms = blocks.iter().map(|&(class, before, branch)| walk.next(Term::of(class, 0, 10), before, branch));
        terms.map(|term| term.class(0)).collect()
    }

    #[test]
    fn the_last_release_decides_where_nothing_branches_off() {
        let kept = Term::of(Keep, 0, 10);
        assert_eq!(walk(&[(EvictFirst, Term::NONE, false), (EvictFirst, kept, false)]), [EvictFirst, EvictFirst]);
        assert_eq!(walk(&[(Normal, kept, false), (Keep, Term::NONE, false)]), [Normal, Keep]);
    }

    #[test]
    fn what_others_stand_on_keeps_what_is_in_force() {
        let (kept, first) = (Term::of(Keep, 0, 10), Term::of(EvictFirst, 0, 10));
        assert_eq!(walk(&[(EvictFirst, kept, true), (EvictFirst, first, false)]), [Keep, Keep]);
        assert_eq!(walk(&[(EvictFirst, Term::NONE, false), (EvictFirst, first, true)]), [EvictFirst, Normal]);
        // A term that is over does not count.
        let mut over = Walk::default();
        let term = over.next(Term::of(EvictFirst, 50, 10), kept, true);
        assert_eq!(term.class(50), Normal);
    }

    #[test]
    fn nothing_has_less_than_what_continues_it() {
        assert_eq!(walk(&[(KeepLong, Term::NONE, false), (EvictFirst, Term::NONE, false)]), [KeepLong, KeepLong]);
        assert_eq!(walk(&[(Normal, Term::NONE, false), (EvictFirst, Term::NONE, false)]), [Normal, Normal]);
    }
}
