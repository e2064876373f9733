//! Identical runs count once.

use std::collections::{BTreeMap, BTreeSet};

use super::row::RunRow;
use crate::policy::PolicyName;

/// A window at a load with a seed; loads by their bits.
type DrawKey<'a> = (&'a str, u64, u64);

fn draw_of(row: &RunRow) -> DrawKey<'_> {
    (&row.window, row.load.to_bits(), row.seed)
}

/// `rows` without those of a draw that is an earlier one again: a closed loop at two loads that round to as many clients, or
/// two seeds that thin a trace alike. It is known by the hashes of its runs, those of policies that are chosen anew for each
/// load aside, and would count as a second witness of what the first has said.
pub fn distinct<'a>(rows: &[&'a RunRow]) -> Vec<&'a RunRow> {
    let mut hashes: BTreeMap<DrawKey<'_>, Vec<(usize, &str)>> = BTreeMap::new();
    // A policy's place among all stands for it: specs have no order.
    let mut policies: Vec<&PolicyName> = Vec::new();
    let has_fixed = rows.iter().any(|row| row.chosen.is_none());
    for row in rows.iter().filter(|row| row.chosen.is_none() || !has_fixed) {
        let place = policies.iter().position(|policy| **policy == row.policy).unwrap_or_else(|| {
            policies.push(&row.policy);
            policies.len() - 1
        });
        hashes.entry(draw_of(row)).or_default().push((place, &row.summary.hash));
    }
    let mut seen = BTreeSet::new();
    let mut kept = BTreeSet::new();
    for row in rows {
        let draw = draw_of(row);
        // Asked once for each draw; in order of rows, so that the first of equal draws is kept.
        if let Some(runs) = hashes.remove(&draw)
            && seen.insert(runs)
        {
            kept.insert(draw);
        }
    }
    rows.iter().copied().filter(|row| kept.contains(&draw_of(row))).collect()
}

/// Draws among `rows`.
pub(super) fn num_draws(rows: &[&RunRow]) -> usize {
    rows.iter().map(|row| draw_of(row)).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(policy: &str, load: f64, seed: u64, hash: &str) -> RunRow {
        let mut row = RunRow::sample(policy, load, seed, 0.5);
        row.summary.hash = hash.to_owned();
        row
    }

    fn kept(rows: &[RunRow]) -> Vec<(&str, f64, u64)> {
        let rows: Vec<&RunRow> = rows.iter().collect();
        distinct(&rows).into_iter().map(|row| (row.policy.as_str(), row.load, row.seed)).collect()
    }

    #[test]
    fn a_draw_that_is_an_earlier_one_again_goes_for_every_policy() {
        let mut rows = [
            run("default", 1.0, 1, "a"),
            run("default", 1.0, 2, "b"),
            run("best-fixed", 1.0, 1, "c"),
            run("best-fixed", 1.0, 2, "d"),
            run("default", 2.0, 1, "a"),
            run("default", 2.0, 2, "e"),
            // Of the same traffic, but another constant was chosen in view of the other seed.
            run("best-fixed", 2.0, 1, "f"),
            run("best-fixed", 2.0, 2, "g"),
        ];
        rows.iter_mut()
            .filter(|row| row.policy.as_str() == "best-fixed")
            .for_each(|row| row.chosen = Some("fixed:0".parse().unwrap()));
        let found = kept(&rows);
        assert_eq!(found.len(), 6);
        assert!(!found.contains(&("default", 2.0, 1)) && !found.contains(&("best-fixed", 2.0, 1)), "{found:?}");
        // By the choices alone nothing can be told to be the same.
        assert_eq!(kept(&rows[2..4]).len(), 2);
    }

    #[test]
    fn draws_on_which_somebody_differs_are_two() {
        let rows = [
            run("default", 1.0, 1, "a"),
            run("default", 1.0, 2, "a"),
            run("agent", 1.0, 1, "b"),
            run("agent", 1.0, 2, "c"),
        ];
        assert_eq!(kept(&rows).len(), 4);
        assert_eq!(kept(&rows[..2]), [("default", 1.0, 1)]);
        assert_eq!(num_draws(&rows.iter().collect::<Vec<&RunRow>>()), 2);
    }
}
