//! The network's parameters as plain numbers: what is initialised, saved, and decided with.

use kvtide_envs::seed;

use super::config::Prior;
use super::inference::Inference;
use super::orthogonal::orthogonal;

/// What the networks look like: inputs, hidden widths, heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Architecture {
    /// Length of an observation.
    pub observation_size: usize,
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Choices of each head.
    pub head_sizes: Vec<usize>,
}

impl Architecture {
    /// `(outputs, inputs)` of each layer of a network that ends in `outputs`.
    pub fn layers(&self, outputs: usize) -> Vec<(usize, usize)> {
        let widths: Vec<usize> =
            [self.observation_size].iter().chain(&self.hidden).chain(&[outputs]).copied().collect();
        widths.windows(2).map(|pair| (pair[1], pair[0])).collect()
    }

    /// Outputs of the actor: choices over all heads.
    pub fn num_choices(&self) -> usize {
        self.head_sizes.iter().sum()
    }

    /// Names and shapes of every parameter, in order: `actor.0.weight` `[outputs, inputs]`, `actor.0.bias` `[outputs]`, …
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        let network = |name: &'static str, outputs: usize| {
            self.layers(outputs).into_iter().enumerate().flat_map(move |(index, (outputs, inputs))| {
                [
                    (format!("{name}.{index}.weight"), vec![outputs, inputs]),
                    (format!("{name}.{index}.bias"), vec![outputs]),
                ]
            })
        };
        network("actor", self.num_choices()).chain(network("critic", 1)).collect()
    }
}

/// Every parameter, in the order of [`Architecture::parameters`], row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    architecture: Architecture,
    values: Vec<Vec<f32>>,
    start: Option<LinearStart>,
}

/// A linear policy that learning starts from: its logits are added to the actor's, and are not learned.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearStart {
    /// `[choices, observation_size]`, row-major.
    pub weight: Vec<f32>,
    /// `[choices]`.
    pub bias: Vec<f32>,
}

impl Weights {
    /// Nothing but zeros.
    pub fn zeros(architecture: Architecture) -> Weights {
        let values = architecture.parameters().iter().map(|(_, shape)| vec![0.0; shape.iter().product()]).collect();
        Weights { architecture, values, start: None }
    }

    /// Weights orthogonal with gain √2, the actor's last layer 0.01 (so that the first policy is close to uniform), the
    /// critic's 1; biases zero (Huang et al. 2022, detail 2).
    pub fn orthogonal(architecture: Architecture, seed: u64) -> Weights {
        let network = |name: &str, outputs: usize, last_gain: f64| -> Vec<Vec<f32>> {
            let layers = architecture.layers(outputs);
            let last = layers.len() - 1;
            let initialise = |(index, &(outputs, inputs)): (usize, &(usize, usize))| {
                let gain = if index == last { last_gain } else { std::f64::consts::SQRT_2 };
                let mut stream = seed::stream(seed, name, index as u64);
                [orthogonal(outputs, inputs, gain, &mut stream), vec![0.0; outputs]]
            };
            layers.iter().enumerate().flat_map(initialise).collect()
        };
        let mut values = network("ppo.init.actor", architecture.num_choices(), 0.01);
        values.extend(network("ppo.init.critic", 1, 1.0));
        Weights { architecture, values, start: None }
    }

    /// The same weights as a correction of the policy `start`: the actor's last layer is zeroed, so that the first policy is `start`
    /// to the bit (a residual policy: Silver et al. 2018, "Residual Policy Learning"). `None` if it is not over the same
    /// observation and choices.
    #[must_use]
    pub fn starting_from(mut self, start: LinearStart) -> Option<Weights> {
        let middle = self.values.len() / 2;
        self.values[middle - 2..middle].iter_mut().for_each(|values| values.fill(0.0));
        self.with_start(Some(start))
    }

