//! Baselines of environments that serve the same traffic.
//!
//! What is earned from a moment on varies most by the traffic that comes then, of which no state tells. Where several
//! environments meet the same traffic, what the others came to from that moment *of the clock* on, beyond what their states
//! promised, is a baseline that knows it, and none of them knows anything of the decision that is judged: it takes noise away
//! and no signal (Mao et al. 2019, "Variance Reduction for Reinforcement Learning in Input-Driven Environments", theorem 1 and
//! section 5: the baseline of several rollouts of one input sequence).
//!
//! Decisions are not taken at the same moments. At a moment within another's interval, that interval is cut there: its reward is
//! what remains of it, evenly over its length, and its value lies between those of its ends.

use ndarray::Array2;

use super::config::PpoConfig;
use super::gae::Trajectory;
use super::rollout::Rollout;

/// Baselines of a rollout.
pub struct Baselines {
    /// To be taken off the advantages, `[num_steps, num_envs]`; 0 where nobody else of the group was there.
    pub values: Array2<f32>,
    /// Share of the decisions for which somebody was.
    pub share: f64,
}

/// Of each decision of `rollout`, the mean advantage of the others of its group from that moment of the clock on;
/// `advantages` are those of generalised advantage estimation over `trajectory`.
pub fn baselines<'a>(
    trajectory: &'a Trajectory<'a>,
    rollout: &'a Rollout,
    advantages: &'a Array2<f32>,
    config: &'a PpoConfig,
) -> Baselines {
    let (num_steps, num_envs) = advantages.dim();
    let mut values = Array2::zeros((num_steps, num_envs));
    let mut covered = 0_usize;
    let others = Others { trajectory, rollout, advantages, config };
    for env in 0..num_envs {
        let first = env / config.group * config.group;
        let members: Vec<usize> = (first..first + config.group).filter(|&member| member != env).collect();
        let mut places = vec![0; members.len()];
        for step in 0..num_steps {
            let (traffic, clock_s) = (rollout.traffic[[step, env]], rollout.clock_s[[step, env]]);
            let (mut sum, mut count) = (0.0, 0.0);
            for (&member, place) in members.iter().zip(&mut places) {
                if let Some(advantage) = others.at(member, place, traffic, clock_s) {
                    sum += advantage;
                    count += 1.0;
                }
            }
            if count > 0.0 {
                values[[step, env]] = (sum / count) as f32;
                covered += 1;
            }
        }
    }
    Baselines { values, share: covered as f64 / (num_steps * num_envs) as f64 }
}

struct Others<'a> {
    trajectory: &'a Trajectory<'a>,
    rollout: &'a Rollout,
    advantages: &'a Array2<f32>,
    config: &'a PpoConfig,
}

