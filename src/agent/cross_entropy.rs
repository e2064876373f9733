//! Cross-entropy search for a linear policy, read top to bottom: [`CrossEntropy::advance`] is the algorithm.
//!
//! Draw policies from a normal distribution, judge each on whole episodes, fit the distribution to the best of them, again
//! (Rubinstein 1999, "The Cross-Entropy Method for Combinatorial and Continuous Optimization"; de Boer et al. 2005, "A
//! Tutorial on the Cross-Entropy Method", section 5), with noise that keeps it from contracting too early (Szita, Lőrincz
//! 2006, "Learning Tetris Using the Noisy Cross-Entropy Method"). No gradient, no value, no discount: a reference for what
//! PPO learns, and what it finds is a network without hidden layers, a checkpoint like any other.
//!
//! What it comes to is the mean of the distribution, not the best candidate ever drawn, which is the luckiest one.
//!
//! Candidates of one generation are judged on the same episodes, so that the luck of the draw is shared; the next generation
//! has others. Each candidate and episode has a stream or seed named by its number, and sums are taken in order, so a
//! search is byte for byte the same at any number of threads, and after an interruption.

mod config;
mod gaussian;
mod linear;
mod players;
mod space;

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{Arena, Episode};
use kvtide_envs::seed;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{ActionProfile, NUM_FEATURES};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::config::{HyperparameterError, Prior};
use super::normalise::Moments;
use super::state::RunOutcome;
use super::validate::{attainment, play};
use super::{AgentError, NetworkPolicy, Weights};
use linear::Linear;

pub use config::{CrossEntropyConfig, Objective};
pub use gaussian::Gaussian;
pub use players::{Player, Players};
pub use space::{LinearPolicies, LinearSpace};

/// Episodes under the prior from which the moments of the features are taken, and as many under the first candidates.
const MOMENT_EPISODES: u64 = 64;
/// A feature that varied less under the prior is only centred: stretched to variance one, the first policy that moves it
/// would see nothing else.
const LEAST_VARIANCE: f64 = 1e-6;
/// How surely a search without a prior starts from the engine's default choices.
const DEFAULT_PROBABILITY: f64 = 0.8;

/// Everything a search is between two generations, as plain numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchState {
    /// What it searches by.
    pub config: CrossEntropyConfig,
    /// The constant choice it started from.
    pub prior: Prior,
    /// Moments of the observations under the prior.
    pub moments: Moments,
    /// What changes from generation to generation.
    pub progress: SearchProgress,
}

/// What changes from generation to generation, and the choices that are searched, which say what a coordinate means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchProgress {
    /// Generations done.
    pub generation: u64,
    /// Decisions taken in all episodes so far.
    pub decisions: u64,
    /// Which choices of each head can be taken: bit *i* of a head's word stands for choice *i*.
    pub choices: [u32; NUM_HEADS],
    /// What the next generation is drawn from.
    pub distribution: Gaussian,
}

/// One generation. Scores are of its own episodes: compare them with `start`, not with those of other generations.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationReport {
    /// Counted from 1.
    pub generation: u64,
    /// Decisions taken so far, this generation's included.
    pub decisions: u64,
    /// Score of the prior.
    pub start: f64,
    /// Score of the mean the candidates were drawn around.
    pub mean: f64,
    /// Mean score of the elite.
    pub elite: f64,
    /// Best score.
    pub best: f64,
    /// Root mean square of the deviations the candidates were drawn with.
    pub spread: f64,
    /// Episodes of the mean.
    pub episodes: Vec<Episode>,
}

/// A search.
pub struct CrossEntropy {
    state: SearchState,
    profile: ActionProfile,
    linear: Linear,
    arena: Box<dyn Arena>,
    /// `None` if this process plays.
    players: Option<Box<dyn Players>>,
}

