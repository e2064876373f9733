//! Masked categorical heads of a multi-discrete action: sampled, maximised, differentiated.
//!
//! Heads are independent given the observation, so log-probabilities and entropies add up over heads (Huang et al. 2022,
//! "`MultiDiscrete` support"). A forbidden choice has its logit replaced by a large negative number, which gives it
//! probability and gradient zero (Huang, Ontañón 2022, "A Closer Look at Invalid Action Masking in Policy Gradient
//! Algorithms"); a head with a single allowed choice then contributes exactly zero to both sums.

use std::ops::Range;

/// The logit of a forbidden choice: its exponential is zero in `f32`, and zero times it is zero, not NaN.
pub const MASKED_LOGIT: f32 = -1.0e8;

/// The heads of an action. A row of logits or of a mask holds the choices of every head one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heads {
    ranges: Vec<Range<usize>>,
}

impl Heads {
    /// Heads of these sizes.
    pub fn new(sizes: &[usize]) -> Heads {
        let ends = sizes.iter().scan(0, |end, &size| {
            *end += size;
            Some(*end - size..*end)
        });
        Heads { ranges: ends.collect() }
    }

    /// Number of heads.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there is no head.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Choices over all heads.
    pub fn num_choices(&self) -> usize {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// The first head whose choices are all forbidden in a row of a mask.
    pub fn first_empty(&self, mask: &[bool]) -> Option<usize> {
        self.ranges.iter().position(|range| !mask[range.clone()].contains(&true))
    }

    /// Takes a choice of each head into `action`, by a draw from `0..1` for each head, whatever the mask.
    pub fn sample(&self, logits: &[f32], mask: &[bool], draws: &[f64], action: &mut [u8]) {
        for ((range, &draw), choice) in self.ranges.iter().zip(draws).zip(action) {
            *choice = sample_head(&logits[range.clone()], &mask[range.clone()], draw);
        }
    }

    /// The likeliest allowed choice of each head into `action`; the first of equals.
    pub fn greedy(&self, logits: &[f32], mask: &[bool], action: &mut [u8]) {
        for (range, choice) in self.ranges.iter().zip(action) {
            *choice = greedy_head(&logits[range.clone()], &mask[range.clone()]);
        }
    }

    /// Replaces the logits of one row by log-probabilities; negative infinity where forbidden.
    pub fn log_probs(&self, row: &mut [f32], mask: &[bool]) {
        for range in &self.ranges {
            let (logits, mask) = (&mut row[range.clone()], &mask[range.clone()]);
            let largest = allowed(logits, mask).fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = allowed(logits, mask).map(|logit| f64::from(logit - largest).exp()).sum();
            for (logit, &allowed) in logits.iter_mut().zip(mask) {
                let log_prob = (f64::from(*logit - largest) - total.ln()) as f32;
                *logit = if allowed { log_prob } else { f32::NEG_INFINITY };
            }
        }
    }

    /// Log-probability of `action` and entropy, each summed over heads. Replaces the logits of one row by log-probabilities,
    /// finite also where forbidden, and fills `probabilities`.
    pub fn evaluate(&self, row: &mut [f32], probabilities: &mut [f32], mask: &[bool], action: &[u8]) -> (f32, f32) {
        let (mut log_prob, mut entropy) = (0.0, 0.0);
        for (range, &taken) in self.ranges.iter().zip(action) {
            let (row, probabilities) = (&mut row[range.clone()], &mut probabilities[range.clone()]);
            softmax(row, probabilities, &mask[range.clone()]);
            log_prob += row[usize::from(taken)];
            entropy += entropy_of(row, probabilities);
        }
        (log_prob, entropy)
    }

    /// Replaces what [`Heads::evaluate`] left of a row by the derivative of `a log π(action) + b H` by its logits:
    /// `a (1[taken] − p) − b p (log p + H)`, `H` the entropy of the head.
    pub fn differentiate(&self, row: &mut [f32], probabilities: &[f32], action: &[u8], (a, b): (f32, f32)) {
        for (range, &taken) in self.ranges.iter().zip(action) {
            let (row, probabilities) = (&mut row[range.clone()], &probabilities[range.clone()]);
            let entropy = entropy_of(row, probabilities);
            for (log_prob, p) in row.iter_mut().zip(probabilities) {
                *log_prob = -p * (a + b * (*log_prob + entropy));
            }
            row[usize::from(taken)] += a;
        }
    }
}

/// Replaces the logits of one head by log-probabilities, and fills `probabilities`.
fn softmax(row: &mut [f32], probabilities: &mut [f32], mask: &[bool]) {
    for (logit, &allowed) in row.iter_mut().zip(mask) {
        *logit = if allowed { *logit } else { MASKED_LOGIT };
    }
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for ((logit, p), &allowed) in row.iter_mut().zip(&mut *probabilities).zip(mask) {
        *logit -= largest;
        *p = if allowed { logit.exp() } else { 0.0 };
        total += *p;
    }
    let (shift, share) = (total.ln(), 1.0 / total);
    for (log_prob, p) in row.iter_mut().zip(probabilities) {
        *log_prob -= shift;
        *p *= share;
    }
}

/// Entropy of one head, nats.
fn entropy_of(log_probs: &[f32], probabilities: &[f32]) -> f32 {
    -log_probs.iter().zip(probabilities).map(|(log_prob, p)| log_prob * p).sum::<f32>()
}

fn allowed<'a>(logits: &'a [f32], mask: &'a [bool]) -> impl Iterator<Item = f32> + 'a {
    logits.iter().zip(mask).filter(|(_, allowed)| **allowed).map(|(logit, _)| *logit)
}

/// Inverts the cumulative distribution at `draw` in `0..1`.
fn sample_head(logits: &[f32], mask: &[bool], draw: f64) -> u8 {
    let largest = allowed(logits, mask).fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| f64::from((logit - largest).exp());
    let total: f64 = allowed(logits, mask).map(weight).sum();
    let mut left = draw * total;
    let mut last = 0;
    for (choice, (&logit, &allowed)) in logits.iter().zip(mask).enumerate() {
        if allowed {
            last = choice;
            left -= weight(logit);
            if left < 0.0 {
                break;
            }
        }
    }
    last as u8
}

fn greedy_head(logits: &[f32], mask: &[bool]) -> u8 {
    let mut best: Option<(usize, f32)> = None;
    for (choice, (&logit, &allowed)) in logits.iter().zip(mask).enumerate() {
        if allowed && best.is_none_or(|(_, largest)| logit > largest) {
            best = Some((choice, logit));
        }
    }
    best.map_or(0, |(choice, _)| choice as u8)
}

#[cfg(test)]
mod tests {
    use kvtide_envs::seed;
    use proptest::prelude::*;
    use rand::RngExt;

