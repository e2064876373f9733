//! What a tree is grown from: observations, what the teacher would do, and how much it minds.
//!
//! A tree of few leaves must be wrong somewhere; it should be wrong where that costs little. VIPER (Bastani, Pu,
//! Solar-Lezama 2018, "Verifiable Reinforcement Learning via Policy Extraction", section 3.2) weights a state by
//! `V(s) - min_a Q(s, a)`, what the worst action would lose. Our teacher has no Q, but a policy trained with an entropy
//! bonus has `log π(a|s) ≈ (Q(s, a) - V(s)) / α` (Haarnoja et al. 2017, "Reinforcement Learning with Deep Energy-Based
//! Policies", theorem 1), and logits differ from log-probabilities by a constant of the state. So the weight of a head is
//! the logit of its choice less the **mean** over the choices it may take: in units of α, what a choice at random would
//! lose. The mean instead of the minimum, because PPO leaves the logits of choices it never tries anywhere.

use kvtide_runtime::action::{NUM_CHOICES, NUM_HEADS};
use kvtide_runtime::format::FeatureRange;
use kvtide_runtime::{Action, ActionMask, Head, NUM_FEATURES, Observation};

use super::{DistilError, Teacher};

/// Largest regret, in nats: a preference of 3,000 to 1 is certainty, and one sample shall not outvote hundreds.
pub const MAX_REGRET: f32 = 8.0;

/// Regrets are kept as multiples of this, in nats. Whole numbers add up to the same sum in every order.
pub const REGRET_UNIT: f32 = 1.0 / 65_536.0;

/// A decision to be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Visit {
    /// What is seen.
    pub observation: Observation,
    /// What can be done.
    pub mask: ActionMask,
}

/// A decision with the teacher's answer. Each counts once in a visit-weighted mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The decision.
    pub visit: Visit,
    /// What the teacher does.
    pub action: Action,
    /// How much it prefers that to a choice at random, per head, in [`REGRET_UNIT`]; 0 for a head with a single choice.
    pub regrets: [u32; NUM_HEADS],
}

impl Sample {
    /// Asks the teacher.
    ///
    /// # Errors
    /// [`DistilError::Logit`] if an allowed choice has no finite logit.
    pub fn label(teacher: &dyn Teacher, visit: &Visit) -> Result<Sample, DistilError> {
        let Visit { observation, mask } = *visit;
        let action = teacher.decide(&observation, mask);
        let logits = teacher.logits(&observation, mask);
        let mut regrets = [0; NUM_HEADS];
        for head in Head::ALL {
            let logits = &logits[first_choice(head)..][..head.size()];
            regrets[head as usize] = regret(head, logits, mask, action.get(head))?;
        }
        Ok(Sample { visit: *visit, action, regrets })
    }
}

/// Where the choices of `head` begin in a row of [`NUM_CHOICES`].
pub(super) fn first_choice(head: Head) -> usize {
    Head::ALL.into_iter().take(head as usize).map(Head::size).sum()
}

/// What a choice at random would lose by the teacher's own opinion, clipped to [`MAX_REGRET`].
fn regret(head: Head, logits: &[f32], mask: ActionMask, choice: u8) -> Result<u32, DistilError> {
    let (mut sum, mut allowed) = (0.0, 0_u32);
    for (index, &logit) in logits.iter().enumerate().filter(|(index, _)| mask.allows(head, *index as u8)) {
        if !logit.is_finite() {
            return Err(DistilError::Logit { head: head.name(), choice: index as u8, logit });
        }
        sum += f64::from(logit);
        allowed += 1;
    }
    let chosen = f64::from(logits[usize::from(choice)]);
    // Nothing for the only choice there is, nor for one below the mean: there the teacher decided against its own logits.
    let regret = chosen - sum / f64::from(allowed);
    Ok((regret.clamp(0.0, f64::from(MAX_REGRET)) / f64::from(REGRET_UNIT)).round() as u32)
}

/// Smallest and largest value of every feature; zeros without observations, a range no guard will trust.
pub(super) fn ranges<'a>(observations: impl IntoIterator<Item = &'a Observation>) -> [FeatureRange; NUM_FEATURES] {
    let of = |value: f32| FeatureRange { min: value, max: value };
    let all = observations.into_iter().map(|observation| observation.values.map(of));
    all.reduce(|ranges, others| union(&ranges, &others)).unwrap_or([of(0.0); NUM_FEATURES])
}

/// The smallest ranges with both in them.
pub(super) fn union(
    ranges: &[FeatureRange; NUM_FEATURES],
    others: &[FeatureRange; NUM_FEATURES],
) -> [FeatureRange; NUM_FEATURES] {
    std::array::from_fn(|feature| {
        let (one, other) = (ranges[feature], others[feature]);
        FeatureRange { min: one.min.min(other.min), max: one.max.max(other.max) }
    })
}

const _: () = assert!(NUM_CHOICES <= u8::MAX as usize, "a choice's number over all heads is a byte");

#[cfg(test)]
mod tests {
    use super::*;

    const VICTIMS: [f32; 5] = [1.0, 3.0, f32::NEG_INFINITY, -1.0, 1.0];

    #[test]
    fn regret_is_the_lead_over_the_mean_of_what_is_allowed() {
        let mask = ActionMask::ALL.forbid(Head::Victim, 2);
        assert_eq!(regret(Head::Victim, &VICTIMS, mask, 1).unwrap(), 2 << 16);
        let two = mask.forbid(Head::Victim, 0).forbid(Head::Victim, 4);
        assert_eq!(regret(Head::Victim, &VICTIMS, two, 1).unwrap(), 2 << 16);
        // The mean of 3 and 1.
        let others = mask.forbid(Head::Victim, 0).forbid(Head::Victim, 3);
        assert_eq!(regret(Head::Victim, &VICTIMS, others, 1).unwrap(), 1 << 16);
    }

    #[test]
    fn it_is_bounded_on_both_sides_and_zero_where_nothing_can_be_chosen() {
        assert_eq!(regret(Head::Admission, &[100.0, 0.0, 0.0], ActionMask::ALL, 0).unwrap(), 8 << 16);
        assert_eq!(regret(Head::Admission, &[100.0, 0.0, 0.0], ActionMask::ALL, 1).unwrap(), 0);
        let pinned = ActionMask::ALL.pin(Head::Admission, 0);
        assert_eq!(regret(Head::Admission, &[100.0, 0.0, 0.0], pinned, 0).unwrap(), 0);
    }

    #[test]
    fn a_logit_that_is_no_number_is_an_error_only_where_it_is_allowed() {
        let error = regret(Head::Victim, &VICTIMS, ActionMask::ALL, 1).unwrap_err().to_string();
        assert!(error.starts_with("the teacher's logit of victim 2 is -inf"), "{error}");
    }

    #[test]
    fn choices_begin_where_the_head_before_ends() {
        assert_eq!(Head::ALL.map(first_choice), [0, 20, 25, 28, 31, 40]);
    }
}
