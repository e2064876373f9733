//! What a learned policy decided, and which features it decided by.

use kvtide_envs::seed;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{ActionProfile, Feature, Head, NUM_FEATURES, Policy, Table};
use rand::RngExt;

use super::close_up::VisitedState;
use crate::policy::Subject;

/// What one policy did on the states it came to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Insight {
    /// How often it was asked.
    pub(super) decisions: usize,
    /// The heads it decides, each with the share of decisions for every choice that was taken, most frequent first.
    pub(super) heads: Vec<(Head, Vec<(String, f64)>)>,
    /// By feature, most important first; those without any influence are left out.
    pub(super) features: Vec<Influence>,
}

/// How much decisions depend on one feature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Influence {
    pub(super) feature: Feature,
    /// Share of decisions that become others if the feature's values are shuffled over the states visited: permutation
    /// importance (Breiman 2001, "Random Forests", section 10), with agreement instead of accuracy.
    pub(super) any: f64,
    /// The same for each head.
    pub(super) heads: [f64; NUM_HEADS],
    /// Of a table: share of decisions on whose way the feature was asked for.
    pub(super) asked: Option<f64>,
}

/// States looked at; of more, so many are taken evenly.
const MAX_STATES: usize = 4096;

impl Insight {
    /// `None` for a policy that learned nothing, or was never asked.
    pub(super) fn of(subject: &Subject, visits: &[VisitedState]) -> Option<Insight> {
        let (policy, profile) = subject.policy()?;
        if visits.is_empty() {
            return None;
        }
        let table = subject.table();
        let count = visits.len().min(MAX_STATES);
        let states: Vec<VisitedState> = (0..count).map(|index| visits[index * visits.len() / count]).collect();
        let mut features: Vec<Influence> =
            Feature::ALL.iter().map(|&feature| influence(policy, table, feature, &states)).collect();
        features.retain(|one| one.any > 0.0 || one.asked.is_some_and(|asked| asked > 0.0));
        features
            .sort_by(|a, b| b.any.total_cmp(&a.any).then(b.asked.unwrap_or(0.0).total_cmp(&a.asked.unwrap_or(0.0))));
        Some(Insight { decisions: visits.len(), heads: choices(profile, visits), features })
    }
}

fn influence(
    policy: &dyn Policy,
    table: Option<&Table<'static>>,
    feature: Feature,
    states: &[VisitedState],
) -> Influence {
    let column = feature as usize;
    debug_assert!(column < NUM_FEATURES);
    let mut values: Vec<f32> = states.iter().map(|state| state.observation.values[column]).collect();
    let mut stream = seed::stream(0, "report.shuffle", column as u64);
    for last in (1..values.len()).rev() {
        values.swap(last, stream.random_range(0..=last));
    }
    let (mut any, mut heads) = (0.0, [0.0; NUM_HEADS]);
    for (state, value) in states.iter().zip(values) {
        let mut observation = state.observation;
        observation.values[column] = value;
        let action = policy.decide(&observation, state.mask);
        any += f64::from(u8::from(action != state.action));
        for head in Head::ALL {
            heads[head as usize] += f64::from(u8::from(action.get(head) != state.action.get(head)));
        }
    }
    let count = states.len() as f64;
    let asked = table.map(|table| {
        let asks = |state: &&VisitedState| table.path(&state.observation).any(|(asked, _)| asked == feature);
        states.iter().filter(asks).count() as f64 / count
    });
    Influence { feature, any: any / count, heads: heads.map(|changed| changed / count), asked }
}

fn choices(profile: ActionProfile, visits: &[VisitedState]) -> Vec<(Head, Vec<(String, f64)>)> {
    let of_head = |&head: &Head| {
        let taken = |choice: u8| visits.iter().filter(|visit| visit.action.get(head) == choice).count();
        let shares = (0..head.size() as u8).map(|choice| (choice, taken(choice) as f64 / visits.len() as f64));
        let mut shares: Vec<(String, f64)> = shares
            .filter(|(_, share)| *share > 0.0)
            .filter_map(|(choice, share)| Some((head.choices().get(choice)?.to_string(), share)))
            .collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        (head, shares)
    };
    profile.heads().iter().map(of_head).collect()
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::{Action, ActionMask, Observation};

    use super::*;

    /// The watermark follows one feature, the victim nothing.
    struct ByWaiting;

    impl Policy for ByWaiting {
        fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
            let choice = if observation[Feature::Waiting] > 0.5 { 7 } else { 2 };
            mask.repair(Action::ENGINE_DEFAULT.with(Head::Watermark, choice).unwrap())
        }
    }

    #[test]
    fn influence_is_the_share_of_decisions_a_shuffle_changes() {
        let visit = |index: u32| {
            let mut observation = Observation::ZERO;
            observation.set(Feature::Waiting, f64::from(index % 2) as f32);
            observation.set(Feature::Running, index as f32 / 2000.0);
            let mask = ActionMask::ALL;
            VisitedState { observation, mask, action: ByWaiting.decide(&observation, mask) }
        };
        let states: Vec<VisitedState> = (0..2000).map(visit).collect();
        let waiting = influence(&ByWaiting, None, Feature::Waiting, &states);
        // Half are shown the other value.
        assert!(
            (waiting.any - 0.5).abs() < 0.05 && waiting.heads == [waiting.any, 0.0, 0.0, 0.0, 0.0, 0.0],
            "{waiting:?}"
        );
        assert_eq!(influence(&ByWaiting, None, Feature::Running, &states).any, 0.0);
        let heads = choices(ActionProfile::Core, &states);
        assert_eq!(heads[0].1, [("0.02".to_owned(), 0.5), ("0.15".to_owned(), 0.5)]);
        assert_eq!(heads[1], (Head::Victim, vec![("newest".to_owned(), 1.0)]));
    }
}
