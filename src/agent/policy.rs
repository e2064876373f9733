//! The trained network as a policy: what is evaluated, and the teacher of the table that ships.

use kvtide_runtime::action::{NUM_CHOICES, NUM_HEADS};
use kvtide_runtime::{Action, ActionMask, ActionProfile, Head, NUM_FEATURES, Observation, Policy};

use super::AgentError;
use super::heads::{Heads, MASKED_LOGIT};
use super::inference::{Activation, Inference};
use super::normalise::{Moments, Standardiser};
use super::weights::Weights;

/// A network frozen for use: greedy, without libtorch, shareable between threads.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkPolicy {
    actor: Inference,
    critic: Inference,
    standardiser: Option<Standardiser>,
    heads: Heads,
    profile: ActionProfile,
}

impl NetworkPolicy {
    /// From trained weights and the moments of the observations they were trained on, if these were standardised.
    /// Heads outside `profile` were never trained and stay at the engine's defaults.
    ///
    /// # Errors
    /// [`AgentError::Foreign`] if the weights are not over kvtide's observation and action.
    pub fn new(
        weights: &Weights,
        moments: Option<&Moments>,
        profile: ActionProfile,
    ) -> Result<NetworkPolicy, AgentError> {
        let architecture = weights.architecture();
        let sizes = Head::ALL.map(Head::size);
        let fits = architecture.observation_size == NUM_FEATURES
            && architecture.head_sizes == sizes
            && moments.is_none_or(|moments| moments.mean.len() == NUM_FEATURES);
        if !fits {
            return Err(AgentError::Foreign {
                observation_size: architecture.observation_size,
                head_sizes: architecture.head_sizes.clone(),
            });
        }
        Ok(NetworkPolicy {
            actor: weights.deciding(),
            critic: Inference::new(weights.critic()),
            standardiser: moments.map(Moments::standardiser),
            heads: Heads::new(&sizes),
            profile,
        })
    }

    /// The same network with another activation between its layers.
    #[must_use]
    pub fn activated_by(mut self, activation: Activation) -> NetworkPolicy {
        self.actor = self.actor.activated_by(activation);
        self.critic = self.critic.activated_by(activation);
        self
    }

    /// The heads it decides.
    pub fn profile(&self) -> ActionProfile {
        self.profile
    }

    /// Logits of every choice, head after head; [`MASKED_LOGIT`] where forbidden. Differences within a head are
    /// differences of log-probability.
    pub fn logits(&self, observation: &Observation, mask: ActionMask) -> [f32; NUM_CHOICES] {
        let mut logits = self.raw_logits(observation);
        for (logit, allowed) in logits.iter_mut().zip(flags(mask)) {
            if !allowed {
                *logit = MASKED_LOGIT;
            }
        }
        logits
    }

    /// Log-probabilities of every choice, head after head, each head's summing to one; negative infinity where
    /// forbidden.
    pub fn log_probs(&self, observation: &Observation, mask: ActionMask) -> [f32; NUM_CHOICES] {
        let mut row = self.raw_logits(observation);
        self.heads.log_probs(&mut row, &flags(mask));
        row
    }

    /// An action drawn from the policy by a number in `0..1` for each head, as PPO's actor draws; obeys `mask`, whose choices of
    /// heads outside the profile are to be pinned.
    pub fn sample(&self, observation: &Observation, mask: ActionMask, draws: &[f64; NUM_HEADS]) -> Action {
        let mut choices = Action::ENGINE_DEFAULT.indices();
        self.heads.sample(&self.raw_logits(observation), &flags(mask), draws, &mut choices);
        mask.repair(Action::new(choices).unwrap_or(Action::ENGINE_DEFAULT))
    }

    /// The critic's estimate of the discounted sum of (scaled) rewards left.
    pub fn value(&self, observation: &Observation) -> f32 {
        let mut value = [0.0];
        self.critic.forward(&self.standardised(observation), &mut value);
        value[0]
    }

    fn raw_logits(&self, observation: &Observation) -> [f32; NUM_CHOICES] {
        let mut logits = [0.0; NUM_CHOICES];
        self.actor.forward(&self.standardised(observation), &mut logits);
        logits
    }

    fn standardised(&self, observation: &Observation) -> [f32; NUM_FEATURES] {
        let mut values = observation.values;
        if let Some(standardiser) = &self.standardiser {
            standardiser.apply(&mut values);
        }
        values
    }
}

impl Policy for NetworkPolicy {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        let decided = self.profile.restrict(mask, Action::ENGINE_DEFAULT);
        let mut choices = Action::ENGINE_DEFAULT.indices();
        self.heads.greedy(&self.raw_logits(observation), &flags(decided), &mut choices);
        // Repaired because the engine's default of a head outside the profile may itself be forbidden.
        mask.repair(Action::new(choices).unwrap_or(Action::ENGINE_DEFAULT))
    }
}

