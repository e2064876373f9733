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
    /// Share of decisions that were held against others of their group; `None` without groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grouped: Option<f64>,
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
    /// Mean of each result, under its field's name; of attainment over the episodes that served anybody.
    pub metrics: BTreeMap<&'static str, f64>,
    /// The one that is looked at as training goes on.
    #[serde(skip)]
    pub slo_attainment: Option<f64>,
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
        let mean = |value: fn(&Episode) -> f64| episodes.iter().map(value).sum::<f64>() / count as f64;
        let attained: Vec<f64> = episodes.iter().filter_map(|episode| episode.served.slo_attainment()).collect();
        let slo_attainment = (!attained.is_empty()).then(|| attained.iter().sum::<f64>() / attained.len() as f64);
        let mut metrics = BTreeMap::from([
            ("requests", mean(|episode| episode.served.requests as f64)),
            ("output_tok_s", mean(|episode| episode.served.output_tok_s)),
            ("preemptions", mean(|episode| episode.served.preemptions as f64)),
            ("load", mean(|episode| episode.served.load)),
            ("world", mean(|episode| episode.served.world as f64)),
        ]);
        metrics.extend(slo_attainment.map(|share| ("slo_attainment", share)));
        Some(EpisodeSummary {
            count,
            episodic_return: mean(|episode| episode.episode_return),
            episodic_length: mean(|episode| episode.decisions as f64),
            metrics,
            slo_attainment,
        })
    }
}

#[cfg(test)]
mod tests {
    use kvtide_envs::env::Served;

    use super::*;

    #[test]
    fn a_summary_is_the_mean_over_episodes() {
        let episode = |episode_return, decisions, on_time| Episode {
            env: 0,
            episode_return,
            decisions,
            served: Served { requests: 4, on_time, ..Served::default() },
        };
        let mut report = IterationReport {
            iteration: 1,
            decisions: 8,
            learning_rate: 0.1,
            entropy_coef: 0.0,
            losses: Losses::default(),
            episodes: vec![episode(1.0, 10, 2), episode(2.0, 20, 4)],
        };
        let summary = report.summary().unwrap();
        assert_eq!((summary.count, summary.episodic_return, summary.episodic_length), (2, 1.5, 15.0));
        assert_eq!((summary.metrics["slo_attainment"], summary.metrics["requests"]), (0.75, 4.0));
        // Nobody served is no attainment, neither all nor nothing.
        report.episodes[1].served = Served::default();
        assert_eq!(report.summary().unwrap().slo_attainment, Some(0.5));
        report.episodes.remove(0);
        assert!(!report.summary().unwrap().metrics.contains_key("slo_attainment"));
        report.episodes.clear();
        assert_eq!(report.summary(), None);
    }
}
