//! What stands between a table and a serving node.
//!
//! A table knows the traffic it was distilled from. Whenever it cannot be trusted, the node gets a fixed watermark, its own or
//! the one that did best on that traffic ([`GuardConfig::fallback_for`]), and a counter says why. Only features the table
//! decides by are looked at: where the others are, nothing depends on.

use crate::action::{Action, ActionMask, Controls, Head};
use crate::feature_set::FeatureSet;
use crate::format::FormatError;
use crate::observation::{Feature, NUM_FEATURES, Observation};
use crate::policy::Policy;
use crate::table::Table;

/// When the guard steps in, and with what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GuardConfig {
    /// What the node would do without a table. It also fills the heads a table's profile leaves to the engine.
    pub fallback: Controls,
    /// An observation older than this is stale.
    pub max_age_us: u64,
    /// How far outside its trained range a feature may be, as a fraction of the range's width. A feature that never
    /// moved in training has no width and may not move at all. Less than 0 and NaN are taken as 0.
    pub range_tolerance: f32,
    /// The fallback begins at this many decisions in a row with a feature out of range; 0 is taken as 1.
    pub out_of_range_decisions: u32,
    /// The table resumes at this many decisions in a row with every feature in range; 0 is taken as 1.
    pub recovery_decisions: u32,
    /// Rate limit: what the table decided stays in force for at least this many decisions before it decides otherwise; 0
    /// and 1 limit nothing. A fallback does not wait, nor does what the mask forbids.
    pub hold_decisions: u32,
}

impl Default for GuardConfig {
    /// The engine's default controls, one second, a tenth of the range, 8 decisions out and 32 back in, no rate limit.
    fn default() -> GuardConfig {
        GuardConfig {
            fallback: Action::ENGINE_DEFAULT.controls(),
            max_age_us: 1_000_000,
            range_tolerance: 0.1,
            out_of_range_decisions: 8,
            recovery_decisions: 32,
            hold_decisions: 0,
        }
    }
}

impl GuardConfig {
    /// The fallback of a node whose engine does `engine` by itself, with `table` loaded: an operator's watermark above 0 stays;
    /// 0, which is no watermark at all, gives way to the one the table knows to be best where it was trained.
    #[must_use]
    pub fn fallback_for(engine: Controls, table: &Table<'_>) -> Controls {
        match table.fallback_watermark() {
            Some(watermark) if engine.watermark == 0.0 => Controls { watermark, ..engine },
            _ => engine,
        }
    }
}

/// Why a decision was the fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fallback {
    /// There is no table, or its bytes were refused.
    NoTable,
    /// The table was made for another schema or action set.
    UnknownSchema,
    /// The observation was too old.
    Stale,
    /// A value of the observation that the table decides by was NaN or infinite.
    NonFinite,
    /// A feature the table decides by has been outside its trained range for too long, or not back inside for long enough.
    OutOfRange,
}

impl Fallback {
    /// Every reason, in the order they are looked at.
    pub const ALL: [Fallback; 5] =
        [Fallback::NoTable, Fallback::UnknownSchema, Fallback::Stale, Fallback::NonFinite, Fallback::OutOfRange];

    /// The reason's name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Fallback::NoTable => "no_table",
            Fallback::UnknownSchema => "unknown_schema",
            Fallback::Stale => "stale",
            Fallback::NonFinite => "non_finite",
            Fallback::OutOfRange => "out_of_range",
        }
    }
}

/// What a guard has done so far. Every decision is counted once beside `decisions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuardCounters {
    /// Decisions asked for.
    pub decisions: u64,
    /// Decisions the table took, those that were held back included.
    pub table_decisions: u64,
    /// Decisions of the table that the rate limit held back: the controls before them stayed in force.
    pub held: u64,
    /// [`Fallback::NoTable`].
    pub no_table: u64,
    /// [`Fallback::UnknownSchema`].
    pub unknown_schema: u64,
    /// [`Fallback::Stale`].
    pub stale: u64,
    /// [`Fallback::NonFinite`].
    pub non_finite: u64,
    /// [`Fallback::OutOfRange`].
    pub out_of_range: u64,
}

impl GuardCounters {
    /// Decisions that fell back for `reason`.
    pub const fn fallbacks(&self, reason: Fallback) -> u64 {
        match reason {
            Fallback::NoTable => self.no_table,
            Fallback::UnknownSchema => self.unknown_schema,
            Fallback::Stale => self.stale,
            Fallback::NonFinite => self.non_finite,
            Fallback::OutOfRange => self.out_of_range,
        }
    }