    /// The same weights beside `start`, as they were saved. `None` if that is not over the same observation and choices.
    #[must_use]
    pub fn with_start(self, start: Option<LinearStart>) -> Option<Weights> {
        let choices = self.architecture.num_choices();
        let lengths = (self.architecture.observation_size * choices, choices);
        let fits = start.as_ref().is_none_or(|start| (start.weight.len(), start.bias.len()) == lengths);
        fits.then_some(Weights { start, ..self })
    }

    /// The actor, if it is linear: one layer, correcting nothing.
    pub fn linear(&self) -> Option<LinearStart> {
        let is_linear = self.architecture.hidden.is_empty() && self.start.is_none();
        is_linear.then(|| LinearStart { weight: self.values[0].clone(), bias: self.values[1].clone() })
    }

    /// The policy that learning started from, if it was one.
    pub fn start(&self) -> Option<&LinearStart> {
        self.start.as_ref()
    }

    /// The actor, with the policy that it corrects, ready to decide.
    pub fn deciding(&self) -> Inference {
        let actor = Inference::new(self.actor());
        match &self.start {
            Some(LinearStart { weight, bias }) => actor.beside(weight, bias),
            None => actor,
        }
    }

    /// The policy that learning started from alone, ready to decide.
    pub(crate) fn start_alone(&self) -> Option<Inference> {
        let layer =
            |start: &LinearStart| Inference::new(std::iter::once((start.weight.as_slice(), start.bias.as_slice())));
        self.start.as_ref().map(layer)
    }

    /// The same weights with the actor's last bias moved so that, were its weights zero, each head took its choice in
    /// `prior` with the prior's probability; `None` if a choice is out of its head's range.
    ///
    /// With `n` choices a logit of `ln(p (n - 1) / (1 - p))` over zeros is probability `p`.
    #[must_use]
    pub fn favouring(mut self, prior: &Prior) -> Option<Weights> {
        let sizes = self.architecture.head_sizes.clone();
        let in_range = |(&choice, &size): (&u8, &usize)| usize::from(choice) < size;
        if prior.choices.len() != sizes.len() || !prior.choices.iter().zip(&sizes).all(in_range) {
            return None;
        }
        let middle = self.values.len() / 2;
        let bias = &mut self.values[middle - 1];
        let mut first = 0;
        for (&choice, &size) in prior.choices.iter().zip(&sizes) {
            let others = size as f64 - 1.0;
            if others > 0.0 {
                let logit = (prior.probability * others / (1.0 - prior.probability)).ln();
                bias[first + usize::from(choice)] += logit as f32;
            }
            first += size;
        }
        Some(self)
    }

    /// Parameters of `architecture` from their values, or `None` if a number or a length does not fit it.
    pub fn new(architecture: Architecture, values: Vec<Vec<f32>>) -> Option<Weights> {
        let parameters = architecture.parameters();
        let fits = parameters.len() == values.len()
            && parameters
                .iter()
                .zip(&values)
                .all(|((_, shape), values)| shape.iter().product::<usize>() == values.len());
        fits.then_some(Weights { architecture, values, start: None })
    }

    /// What they are the parameters of.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Values of each parameter, in the order of [`Architecture::parameters`].
    pub fn values(&self) -> &[Vec<f32>] {
        &self.values
    }

    /// The same, to be changed.
    pub(crate) fn values_mut(&mut self) -> &mut [Vec<f32>] {
        &mut self.values
    }

    /// Weight and bias of each of the actor's layers.
    pub fn actor(&self) -> impl Iterator<Item = (&[f32], &[f32])> {
        pairs(&self.values[..self.values.len() / 2])
    }

    /// Weight and bias of each of the critic's layers.
    pub fn critic(&self) -> impl Iterator<Item = (&[f32], &[f32])> {
        pairs(&self.values[self.values.len() / 2..])
    }
}