impl Others<'_> {
    /// The advantage of `env` from `clock_s` of `traffic` on; `None` if it was not there. Searched from `place` on, which is
    /// moved: whoever asks goes through his rollout from its beginning.
    fn at(&self, env: usize, place: &mut usize, traffic: u64, clock_s: f64) -> Option<f64> {
        let Rollout { traffic: met, clock_s: clocks, elapsed_s, .. } = self.rollout;
        let num_steps = met.nrows();
        // The first interval of that traffic that ends later. One that is passed over is over, or of an earlier episode, unless
        // this traffic is yet to come.
        let mut step = *place;
        while step < num_steps {
            let at = [step, env];
            if met[at] == traffic && clocks[at] + elapsed_s[at] > clock_s {
                break;
            }
            step += 1;
        }
        let at = [step, env];
        if step == num_steps || clocks[at] > clock_s {
            return None;
        }
        *place = step;
        Some(self.cut(at, clock_s))
    }

    /// The advantage of the rest of the interval `at` from `clock_s` on, and of what follows.
    fn cut(&self, at: [usize; 2], clock_s: f64) -> f64 {
        let Trajectory { rewards, values, next_values, terminated, truncated } = self.trajectory;
        let [step, env] = at;
        let elapsed_s = self.rollout.elapsed_s[at];
        let rest_s = self.rollout.clock_s[at] + elapsed_s - clock_s;
        let rest = rest_s / elapsed_s;
        let (gamma, lambda) = self.config.discount(elapsed_s);
        let (gamma, lambda) = (gamma.powf(rest), lambda.powf(rest));
        let next = if terminated[at] { 0.0 } else { f64::from(next_values[at]) };
        let value = rest * f64::from(values[at]) + (1.0 - rest) * next;
        let ended = terminated[at] || truncated[at];
        let following = if ended || step + 1 == self.advantages.nrows() {
            0.0
        } else {
            f64::from(self.advantages[[step + 1, env]])
        };
        rest * f64::from(rewards[at]) + gamma * next - value + gamma * lambda * following
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Architecture;
    use crate::agent::gae;

    /// Rewards that come at moments of the clock, whatever is decided.
    const REWARDS: [(f64, f32); 4] = [(1.5, 8.0), (3.5, -2.0), (5.0, 4.0), (7.5, 1.0)];

    /// One column: decisions at `clocks`, which begin with the episode or later and end at 8.
    fn column(rollout: &mut Rollout, env: usize, clocks: &[f64], own: &[f32]) {
        for (step, &clock_s) in clocks.iter().enumerate() {
            let end = clocks.get(step + 1).copied().unwrap_or(8.0);
            let came = REWARDS.iter().filter(|(at, _)| *at > clock_s && *at <= end).map(|(_, reward)| reward);
            let at = [step, env];
            rollout.rewards[at] = came.sum::<f32>() + own[step];
            (rollout.clock_s[at], rollout.elapsed_s[at], rollout.traffic[at]) = (clock_s, end - clock_s, 7);
            rollout.terminated[at] = step + 1 == clocks.len();
        }
    }

    fn rollout(num_steps: usize, num_envs: usize) -> Rollout {
        Rollout::new(num_steps, num_envs, &Architecture { observation_size: 1, hidden: vec![], head_sizes: vec![2] })
    }

    fn advantages(rollout: &Rollout, values: f32, config: &PpoConfig) -> (Array2<f32>, Baselines) {
        let values = Array2::from_elem(rollout.rewards.dim(), values);
        let trajectory = Trajectory {
            rewards: rollout.rewards.view(),
            values: values.view(),
            next_values: values.view(),
            terminated: rollout.terminated.view(),
            truncated: rollout.truncated.view(),
        };
        let discount = |at| {
            let (gamma, lambda) = config.discount(rollout.elapsed_s[at]);
            (gamma as f32, lambda as f32)
        };
        let advantages = gae::discounted(&trajectory, discount);
        let baselines = baselines(&trajectory, rollout, &advantages, config);
        (advantages, baselines)
    }

    fn plain() -> PpoConfig {
        PpoConfig { gamma: 1.0, gae_lambda: 1.0, group: 2, ..PpoConfig::default() }
    }

    #[test]
    fn arrivals_cancel_and_what_was_decided_remains() {
        let mut rollout = rollout(4, 2);
        let clocks = [0.0, 2.0, 4.0, 6.0];
        column(&mut rollout, 0, &clocks, &[0.0, 0.0, 0.25, 0.0]);
        column(&mut rollout, 1, &clocks, &[0.0; 4]);
        let (advantages, baselines) = advantages(&rollout, 0.0, &plain());
        assert_eq!(baselines.share, 1.0);
        let left = advantages - &baselines.values;
        assert_eq!(left.column(0).to_vec(), [0.25, 0.25, 0.25, 0.0]);
        assert_eq!(left.column(1).to_vec(), [-0.25, -0.25, -0.25, 0.0]);
    }

    #[test]
    fn moments_are_those_of_the_clock() {
        // The second decides at 0, 3, 4 and 6; its interval from 0 to 3 earned the 8 that came at 1.5, that from 3 to 4 the −2.
        let mut rollout = rollout(4, 2);
        column(&mut rollout, 0, &[0.0, 2.0, 4.0, 6.0], &[0.0; 4]);
        column(&mut rollout, 1, &[0.0, 3.0, 4.0, 6.0], &[0.0; 4]);
        let (_, baselines) = advantages(&rollout, 0.0, &plain());
        // From 0 on: 8 − 2 + 4 + 1. From 2 on: a third of that interval, 8/3, then −2 + 4 + 1. From 4: 4 + 1. From 6: 1.
        let expected = [11.0, 8.0 / 3.0 + 3.0, 5.0, 1.0];
        let found = baselines.values.column(0).to_vec();
        assert!(
            found.iter().zip(expected).all(|(found, expected)| (found - expected as f32).abs() < 1e-6),
            "{found:?}"
        );
        // From 3 on the first still has half of what it earned between 2 and 4: −2/2 + 4 + 1.
        assert_eq!(baselines.values.column(1).to_vec(), [11.0, 4.0, 5.0, 1.0]);
    }

    #[test]
    fn states_and_discounts_are_those_of_the_moment() {
        let mut rollout = rollout(2, 2);
        let config = PpoConfig { horizon_s: Some(10.0), trace_s: Some(5.0), ..plain() };
        column(&mut rollout, 0, &[0.0, 6.0], &[0.0; 2]);
        column(&mut rollout, 1, &[0.0, 4.0], &[0.0; 2]);
        let (advantages, baselines) = advantages(&rollout, 3.0, &config);
        // At 6 the second is half through its last interval, whose reward is 5, whose end is worth nothing.
        let value = 0.5 * 3.0;
        assert!((f64::from(baselines.values[[1, 0]]) - (0.5 * 5.0 - value)).abs() < 1e-6);
        // At 4 the first is two thirds through the interval that ends at 6 in a state worth 3, its reward 8 − 2 + 4.
        let (gamma, both) = ((-2.0_f64 / 10.0).exp(), (-2.0_f64 / 10.0 - 2.0 / 5.0).exp());
        let expected = 10.0 / 3.0 + gamma * 3.0 - 3.0 + both * f64::from(advantages[[1, 0]]);
        assert!((f64::from(baselines.values[[1, 1]]) - expected).abs() < 1e-6);
        // At the beginning of an interval it is that interval's advantage.
        assert!((baselines.values[[0, 0]] - advantages[[0, 1]]).abs() < 1e-5);
    }

    #[test]
    fn whoever_meets_other_traffic_or_was_not_there_is_no_baseline() {
        let mut rollout = rollout(2, 4);
        column(&mut rollout, 0, &[0.0, 6.0], &[0.0; 2]);
        column(&mut rollout, 1, &[4.0, 5.0], &[0.0; 2]);
        column(&mut rollout, 2, &[0.0, 6.0], &[0.0; 2]);
        column(&mut rollout, 3, &[0.0, 6.0], &[0.0; 2]);
        rollout.traffic.column_mut(3).fill(8);
        let (_, baselines) = advantages(&rollout, 0.0, &plain());
        // The second began at 4: it tells the first nothing of 0, and something of 6.
        assert_eq!(baselines.values.column(0)[0], 0.0);
        assert!(baselines.values.column(0)[1] != 0.0);
        assert!(baselines.values.column(2).iter().chain(baselines.values.column(3)).all(|&value| value == 0.0));
        assert_eq!(baselines.share, 3.0 / 8.0);
    }
}