    fn count(&mut self, fallback: Option<Fallback>) {
        let counter = match fallback {
            None => &mut self.table_decisions,
            Some(Fallback::NoTable) => &mut self.no_table,
            Some(Fallback::UnknownSchema) => &mut self.unknown_schema,
            Some(Fallback::Stale) => &mut self.stale,
            Some(Fallback::NonFinite) => &mut self.non_finite,
            Some(Fallback::OutOfRange) => &mut self.out_of_range,
        };
        *counter = counter.saturating_add(1);
        self.decisions = self.decisions.saturating_add(1);
    }
}

/// A table where it can be trusted, the fallback where it cannot.
#[derive(Debug, Clone)]
pub struct Guard<'a> {
    table: Result<Table<'a>, Fallback>,
    state: GuardState,
}

impl<'a> Guard<'a> {
    /// A guard of what [`Table::parse`] returned. A refused table is a guard that always falls back.
    ///
    /// A fallback watermark outside 0..=1 is clamped; NaN is 0.
    pub fn new(table: Result<Table<'a>, FormatError>, config: GuardConfig) -> Guard<'a> {
        Guard { table: table.map_err(Fallback::from), state: GuardState::new(config) }
    }

    /// A guard of nothing, which always falls back.
    pub fn without_table(config: GuardConfig) -> Guard<'a> {
        Guard { table: Err(Fallback::NoTable), state: GuardState::new(config) }
    }

    /// Decides from an `observation` taken `age_us` ago: every choice but a fallback watermark is allowed by `mask`.
    pub fn decide(&mut self, observation: &Observation, age_us: u64, mask: ActionMask) -> Controls {
        self.state.decide(self.table.as_ref().map_err(|reason| *reason), observation, age_us, mask)
    }

    /// What happened so far.
    pub const fn counters(&self) -> &GuardCounters {
        self.state.counters()
    }

    /// The guard without its table.
    pub const fn state(&self) -> &GuardState {
        &self.state
    }

    /// Why the last decision was the fallback; `None` if the table took it.
    pub const fn last_fallback(&self) -> Option<Fallback> {
        self.state.last_fallback()
    }

    /// The guarded table, or why there is none.
    pub const fn table(&self) -> Result<Table<'a>, Fallback> {
        self.table
    }
}

impl From<FormatError> for Fallback {
    fn from(refusal: FormatError) -> Fallback {
        if refusal.is_unknown_meaning() { Fallback::UnknownSchema } else { Fallback::NoTable }
    }
}

/// A [`Guard`] without its table: settings, counters and the memory of excursions.
///
/// For a node that replaces its table while it serves: whatever table is given next, counters go on, and a node that has
/// left the trained range has to come back into the new table's range as it would into the old one's.
#[derive(Debug, Clone)]
pub struct GuardState {
    config: GuardConfig,
    counters: GuardCounters,
    last: Option<Fallback>,
    /// Whether the table is set aside because a feature left its trained range.
    range: RangeWatch,
    /// What the table decided last that was not held back, and for how many decisions that has been in force.
    in_force: Option<(Controls, u32)>,
    /// Features the table decides by that were out of range at the last decision that looked.
    outside: FeatureSet,
    /// How often each was.
    times_outside: [u64; NUM_FEATURES],
}

impl GuardState {
    /// The state before the first decision. A fallback watermark outside 0..=1 is clamped; NaN is 0.
    pub fn new(mut config: GuardConfig) -> GuardState {
        config.fallback = config.fallback.sound();
        GuardState {
            config,
            counters: GuardCounters::default(),
            last: None,
            range: RangeWatch::default(),
            in_force: None,
            outside: FeatureSet::EMPTY,
            times_outside: [0; NUM_FEATURES],
        }
    }

    /// Falls back to other controls from now on: another table may know a better watermark. Clamped as by [`new`](Self::new).
    pub fn set_fallback(&mut self, fallback: Controls) {
        self.config.fallback = fallback.sound();
    }

    /// What is fallen back to.
    pub const fn fallback(&self) -> Controls {
        self.config.fallback
    }

