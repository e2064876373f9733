//! What points of a search stand for, apart from who searches: other searchers ask what a point attains.

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{ActionProfile, NUM_FEATURES};
use serde::{Deserialize, Serialize};

use super::linear::Linear;
use super::{linear, policy};
use crate::agent::config::Prior;
use crate::agent::normalise::Moments;
use crate::agent::{AgentError, NetworkPolicy, Weights};

/// All that a point needs to be a policy, as plain data: whoever has it plays nothing to know what a point means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearSpace {
    /// Name of the profile whose heads are decided.
    pub profile: String,
    /// The constant choice that the first point stands for.
    pub prior: Prior,
    /// Which choices of each head can be taken: bit *i* of a head's word stands for choice *i*.
    pub choices: [u32; NUM_HEADS],
    /// Moments of the observations under the prior.
    pub moments: Moments,
}

/// Policies that are linear in the standardised observation, one for each point of a [`LinearSpace`].
#[derive(Debug, Clone, PartialEq)]
pub struct LinearPolicies {
    linear: Linear,
    moments: Moments,
    profile: ActionProfile,
}

impl LinearSpace {
    /// The policies of its points.
    ///
    /// # Errors
    /// [`AgentError::Config`] or [`AgentError::Resume`] if it contradicts itself.
    pub fn policies(&self) -> Result<LinearPolicies, AgentError> {
        let unsound = |what: &str| AgentError::Resume(format!("a space of policies with {what}"));
        let profile = ActionProfile::from_name(&self.profile)
            .ok_or_else(|| unsound(&format!("the profile {:?}, which there is not", self.profile)))?;
        let probability = self.prior.probability;
        if !(probability > 0.0 && probability < 1.0) {
            return Err(unsound("a prior that is no probability"));
        }
        if self.choices.contains(&0) {
            return Err(unsound("a head that has no choice"));
        }
        if self.moments.mean.len() != NUM_FEATURES || !self.moments.is_sound() {
            return Err(unsound("moments that are not of all features, or no numbers"));
        }
        let linear = linear(self.choices, &self.prior)?;
        Ok(LinearPolicies { linear, moments: self.moments.clone(), profile })
    }
}

impl LinearPolicies {
    /// The point that stands for the prior; every point has as many coordinates.
    pub fn start(&self) -> &[f64] {
        self.linear.start()
    }

    /// The heads they decide.
    pub fn profile(&self) -> ActionProfile {
        self.profile
    }

    /// The network of a point; `None` if it has another number of coordinates.
    pub fn weights(&self, point: &[f64]) -> Option<Weights> {
        (point.len() == self.start().len()).then(|| self.linear.weights(point))
    }

    /// What observations are standardised by.
    pub fn moments(&self) -> &Moments {
        &self.moments
    }

    /// The policy of a point; `None` if it has another number of coordinates.
    pub fn policy(&self, point: &[f64]) -> Option<NetworkPolicy> {
        Some(policy(&self.weights(point)?, &self.moments, self.profile))
    }
}
