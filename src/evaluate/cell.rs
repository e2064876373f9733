//! One window at one load, served by one policy after the other.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use kvtide_envs::env::Controller;
use kvtide_envs::metrics::Summary;
use kvtide_envs::workload::Workload;
use kvtide_runtime::{ActionProfile, Controls};

use super::kept::Kept;
use super::matrix::{Cell, Finished, MatrixError, OnFinished, Watch, constant_space, window_name};
use super::row::{RunRow, Tried, TriedRow};
use crate::constant::{ConstantEvaluator, Effort, SearchRound};
use crate::crew::CrewError;
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::world::{Draw, Elsewhere, Errand, World};

/// A cell being run.
pub(super) struct Job<'a> {
    world: &'a World,
    cell: Cell,
    window: String,
    draws: Vec<(u64, Workload)>,
    kept: &'a Kept,
    watch: &'a dyn Watch,
    stop: &'a AtomicBool,
    known: KnownConstants,
    /// Runs that were begun.
    runs: AtomicUsize,
}

/// What is known of constants on the draws of a cell.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownConstants {
    /// Those that were run, with a summary per draw.
    served: Vec<(Controls, Vec<Summary>)>,
    /// Those that hindsight has looked at, with what it looks at per draw.
    tried: Vec<(Controls, Vec<Tried>)>,
}

/// The place of a draw, who serves it, and what other processes call them.
type Task = (usize, Box<dyn Controller + Send>, String);

/// Told of each task that is done, in their order.
type Each<'a> = &'a mut dyn FnMut(usize, Summary) -> ControlFlow<()>;

impl<'a> Job<'a> {
    pub(super) fn new(
        world: &'a World,
        cell: Cell,
        draws: Vec<(u64, Workload)>,
        known: KnownConstants,
        (kept, watch, stop): (&'a Kept, &'a dyn Watch, &'a AtomicBool),
    ) -> Job<'a> {
        let (window, runs) = (window_name(cell.window), AtomicUsize::new(0));
        Job { world, cell, window, draws, kept, watch, stop, known, runs }
    }

    /// How many draws there are.
    pub(super) fn draws(&self) -> usize {
        self.draws.len()
    }

    /// What is known of constants by now.
    pub(super) fn into_known(self) -> KnownConstants {
        self.known
    }

    /// Says by how much a policy that was planned to take `most` runs took fewer, or more.
    pub(super) fn settle(&mut self, most: usize) {
        let runs = std::mem::take(self.runs.get_mut());
        self.watch.spared(most.saturating_sub(runs));
        self.watch.planned(runs.saturating_sub(most));
    }

    /// Serves every draw under a policy and hands the rows over; `None` if interrupted.
    pub(super) fn run(
        &mut self,
        name: &PolicyName,
        subject: &Subject,
        on_finished: OnFinished<'_>,
    ) -> Result<Option<()>, MatrixError> {
        // The default is a constant as well, and often one that hindsight looks at.
        let (controls, chosen) = match subject {
            Subject::Default => (Some(self.default_controls()), None),
            Subject::Controls(controls) => (Some(*controls), None),
            Subject::Chosen(controls) => (Some(*controls), Some(*controls)),
            Subject::Hindsight(profile) => match self.hindsight(name, *profile, on_finished)? {
                Some(controls) => (Some(controls), Some(controls)),
                None => return Ok(None),
            },
            _ => (None, None),
        };
        let said = controls.map_or_else(|| name.spec().to_string(), |controls| PolicySpec::Fixed(controls).to_string());
        let fresh = || match controls {
            Some(controls) => Some(Box::new(controls) as Box<dyn Controller + Send>),
            None => subject.controller(),
        };
        let mut summaries: Vec<Option<Summary>> = match controls {
            Some(controls) => self.summaries_of(&controls),
            None => vec![None; self.draws.len()],
        };
        let kept: Vec<Option<&RunRow>> = self.draws.iter().map(|(seed, _)| self.kept_row(name, *seed)).collect();
        let is_missing = |draw: &usize| kept[*draw].is_none() && summaries[*draw].is_none();
        let tasks: Vec<Task> =
            (0..self.draws.len()).filter(is_missing).filter_map(|draw| Some((draw, fresh()?, said.clone()))).collect();
        let places: Vec<usize> = tasks.iter().map(|(draw, ..)| *draw).collect();

        let mut next = 0;
        // Hands over all there are from the next one on.
        let mut hand_over = |summaries: &[Option<Summary>]| {
            while next < summaries.len() {
                let (row, is_kept) = match (kept[next], &summaries[next]) {
                    (Some(row), _) => (row.clone(), true),
                    (None, Some(summary)) => (self.row(name, chosen, next, summary.clone()), false),
                    (None, None) => break,
                };
                next += 1;
                on_finished(Finished::Run { row: &row, is_kept })?;
            }
            ControlFlow::Continue(())
        };
        let begun = hand_over(&summaries);
        if begun.is_break() {
            return Ok(None);
        }
        let served = self.serve(name, tasks, &mut |task, summary| {
            summaries[places[task]] = Some(summary);
            hand_over(&summaries)
        })?;
        if served.is_none() {
            return Ok(None);
        }
        if let Some(controls) = controls {
            let whole =
                kept.iter().zip(summaries).map(|(kept, known)| known.or_else(|| Some(kept.as_ref()?.summary.clone())));
            if let Some(summaries) = whole.collect::<Option<Vec<Summary>>>() {
                self.know(controls, summaries);
            }
        }
        Ok(Some(()))
    }