fn pairs(values: &[Vec<f32>]) -> impl Iterator<Item = (&[f32], &[f32])> {
    values.chunks_exact(2).map(|pair| (pair[0].as_slice(), pair[1].as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn architecture() -> Architecture {
        Architecture { observation_size: 3, hidden: vec![5, 4], head_sizes: vec![2, 6] }
    }

    #[test]
    fn parameters_are_named_and_shaped() {
        let parameters = architecture().parameters();
        let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..3], ["actor.0.weight", "actor.0.bias", "actor.1.weight"]);
        assert_eq!(parameters[4], ("actor.2.weight".to_owned(), vec![8, 4]));
        assert_eq!(parameters[10], ("critic.2.weight".to_owned(), vec![1, 4]));
    }

    #[test]
    fn the_seed_fixes_the_weights() {
        let first = Weights::orthogonal(architecture(), 1);
        assert_eq!(first, Weights::orthogonal(architecture(), 1));
        assert_ne!(first, Weights::orthogonal(architecture(), 2));
    }

    #[test]
    fn the_last_layers_have_their_own_gains() {
        let weights = Weights::orthogonal(architecture(), 1);
        let norm = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt();
        let last_actor = weights.actor().last().unwrap().0;
        let last_critic = weights.critic().last().unwrap().0;
        // Four orthonormal columns times the gain; one unit row.
        assert!((norm(last_actor) - 0.01 * 2.0).abs() < 1e-6);
        assert!((norm(last_critic) - 1.0).abs() < 1e-6);
        assert!((norm(weights.critic().next().unwrap().0) - 6.0_f32.sqrt()).abs() < 1e-5);
    }

    #[test]
    fn a_prior_has_its_probability() {
        let prior = Prior { choices: vec![1, 4], probability: 0.8 };
        let weights = Weights::orthogonal(architecture(), 1).favouring(&prior).unwrap();
        let bias = weights.actor().last().unwrap().1;
        for (head, choice) in [(&bias[..2], 1), (&bias[2..], 4)] {
            let sum: f32 = head.iter().map(|logit| logit.exp()).sum();
            assert!((head[choice].exp() / sum - 0.8).abs() < 1e-6, "{head:?}");
        }
        for choices in [vec![2, 0], vec![0], vec![0, 0, 0]] {
            let prior = Prior { choices, probability: 0.8 };
            assert_eq!(Weights::orthogonal(architecture(), 1).favouring(&prior), None);
        }
    }

    #[test]
    fn a_correction_begins_as_the_policy_it_corrects() {
        let start = LinearStart {
            weight: (0..8 * 3).map(|index| (index as f32 * 0.7).sin()).collect(),
            bias: (0..8).map(|index| index as f32 - 3.3).collect(),
        };
        let rows: Vec<f32> = (0..3 * 20).map(|index| (index as f32 * 1.3).cos() * 4.0).collect();
        let logits = |inference: Inference| {
            let mut logits = vec![0.0; 8 * 20];
            inference.forward(&rows, &mut logits);
            logits
        };
        let plain = Weights::orthogonal(architecture(), 1);
        let corrected = plain.clone().starting_from(start.clone()).unwrap();
        let alone = logits(corrected.start_alone().unwrap());
        assert_eq!(logits(corrected.deciding()), alone, "to the bit");
        assert_eq!(corrected.critic().last(), plain.critic().last(), "the critic is as it was");
        // What is learned is added to it.
        let moved = plain.clone().with_start(Some(start.clone())).unwrap();
        let sums: Vec<f32> = logits(plain.deciding()).iter().zip(&alone).map(|(a, b)| a + b).collect();
        assert_eq!(logits(moved.deciding()), sums);
        assert_eq!(plain.starting_from(LinearStart { bias: vec![0.0; 7], ..start }), None);
    }

    #[test]
    fn other_lengths_are_refused() {
        let mut values = Weights::orthogonal(architecture(), 1).values;
        values[3].pop();
        assert_eq!(Weights::new(architecture(), values), None);
    }
}
