//! From traffic to a verdict in one sitting: what `kvtide tune` does.
//!
//! [`Tuning::run`] goes through the steps, each of which looks only at what it may: the traffic and its cut (`traffic.rs`), the loads at
//! which today's engine begins to fail (`loads.rs`), the heads (`heads.rs`) and the experiment that comes of it (`plan.rs`),
//! training, the table or the constant that ships (`table.rs`), the judgement on the part nobody has looked at (`judge.rs`), the
//! answer (`verdict.rs`) and its words (`words.rs`). How much is spent is `effort.rs`. What a step finds is kept in the run's folder
//! (`folder.rs`), so that a run that was stopped goes on with the step it was in, and leaves the bytes of one that never was.

mod effort;
mod error;
mod folder;
mod heads;
mod judge;
mod loads;
mod plan;
mod table;
mod traffic;
mod verdict;
mod words;

use std::path::{self, Path};
use std::sync::atomic::AtomicBool;

use kvtide_runtime::ActionProfile;

pub use effort::{Budget, Effort, NoEffort};
pub use error::TuneError;
pub use folder::{Progress, Settings, folder_of};
pub use heads::{Candidate, ChosenHeads};
pub use loads::{AtOne, LoadRange};
pub use table::{Shipped, ShippedKind};
pub use traffic::{Cut, LEAST_S, TrafficLook, check_file};
pub use verdict::{AttainedBy, Clock, Judged, Late, MARGIN, Reason, Role, Verdict};

use crate::agent::{RunOutcome, Tensors};
use crate::distil::DaggerReport;
use crate::evaluate::{Matrix, RunRow, clock_gains, compare};
use crate::experiment::{Experiment, Method};
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::report::{self, ReportInput};
use crate::train::{self, Run};
use crate::world::{World, WorldSpec};

/// Traffic where none is given: chat, at about twice what one card can serve.
const TRAFFIC: &str = "chat:rate=5,duration=2400,seed=7";
/// Iterations of PPO between two checkpoints; a search leaves one after every generation.
const CHECKPOINT_EVERY: u64 = 10;

/// The steps, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Where the load begins to be too much.
    Loads,
    /// What is to be decided, and the best constants.
    Heads,
    /// Learning.
    Training,
    /// What was learned, or a constant, becomes a table.
    Table,
    /// The part nobody has looked at.
    Judging,
}

/// Who is told how a run comes along.
pub trait Listener: train::Listener {
    /// A step begins.
    fn begins(&self, step: Step);
    /// Something was found, in a line.
    fn finds(&self, text: &str);
    /// A table grows.
    fn grows(&self, report: &DaggerReport);
}

/// A run: what it is about, where it leaves everything, and who may end it.
#[derive(Clone, Copy)]
pub struct Tuning<'a> {
    /// The world that its settings describe.
    pub world: &'a World,
    /// Its folder.
    pub out: &'a Path,
    /// What PPO multiplies with; a search needs nothing of the kind.
    pub tensors: Option<&'static dyn Tensors>,
    /// Who is told.
    pub listener: &'a dyn Listener,
    /// Ends it once set; what is finished is kept.
    pub stop: &'a AtomicBool,
}

/// `spec` with traffic of our own, if it has none.
pub fn with_traffic(mut spec: WorldSpec) -> WorldSpec {
    if spec.trace.is_none() && spec.workload.is_none() {
        spec.workload = Some(TRAFFIC.parse().expect("traffic of our own"));
    }
    spec
}

/// Looks at the traffic of `world`, cuts it, and makes sure that what runs today can be run and that `out` is free for a new run,
/// which `command` asked for; nothing is written yet.
///
/// # Errors
/// There is too little traffic, or something else is in the folder.
pub fn begin(settings: Settings, world: &World, out: &Path, command: &str) -> Result<Progress, TuneError> {
    if Progress::of(out)?.is_some_and(|progress| !progress.is_finished) {
        return Err(TuneError::Unfinished { path: out.to_owned() });
    }
    check_today(&settings.versus)?;
    folder::spares(out, &settings)?;
    traffic::check(&settings.world, world)?;
    Subject::load(&settings.versus)?.check(&settings.versus.clone().into(), &world.node)?;
    let look = TrafficLook::of(&settings.world, world)?;
    let cut = Cut::of(world, settings.effort.budget(settings.seed).episode_s)?;
    Ok(Progress::new(settings, command, world.fingerprint(), look, cut))
}

/// The run in `out`, to be gone on with.
///
/// # Errors
/// There is none.
pub fn resumed(out: &Path) -> Result<Progress, TuneError> {
    Progress::of(out)?.ok_or_else(|| TuneError::Nothing { path: out.to_owned() })
}

