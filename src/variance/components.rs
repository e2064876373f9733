//! The variance of an episode's return, cut by what it comes from.

use kvtide_envs::seed;
use rayon::prelude::*;
use serde::Serialize;

use super::branch::{Branch, Branches, Play};
use super::statistics::{Crossed, mean};
use super::{VarianceConfig, VarianceError};
use crate::bootstrap::{Interval, resampled};

/// What a return varies by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// What is drawn once for an episode: world, load, pool, lengths, targets.
    Scene,
    /// Which requests come, and when.
    Traffic,
    /// The numbers actions are sampled with, whatever the traffic.
    Actions,
    /// What the same numbers do on one traffic and not on another.
    ActionsOnTraffic,
}

impl Source {
    /// All, in the order they are drawn.
    pub const ALL: [Source; 4] = [Source::Scene, Source::Traffic, Source::Actions, Source::ActionsOnTraffic];

    /// What it is, in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Source::Scene => "world, load, node",
            Source::Traffic => "arrivals and lengths",
            Source::Actions => "sampled actions",
            Source::ActionsOnTraffic => "actions on that traffic",
        }
    }
}

/// One source's part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Component {
    /// Where it comes from.
    pub source: Source,
    /// Standard deviation of the return by it alone.
    pub deviation: f64,
    /// Its share of the variance of the return; 0 where the estimate is below that.
    pub share: Interval,
}

/// Returns of one scene, `[traffic][action seed]`.
type SceneReturns = Vec<Vec<f64>>;

pub(super) fn measure<B: Branches>(
    play: &Play<'_, B>,
    config: &VarianceConfig,
) -> Result<Option<Vec<Component>>, VarianceError> {
    let scene = |scene: u64| -> Result<Option<SceneReturns>, VarianceError> {
        let start = play.branches.start(seed::derive(config.seed, "variance.scene", scene))?;
        let mut returns = Vec::new();
        for traffic in 0..u64::from(config.traffics) {
            let mut row = Vec::new();
            for actions in 0..u64::from(config.actions) {
                if play.is_stopped() {
                    return Ok(None);
                }
                let mut branch = start.fork().ok_or(VarianceError::Unforkable)?;
                branch.redraw_future(seed::derive(config.seed, "variance.traffic", traffic << 32 | scene))?;
                let actions = seed::derive(config.seed, "variance.actions", actions << 32 | scene);
                row.push(play.go_on(&mut branch, actions, None, None, u64::MAX)?.plain);
            }
            returns.push(row);
        }
        play.watch.done();
        Ok(Some(returns))
    };
    let scenes: Result<Vec<_>, _> = (0..u64::from(config.scenes)).into_par_iter().map(scene).collect();
    let Some(scenes) = scenes?.into_iter().collect::<Option<Vec<SceneReturns>>>() else { return Ok(None) };
    Ok(Some(components(&scenes)))
}

/// The components of returns `[scene][traffic][action seed]`, all of one shape.
pub(super) fn components(scenes: &[SceneReturns]) -> Vec<Component> {
    let crossed: Vec<Crossed> = scenes.iter().map(|returns| Crossed::of(returns)).collect();
    let all: Vec<&Crossed> = crossed.iter().collect();
    let variances = variances(&all);
    let component = |(index, source): (usize, Source)| {
        let share = |scenes: &[&Crossed]| {
            let variances = self::variances(scenes);
            let total: f64 = variances.iter().sum();
            (total > 0.0).then(|| variances[index] / total)
        };
        let share = resampled(&crossed, share).unwrap_or(Interval::single(0.0));
        Component { source, deviation: variances[index].sqrt(), share }
    };
    Source::ALL.into_iter().enumerate().map(component).collect()
}

/// By source, none below 0. Within a scene traffic and action seeds are crossed; of the variance of the scenes' means, what
/// these contribute to it is taken off.
fn variances(scenes: &[&Crossed]) -> [f64; 4] {
    let average = |part: fn(&Crossed) -> f64| mean(scenes.iter().map(|scene| part(scene)));
    let (traffic, actions, both) =
        (average(|scene| scene.rows), average(|scene| scene.columns), average(|scene| scene.interaction));
    let between = super::statistics::variance(scenes.iter().map(|scene| scene.mean));
    let within = average(|scene| scene.of_mean);
    [between - within, traffic, actions, both].map(|variance| variance.max(0.0))
}