    /// Decides with `table`, or without one for the reason given, as [`Guard::decide`].
    pub fn decide(
        &mut self,
        table: Result<&Table<'_>, Fallback>,
        observation: &Observation,
        age_us: u64,
        mask: ActionMask,
    ) -> Controls {
        let outcome = self.judge(table, observation, age_us);
        self.last = outcome.err();
        self.counters.count(self.last);
        let fallback = self.config.fallback.repaired(mask);
        let Ok(table) = outcome else {
            self.in_force = None;
            return fallback;
        };
        let wanted = overlay(fallback, &table.decide(observation, mask).controls(), table.heads());
        self.limit(wanted, mask)
    }

    /// `wanted`, or what is in force if that may not change yet.
    fn limit(&mut self, wanted: Controls, mask: ActionMask) -> Controls {
        match self.in_force {
            Some((controls, age)) if controls == wanted => {
                self.in_force = Some((controls, age.saturating_add(1)));
                controls
            }
            Some((controls, age)) if age < self.config.hold_decisions && controls.repaired(mask) == controls => {
                self.in_force = Some((controls, age.saturating_add(1)));
                self.counters.held = self.counters.held.saturating_add(1);
                controls
            }
            _ => {
                self.in_force = Some((wanted, 1));
                wanted
            }
        }
    }

    /// What happened so far.
    pub const fn counters(&self) -> &GuardCounters {
        &self.counters
    }

    /// Why the last decision was the fallback; `None` if a table took it.
    pub const fn last_fallback(&self) -> Option<Fallback> {
        self.last
    }

    /// The features the table decides by that were out of range when it was last looked at.
    pub const fn outside(&self) -> FeatureSet {
        self.outside
    }

    /// Decisions at which `feature`, which the table decides by, was out of range, whether or not they fell back.
    pub const fn times_outside(&self, feature: Feature) -> u64 {
        self.times_outside[feature as usize]
    }

    /// The table, if this observation can be trusted with it.
    fn judge<'t, 'a>(
        &mut self,
        table: Result<&'t Table<'a>, Fallback>,
        observation: &Observation,
        age_us: u64,
    ) -> Result<&'t Table<'a>, Fallback> {
        let table = table?;
        if age_us > self.config.max_age_us {
            return Err(Fallback::Stale);
        }
        // Nearly always nothing is the matter, and one look says so.
        if table.file().holds(table.uses().bits(), &observation.values) {
            self.outside = FeatureSet::EMPTY;
            self.range.note(false, &self.config);
        } else {
            self.look_closer(table, observation)?;
        }
        if self.range.is_outside() { Err(Fallback::OutOfRange) } else { Ok(table) }
    }

    /// Which features the table decides by are out of range, or not even numbers.
    #[cold]
    fn look_closer(&mut self, table: &Table<'_>, observation: &Observation) -> Result<(), Fallback> {
        if !table.uses().iter().all(|feature| observation[feature].is_finite()) {
            return Err(Fallback::NonFinite);
        }
        // Only an observation that can be believed counts for or against the range.
        let tolerance = self.config.range_tolerance;
        let is_outside = |feature: &Feature| !table.range(*feature).contains(observation[*feature], tolerance);
        self.outside = table.uses().iter().filter(is_outside).collect();
        for feature in self.outside.iter() {
            let times = &mut self.times_outside[feature as usize];
            *times = times.saturating_add(1);
        }
        self.range.note(!self.outside.is_empty(), &self.config);
        Ok(())
    }
}

/// Whether features are out of the ranges that a table was trained in: not by one decision, but by several in a row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RangeWatch {
    is_outside: bool,
    /// Decisions in a row that speak against `is_outside`.
    contrary_decisions: u32,
}

impl RangeWatch {
    /// Whether the table is to be set aside.
    #[inline]
    pub(crate) fn is_outside(self) -> bool {
        self.is_outside
    }

    /// A decision whose features were out of range or not.
    #[inline]
    pub(crate) fn note(&mut self, outside: bool, config: &GuardConfig) {
        if outside == self.is_outside {
            self.contrary_decisions = 0;
            return;
        }
        self.contrary_decisions = self.contrary_decisions.saturating_add(1);
        let patience = if outside { config.out_of_range_decisions } else { config.recovery_decisions };
        if self.contrary_decisions >= patience {
            *self = RangeWatch { is_outside: outside, contrary_decisions: 0 };
        }
    }
}

/// `base` with `heads` taken from `table`.
fn overlay(mut base: Controls, table: &Controls, heads: &[Head]) -> Controls {
    for &head in heads {
        base.take(head, table);
    }
    base
}