/// The mask as one flag per choice, head after head.
fn flags(mask: ActionMask) -> [bool; NUM_CHOICES] {
    let mut flags = [false; NUM_CHOICES];
    let choices = Head::ALL.into_iter().flat_map(|head| (0..head.size() as u8).map(move |choice| (head, choice)));
    for (flag, (head, choice)) in flags.iter_mut().zip(choices) {
        *flag = mask.allows(head, choice);
    }
    flags
}

#[cfg(test)]
mod tests {
    use kvtide_envs::seed;
    use proptest::prelude::*;
    use rand::RngExt;

    use super::*;
    use crate::agent::weights::Architecture;

    fn trained() -> (Weights, Moments) {
        let architecture = Architecture {
            observation_size: NUM_FEATURES,
            hidden: vec![16],
            head_sizes: Head::ALL.map(Head::size).to_vec(),
        };
        let mut moments = Moments::new(NUM_FEATURES);
        let mut stream = seed::stream(1, "test", 0);
        moments.update(&(0..NUM_FEATURES * 9).map(|_| stream.random_range(-2.0..2.0)).collect::<Vec<f32>>());
        (Weights::orthogonal(architecture, 1), moments)
    }

    fn policy(profile: ActionProfile) -> NetworkPolicy {
        let (weights, moments) = trained();
        NetworkPolicy::new(&weights, Some(&moments), profile).unwrap()
    }

    #[test]
    fn it_sees_what_the_agent_saw() {
        let (weights, moments) = trained();
        let observation = Observation { values: std::array::from_fn(|index| index as f32 / 9.0 - 1.5) };
        let mut row = observation.values;
        moments.standardiser().apply(&mut row);
        let (mut logits, mut value) = ([0.0; NUM_CHOICES], [0.0]);
        Inference::new(weights.actor()).forward(&row, &mut logits);
        Inference::new(weights.critic()).forward(&row, &mut value);
        let policy = policy(ActionProfile::Full);
        assert_eq!(policy.logits(&observation, ActionMask::ALL), logits);
        assert_eq!(policy.value(&observation), value[0]);
    }

    fn mask() -> impl Strategy<Value = ActionMask> {
        prop::collection::vec((0..Head::ALL.len(), 0..20_u8), 0..30).prop_map(|forbidden| {
            forbidden.into_iter().fold(ActionMask::ALL, |mask, (head, choice)| mask.forbid(Head::ALL[head], choice))
        })
    }

    proptest! {
        #[test]
        fn it_takes_the_likeliest_allowed_choice_and_defaults_outside_its_profile(
            values in prop::collection::vec(-3.0_f32..3.0, NUM_FEATURES),
            mask in mask(),
            index in 0..ActionProfile::ALL.len(),
        ) {
            let policy = policy(ActionProfile::ALL[index]);
            let observation = Observation { values: values.try_into().expect("as many as asked for") };
            let action = policy.decide(&observation, mask);
            let log_probs = policy.log_probs(&observation, mask);
            let mut offset = 0;
            for head in Head::ALL {
                let choice = action.get(head);
                prop_assert!(mask.allows(head, choice));
                let row = &log_probs[offset..offset + head.size()];
                let total: f64 = row.iter().map(|&log_prob| f64::from(log_prob).exp()).sum();
                prop_assert!((total - 1.0).abs() < 1e-5);
                if policy.profile().heads().contains(&head) {
                    prop_assert!(row.iter().all(|&log_prob| log_prob <= row[usize::from(choice)]));
                } else if mask.allows(head, Action::ENGINE_DEFAULT.get(head)) {
                    prop_assert_eq!(choice, Action::ENGINE_DEFAULT.get(head));
                }
                offset += head.size();
            }
            prop_assert!(policy.value(&observation).is_finite());
        }
    }

    #[test]
    fn forbidden_logits_are_marked() {
        let mask = ActionMask::ALL.pin(Head::Victim, 3);
        let logits = policy(ActionProfile::Full).logits(&Observation::ZERO, mask);
        let victims = &logits[20..25];
        assert!(victims[3] > MASKED_LOGIT && victims.iter().filter(|&&logit| logit == MASKED_LOGIT).count() == 4);
    }

    #[test]
    fn a_network_over_something_else_is_refused() {
        let foreign = Architecture { observation_size: 4, hidden: vec![8], head_sizes: vec![2] };
        let error = NetworkPolicy::new(&Weights::orthogonal(foreign, 1), None, ActionProfile::Core).unwrap_err();
        assert_eq!(error, AgentError::Foreign { observation_size: 4, head_sizes: vec![2] });
    }

    #[test]
    fn it_can_be_shared_between_threads() {
        fn shareable<T: Send + Sync>(_: &T) {}
        shareable(&policy(ActionProfile::Full));
    }
}
