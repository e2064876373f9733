//! What an iteration reports.

use std::collections::BTreeMap;

use kvtide_envs::env::Episode;
use serde::Serialize;

/// One iteration: a rollout and the update made from it.
#[derive(Debug, Clone, PartialEq)]
pub struct IterationReport {
    /// Counted from 1.
    pub iteration: u64,
    /// Decisions taken so far, this iteration's included.
    pub decisions: u64,
    /// Adam's step size in this iteration.
    pub learning_rate: f64,
    /// Weight of the entropy bonus in this iteration.
    pub entropy_coef: f64,
    /// What the update did.
    pub losses: Losses,
    /// Episodes that ended, in order of step and environment.
    pub episodes: Vec<Episode>,
}

/// Diagnostics of one update. Means are over the last minibatch, as cleanrl's are, where not said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Losses {
    /// Clipped surrogate, to be minimised.
    pub policy_loss: f64,
    /// Half the mean squared error of the values.
    pub value_loss: f64,
    /// Mean entropy of the policy, in nats, summed over heads.
    pub entropy: f64,
    /// Mean of `−log r`: the naive estimate of KL(old ‖ new).
    pub old_approx_kl: f64,
    /// Mean of `(r − 1) − log r`: the estimate of lower variance (Schulman 2020, "Approximating KL Divergence").
    pub approx_kl: f64,
    /// Share of decisions whose ratio left `1 ± clip`, mean over all minibatches.
    pub clip_fraction: f64,
    /// `1 − Var(returns − values) / Var(returns)` over the rollout; `None` if all returns are equal.
    pub explained_variance: Option<f64>,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Passes made over the rollout; fewer than asked for once `target_kl` was exceeded.
    pub epochs: usize,
}

/// Means over the episodes that ended in an iteration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpisodeSummary {
    /// How many.
    pub count: usize,
    /// Mean sum of rewards.
    pub episodic_return: f64,
    /// Mean number of decisions.
    pub episodic_length: f64,
    /// Mean of each named result.
    pub metrics: BTreeMap<&'static str, f64>,
}

impl IterationReport {
    /// Means over the episodes that ended, or `None` if none did.
    pub fn summary(&self) -> Option<EpisodeSummary> {
        EpisodeSummary::of(&self.episodes)
    }
}

impl EpisodeSummary {
    /// Means over `episodes`, or `None` if there are none.
    pub fn of(episodes: &[Episode]) -> Option<EpisodeSummary> {
        let count = episodes.len();
        if count == 0 {
            return None;
        }
        let mut sums: BTreeMap<&'static str, (f64, f64)> = BTreeMap::new();
        for &(name, value) in episodes.iter().flat_map(|episode| &episode.metrics) {
            let (sum, number) = sums.entry(name).or_default();
            *sum += value;
            *number += 1.0;
        }
        Some(EpisodeSummary {
            count,
            episodic_return: episodes.iter().map(|episode| episode.episode_return).sum::<f64>() / count as f64,
            episodic_length: episodes.iter().map(|episode| episode.decisions as f64).sum::<f64>() / count as f64,
            metrics: sums.into_iter().map(|(name, (sum, number))| (name, sum / number)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_the_mean_over_episodes() {
        let episode = |episode_return, decisions, attainment| Episode {
            env: 0,
            episode_return,
            decisions,
            metrics: vec![("slo_attainment", attainment)],
        };
        let mut report = IterationReport {
            iteration: 1,
            decisions: 8,
            learning_rate: 0.1,
            entropy_coef: 0.0,
            losses: Losses::default(),
            episodes: vec![episode(1.0, 10, 0.5), episode(2.0, 20, 1.0)],
        };
        let summary = report.summary().unwrap();
        assert_eq!((summary.count, summary.episodic_return, summary.episodic_length), (2, 1.5, 15.0));
        assert_eq!(summary.metrics["slo_attainment"], 0.75);
        report.episodes.clear();
        assert_eq!(report.summary(), None);
    }
}
