//! Generalised advantage estimation (Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized
//! Advantage Estimation", equations 11–16), with the end of an episode told apart from a time limit (Pardo et al. 2018,
//! "Time Limits in Reinforcement Learning").

use ndarray::{Array2, ArrayView2};

/// One rollout as GAE needs it; every array is `[num_steps, num_envs]`.
#[derive(Debug, Clone, Copy)]
pub struct Trajectory<'a> {
    /// Rewards of the decisions.
    pub rewards: ArrayView2<'a, f32>,
    /// V(s) of the state decided in.
    pub values: ArrayView2<'a, f32>,
    /// V(s′) of the state the decision led to: that of the next row, and where the episode ended that of its *final*
    /// observation, not of the next episode's first. Not read where terminated.
    pub next_values: ArrayView2<'a, f32>,
    /// The episode reached its end: nothing is left to earn.
    pub terminated: ArrayView2<'a, bool>,
    /// The episode was cut short: V(s′) is left to earn.
    pub truncated: ArrayView2<'a, bool>,
}

/// Advantages, `[num_steps, num_envs]`:
/// `δ_t = r_t + γ V(s′_t) − V(s_t)` with `V(s′) = 0` where terminated, and `A_t = δ_t + γ λ A_{t+1}`, the sum broken
/// where an episode ended either way.
pub fn advantages(trajectory: &Trajectory, gamma: f32, lambda: f32) -> Array2<f32> {
    discounted(trajectory, |_| (gamma, lambda))
}

/// The same with `γ` and `λ` of each row: where a decision lasts as long as it lasts, a discount by the clock is another for each
/// (Bradtke, Duff 1995, "Reinforcement Learning Methods for Continuous-Time Markov Decision Problems").
pub fn discounted(trajectory: &Trajectory, discount: impl Fn([usize; 2]) -> (f32, f32)) -> Array2<f32> {
    let (num_steps, num_envs) = trajectory.rewards.dim();
    let mut advantages = Array2::zeros((num_steps, num_envs));
    for env in 0..num_envs {
        let mut following = 0.0;
        for step in (0..num_steps).rev() {
            let at = [step, env];
            let (gamma, lambda) = discount(at);
            let left = if trajectory.terminated[at] { 0.0 } else { trajectory.next_values[at] };
            let ended = trajectory.terminated[at] || trajectory.truncated[at];
            let delta = trajectory.rewards[at] + gamma * left - trajectory.values[at];
            following = delta + if ended { 0.0 } else { gamma * lambda * following };
            advantages[at] = following;
        }
    }
    advantages
}

#[cfg(test)]
mod tests {
    use ndarray::arr2;

    use super::*;

    const GAMMA: f32 = 0.5;
    const LAMBDA: f32 = 0.5;

    /// One environment of value 2 throughout and final value 8, earning 1, 1, 1, 5; the episode ends at a step as told.
    fn column(terminated_at: Option<usize>, truncated_at: Option<usize>) -> Vec<f32> {
        let flag = |at: Option<usize>| Array2::from_shape_fn((4, 1), |(step, _)| Some(step) == at);
        let ends = terminated_at.or(truncated_at);
        let next_values = Array2::from_shape_fn((4, 1), |(step, _)| if Some(step) == ends { 8.0 } else { 2.0 });
        let trajectory = Trajectory {
            rewards: arr2(&[[1.0], [1.0], [1.0], [5.0]]).view(),
            values: Array2::from_elem((4, 1), 2.0).view(),
            next_values: next_values.view(),
            terminated: flag(terminated_at).view(),
            truncated: flag(truncated_at).view(),
        }
        .advantages();
        trajectory.into_raw_vec_and_offset().0
    }

    impl Trajectory<'_> {
        fn advantages(&self) -> Array2<f32> {
            advantages(self, GAMMA, LAMBDA)
        }
    }

    #[test]
    fn without_an_end_the_sum_is_geometric() {
        // delta = 1 + 0.5 * 2 - 2 = 0, and at last 4, which decays by gamma * lambda = 1/4 a step back.
        assert_eq!(column(None, None), [0.0625, 0.25, 1.0, 4.0]);
    }

    #[test]
    fn termination_leaves_nothing_to_earn() {
        // At the end: delta = 1 - 2 = -1; the 4 of the next episode does not leak in.
        assert_eq!(column(Some(2), None), [-0.0625, -0.25, -1.0, 4.0]);
    }

    #[test]
    fn truncation_bootstraps_from_the_final_observation() {
        // At the cut: delta = 1 + 0.5 * 8 - 2 = 3; the 4 of the next episode does not leak in.
        assert_eq!(column(None, Some(2)), [0.1875, 0.75, 3.0, 4.0]);
    }

    #[test]
    fn termination_wins_over_truncation() {
        assert_eq!(column(Some(2), Some(2)), column(Some(2), None));
    }

    #[test]
    fn lambda_one_is_the_discounted_return_minus_the_value() {
        let rewards = Array2::from_shape_vec((3, 2), vec![1.0, 0.0, 2.0, 0.0, 4.0, 8.0]).unwrap();
        let values = Array2::from_shape_vec((3, 2), vec![0.5, 1.0, -1.0, 2.0, 3.0, 0.0]).unwrap();
        let next_values = Array2::from_shape_vec((3, 2), vec![-1.0, 2.0, 3.0, 0.0, 16.0, 16.0]).unwrap();
        let never = Array2::from_elem((3, 2), false);
        let trajectory = Trajectory {
            rewards: rewards.view(),
            values: values.view(),
            next_values: next_values.view(),
            terminated: never.view(),
            truncated: never.view(),
        };
        let result = advantages(&trajectory, 0.5, 1.0);
        // Environment 0: 1 + 2/2 + 4/4 + 16/8 = 5; environment 1: 0 + 0 + 8/4 + 16/8 = 4.
        assert_eq!(result[[0, 0]], 5.0 - 0.5);
        assert_eq!(result[[0, 1]], 4.0 - 1.0);
    }
}
