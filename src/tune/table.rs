//! The table that ships: what was learned, or the best constant where that is as good.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use kvtide_runtime::Action;
use serde::{Deserialize, Serialize};

use super::TuneError;
use super::effort::Budget;
use super::heads::{ChosenHeads, validator};
use crate::agent::Gain;
use crate::checkpoint;
use crate::distil::{self, Baseline, ConstantTeacher, DaggerReport, DistilConfig, DistilError};
use crate::experiment::Experiment;
use crate::export::{self, Chosen, ExportJob, TableProvenance};
use crate::policy::PolicySpec;
use crate::train;
use crate::world::World;

/// The table's file.
pub(super) const TABLE: &str = "policy.kvt";

/// Percentage points of attainment a table may lose against what it was made from.
const MAX_LOSS: f64 = 0.5;

/// The table that was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shipped {
    /// What it is.
    pub kind: ShippedKind,
    /// Why, in words.
    pub reason: String,
    /// What the learned table gains over the best constant on what is chosen on; `None` if it was not compared.
    pub gain: Option<Gain>,
    /// Its leaves.
    pub leaves: usize,
    /// Its size.
    pub bytes: usize,
}

/// What a table does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShippedKind {
    /// It decides by what it sees.
    Learned,
    /// It always says the same: the best constant choice.
    Constant,
}

/// Where a table is made.
pub(super) struct TableJob<'a> {
    /// The run's folder.
    pub out: &'a Path,
    /// What was trained.
    pub experiment: &'a Experiment,
    /// Its world.
    pub world: &'a World,
    /// What is spent.
    pub budget: &'a Budget,
    /// The best constant.
    pub heads: &'a ChosenHeads,
    /// Ends the work.
    pub stop: &'a AtomicBool,
}

impl TableJob<'_> {
    /// Makes a table of what was learned and one of the best constant, compares them, behind their guards, on episodes of what is
    /// chosen on that neither was chosen by, and writes the one that is worth it: the learned one only if it gains beyond chance.
    /// `None` if stopped.
    ///
    /// # Errors
    /// No table can be made or written, or the host would refuse both.
    pub(super) fn ship(&self, tell: &mut dyn FnMut(DaggerReport)) -> Result<Option<Shipped>, TuneError> {
        let TableJob { experiment, world, budget, stop, .. } = *self;
        let checkpoint = train::policy_of(self.out);
        let job = ExportJob { checkpoint: &checkpoint, experiment, world, config: &budget.distil, stop };
        let Some(taught) = job.taught(tell)? else { return Ok(None) };
        let Some(learned) = job.chosen(&taught)? else { return Ok(None) };
        let Some(constant) = self.constant(&taught.provenance)? else { return Ok(None) };
        let Some(compared) = self.compared(&checkpoint, &learned, &constant)? else { return Ok(None) };
        let (kind, reason, gain) = self.verdict(&learned, &constant, compared)?;
        let (student, provenance) = match kind {
            ShippedKind::Learned => (&learned.student, self.said(&taught.provenance, gain)),
            ShippedKind::Constant => (&constant.student, self.said(&self.of_constant(&taught.provenance), None)),
        };
        let bytes = export::write(student, &provenance, &self.out.join(TABLE), None)?.len();
        Ok(Some(Shipped { kind, reason, gain, leaves: student.tree.leaves(), bytes }))
    }

    /// The best constant as a table of one leaf, which is never in doubt about what it sees.
    fn constant(&self, provenance: &TableProvenance) -> Result<Option<Chosen>, TuneError> {
        let teacher = ConstantTeacher(self.action()?);
        let config = DistilConfig {
            max_leaves: 1,
            dagger_iterations: 0,
            samples_per_iteration: self.budget.distil.samples_per_iteration.min(2_000),
            ..self.budget.distil.clone()
        };
        let env_config = self.experiment.env_config(self.world)?;
        let student = match distil::distil(&teacher, &env_config, &config, &mut |_| {}, self.stop) {
            Err(DistilError::Stopped) => return Ok(None),
            student => student?,
        };
        let engine = self.world.node.engine.default_controls();
        let deployed = export::deploy(&student, &self.of_constant(provenance), engine)?;
        Ok(Some(Chosen { student, deployed, attainment: 1.0, worst_loss: 0.0 }))
    }

    fn action(&self) -> Result<Action, TuneError> {
        match &self.heads.constant {
            PolicySpec::Fixed(controls) => Ok(Action::nearest(controls)),
            other => Err(TuneError::Unfit(format!("{other} is no constant"))),
        }
    }

    /// What both tables attain, and what the learned one loses against what it was made from.
    fn compared(
        &self,
        checkpoint: &Path,
        learned: &Chosen,
        constant: &Chosen,
    ) -> Result<Option<(Gain, f64)>, TuneError> {
        let judge = validator(self.experiment, self.world, self.budget, "tune.table")?;
        let teacher = checkpoint::load_policy(checkpoint)?;
        let played = || -> Result<(Gain, f64), DistilError> {
            let teacher = Baseline::of(&teacher, &judge, self.stop)?;
            let lost = teacher.loss(&learned.deployed)?.points.mean;
            let stopped = || DistilError::Stopped;
            let mine = judge.attained(&learned.deployed, self.stop)?.ok_or_else(stopped)?;
            let theirs = judge.attained(&constant.deployed, self.stop)?.ok_or_else(stopped)?;
            Ok((Gain::between(&mine, &theirs), lost))
        };
        match played() {
            Err(DistilError::Stopped) => Ok(None),
            compared => Ok(Some(compared?)),
        }
    }

    /// Which of the two it is.
    fn verdict(
        &self,
        learned: &Chosen,
        constant: &Chosen,
        (gain, lost): (Gain, f64),
    ) -> Result<(ShippedKind, String, Option<Gain>), TuneError> {
        let host = &self.world.node.host;
        let has_prefix_cache = self.world.node.engine.enable_prefix_caching;
        let unfit = |chosen: &Chosen| export::unfit(chosen.deployed.bytes(), host, has_prefix_cache);
        let but = match unfit(learned) {
            Some(reason) => Some(format!("{} would refuse the learned table: {reason}", host.name)),
            None if lost > MAX_LOSS => Some(format!("the learned table loses {lost:.2} points against its teacher")),
            None if (gain.low, gain.high) == (Some(0.0), Some(0.0)) => Some(
                "on traffic kept apart nothing learned does better than it, and the table made of that says the same"
                    .to_owned(),
            ),
            None if !gain.is_sure() => {
                Some(format!("what was learned does not gain beyond chance over it ({})", gain.text()))
            }
            None => None,
        };
        let Some(reason) = but else {
            let reason = format!("it gains {} over the best constant, {}", gain.text(), self.heads.constant);
            return Ok((ShippedKind::Learned, reason, Some(gain)));
        };
        unfit(constant).map_or(Ok((ShippedKind::Constant, reason, Some(gain))), |reason| Err(TuneError::Unfit(reason)))
    }

    fn of_constant(&self, learned: &TableProvenance) -> TableProvenance {
        let teacher = format!("the best constant choice, {}", self.heads.constant);
        TableProvenance { teacher, checkpoint: String::new(), ..learned.clone() }
    }

    /// What a table says of itself beside where it comes from.
    fn said(&self, provenance: &TableProvenance, gain: Option<Gain>) -> TableProvenance {
        let mut said = provenance.clone();
        said.training.insert("host".to_owned(), self.world.node.host.name.to_owned());
        said.training.insert("constant".to_owned(), self.heads.constant.to_string());
        said.training.extend(gain.map(|gain| ("validation_gain".to_owned(), gain.text())));
        said
    }
}