    use super::*;

    const SIZES: [usize; 3] = [4, 1, 3];

    /// Logits of eight choices, a mask that leaves every head one of them, and a seed.
    fn rows() -> impl Strategy<Value = (Vec<f32>, Vec<bool>, u64)> {
        let logits = prop::collection::vec(-20.0_f32..20.0, 8);
        let mask = prop::collection::vec(any::<bool>(), 8);
        (logits, mask, 0..4_usize, 0..3_usize, any::<u64>()).prop_map(|(logits, mut mask, first, third, seed)| {
            mask[first] = true;
            mask[4] = true;
            mask[5 + third] = true;
            (logits, mask, seed)
        })
    }

    fn taken(logits: &[f32], mask: &[bool], action: &[u8]) -> (f32, f32) {
        Heads::new(&SIZES).evaluate(&mut logits.to_vec(), &mut [0.0; 8], mask, action)
    }

    proptest! {
        #[test]
        fn a_forbidden_choice_is_never_taken((logits, mask, seed) in rows()) {
            let heads = Heads::new(&SIZES);
            let mut stream = seed::stream(seed, "test", 0);
            let mut action = [0; 3];
            for _ in 0..32 {
                heads.sample(&logits, &mask, &stream.random::<[f64; 3]>(), &mut action);
                for (range, &choice) in heads.ranges.iter().zip(&action) {
                    prop_assert!(mask[range.start + usize::from(choice)]);
                }
            }
            heads.greedy(&logits, &mask, &mut action);
            for (range, &choice) in heads.ranges.iter().zip(&action) {
                let best = logits[range.start + usize::from(choice)];
                prop_assert!(allowed(&logits[range.clone()], &mask[range.clone()]).all(|logit| logit <= best));
            }
        }

        #[test]
        fn probabilities_sum_to_one_and_agree_with_those_in_f64((logits, mask, seed) in rows()) {
            let heads = Heads::new(&SIZES);
            let mut log_probs = logits.clone();
            heads.log_probs(&mut log_probs, &mask);
            let mut expected_entropy = 0.0;
            for range in &heads.ranges {
                let probabilities: Vec<f64> = log_probs[range.clone()].iter().map(|&log| f64::from(log).exp()).collect();
                prop_assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-5);
                expected_entropy -= probabilities.iter().filter(|&&p| p > 0.0).map(|p| p * p.ln()).sum::<f64>();
            }
            let mut action = [0; 3];
            heads.sample(&logits, &mask, &seed::stream(seed, "test", 0).random::<[f64; 3]>(), &mut action);
            let expected: f32 = heads.ranges.iter().zip(&action).map(|(range, &choice)| log_probs[range.start + usize::from(choice)]).sum();
            let (log_prob, entropy) = taken(&logits, &mask, &action);
            prop_assert!((log_prob - expected).abs() < 1e-4, "{log_prob} {expected}");
            prop_assert!((f64::from(entropy) - expected_entropy).abs() < 1e-4, "{entropy} {expected_entropy}");
        }
    }

