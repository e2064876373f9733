//! Which cached blocks survive: when a request gives its blocks back, a policy chooses their [`Retention`] class.
//!
//! One definition of what it sees ([`ReleaseObservation`]) serves the simulator and a node alike, as
//! [`Observation`](crate::Observation) does for controls; what a class means is `kvtide_rules::retention`. A request is
//! asked about at most twice a release: about its **head**, the blocks that were cached when it was admitted, and about its
//! **tail**, those it computed. The classes come from a second tree in a `.kvt` file ([`RetentionTable`]), behind a guard of
//! their own ([`RetentionGuard`]) whose fallback is what every engine does: everything `normal`.

mod guard;
mod observation;
mod release;
mod table;

use core::fmt;

pub use guard::{RetentionCounters, RetentionFallback, RetentionGuard};
pub use observation::{
    NUM_RELEASE_FEATURES, NUM_REQUEST_FEATURES, RELEASE_FEATURES, RELEASE_SCHEMA_HASH, ReleaseFeature,
    ReleaseObservation,
};
pub use release::{Part, Release, Stop};
pub use table::RetentionTable;

/// How long the blocks that a request gives back shall stay cached. Victims come from the lowest class that has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Retention {
    /// Goes before everything else.
    EvictFirst = 0,
    /// What every engine does with every block.
    #[default]
    Normal = 1,
    /// Stays while the pool turns over twice.
    Keep = 2,
    /// Stays while the pool turns over eight times.
    KeepLong = 3,
}

impl Retention {
    /// Every class, the first to be evicted first.
    pub const ALL: [Retention; 4] = [Retention::EvictFirst, Retention::Normal, Retention::Keep, Retention::KeepLong];

    /// Every class's name, in index order.
    pub const NAMES: [&'static str; 4] = ["evict-first", "normal", "keep", "keep-long"];

    /// The class's name in files, policy texts and logs.
    pub const fn name(self) -> &'static str {
        Retention::NAMES[self as usize]
    }

    /// The class of that name.
    pub fn from_name(name: &str) -> Option<Retention> {
        Retention::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The class of that index.
    pub const fn from_index(index: u8) -> Option<Retention> {
        match index {
            0 => Some(Retention::EvictFirst),
            1 => Some(Retention::Normal),
            2 => Some(Retention::Keep),
            3 => Some(Retention::KeepLong),
            _ => None,
        }
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whoever chooses the class of blocks that are given back. Never fails, and never takes long: a scheduler waits for it.
pub trait RetentionPolicy {
    /// The class of the part that `observation` describes.
    fn retain(&self, observation: &ReleaseObservation) -> Retention;
}

/// The same class for everything.
impl RetentionPolicy for Retention {
    fn retain(&self, _: &ReleaseObservation) -> Retention {
        *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_found_by_its_name_and_its_index() {
        for (index, class) in Retention::ALL.into_iter().enumerate() {
            assert_eq!(Retention::from_name(class.name()), Some(class));
            assert_eq!(Retention::from_index(index as u8), Some(class));
        }
        assert_eq!((Retention::from_name("lru"), Retention::from_index(4)), (None, None));
        assert_eq!(Retention::default(), Retention::Normal);
    }
}
