//! Policies × windows × loads × seeds.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kvtide_envs::env::{Controller, RunError};
use kvtide_envs::metrics::Summary;
use kvtide_envs::workload::{Window, Workload, WorkloadError};
use kvtide_runtime::{ActionMask, ActionProfile, Controls, Head, Preemption};
use rayon::prelude::*;

use super::row::RunRow;
use crate::constant::{ConstantEvaluator, ConstantSpace, Effort, SearchRound};
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::world::{Draw, World};

/// Everything to be run on one world.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Policies with the names they are reported under.
    pub policies: Vec<(PolicyName, Subject)>,
    /// Parts of the traffic; `None` is all of it.
    pub windows: Vec<Option<Window>>,
    /// Load factors.
    pub loads: Vec<f64>,
    /// Seeds; every policy serves the same draws.
    pub seeds: Vec<u64>,
}

impl Matrix {
    /// How many cells there are.
    pub fn cells(&self) -> usize {
        self.windows.len() * self.loads.len()
    }

    /// The seeds that are run at a load: one where they all are the same run.
    fn seeds_at(&self, world: &World, load: f64) -> &[u64] {
        if world.depends_on_seed(load) { &self.seeds } else { &self.seeds[..self.seeds.len().min(1)] }
    }

    /// The loads at which the traffic of `world` is the same for every seed: further seeds would be one run counted several
    /// times, and are not run. None where there is one seed.
    pub fn idle_loads(&self, world: &World) -> Vec<f64> {
        let is_idle = |load: &f64| self.seeds.len() > 1 && !world.depends_on_seed(*load);
        self.loads.iter().copied().filter(is_idle).collect()
    }
}

/// One window at one load: what is run together and reported together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// The part of the traffic.
    pub window: Option<Window>,
    /// Load factor.
    pub load: f64,
}

/// Why a matrix cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// The draw is impossible.
    #[error("window {window}, load {load}, seed {seed}: {error}")]
    Draw {
        /// Which window.
        window: String,
        /// Which load.
        load: f64,
        /// Which seed.
        seed: u64,
        /// What is wrong with the workload.
        error: WorkloadError,
    },
    /// A run has no result.
    #[error("policy {policy}, window {window}, load {load}, seed {seed}: {error}")]
    Run {
        /// Which policy.
        policy: PolicyName,
        /// Which window.
        window: String,
        /// Which load.
        load: f64,
        /// Which seed.
        seed: u64,
        /// What ended the run.
        error: Box<RunError>,
    },
}

/// Told of what goes on while a matrix runs.
pub trait Watch: Sync {
    /// `runs` more runs are planned, at most.
    fn planned(&self, runs: usize);
    /// `runs` of those planned turned out not to be needed.
    fn spared(&self, runs: usize) {
        let _ = runs;
    }
    /// A run is done.
    fn done(&self);
}

/// A cell being run.
struct Job<'a> {
    world: &'a World,
    cell: Cell,
    draws: Vec<(u64, Workload)>,
    watch: &'a dyn Watch,
    stop: &'a AtomicBool,
    /// Constant controls already run, with a summary per seed.
    known: Vec<(Controls, Vec<Summary>)>,
    /// Runs that were begun.
    runs: AtomicUsize,
}

/// Runs every cell, in parallel within a policy, and hands the rows of each policy over as soon as they are there, in the
/// order of cells, policies, seeds. Returns how many cells were finished: all of them, unless `stop` was set or `on_rows`
/// broke off.
///
/// Where the traffic does not depend on the seed only the first seed is run: the others would be the same run again.
///
/// # Errors
/// A draw is impossible, or a run has no result; what was finished before has been handed over.
pub fn run_matrix(
    world: &World,
    matrix: &Matrix,
    watch: &dyn Watch,
    stop: &AtomicBool,
    on_rows: &mut dyn FnMut(&[RunRow]) -> ControlFlow<()>,
) -> Result<usize, MatrixError> {
    let cells = matrix.windows.iter().flat_map(|&window| matrix.loads.iter().map(move |&load| Cell { window, load }));
    let most = most_runs(world, matrix);
    let draws_at = |load: f64| matrix.seeds_at(world, load).len();
    let draws: usize = matrix.loads.iter().map(|&load| draws_at(load)).sum();
    watch.planned(matrix.windows.len() * draws * most.iter().sum::<usize>());
    let mut finished = 0;
    for cell in cells {
        let Cell { window, load } = cell;
        let seeds = matrix.seeds_at(world, load);
        let draw = |&seed: &u64| match world.draw(&Draw { window, load, seed }) {
            Ok(workload) => Ok((seed, workload)),
            Err(error) => Err(MatrixError::Draw { window: window_name(window), load, seed, error }),
        };
        let draws = seeds.iter().map(draw).collect::<Result<Vec<_>, _>>()?;
        let mut job = Job { world, cell, draws, watch, stop, known: Vec::new(), runs: AtomicUsize::new(0) };
        for ((name, subject), most) in matrix.policies.iter().zip(&most) {
            let Some((chosen, summaries)) = job.run(name, subject)? else { return Ok(finished) };
            job.settle(most * seeds.len());
            let rows: Vec<RunRow> = job.rows(name, chosen.as_ref(), summaries).collect();
            if on_rows(&rows).is_break() {
                return Ok(finished);
            }
        }
        finished += 1;
    }
    Ok(finished)
}