    #[test]
    fn equal_logits_have_the_entropy_of_their_number() {
        let mask = [true, true, true, true, true, true, false, true];
        let (log_prob, entropy) = taken(&[0.3; 8], &mask, &[2, 0, 2]);
        let expected = 4.0_f32.ln() + 2.0_f32.ln();
        assert!((log_prob + expected).abs() < 1e-6 && (entropy - expected).abs() < 1e-6, "{log_prob} {entropy}");
    }

    #[test]
    fn a_single_allowed_choice_contributes_exactly_nothing() {
        let mask = [false, true, false, false, true, false, false, true];
        let logits = [9.0, -3.0, 2.0, 1.0, 4.0, 5.0, 6.0, -7.0];
        assert_eq!(taken(&logits, &mask, &[1, 0, 2]), (0.0, 0.0));
    }

    #[test]
    fn a_forbidden_choice_has_no_gradient() {
        let heads = Heads::new(&[3]);
        let (mut row, mut probabilities) = ([1.0, 2.0, 3.0], [0.0; 3]);
        heads.evaluate(&mut row, &mut probabilities, &[true, false, true], &[2]);
        heads.differentiate(&mut row, &probabilities, &[2], (1.0, 1.0));
        assert_eq!(row[1], 0.0);
        assert!(row[0] != 0.0 && row.iter().all(|value| value.is_finite()), "{row:?}");
    }

    #[test]
    fn the_first_of_equals_is_the_likeliest() {
        assert_eq!(greedy_head(&[1.0, 2.0, 2.0, 2.0], &[true, false, true, true]), 2);
    }

    #[test]
    fn sampling_follows_the_probabilities() {
        let logits = [0.0, 2.0_f32.ln(), 5.0, 3.0_f32.ln()];
        let mask = [true, true, false, true];
        let counts = (0..6).map(|draw| sample_head(&logits, &mask, (f64::from(draw) + 0.5) / 6.0)).fold(
            [0; 4],
            |mut counts, choice| {
                counts[usize::from(choice)] += 1;
                counts
            },
        );
        assert_eq!(counts, [1, 2, 0, 3]);
    }
}
