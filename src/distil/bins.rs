//! Values sorted into at most 256 bins of about equal mass, so that splits are looked for by counting.

use kvtide_runtime::NUM_FEATURES;

use super::dataset::Sample;

/// The bins of one feature.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// Feature index.
    pub(super) feature: u8,
    /// Number of bins, at least 2.
    pub(super) num_bins: usize,
    /// Each sample's bin; a greater value is never in a lower bin, equal values are in the same.
    pub(super) bins: Vec<u8>,
}

/// The columns of all features that have more than one value.
pub(super) fn columns(samples: &[Sample], max_bins: usize) -> Vec<Column> {
    (0..NUM_FEATURES).filter_map(|feature| column(samples, feature, max_bins)).collect()
}

fn column(samples: &[Sample], feature: usize, max_bins: usize) -> Option<Column> {
    let values: Vec<f32> = samples.iter().map(|sample| sample.visit.observation.values[feature]).collect();
    let edges = edges(values.clone(), max_bins);
    let bins = values.iter().map(|&value| edges.partition_point(|&edge| edge < value) as u8).collect();
    (!edges.is_empty()).then_some(Column { feature: feature as u8, num_bins: edges.len() + 1, bins })
}

/// The largest value of every bin but the last.
///
/// Up to `max_bins` different values have a bin each. Of more, each bin in turn takes values until it has its share of
/// what is left, so that one frequent value does not cost the others their bins.
fn edges(mut values: Vec<f32>, max_bins: usize) -> Vec<f32> {
    values.sort_unstable_by(f32::total_cmp);
    let equal = |a: &f32, b: &f32| a == b;
    let one_each = values.chunk_by(equal).count() <= max_bins;
    let (mut samples_left, mut bins_left, mut in_bin) = (values.len(), max_bins, 0);
    let mut edges = Vec::with_capacity(max_bins);
    for group in values.chunk_by(equal) {
        in_bin += group.len();
        if one_each || in_bin * bins_left >= samples_left {
            edges.push(group[0]);
            samples_left -= in_bin;
            bins_left -= 1;
            in_bin = 0;
        }
    }
    edges.pop();
    edges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_values_have_a_bin_each() {
        assert_eq!(edges(vec![3.0, 1.0, 1.0, 2.0, 3.0, 3.0], 4), [1.0, 2.0]);
        assert_eq!(edges(vec![0.0, -0.0, 5.0], 2), [-0.0]);
        assert_eq!(edges(vec![7.0; 9], 2), [0.0; 0]);
        assert_eq!(edges(vec![], 2), [0.0; 0]);
    }

    #[test]
    fn a_frequent_value_leaves_the_others_their_bins() {
        let mut values = vec![0.0; 900];
        values.extend((1..=100).map(|value| value as f32));
        // One bin for the zeros, and ten values in each of ten others.
        assert_eq!(edges(values, 11), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]);
    }

    proptest! {
        #[test]
        fn bins_are_few_and_never_empty(values in prop::collection::vec(-20_i8..20, 1..200), max_bins in 2..30_usize) {
            let values: Vec<f32> = values.into_iter().map(f32::from).collect();
            let edges = edges(values.clone(), max_bins);
            prop_assert!(edges.len() < max_bins);
            prop_assert!(edges.is_sorted_by(|a, b| a < b));
            let largest = values.iter().copied().fold(f32::MIN, f32::max);
            prop_assert!(edges.iter().all(|edge| values.contains(edge) && *edge < largest));
        }
    }
}