impl CrossEntropy {
    /// A new search for a policy over the heads of `profile` that does not see the features in `blind`, from the engine's
    /// default choices if there is no prior. Plays the episodes its features are standardised by.
    ///
    /// # Errors
    /// [`AgentError::Config`] if a setting is out of range, [`AgentError::Play`] if an episode cannot be played.
    pub fn new(
        config: CrossEntropyConfig,
        prior: Option<Prior>,
        blind: &[usize],
        profile: ActionProfile,
        arena: Box<dyn Arena>,
    ) -> Result<CrossEntropy, AgentError> {
        config.validate()?;
        if blind.iter().any(|&feature| feature >= NUM_FEATURES) {
            return Err(unfit("blind", format!("{blind:?}"), "indices of features"));
        }
        let prior = prior.unwrap_or_else(|| Prior {
            choices: arena.default_action().indices().to_vec(),
            probability: DEFAULT_PROBABILITY,
        });
        let choices = arena.choices();
        let linear = linear(choices, &prior)?;
        let start = policy(&linear.weights(linear.start()), &Moments::new(NUM_FEATURES), profile);
        let (moments, seen) = moments(&*arena, &start, config.seed)?;
        let moments = moments.blind_to(blind);
        let distribution = Gaussian::around(linear.start().to_vec(), config.initial_std);
        let (moments, explored) = explored(&*arena, moments, config.seed, &|moments, episode| {
            let point = distribution.draw(&mut seed::stream(config.seed, "cross_entropy.explored", episode));
            policy(&linear.weights(&point), moments, profile)
        })?;
        let decisions = seen + explored;
        let progress = SearchProgress { generation: 0, decisions, choices, distribution };
        let state = SearchState { config, prior, moments, progress };
        Ok(CrossEntropy { state, profile, linear, arena, players: None })
    }

    /// Goes on from a saved state, with episodes as those it was saved from.
    ///
    /// # Errors
    /// [`AgentError::Config`], and [`AgentError::Resume`] if the state is not of these episodes.
    pub fn resume(
        state: SearchState,
        profile: ActionProfile,
        arena: Box<dyn Arena>,
    ) -> Result<CrossEntropy, AgentError> {
        state.config.validate()?;
        let SearchProgress { choices, distribution, .. } = &state.progress;
        if *choices != arena.choices() {
            let found = arena.choices();
            return Err(AgentError::Resume(format!("choices {choices:?} were searched, possible are {found:?}")));
        }
        let linear = linear(*choices, &state.prior)?;
        if distribution.mean.len() != linear.start().len() || state.moments.mean.len() != NUM_FEATURES {
            return Err(AgentError::Resume("saved distribution or moments do not fit the choices".to_owned()));
        }
        Ok(CrossEntropy { state, profile, linear, arena, players: None })
    }

    /// From now on `players` play its generations. An episode of each is played here as well: what is not the same on another
    /// machine is no result.
    #[must_use]
    pub fn played_by(mut self, players: Box<dyn Players>) -> CrossEntropy {
        self.players = Some(players);
        self
    }

    /// Searches until done or until `stop` is set; a generation under way is then given up, and made again when the search
    /// goes on. `observe` is called after each and may save [`CrossEntropy::state`].
    ///
    /// # Errors
    /// As [`CrossEntropy::advance`]; and whatever `observe` gives, which ends the run.
    pub fn run<E: From<AgentError>>(
        &mut self,
        stop: &AtomicBool,
        mut observe: impl FnMut(&CrossEntropy, &GenerationReport) -> Result<(), E>,
    ) -> Result<RunOutcome, E> {
        while !self.is_finished() {
            let Some(report) = self.advance(stop)? else { return Ok(RunOutcome::Interrupted) };
            observe(self, &report)?;
        }
        Ok(RunOutcome::Finished)
    }