impl Tuning<'_> {
    /// Goes through the steps that are still to be done. `None` if stopped: then the run can be gone on with.
    ///
    /// # Errors
    /// Why there is no verdict; what was finished before is kept.
    pub fn run(&self, mut progress: Progress) -> Result<Option<Verdict>, TuneError> {
        let Tuning { world, out, .. } = *self;
        if progress.traffic != world.fingerprint() {
            return Err(TuneError::OtherTraffic { path: out.to_owned(), name: world.trace.clone() });
        }
        let budget = progress.settings.effort.budget(progress.settings.seed);
        let Some(range) = self.range(&mut progress, &budget)? else { return Ok(None) };
        let Some(heads) = self.heads(&mut progress, &budget, &range)? else { return Ok(None) };
        let experiment = plan::resolved(&progress, &budget, &range, &heads);
        folder::write(&out.join("experiment.toml"), experiment.to_toml().as_bytes())?;
        if !self.train(&mut progress, &experiment)? {
            return Ok(None);
        }
        let Some(shipped) = self.table(&mut progress, &experiment, &budget, &heads)? else { return Ok(None) };
        let Some(runs) = self.judge(&progress, &budget, &range, &heads)? else { return Ok(None) };
        let verdict = self.conclude(&progress, &range, &heads, &shipped, &runs)?;
        progress.is_finished = true;
        progress.save(out)?;
        Ok(Some(verdict))
    }

    /// Compares all runs, and writes the page and the verdict.
    fn conclude(
        &self,
        progress: &Progress,
        range: &LoadRange,
        heads: &ChosenHeads,
        shipped: &Shipped,
        runs: &Runs,
    ) -> Result<Verdict, TuneError> {
        let Tuning { world, out, .. } = *self;
        let Runs { matrix, rows, drawn, clocks } = runs;
        let versus = PolicyName::from(progress.settings.versus.clone());
        let comparisons = &compare(rows, &versus, &[versus.clone(), heads.constant.clone().into()]);
        let gains = clock_gains(world, comparisons, drawn, *clocks);
        let (command, found, named) = (progress.command.clone(), &range.found[..], std::slice::from_ref(&versus));
        let made_on = report::today()?;
        let page =
            ReportInput { command, made_on, world, matrix, found, rows, versus: named, comparisons, clocks: &gains };
        report::write(&out.join("report.html"), &page)?;
        let table = out.join(table::TABLE);
        let (name, clock) = (PolicyName::table(&table), clock(&progress.settings.world, world));
        let judged = Judged { versus: &versus, table: &name, comparisons, range, heads, shipped, clock: &clock };
        let mut verdict = judged.verdict().expect("the table and what runs today were both run");
        verdict.clock_gain = gains.into_iter().find(|gain| gain.policy == name && gain.than == versus);
        verdict.windows = matrix.windows.iter().flatten().map(ToString::to_string).collect();
        let table = &path::absolute(&table).unwrap_or(table);
        let place = words::Place {
            out,
            table,
            host: world.node.host.name,
            span_s: progress.look.span_s,
            judged_s: matrix.windows.iter().flatten().map(|window| window.length().as_secs_f64()).sum(),
            targets: world.node.slo.to_string(),
            effort: progress.settings.effort,
        };
        verdict.lines = words::lines(&verdict, &place);
        let text = serde_json::to_string_pretty(&verdict).expect("plain values") + "\n";
        folder::write(&out.join("verdict.json"), text.as_bytes())?;
        Ok(verdict)
    }

    fn range(&self, progress: &mut Progress, budget: &Budget) -> Result<Option<LoadRange>, TuneError> {
        self.listener.begins(Step::Loads);
        let range = if let Some(range) = progress.range.clone() {
            range
        } else {
            let watch = self.listener.watch();
            let found = LoadRange::find(self.world, &progress.cut, budget.longest_s, &*watch, self.stop)?;
            let Some(range) = found else { return Ok(None) };
            progress.range = Some(range.clone());
            progress.save(self.out)?;
            range
        };
        self.listener.finds(&range.text());
        Ok(Some(range))
    }

    fn heads(
        &self,
        progress: &mut Progress,
        budget: &Budget,
        range: &LoadRange,
    ) -> Result<Option<ChosenHeads>, TuneError> {
        self.listener.begins(Step::Heads);
        let heads = if let Some(heads) = progress.heads.clone() {
            heads
        } else {
            let only = progress.settings.profile.as_deref().and_then(ActionProfile::from_name);
            let profile = only.unwrap_or_else(|| self.world.node.host.profile());
            let open = plan::experiment(&progress.settings, &progress.cut, range, budget, profile);
            open.validate()?;
            let watch = self.listener.watch();
            let found = ChosenHeads::choose(&open, self.world, only, budget, &*watch, self.stop)?;
            let Some(heads) = found else { return Ok(None) };
            progress.heads = Some(heads.clone());
            progress.save(self.out)?;
            heads
        };
        self.listener.finds(&heads.reason);
        self.listener.finds(&format!(
            "the best constant there is {}; a table that cannot be trusted falls back to watermark {}",
            heads.constant, heads.fallback
        ));
        Ok(Some(heads))
    }

    /// False if stopped.
    fn train(&self, progress: &mut Progress, experiment: &Experiment) -> Result<bool, TuneError> {
        self.listener.begins(Step::Training);
        if progress.is_trained {
            return Ok(true);
        }
        let Tuning { world, out, tensors, listener, stop, .. } = *self;
        let checkpoint_every = if experiment.method == Method::Ppo { CHECKPOINT_EVERY } else { 1 };
        let run = Run { world, out, checkpoint_every, tensors, listener, spread: None, stop };
        let folder = train::checkpoint_of(out);
        let outcome = if folder.exists() {
            Some(run.resume(&train::resumed(&folder, Some(experiment.clone()))?)?)
        } else {
            run.start(experiment.clone())?
        };
        progress.is_trained = outcome == Some(RunOutcome::Finished);
        if progress.is_trained {
            progress.save(out)?;
        }
        Ok(progress.is_trained)
    }

    fn table(
        &self,
        progress: &mut Progress,
        experiment: &Experiment,
        budget: &Budget,
        heads: &ChosenHeads,
    ) -> Result<Option<Shipped>, TuneError> {
        self.listener.begins(Step::Table);
        let shipped = if let Some(shipped) = progress.shipped.clone() {
            shipped
        } else {
            let Tuning { world, out, stop, .. } = *self;
            let job = table::TableJob { out, experiment, world, budget, heads, stop };
            let made = job.ship(&mut |report| self.listener.grows(&report))?;
            let Some(shipped) = made else { return Ok(None) };
            progress.shipped = Some(shipped.clone());
            progress.save(out)?;
            shipped
        };
        let what = match shipped.kind {
            ShippedKind::Learned => "what was learned ships",
            ShippedKind::Constant => "the best constant ships, as a table that always says the same",
        };
        self.listener
            .finds(&format!("{what}: {} ({} leaves, {} bytes)", shipped.reason, shipped.leaves, shipped.bytes));
        Ok(Some(shipped))
    }

    fn judge(
        &self,
        progress: &Progress,
        budget: &Budget,
        range: &LoadRange,
        heads: &ChosenHeads,
    ) -> Result<Option<Runs>, TuneError> {
        let Tuning { world, out, listener, stop, .. } = *self;
        listener.begins(Step::Judging);
        let subjects = judge::subjects(out, &progress.settings.versus, heads)?;
        subjects.iter().try_for_each(|(name, subject)| subject.check(name, &world.node))?;
        let windows = progress.cut.judged_windows(budget.longest_s);
        let matrix = judge::matrix(world, subjects, &windows, &range.judged, budget.draws)?;
        let left_out: Vec<String> =
            range.judged.iter().filter(|load| !matrix.loads.contains(load)).map(f64::to_string).collect();
        if !left_out.is_empty() {
            listener.finds(&format!("not judged, because some draw has no request: load {}", left_out.join(", ")));
        }
        let Some(rows) = judge::rows(world, &matrix, out, &*listener.watch(), stop)? else { return Ok(None) };
        // A device's steps take what they take.
        let usual = if world.memory.is_exclusive() { 0 } else { budget.clocks };
        let clocks = progress.settings.clock_spread.unwrap_or(usual);
        if clocks > 0 {
            listener.finds(&format!("and by {clocks} {}", world.spread_text()));
        }
        let drawn = judge::rows_by_clocks(world, &matrix, clocks, (out, &*listener.watch(), stop))?;
        Ok(drawn.map(|drawn| Runs { matrix, rows, drawn, clocks }))
    }
}

/// What was judged.
struct Runs {
    matrix: Matrix,
    rows: Vec<RunRow>,
    /// By drawn clocks, and by how many.
    drawn: Vec<RunRow>,
    clocks: u32,
}

/// What the times of a node rest on.
fn clock(spec: &WorldSpec, world: &World) -> Clock {
    let hardware = world.deployment.hardware.name.clone();
    let env = spec.env.to_string();
    let is_file = Path::new(&env).extension().is_some_and(|extension| extension == "toml");
    let of = &world.deployment.hardware;
    // What was measured is another card, where it is estimated.
    let has_kernels = of.kernels.is_some() || (of.tables.is_some() && !hardware.ends_with("-estimated"));
    let is_measured = is_file || hardware.ends_with("-measured") || has_kernels;
    if is_measured { Clock::Calibrated { hardware } } else { Clock::DataSheet { hardware } }
}

/// Refuses what today's policy cannot be: what knows the future does not run today.
///
/// # Errors
/// [`TuneError::Today`].
fn check_today(versus: &PolicySpec) -> Result<(), TuneError> {
    if versus.knows_the_future() { Err(TuneError::Today(versus.clone())) } else { Ok(()) }
}