/// The most runs that each policy takes of a draw: a search may look at constants of which it will know that they make no
/// difference, and what was run for one policy is not run again for another.
pub(super) fn most_runs(world: &World, matrix: &Matrix) -> Vec<usize> {
    let default = world.node.engine.default_controls();
    let mut known: Vec<Controls> = Vec::new();
    let mut fresh = |constants: Vec<Controls>| {
        let before = known.len();
        for controls in constants {
            if !known.contains(&controls) {
                known.push(controls);
            }
        }
        known.len() - before
    };
    let of_one = |(_, subject): &(PolicyName, Subject)| match subject {
        Subject::Hindsight(profile) => {
            let space = constant_space(world, *profile);
            let coarse = space.coarse();
            let fine = space.fine(&coarse);
            fresh([coarse, fine].concat())
        }
        Subject::Default => fresh(vec![default]),
        Subject::Controls(controls) => fresh(vec![*controls]),
        _ => 1,
    };
    matrix.policies.iter().map(of_one).collect()
}

/// The constants that hindsight chooses from.
fn constant_space(world: &World, profile: ActionProfile) -> ConstantSpace {
    let engine = &world.node.engine;
    // Without a host pool a victim can only be recomputed, and every mode would be the same run.
    let recompute = ActionMask::ALL.pin(Head::Preemption, Preemption::Recompute as u8);
    let allowed = if engine.num_cpu_blocks > 0 { ActionMask::ALL } else { recompute };
    ConstantSpace { profile, default: engine.default_controls(), allowed }
}

type Judged = (Option<Controls>, Vec<Summary>);

