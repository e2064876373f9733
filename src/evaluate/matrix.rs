//! Policies × windows × loads × seeds.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::RunError;
use kvtide_envs::workload::{Window, WorkloadError};
use kvtide_runtime::action::BUDGET_LEVELS;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Controls, Head, Preemption};

use super::cell::{Job, KnownConstants};
use super::kept::Kept;
use super::once;
use super::row::{RunRow, TriedRow};
use super::together::together;
use crate::constant::{ConstantSpace, MOST_OPEN};
use crate::crew::CrewError;
use crate::policy::{PolicyName, Subject};
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
    /// Every window at every load, in the order in which they are run.
    pub fn each_cell(&self) -> impl Iterator<Item = Cell> {
        self.windows.iter().flat_map(|&window| self.loads.iter().map(move |&load| Cell { window, load }))
    }

    /// How many cells there are.
    pub fn cells(&self) -> usize {
        self.windows.len() * self.loads.len()
    }

    /// The seeds that are run at a load: one where they all are the same run.
    pub fn seeds_at(&self, world: &World, load: f64) -> &[u64] {
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
    /// Whoever serves runs in this process's place does not.
    #[error("policy {policy}, window {window}, load {load}, seed {seed}: {error}")]
    Elsewhere {
        /// Which policy.
        policy: PolicyName,
        /// Which window.
        window: String,
        /// Which load.
        load: f64,
        /// Which seed.
        seed: u64,
        /// What is heard of it.
        error: Box<CrewError>,
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

/// What comes of a matrix, piece by piece, always in the same order.
#[derive(Debug, Clone, Copy)]
pub enum Finished<'a> {
    /// A run.
    Run {
        /// Its row.
        row: &'a RunRow,
        /// Whether it was kept by an earlier call, and was not run again.
        is_kept: bool,
    },
    /// A constant that hindsight looked at, on one draw; those that were kept are not told again.
    Tried(&'a TriedRow),
}

/// Who is handed what is finished; to break off is to end the runs.
pub(super) type OnFinished<'a> = &'a mut dyn FnMut(Finished<'_>) -> ControlFlow<()>;

/// Runs every cell, in parallel within a policy, and hands each row over as soon as it and all before it are there, in the
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
    go_on_with_matrix(world, matrix, &Kept::default(), watch, stop, &mut |finished| match finished {
        Finished::Run { row, .. } => on_rows(std::slice::from_ref(row)),
        Finished::Tried(_) => ControlFlow::Continue(()),
    })
}

/// As [`run_matrix`], but for what is `kept` of it already, which is handed over and not run again: what comes out is the same.
///
/// # Errors
/// As [`run_matrix`].
pub fn go_on_with_matrix(
    world: &World,
    matrix: &Matrix,
    kept: &Kept,
    watch: &dyn Watch,
    stop: &AtomicBool,
    on_finished: OnFinished<'_>,
) -> Result<usize, MatrixError> {
    let most = most_runs(world, matrix);
    let draws_at = |load: f64| matrix.seeds_at(world, load).len();
    let draws: usize = matrix.loads.iter().map(|&load| draws_at(load)).sum();
    let Some((matrix, looked_at)) = once::choose(world, matrix, (kept, watch, stop), on_finished)? else {
        return Ok(0);
    };
    watch.planned(matrix.windows.len() * draws * most.iter().sum::<usize>());
    let run = |cell: Cell, stop: &AtomicBool, on_finished: OnFinished<'_>| {
        let mut job = job(world, &matrix, cell, looked_at.of(cell), (kept, watch, stop))?;
        job.foresee(&matrix.policies);
        for ((name, subject), most) in matrix.policies.iter().zip(&most) {
            let done = job.run(name, subject, on_finished)?;
            job.settle(most * draws_at(cell.load));
            if done.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    };
    if world.elsewhere.is_some() {
        return together(&matrix.each_cell().collect::<Vec<Cell>>(), stop, &run, on_finished);
    }
    let mut finished = 0;
    for cell in matrix.each_cell() {
        if !run(cell, stop, on_finished)? {
            break;
        }
        finished += 1;
    }
    Ok(finished)
}

/// What a cell needs, with its draws.
pub(super) fn job<'a>(
    world: &'a World,
    matrix: &Matrix,
    cell: Cell,
    known: KnownConstants,
    (kept, watch, stop): (&'a Kept, &'a dyn Watch, &'a AtomicBool),
) -> Result<Job<'a>, MatrixError> {
    let Cell { window, load } = cell;
    let draw = |&seed: &u64| match world.draw(&Draw { window, load, seed }) {
        Ok(workload) => Ok((seed, workload)),
        Err(error) => Err(MatrixError::Draw { window: window_name(window), load, seed, error }),
    };
    let draws = matrix.seeds_at(world, load).iter().map(draw).collect::<Result<Vec<_>, _>>()?;
    Ok(Job::new(world, cell, draws, known, (kept, watch, stop)))
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
        Subject::Hindsight(profile) => fresh(most_looks(world, *profile)),
        Subject::Default => fresh(vec![default]),
        Subject::Controls(controls) => fresh(vec![*controls]),
        _ => 1,
    };
    matrix.policies.iter().map(of_one).collect()
}

/// As many constants as a search of that profile looks at at most: the same number, and mostly the same.
pub(super) fn most_looks(world: &World, profile: ActionProfile) -> Vec<Controls> {
    let space = constant_space(world, profile);
    let coarse = space.coarse();
    let fine = space.fine(&coarse[..coarse.len().min(MOST_OPEN)]);
    [coarse, fine].concat()
}

/// The constants that hindsight chooses from.
pub(super) fn constant_space(world: &World, profile: ActionProfile) -> ConstantSpace {
    let engine = &world.node.engine;
    // Without a host pool to swap to a victim can only be recomputed, and every mode would be the same run.
    let recompute = ActionMask::ALL.pin(Head::Preemption, Preemption::Recompute as u8);
    let swaps = engine.num_cpu_blocks > 0 && world.node.host.has_host_tier;
    let mut allowed = if swaps { ActionMask::ALL } else { recompute };
    // A budget that is not below the engine's own is its own, which is the last.
    let own = Action::V1_DEFAULT;
    let is_own = |&level: &u8| {
        let same = BUDGET_LEVELS[usize::from(level)] >= f64::from(engine.max_num_batched_tokens);
        level != own.get(Head::Budget) && (same || !engine.obeys_budget())
    };
    allowed =
        (0..BUDGET_LEVELS.len() as u8).filter(is_own).fold(allowed, |mask, level| mask.forbid(Head::Budget, level));
    if !engine.has_eviction_classes() {
        allowed = allowed.pin(Head::Eviction, own.get(Head::Eviction));
    }
    ConstantSpace { profile, default: engine.default_controls(), allowed }
}

/// A window as results name it.
pub(super) fn window_name(window: Option<Window>) -> String {
    window.map_or_else(|| "all".to_owned(), |window| window.to_string())
}
