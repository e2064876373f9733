//! What a retention policy sees: the node's observation, then what is known of the request and of the part of its blocks.

use core::ops::Index;

use crate::hash;
use crate::observation::{FEATURES, Feature, FeatureSpec, NUM_FEATURES, Observation, SCHEMA_HASH};

macro_rules! request_features {
    ($($variant:ident = $name:literal, $unit:literal, $min:literal ..= $max:literal, $source:literal;)+) => {
        /// A feature of a [`ReleaseObservation`] beside those of the node. None looks at the future: all is known to whoever
        /// has served the request until now.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum ReleaseFeature {
            $(#[doc = concat!("`", $name, "` (", $unit, "): ", $source, ".")] $variant,)+
        }

        impl ReleaseFeature {
            /// Every feature, in index order.
            pub const ALL: [ReleaseFeature; NUM_REQUEST_FEATURES] = [$(ReleaseFeature::$variant,)+];
        }

        const REQUEST_FEATURES: [FeatureSpec; NUM_REQUEST_FEATURES] = [
            $(FeatureSpec { name: $name, unit: $unit, min: $min, max: $max, source: $source },)+
        ];
    };
}

/// Number of features beside those of the node.
pub const NUM_REQUEST_FEATURES: usize = 17;

/// Number of features of a [`ReleaseObservation`].
pub const NUM_RELEASE_FEATURES: usize = NUM_FEATURES + NUM_REQUEST_FEATURES;

// A turnover is as many evicted blocks as the pool has: the one clock by which caches of every size are alike.
request_features! {
    Part = "part", "index", 0.0..=1.0, "0 for the blocks that were cached when the request was admitted, 1 for those it computed";
    Turn = "turn", "turns", 1.0..=256.0, "turn of its session; where no session is told, one more than that of who first asked for the longest prefix known";
    HitShare = "hit_share", "fraction", 0.0..=1.0, "prompt tokens that were cached when it was admitted / prompt tokens";
    Asked = "asked", "requests", 0.0..=255.0, "earlier requests that asked for the part's prefix, as far as is remembered";
    AskedAge = "asked_age", "turnovers", 0.0..=16.0, "blocks evicted since the last of those / num_gpu_blocks; 16 if there is none";
    KindReuse = "kind_reuse", "fraction", 0.0..=1.0, "share of the releases of its tenant and stop reason that were asked for again (EWMA, 64 releases)";
    KindReturn = "kind_return", "turnovers", 0.0..=16.0, "time until those came back (EWMA, 16 returns) x blocks evicted/s / num_gpu_blocks; 16 if none did";
    LastReturn = "last_return", "turnovers", 0.0..=16.0, "time its own session took to come back with it x blocks evicted/s / num_gpu_blocks; 16 if it has not";
    Stop = "stop", "index", 0.0..=4.0, "why it gives its blocks back: 0 preempted, 1 tool call, 2 not told, 3 length, 4 end of turn";
    Prompt = "prompt", "pool", 0.0..=1.0, "blocks of its prompt / num_gpu_blocks";
    Output = "output", "pool", 0.0..=1.0, "blocks of what it generated / num_gpu_blocks";
    PartBlocks = "part_blocks", "pool", 0.0..=1.0, "blocks of the part / num_gpu_blocks";
    Depth = "depth", "pool", 0.0..=1.0, "blocks before the part / num_gpu_blocks";
    Shared = "shared", "fraction", 0.0..=1.0, "share of the part's blocks that another request holds";
    Held = "held", "turnovers", 0.0..=16.0, "blocks evicted since it was admitted / num_gpu_blocks";
    TurnoverRate = "turnover_rate", "turnovers per TTFT target", 0.0..=16.0, "blocks evicted/s (EWMA, 60 s) x TTFT target / num_gpu_blocks";
    Kept = "kept", "pool", 0.0..=1.0, "idle blocks above class normal / num_gpu_blocks";
}

