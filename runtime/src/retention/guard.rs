//! What stands between a retention tree and a node: wherever the tree cannot be trusted, every block is `normal`, and the
//! pool evicts as its engine always did.

use super::{ReleaseObservation, Retention, RetentionTable};
use crate::guard::{Fallback, GuardConfig, RangeWatch};

/// Why a class was not the tree's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetentionFallback {
    /// There is no tree, or it cannot be trusted with this observation.
    Table(Fallback),
    /// The pool hits less with it than LRU would: see [`RetentionGuard::set_behind`].
    Behind,
}

impl RetentionFallback {
    /// The reason's name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            RetentionFallback::Table(reason) => reason.name(),
            RetentionFallback::Behind => "behind_lru",
        }
    }
}

/// What a retention guard has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionCounters {
    /// Decisions asked for.
    pub decisions: u64,
    /// Decisions the tree took.
    pub table_decisions: u64,
    /// Of those, how often each class was chosen.
    pub chosen: [u64; Retention::ALL.len()],
    /// Fallbacks by reason, in the order of [`Fallback::ALL`].
    pub fallbacks: [u64; Fallback::ALL.len()],
    /// Fallbacks because the pool was behind LRU.
    pub behind: u64,
}

/// A [`RetentionTable`] where it can be trusted, [`Retention::Normal`] where it cannot.
///
/// Of [`GuardConfig`] it obeys the greatest age, the tolerance of ranges and how many decisions in a row set the tree aside
/// or bring it back. The node's part of an observation is as old as the node's last observation.
#[derive(Debug, Clone)]
pub struct RetentionGuard {
    config: GuardConfig,
    counters: RetentionCounters,
    last: Option<RetentionFallback>,
    is_behind: bool,
    /// Whether the tree is set aside because a feature left its trained range.
    range: RangeWatch,
}

impl RetentionGuard {
    /// The state before the first decision.
    pub fn new(config: GuardConfig) -> RetentionGuard {
        let counters = RetentionCounters::default();
        RetentionGuard { config, counters, last: None, is_behind: false, range: RangeWatch::default() }
    }

    /// Says whether the pool hits less than LRU would have, by more than may be lost: until it does not, everything is
    /// normal. Told by whoever keeps count, as `kvtide_rules::shadow` does.
    pub fn set_behind(&mut self, is_behind: bool) {
        self.is_behind = is_behind;
    }

    /// Decides with `table`, or without one for the reason given, by an observation whose node part was taken `age_us` ago.
    pub fn decide(
        &mut self,
        table: Result<&RetentionTable<'_>, Fallback>,
        observation: &ReleaseObservation,
        age_us: u64,
    ) -> Retention {
        let trusted = self.judge(table, observation, age_us).map_err(RetentionFallback::Table);
        let outcome = if self.is_behind { trusted.and(Err(RetentionFallback::Behind)) } else { trusted };
        self.last = outcome.err();
        let class = outcome.map_or(Retention::Normal, |table| table.decide(observation));
        self.count(class);
        class
    }

    fn count(&mut self, class: Retention) {
        let add = |counter: &mut u64| *counter = counter.saturating_add(1);
        add(&mut self.counters.decisions);
        match self.last {
            None => {
                add(&mut self.counters.table_decisions);
                add(&mut self.counters.chosen[class as usize]);
            }
            Some(RetentionFallback::Table(reason)) => add(&mut self.counters.fallbacks[reason as usize]),
            Some(RetentionFallback::Behind) => add(&mut self.counters.behind),
        }
    }

    /// What happened so far.
    pub const fn counters(&self) -> &RetentionCounters {
        &self.counters
    }

    /// Why the last class was not the tree's; `None` if it was.
    pub const fn last_fallback(&self) -> Option<RetentionFallback> {
        self.last
    }

    /// The tree, if this observation can be trusted with it.
    fn judge<'t, 'a>(
        &mut self,
        table: Result<&'t RetentionTable<'a>, Fallback>,
        observation: &ReleaseObservation,
        age_us: u64,
    ) -> Result<&'t RetentionTable<'a>, Fallback> {
        let table = table?;
        if age_us > self.config.max_age_us {
            return Err(Fallback::Stale);
        }
        // Nearly always nothing is the matter, and one look says so.
        let is_outside =
            if table.section().holds(&observation.values) { false } else { self.look_closer(table, observation)? };
        self.range.note(is_outside, &self.config);
        if self.range.is_outside() { Err(Fallback::OutOfRange) } else { Ok(table) }
    }

    /// Whether a feature the tree decides by is out of range, if it is a number at all.
    #[cold]
    fn look_closer(&self, table: &RetentionTable<'_>, observation: &ReleaseObservation) -> Result<bool, Fallback> {
        let mut is_outside = false;
        for feature in features(table.uses()) {
            let value = observation.values.get(feature).copied().unwrap_or(f32::NAN);
            if !value.is_finite() {
                return Err(Fallback::NonFinite);
            }
            let range = table.range(feature);
            is_outside |= !range.is_some_and(|range| range.contains(value, self.config.range_tolerance));
        }
        Ok(is_outside)
    }
}

/// The indices in a set of features, one step each.
#[inline]
fn features(mut left: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let feature = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(feature)
    })
}