    /// One generation: draw, judge, fit. `None`, and nothing changed, if `stop` was set before all were judged.
    ///
    /// # Errors
    /// [`AgentError::Play`] if an episode cannot be played.
    pub fn advance(&mut self, stop: &AtomicBool) -> Result<Option<GenerationReport>, AgentError> {
        let CrossEntropyConfig { population, noise, generations, seed, .. } = self.state.config;
        let SearchProgress { generation, distribution, .. } = &self.state.progress;
        let generation = generation + 1;
        let root = seed::derive(seed, "cross_entropy.generation", generation);
        let mut points: Vec<Vec<f64>> = (0..population as u64)
            .map(|candidate| distribution.draw(&mut seed::stream(root, "candidate", candidate)))
            .collect();
        // Judged beside the candidates, and no candidates themselves.
        points.extend([distribution.mean.clone(), self.linear.start().to_vec()]);

        let Some(judged) = self.judge(&points, root, stop)? else { return Ok(None) };
        let scores: Vec<f64> = judged.iter().map(|episodes| self.state.config.objective.of(episodes)).collect();
        let mut order: Vec<usize> = (0..population).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(self.state.config.num_elite());
        let elite: Vec<&[f64]> = order.iter().map(|&candidate| points[candidate].as_slice()).collect();

        let report = GenerationReport {
            generation,
            decisions: self.state.progress.decisions
                + judged.iter().flatten().map(|episode| episode.decisions).sum::<u64>(),
            start: scores[population + 1],
            mean: scores[population],
            elite: order.iter().map(|&candidate| scores[candidate]).sum::<f64>() / order.len() as f64,
            best: scores[order[0]],
            spread: distribution.spread(),
            episodes: judged[population].clone(),
        };
        let left = 1.0 - generation as f64 / generations as f64;
        let progress = &mut self.state.progress;
        progress.distribution = Gaussian::fitted(&elite, noise * left.max(0.0));
        (progress.generation, progress.decisions) = (generation, report.decisions);
        Ok(Some(report))
    }

    /// The episodes of each point, the same seeds for all; `None` if `stop` was set.
    fn judge(
        &self,
        points: &[Vec<f64>],
        root: u64,
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Vec<Episode>>>, AgentError> {
        let episodes = self.state.config.episodes;
        let seeds: Vec<u64> = (0..episodes as u64).map(|episode| seed::derive(root, "episode", episode)).collect();
        if let Some(players) = &self.players {
            let played = players.play(points, &seeds, stop)?;
            return played.map_or(Ok(None), |played| self.compared(points, &seeds, played).map(Some));
        }
        let policies: Vec<NetworkPolicy> =
            points.iter().map(|point| policy(&self.linear.weights(point), &self.state.moments, self.profile)).collect();
        let played: Result<Vec<Option<Episode>>, AgentError> = (0..policies.len() * episodes)
            .into_par_iter()
            .map(|task| {
                let (policy, episode) = (&policies[task / episodes], task % episodes);
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                play(&*self.arena, seeds[episode], policy, |_| {}).map(Some)
            })
            .collect();
        let Some(played) = played?.into_iter().collect::<Option<Vec<Episode>>>() else { return Ok(None) };
        Ok(Some(played.chunks_exact(episodes).map(<[Episode]>::to_vec).collect()))
    }

    /// What others `played`, if the first episode of the last point but one, which is the mean, is what it is here.
    fn compared(
        &self,
        points: &[Vec<f64>],
        seeds: &[u64],
        played: Vec<Vec<Episode>>,
    ) -> Result<Vec<Vec<Episode>>, AgentError> {
        let mean = points.len() - 2;
        let policy = policy(&self.linear.weights(&points[mean]), &self.state.moments, self.profile);
        let here = play(&*self.arena, seeds[0], &policy, |_| {})?;
        match played.get(mean).and_then(|episodes| episodes.first()) {
            Some(there) if *there == here => Ok(played),
            there => Err(AgentError::Elsewhere(format!(
                "seed {}: a worker comes to {there:?}, this machine to {here:?}",
                seeds[0]
            ))),
        }
    }

    /// Everything needed to go on from here. To be taken between generations.
    pub fn state(&self) -> &SearchState {
        &self.state
    }

    /// What its points stand for.
    pub fn space(&self) -> LinearSpace {
        let SearchState { prior, moments, progress, .. } = &self.state;
        LinearSpace {
            profile: self.profile.name().to_owned(),
            prior: prior.clone(),
            choices: progress.choices,
            moments: moments.clone(),
        }
    }

    /// Whether all generations are done.
    pub fn is_finished(&self) -> bool {
        self.state.progress.generation >= self.state.config.generations
    }
}

impl SearchState {
    /// What is decided with: the distribution's mean, over the heads of `profile`.
    ///
    /// # Errors
    /// [`AgentError::Resume`] if the state contradicts itself.
    pub fn policy(&self, profile: ActionProfile) -> Result<NetworkPolicy, AgentError> {
        let whole = |weights| NetworkPolicy::new(&weights, Some(&self.moments), profile);
        self.weights()
            .map_or_else(|| Err(AgentError::Resume("the distribution does not fit the choices".to_owned())), whole)
    }