impl Job<'_> {
    /// Says by how much a policy that was planned to take `most` runs took fewer, or more.
    fn settle(&mut self, most: usize) {
        let runs = std::mem::take(self.runs.get_mut());
        self.watch.spared(most.saturating_sub(runs));
        self.watch.planned(runs.saturating_sub(most));
    }

    /// A summary per seed; `None` if interrupted.
    fn run(&mut self, name: &PolicyName, subject: &Subject) -> Result<Option<Judged>, MatrixError> {
        match subject {
            Subject::Hindsight(profile) => {
                Ok(self.hindsight(name, *profile)?.map(|(controls, summaries)| (Some(controls), summaries)))
            }
            // The default is a constant as well, and often one that hindsight looks at.
            Subject::Default => self.constant(name, self.default_controls()),
            Subject::Controls(controls) => self.constant(name, *controls),
            other => {
                let controllers = self.draws.iter().filter_map(|_| other.controller()).collect();
                Ok(self.serve(name, controllers)?.map(|summaries| (None, summaries)))
            }
        }
    }

    fn default_controls(&self) -> Controls {
        self.world.node.engine.default_controls()
    }

    fn constant(&mut self, name: &PolicyName, controls: Controls) -> Result<Option<Judged>, MatrixError> {
        Ok(self.constants(name, &[controls])?.map(|()| (None, self.summaries(&controls).to_vec())))
    }

    fn hindsight(
        &mut self,
        name: &PolicyName,
        profile: ActionProfile,
    ) -> Result<Option<(Controls, Vec<Summary>)>, MatrixError> {
        constant_space(self.world, profile).best(&mut Hindsight { job: self, name }, Effort::All)
    }

    /// Runs those constants that are not known yet; `None` if interrupted.
    fn constants(&mut self, name: &PolicyName, wanted: &[Controls]) -> Result<Option<()>, MatrixError> {
        let mut missing: Vec<Controls> = Vec::new();
        for controls in wanted {
            if !missing.contains(controls) && self.known.iter().all(|(known, _)| known != controls) {
                missing.push(*controls);
            }
        }
        let seeds = self.draws.len();
        let boxed = |controls: &Controls| Box::new(*controls) as Box<dyn Controller + Send>;
        let controllers = missing.iter().flat_map(|controls| (0..seeds).map(move |_| boxed(controls))).collect();
        let Some(summaries) = self.serve(name, controllers)? else { return Ok(None) };
        let by_controls = summaries.chunks_exact(seeds.max(1)).map(<[Summary]>::to_vec);
        self.known.extend(missing.into_iter().zip(by_controls));
        Ok(Some(()))
    }

    fn summaries(&self, controls: &Controls) -> &[Summary] {
        self.known.iter().find(|(known, _)| known == controls).map_or(&[], |(_, summaries)| summaries)
    }

    /// Runs controllers in parallel, the i-th on draw `i % seeds`; `None` if interrupted.
    fn serve(
        &self,
        name: &PolicyName,
        controllers: Vec<Box<dyn Controller + Send>>,
    ) -> Result<Option<Vec<Summary>>, MatrixError> {
        let seeds = self.draws.len();
        self.runs.fetch_add(controllers.len(), Ordering::Relaxed);
        let skipped = AtomicUsize::new(0);
        let indices: Vec<usize> = (0..controllers.len()).collect();
        let results: Vec<Option<Result<Summary, MatrixError>>> = controllers
            .into_par_iter()
            .zip(indices)
            .map(|(mut controller, index)| {
                if self.stop.load(Ordering::Relaxed) {
                    skipped.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                let (seed, workload) = &self.draws[index % seeds];
                let summary = self.world.serve(self.cell.load, workload, controller.as_mut());
                self.watch.done();
                Some(summary.map_err(|error| MatrixError::Run {
                    policy: name.clone(),
                    window: window_name(self.cell.window),
                    load: self.cell.load,
                    seed: *seed,
                    error: Box::new(error),
                }))
            })
            .collect();
        if skipped.into_inner() > 0 {
            return Ok(None);
        }
        results.into_iter().flatten().collect::<Result<Vec<Summary>, MatrixError>>().map(Some)
    }

    fn rows<'b>(
        &'b self,
        name: &'b PolicyName,
        chosen: Option<&'b Controls>,
        summaries: Vec<Summary>,
    ) -> impl Iterator<Item = RunRow> + 'b {
        let node = self.world.node_at(self.cell.load);
        self.draws.iter().zip(summaries).map(move |((seed, workload), summary)| RunRow {
            policy: name.clone(),
            chosen: chosen.map(|controls| PolicySpec::Fixed(*controls)),
            trace: self.world.trace.clone(),
            recorded: self.world.is_recorded(),
            env: self.world.deployment.name(),
            engine: Some(node.engine.engine.name().to_owned()),
            host: Some(node.host.name.to_owned()),
            set: self.world.asked.set.clone(),
            options: self.world.asked.options.clone(),
            window: window_name(self.cell.window),
            load: self.cell.load,
            clients: node.clients,
            offered_rps: self.world.offered_rps(workload),
            seed: *seed,
            slo: self.world.node.slo.to_string(),
            kvtide: Some(env!("CARGO_PKG_VERSION").to_owned()),
            summary,
        })
    }
}

/// Constants on the draws of a cell: what a perfect operator could do, knowing the traffic beforehand.
struct Hindsight<'j, 'a> {
    job: &'j mut Job<'a>,
    name: &'j PolicyName,
}

impl ConstantEvaluator for Hindsight<'_, '_> {
    type Runs = Vec<Summary>;
    type Error = MatrixError;

    fn play(&mut self, _: SearchRound, constants: &[Controls]) -> Result<Option<Vec<Vec<Summary>>>, MatrixError> {
        let known = self.job.constants(self.name, constants)?;
        Ok(known.map(|()| constants.iter().map(|controls| self.job.summaries(controls).to_vec()).collect()))
    }

    /// Mean attainment over seeds; of equals output tokens/s decide.
    fn score(summaries: &Vec<Summary>) -> (f64, f64) {
        let mean = |value: fn(&Summary) -> f64| summaries.iter().map(value).sum::<f64>() / summaries.len() as f64;
        (mean(|summary| summary.slo_attainment), mean(|summary| summary.output_tok_s))
    }

    fn preempted(summaries: &Vec<Summary>) -> bool {
        summaries.iter().any(|summary| summary.preemptions > 0)
    }
}

/// A window as results name it.
pub(super) fn window_name(window: Option<Window>) -> String {
    window.map_or_else(|| "all".to_owned(), |window| window.to_string())
}