/// Every feature's meaning, in index order: the node's, then the request's.
pub const RELEASE_FEATURES: [FeatureSpec; NUM_RELEASE_FEATURES] = {
    let mut all = [FEATURES[0]; NUM_RELEASE_FEATURES];
    let mut index = 0;
    while index < NUM_RELEASE_FEATURES {
        all[index] = if index < NUM_FEATURES { FEATURES[index] } else { REQUEST_FEATURES[index - NUM_FEATURES] };
        index += 1;
    }
    all
};

const _: () = assert!(NUM_RELEASE_FEATURES <= crate::format::MAX_FEATURES as usize, "a file has a range for each");

/// Hash of the meaning of a [`ReleaseObservation`]: the node's schema, then name, unit, range and source of every feature of
/// the request.
pub const RELEASE_SCHEMA_HASH: u64 = {
    let mut state = hash::absorb(hash::OFFSET_BASIS, &SCHEMA_HASH.to_le_bytes());
    let mut index = 0;
    while index < NUM_REQUEST_FEATURES {
        let spec = &REQUEST_FEATURES[index];
        state = hash::absorb(state, spec.name.as_bytes());
        state = hash::absorb(state, spec.unit.as_bytes());
        state = hash::absorb(state, &spec.min.to_bits().to_le_bytes());
        state = hash::absorb(state, &spec.max.to_bits().to_le_bytes());
        state = hash::absorb(state, spec.source.as_bytes());
        index += 1;
    }
    state
};

impl ReleaseFeature {
    /// Its index among [`RELEASE_FEATURES`].
    pub const fn index(self) -> usize {
        NUM_FEATURES + self as usize
    }

    /// Its meaning.
    pub const fn spec(self) -> &'static FeatureSpec {
        &REQUEST_FEATURES[self as usize]
    }
}

/// One observation at a release: finite values, each within its feature's range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReleaseObservation {
    /// Values in the order of [`RELEASE_FEATURES`].
    pub values: [f32; NUM_RELEASE_FEATURES],
}

impl ReleaseObservation {
    /// The node as it was last observed, and nothing of the request yet: zeros.
    pub fn of_node(node: &Observation) -> ReleaseObservation {
        let mut values = [0.0; NUM_RELEASE_FEATURES];
        if let Some((first, _)) = values.split_first_chunk_mut() {
            *first = node.values;
        }
        ReleaseObservation { values }
    }

    /// Stores `value` clamped to the feature's range; NaN becomes the smallest value.
    pub fn set(&mut self, feature: ReleaseFeature, value: f32) {
        let spec = feature.spec();
        if let Some(slot) = self.values.get_mut(feature.index()) {
            *slot = if value.is_nan() { spec.min } else { value.clamp(spec.min, spec.max) };
        }
    }

    /// A feature of the node.
    pub fn node(&self, feature: Feature) -> f32 {
        self.values[feature as usize]
    }
}

impl Index<ReleaseFeature> for ReleaseObservation {
    type Output = f32;

    fn index(&self, feature: ReleaseFeature) -> &f32 {
        &self.values[feature.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_features_come_first_and_no_name_is_used_twice() {
        assert_eq!(RELEASE_FEATURES[..NUM_FEATURES], FEATURES);
        for (index, spec) in RELEASE_FEATURES.iter().enumerate() {
            assert!(spec.min < spec.max, "{}", spec.name);
            assert!(RELEASE_FEATURES[..index].iter().all(|other| other.name != spec.name), "{}", spec.name);
        }
        for feature in ReleaseFeature::ALL {
            assert_eq!(RELEASE_FEATURES[feature.index()], *feature.spec());
        }
    }

    #[test]
    fn values_are_clamped_and_the_node_is_kept() {
        let mut node = Observation::ZERO;
        node.set(Feature::FreeFraction, 0.25);
        let mut seen = ReleaseObservation::of_node(&node);
        seen.set(ReleaseFeature::Turn, f32::NAN);
        seen.set(ReleaseFeature::AskedAge, f32::INFINITY);
        assert_eq!((seen[ReleaseFeature::Turn], seen[ReleaseFeature::AskedAge]), (1.0, 16.0));
        assert_eq!((seen.node(Feature::FreeFraction), seen[ReleaseFeature::Kept]), (0.25, 0.0));
    }
}
