//! How many fewer requests miss a target: the form in which the product's aims are stated.

use serde::Serialize;

use super::compare::{attained, by_load, same_draw, strata};
use super::row::Row;
use crate::bootstrap::{Interval, stratified};

/// The engine as it comes.
const DEFAULT: &str = "default";
/// Loads count at which the default attains this much: below the first it does not matter any more what anybody does, above
/// the last there is nothing left to gain.
const COUNTED: (f64, f64) = (0.4, 0.98);

/// Violations (1 - attainment) of one policy against those of another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fewer {
    /// Of whom.
    pub than: String,
    /// 1 - violations / the other's violations, each averaged over `loads`; `None` if the other has none.
    pub share: Option<Interval>,
    /// Loads that count: those at which the default attains between 0.4 and 0.98, or all if the default was not run.
    pub loads: Vec<f64>,
}

/// Whether everybody is compared with this policy.
pub(super) fn is_yardstick(name: &str) -> bool {
    name == DEFAULT || name == "best-fixed" || name == "best-static" || name.starts_with("best-static:")
}

/// Loads at which the default begins to fail.
pub(super) fn counted_loads(rows: &[&Row]) -> Vec<f64> {
    let all = by_load(rows.iter().map(|row| (row.load, 0.0)));
    let default = by_load(rows.iter().filter(|row| row.policy == DEFAULT).map(|row| (row.load, attained(row))));
    let (low, high) = COUNTED;
    let counted: Vec<(f64, f64)> = if default.is_empty() {
        all
    } else {
        default.into_iter().filter(|(_, attained)| (low..=high).contains(attained)).collect()
    };
    counted.into_iter().map(|(load, _)| load).collect()
}

/// How many fewer violations `mine` has than `theirs` on the same draws at the loads that count. `None` if no load does.
pub(super) fn fewer(mine: &[&Row], than: &str, theirs: &[&Row], counted: &[f64]) -> Option<Fewer> {
    let mine: Vec<&Row> = mine.iter().copied().filter(|row| counted.contains(&row.load)).collect();
    let pairs: Vec<Vec<(f64, f64, f64)>> = strata(&mine)
        .iter()
        .map(|stratum| {
            let pair = |row: &&Row| Some((row.load, 1.0 - attained(row), 1.0 - attained(same_draw(row, theirs)?)));
            stratum.iter().filter_map(pair).collect()
        })
        .collect();
    if pairs.iter().all(Vec::is_empty) {
        return None;
    }
    // Each load counts the same.
    let mean = |values: Vec<(f64, f64)>| values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
    let share = stratified(&pairs, |drawn| {
        let mine = mean(by_load(drawn.iter().map(|(load, mine, _)| (*load, *mine))));
        let theirs = mean(by_load(drawn.iter().map(|(load, _, theirs)| (*load, *theirs))));
        (theirs > 0.0).then(|| 1.0 - mine / theirs)
    });
    Some(Fewer { than: than.to_owned(), share, loads: counted.to_vec() })
}