    /// The network of the distribution's mean: what is decided with. `None` if the state contradicts itself.
    pub fn weights(&self) -> Option<Weights> {
        let linear = Linear::new(self.progress.choices, &self.prior)?;
        let mean = &self.progress.distribution.mean;
        (mean.len() == linear.start().len()).then(|| linear.weights(mean))
    }
}

impl Objective {
    /// The score of a policy's episodes.
    fn of(self, episodes: &[Episode]) -> f64 {
        match self {
            Objective::Return => {
                episodes.iter().map(|episode| episode.episode_return).sum::<f64>() / episodes.len() as f64
            }
            Objective::Attainment => attainment(episodes),
        }
    }
}

fn linear(choices: [u32; NUM_HEADS], prior: &Prior) -> Result<Linear, AgentError> {
    Linear::new(choices, prior).ok_or_else(|| {
        unfit("prior.choices", format!("{:?}", prior.choices), "one choice for each head, within its range")
    })
}

fn unfit(field: &'static str, value: String, range: &'static str) -> AgentError {
    AgentError::Config(HyperparameterError { table: "cross_entropy", field, value, range })
}

fn policy(weights: &Weights, moments: &Moments, profile: ActionProfile) -> NetworkPolicy {
    NetworkPolicy::new(weights, Some(moments), profile)
        .expect("linear policies are over kvtide's observation and action")
}

/// Moments of the observations under a policy, and the decisions they are of.
fn moments(arena: &dyn Arena, policy: &NetworkPolicy, seed: u64) -> Result<(Moments, u64), AgentError> {
    let seen = seen(arena, |episode| (seed::derive(seed, "cross_entropy.moments", episode), policy.clone()))?;
    let mut moments = Moments::new(NUM_FEATURES);
    for rows in &seen {
        moments.update(rows);
    }
    for variance in &mut moments.variance {
        if *variance < LEAST_VARIANCE {
            *variance = 1.0;
        }
    }
    let decisions = moments.count as u64;
    Ok((moments, decisions))
}

/// `moments` with the range of what the first candidates see as well, and the decisions that took: what a search comes to sees
/// more than the prior does, and what is beyond the range is not told apart.
fn explored(
    arena: &dyn Arena,
    mut moments: Moments,
    seed: u64,
    candidate: &(dyn Fn(&Moments, u64) -> NetworkPolicy + Sync),
) -> Result<(Moments, u64), AgentError> {
    let unclipped = Moments { range: None, ..moments.clone() };
    let seen =
        seen(arena, |episode| (seed::derive(seed, "cross_entropy.moments", episode), candidate(&unclipped, episode)))?;
    for rows in &seen {
        moments.see(rows);
    }
    let values: usize = seen.iter().map(Vec::len).sum();
    Ok((moments, (values / NUM_FEATURES) as u64))
}

/// The observations of each episode, under the policy that `played` gives with the episode's seed.
fn seen(arena: &dyn Arena, played: impl Fn(u64) -> (u64, NetworkPolicy) + Sync) -> Result<Vec<Vec<f32>>, AgentError> {
    let episode = |episode| {
        let (seed, policy) = played(episode);
        let mut rows = Vec::new();
        play(arena, seed, &policy, |row| rows.extend_from_slice(row)).map(|_| rows)
    };
    (0..MOMENT_EPISODES).into_par_iter().map(episode).collect()
}