    fn default_controls(&self) -> Controls {
        self.world.node.engine.default_controls()
    }

    fn kept_row(&self, name: &PolicyName, seed: u64) -> Option<&'a RunRow> {
        self.kept.run(name, &self.window, self.cell.load, (seed, self.world.clock_draw))
    }

    /// What is known of constant controls, per draw.
    fn summaries_of(&self, controls: &Controls) -> Vec<Option<Summary>> {
        let known = self.known.served.iter().find(|(known, _)| known == controls);
        known.map_or_else(
            || vec![None; self.draws.len()],
            |(_, summaries)| summaries.iter().cloned().map(Some).collect(),
        )
    }

    fn know(&mut self, controls: Controls, summaries: Vec<Summary>) {
        if self.known.served.iter().all(|(known, _)| *known != controls) {
            self.known.served.push((controls, summaries));
        }
    }

    /// The best constant choice of a profile on these draws; `None` if interrupted.
    fn hindsight(
        &mut self,
        name: &PolicyName,
        profile: ActionProfile,
        on_finished: OnFinished<'_>,
    ) -> Result<Option<Controls>, MatrixError> {
        // Where each of its rows is kept, it has been found.
        let kept: Option<Vec<&RunRow>> = self.draws.iter().map(|(seed, _)| self.kept_row(name, *seed)).collect();
        if let Some(controls) = kept.and_then(|_| self.kept_choice(name)) {
            return Ok(Some(controls));
        }
        let best =
            constant_space(self.world, profile).best(&mut Hindsight { job: self, name, on_finished }, Effort::All)?;
        Ok(best.map(|(controls, _)| controls))
    }

    /// The constant that was chosen under that name, if any of its rows is kept.
    pub(super) fn kept_choice(&self, name: &PolicyName) -> Option<Controls> {
        let rows = self.draws.iter().filter_map(|(seed, _)| self.kept_row(name, *seed));
        rows.filter_map(|row| row.chosen.as_ref()).find_map(PolicySpec::constant)
    }

    /// Runs what is not known yet of constants that hindsight looks at; `None` if interrupted.
    pub(super) fn look_at(
        &mut self,
        name: &PolicyName,
        wanted: &[Controls],
        on_finished: OnFinished<'_>,
    ) -> Result<Option<()>, MatrixError> {
        let mut missing: Vec<Controls> = Vec::new();
        for controls in wanted {
            if missing.contains(controls) || self.known.tried.iter().any(|(known, _)| known == controls) {
                continue;
            }
            match self.known.served.iter().find(|(known, _)| known == controls) {
                Some((_, summaries)) => {
                    let tried = summaries.iter().map(Tried::of).collect();
                    self.known.tried.push((*controls, tried));
                }
                None => missing.push(*controls),
            }
        }
        let seeds = self.draws.len();
        let kept = |index: usize| {
            let (controls, (seed, _)) = (missing[index / seeds], &self.draws[index % seeds]);
            self.kept.tried(&controls, &self.window, self.cell.load, (*seed, self.world.clock_draw))
        };
        let mut tried: Vec<Option<Tried>> = (0..missing.len() * seeds).map(kept).collect();
        let places: Vec<usize> = (0..tried.len()).filter(|&index| tried[index].is_none()).collect();
        let boxed = |&index: &usize| {
            let controls = missing[index / seeds];
            (index % seeds, Box::new(controls) as Box<dyn Controller + Send>, PolicySpec::Fixed(controls).to_string())
        };
        let tasks: Vec<Task> = places.iter().map(boxed).collect();
        let mut summaries: Vec<Option<Summary>> = vec![None; tried.len()];
        let served = self.serve(name, tasks, &mut |task, summary| {
            let index = places[task];
            let found = Tried::of(&summary);
            (tried[index], summaries[index]) = (Some(found), Some(summary));
            on_finished(Finished::Tried(&TriedRow {
                constant: PolicySpec::Fixed(missing[index / seeds]),
                window: self.window.clone(),
                load: self.cell.load,
                seed: self.draws[index % seeds].0,
                clock_draw: self.world.clock_draw,
                tried: found,
            }))
        })?;
        if served.is_none() {
            return Ok(None);
        }
        for (controls, (tried, summaries)) in
            missing.iter().zip(tried.chunks(seeds.max(1)).zip(summaries.chunks(seeds.max(1))))
        {
            self.known.tried.push((*controls, tried.iter().copied().flatten().collect()));
            if let Some(summaries) = summaries.iter().cloned().collect::<Option<Vec<Summary>>>() {
                self.know(*controls, summaries);
            }
        }
        Ok(Some(()))
    }

    /// What hindsight has seen of a constant, per draw; nothing of one it has not looked at.
    pub(super) fn tried(&self, controls: &Controls) -> Vec<Tried> {
        self.known.tried.iter().find(|(known, _)| known == controls).map_or_else(Vec::new, |(_, tried)| tried.clone())
    }

    /// Runs tasks in parallel, each thread the next one, and tells of them in their order; `None` if interrupted. Not for a thread
    /// of rayon's own, of which there may be only one.
    fn serve(&self, name: &PolicyName, tasks: Vec<Task>, each: Each<'_>) -> Result<Option<()>, MatrixError> {
        let count = tasks.len();
        self.runs.fetch_add(count, Ordering::Relaxed);
        if let Some(elsewhere) = &self.world.elsewhere {
            return self.serve_elsewhere(elsewhere, name, tasks, each);
        }
        let queue = Mutex::new(tasks.into_iter().enumerate());
        let ended = AtomicBool::new(false);
        rayon::in_place_scope(|scope| {
            let (sender, finished) = mpsc::channel();
            for _ in 0..rayon::current_num_threads().min(count) {
                let (sender, queue, ended) = (sender.clone(), &queue, &ended);
                scope.spawn(move |_| {
                    while !self.stop.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some((task, (draw, mut controller, _))) = next else { return };
                        let (_, workload) = &self.draws[draw];
                        let summary = self.world.serve(self.cell.load, workload, controller.as_mut());
                        self.watch.done();
                        let result = summary.map_err(|error| self.failed(name, draw, error));
                        if sender.send((task, result)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let result = in_order(finished, each);
            ended.store(true, Ordering::Relaxed);
            Ok((result? == count).then_some(()))
        })
    }

    /// Has the runs begun that are sure to be asked for: of policies that are not chosen in hindsight, as far as they are not kept.
    pub(super) fn foresee(&self, policies: &[(PolicyName, Subject)]) {
        let Some(elsewhere) = &self.world.elsewhere else { return };
        for (name, subject) in policies {
            let said = match subject {
                Subject::Default => PolicySpec::Fixed(self.default_controls()).to_string(),
                Subject::Chosen(controls) => PolicySpec::Fixed(*controls).to_string(),
                Subject::Hindsight(_) | Subject::HindsightOnce(_) => continue,
                _ => name.spec().to_string(),
            };
            let missing = (0..self.draws.len()).filter(|&draw| self.kept_row(name, self.draws[draw].0).is_none());
            missing.for_each(|draw| elsewhere.begin(&self.errand(draw, said.clone())));
        }
    }

    /// As [`serve`](Self::serve), by other processes: all tasks are begun, and waited for in their order. The first of all that
    /// comes back is served here as well, because what is not the same on another machine is no result.
    fn serve_elsewhere(
        &self,
        elsewhere: &Elsewhere,
        name: &PolicyName,
        tasks: Vec<Task>,
        each: Each<'_>,
    ) -> Result<Option<()>, MatrixError> {
        for (draw, _, said) in &tasks {
            elsewhere.begin(&self.errand(*draw, said.clone()));
        }
        for (task, (draw, mut controller, said)) in tasks.into_iter().enumerate() {
            let failed = |error| MatrixError::Elsewhere {
                policy: name.clone(),
                window: self.window.clone(),
                load: self.cell.load,
                seed: self.draws[draw].0,
                error: Box::new(error),
            };
            let Some(summary) = elsewhere.finish(&self.errand(draw, said), self.stop).map_err(failed)? else {
                return Ok(None);
            };
            if elsewhere.is_to_be_compared() {
                let here = self.world.serve(self.cell.load, &self.draws[draw].1, controller.as_mut());
                let here = here.map_err(|error| self.failed(name, draw, error))?;
                let differs =
                    || format!("a worker comes to {}, this machine to {}: other numbers", summary.hash, here.hash);
                if summary != here {
                    return Err(failed(CrewError(differs())));
                }
            }
            self.watch.done();
            if each(task, summary).is_break() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    /// What another process is told of the run of a draw.
    fn errand(&self, draw: usize, said: String) -> Errand {
        let Cell { window, load } = self.cell;
        self.world.errand(said, &Draw { window, load, seed: self.draws[draw].0 })
    }

    fn failed(&self, name: &PolicyName, draw: usize, error: kvtide_envs::env::RunError) -> MatrixError {
        MatrixError::Run {
            policy: name.clone(),
            window: self.window.clone(),
            load: self.cell.load,
            seed: self.draws[draw].0,
            error: Box::new(error),
        }
    }

    fn row(&self, name: &PolicyName, chosen: Option<Controls>, draw: usize, summary: Summary) -> RunRow {
        let (seed, workload) = &self.draws[draw];
        RunRow::new(self.world, name, chosen, self.cell, (*seed, workload), summary)
    }
}

/// Hands over what comes, whenever it comes, in the order of the tasks. Returns how many were handed over.
fn in_order(
    finished: mpsc::Receiver<(usize, Result<Summary, MatrixError>)>,
    each: Each<'_>,
) -> Result<usize, MatrixError> {
    let (mut waiting, mut next) = (BTreeMap::new(), 0);
    for (task, result) in finished {
        waiting.insert(task, result);
        while let Some(result) = waiting.remove(&next) {
            if each(next, result?).is_break() {
                return Ok(next);
            }
            next += 1;
        }
    }
    Ok(next)
}

/// The mean over draws.
pub(super) fn mean_of(tried: &[Tried], value: fn(&Tried) -> f64) -> f64 {
    tried.iter().map(value).sum::<f64>() / tried.len() as f64
}

/// Constants on the draws of a cell: what a perfect operator could do, knowing the traffic beforehand.
struct Hindsight<'h, 'j, 'a> {
    job: &'j mut Job<'a>,
    name: &'j PolicyName,
    on_finished: OnFinished<'h>,
}

impl ConstantEvaluator for Hindsight<'_, '_, '_> {
    type Runs = Vec<Tried>;
    type Error = MatrixError;

    fn play(&mut self, _: SearchRound, constants: &[Controls]) -> Result<Option<Vec<Vec<Tried>>>, MatrixError> {
        let known = self.job.look_at(self.name, constants, self.on_finished)?;
        Ok(known.map(|()| constants.iter().map(|controls| self.job.tried(controls)).collect()))
    }

    /// Mean attainment over seeds; of equals output tokens/s decide.
    fn score(tried: &Vec<Tried>) -> (f64, f64) {
        (mean_of(tried, |tried| tried.slo_attainment), mean_of(tried, |tried| tried.output_tok_s))
    }

    fn preempted(tried: &Vec<Tried>) -> bool {
        tried.iter().any(|tried| tried.preempted)
    }
}
