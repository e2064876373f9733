//! Constants chosen once for everything that is evaluated, where the rest of hindsight chooses for each cell anew.

use std::sync::atomic::AtomicBool;

use kvtide_runtime::Controls;

use super::cell::{Job, KnownConstants, mean_of};
use super::kept::Kept;
use super::matrix::{Cell, Matrix, MatrixError, OnFinished, Watch, constant_space, job, most_looks};
use super::row::Tried;
use crate::constant::{ConstantEvaluator, Effort, SearchRound};
use crate::policy::{PolicyName, Subject};
use crate::world::World;

/// What was looked at of constants before the first cell, cell by cell; later searches need not look again.
#[derive(Default)]
pub(super) struct LookedAt(Vec<(Cell, KnownConstants)>);

impl LookedAt {
    /// What is known of a cell.
    pub(super) fn of(&self, cell: Cell) -> KnownConstants {
        self.0.iter().find(|(known, _)| *known == cell).map(|(_, known)| known.clone()).unwrap_or_default()
    }
}

/// Looks for the constants that are chosen once: `matrix` with them in their places, and what is known of others by then. `None`
/// if interrupted.
///
/// # Errors
/// A draw is impossible, or a run has no result.
pub(super) fn choose(
    world: &World,
    matrix: &Matrix,
    (kept, watch, stop): (&Kept, &dyn Watch, &AtomicBool),
    on_finished: OnFinished<'_>,
) -> Result<Option<(Matrix, LookedAt)>, MatrixError> {
    let mut chosen = matrix.clone();
    let is_asked = |(_, subject): &(PolicyName, Subject)| matches!(subject, Subject::HindsightOnce(_));
    if !matrix.policies.iter().any(is_asked) {
        return Ok(Some((chosen, LookedAt::default())));
    }
    let cells: Vec<Cell> = matrix.each_cell().collect();
    let jobs = cells.iter().map(|&cell| job(world, matrix, cell, KnownConstants::default(), (kept, watch, stop)));
    let mut jobs: Vec<Job<'_>> = jobs.collect::<Result<_, _>>()?;
    let draws: usize = jobs.iter().map(Job::draws).sum();
    for (name, subject) in &mut chosen.policies {
        let Subject::HindsightOnce(profile) = *subject else { continue };
        // Where any of its rows is kept, it has been found.
        let mut found = jobs.iter().find_map(|job| job.kept_choice(name));
        if found.is_none() {
            let most = most_looks(world, profile).len();
            watch.planned(most * draws);
            let mut stage = AllCells { jobs: &mut jobs, name, on_finished: &mut *on_finished };
            found = constant_space(world, profile).best(&mut stage, Effort::All)?.map(|(controls, _)| controls);
            for job in &mut jobs {
                job.settle(most * job.draws());
            }
        }
        let Some(controls) = found else { return Ok(None) };
        *subject = Subject::Chosen(controls);
    }
    let looked_at = cells.into_iter().zip(jobs.into_iter().map(Job::into_known)).collect();
    Ok(Some((chosen, LookedAt(looked_at))))
}

/// Constants on the draws of every cell.
struct AllCells<'h, 'j, 'a> {
    jobs: &'j mut [Job<'a>],
    name: &'j PolicyName,
    on_finished: OnFinished<'h>,
}

impl ConstantEvaluator for AllCells<'_, '_, '_> {
    /// By cell.
    type Runs = Vec<Vec<Tried>>;
    type Error = MatrixError;

    fn play(&mut self, _: SearchRound, constants: &[Controls]) -> Result<Option<Vec<Self::Runs>>, MatrixError> {
        for job in &mut *self.jobs {
            if job.look_at(self.name, constants, self.on_finished)?.is_none() {
                return Ok(None);
            }
        }
        let of_one = |controls| self.jobs.iter().map(|job| job.tried(controls)).collect();
        Ok(Some(constants.iter().map(of_one).collect()))
    }

    /// Mean attainment, every cell counting the same; of equals output tokens/s decide.
    fn score(cells: &Self::Runs) -> (f64, f64) {
        let mean = |value: fn(&Tried) -> f64| {
            cells.iter().map(|tried| mean_of(tried, value)).sum::<f64>() / cells.len() as f64
        };
        (mean(|tried| tried.slo_attainment), mean(|tried| tried.output_tok_s))
    }

    fn preempted(cells: &Self::Runs) -> bool {
        cells.iter().flatten().any(|tried| tried.preempted)
    }
}
