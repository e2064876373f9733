//! Accounts by class and by tenant.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Percentiles, Record};
use crate::sched::Phase;
use crate::time::Micros;

/// A class and a tenant, either of which may be none, as numbers of one [`Collector`](super::Collector).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Group {
    class: u32,
    tenant: u32,
}

/// The names behind groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    classes: Names,
    tenants: Names,
}

/// Names are numbered from 1 on as they come; 0 is no name.
#[derive(Debug, Clone, Default)]
struct Names(BTreeMap<String, u32>);

impl Names {
    fn number(&mut self, name: Option<&str>) -> u32 {
        let Some(name) = name else { return 0 };
        if let Some(&number) = self.0.get(name) {
            return number;
        }
        let number = self.0.len() as u32 + 1;
        self.0.insert(name.to_owned(), number);
        number
    }
}

impl Groups {
    pub(super) fn group(&mut self, class: Option<&str>, tenant: Option<&str>) -> Group {
        Group { class: self.classes.number(class), tenant: self.tenants.number(tenant) }
    }

    pub(super) fn by_class(&self, records: &[&Record], seconds: f64) -> BTreeMap<String, GroupSummary> {
        by_name(&self.classes, records, |group| group.class, seconds)
    }

    pub(super) fn by_tenant(&self, records: &[&Record], seconds: f64) -> BTreeMap<String, GroupSummary> {
        by_name(&self.tenants, records, |group| group.tenant, seconds)
    }
}

/// Who names none.
const UNNAMED: &str = "-";
/// Who is not among the largest.
const OTHERS: &str = "*";
/// Most groups told apart: in some traces every user is a tenant.
const MAX_GROUPS: usize = 64;

fn by_name(
    names: &Names,
    records: &[&Record],
    number: fn(Group) -> u32,
    seconds: f64,
) -> BTreeMap<String, GroupSummary> {
    if names.0.is_empty() {
        return BTreeMap::new();
    }
    let mut lists = vec![Vec::new(); names.0.len() + 1];
    for &record in records {
        lists[number(record.group) as usize].push(record);
    }
    let named = names.0.iter().map(|(name, &number)| (name.as_str(), number));
    let mut groups: Vec<(&str, Vec<&Record>)> = std::iter::once((UNNAMED, 0))
        .chain(named)
        .map(|(name, number)| (name, std::mem::take(&mut lists[number as usize])))
        .filter(|(_, list)| !list.is_empty())
        .collect();
    if groups.len() > MAX_GROUPS {
        // Stable: of equally large ones the first by name stays.
        groups.sort_by_key(|(_, list)| std::cmp::Reverse(list.len()));
        let others = groups.split_off(MAX_GROUPS - 1).into_iter().flat_map(|(_, list)| list).collect();
        groups.push((OTHERS, others));
    }
    let mut merged: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for (name, list) in groups {
        merged.entry(name).or_default().extend(list);
    }
    merged.into_iter().map(|(name, list)| (name.to_owned(), GroupSummary::of(&list, seconds))).collect()
}

/// The numbers of some of a run's requests; fields mean what they mean in a [`Summary`](super::Summary).
///
/// There is no share of on-time tokens: deadlines are counted over all members of the cohort at once, whatever their
/// groups, and counting them by group would make a step linear in the number of groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that finished.
    pub completed: u64,
    /// Requests dropped because they can never fit.
    pub rejected: u64,
    /// Attained requests / requests.
    pub slo_attainment: f64,
    /// Attained requests per second of the makespan.
    pub goodput_rps: f64,
    /// Generated tokens per second of the makespan.
    pub output_tok_s: f64,
    /// Time to first token.
    pub ttft_ms: Option<Percentiles>,
    /// Mean time per output token after the first, by request.
    pub tpot_ms: Option<Percentiles>,
    /// Arrival to last token.
    pub e2e_ms: Option<Percentiles>,
    /// Longest time to a first token.
    pub longest_wait_ms: Option<f64>,
    /// Longest gap between two tokens of a request.
    pub longest_stall_ms: Option<f64>,
}

impl GroupSummary {
    /// Sums up `records` over a makespan of `seconds`.
    pub(super) fn of(records: &[&Record], seconds: f64) -> GroupSummary {
        let count = |phase| records.iter().filter(|record| record.phase == phase).count() as u64;
        let finished = || records.iter().filter(|record| record.phase == Phase::Finished);
        let times = |time: &dyn Fn(&Record) -> Option<Micros>| finished().filter_map(|record| time(record)).collect();
        let ttft: Vec<Micros> = times(&|record| record.ttft());
        let e2e: Vec<Micros> = times(&|record| Some(record.e2e()));
        let attained = records.iter().filter(|record| record.attained()).count() as f64;
        let tokens = records.iter().map(|record| u64::from(record.tokens)).sum::<u64>();
        let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        GroupSummary {
            requests: records.len() as u64,
            completed: count(Phase::Finished),
            rejected: count(Phase::Rejected),
            slo_attainment: if records.is_empty() { 0.0 } else { attained / records.len() as f64 },
            goodput_rps: per_second(attained),
            output_tok_s: per_second(tokens as f64),
            longest_wait_ms: ttft.iter().max().copied().map(Micros::as_millis_f64),
            ttft_ms: Percentiles::of_times(&ttft),
            tpot_ms: Percentiles::of(finished().filter_map(|record| Some(record.tpot()? * 1e3)).collect()),
            e2e_ms: Percentiles::of_times(&e2e),
            longest_stall_ms: finished().map(|record| record.longest_stall).max().map(Micros::as_millis_f64),
        }
    }
}
