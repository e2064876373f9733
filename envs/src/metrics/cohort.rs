//! The cohort's tokens, counted for all members at once.
//!
//! Every member gets one token at the same moment, so that what they have in common is kept once, and what they differ in
//! is a constant of each:
//! - tokens and last token follow from the number of steps since it joined;
//! - the gap between tokens is the same for all of them;
//! - whether the token is on time is a comparison of one moving number with a constant of the member ([`Lane`]);
//! - the longest gap since it joined is a maximum over the latest steps ([`Peaks`]).
//!
//! A step costs a search in a sorted list for each distinct TPOT target, however many members there are. All of it is
//! arithmetic on integers, and gives what counting token by token would give.

use super::Record;
use crate::sched::RequestId;
use crate::time::Micros;

/// Those who get one token a step.
#[derive(Debug, Clone, Default)]
pub(super) struct CohortRecord {
    num_members: u32,
    /// Steps so far.
    steps: u64,
    /// When the last of them ended.
    last_step: Micros,
    /// Members by TPOT target; none is empty.
    lanes: Vec<Lane>,
    peaks: Peaks,
    /// No member that is not violated has a stall target below this. It may have left.
    pub(super) strictest_stall: Micros,
}

/// One token for every member.
#[derive(Debug, Clone, Copy)]
pub(super) struct CohortTick {
    /// Time since the token before, of every member.
    pub(super) gap: Micros,
    /// Members whose token is on time.
    pub(super) on_time: u64,
}

impl CohortRecord {
    pub(super) fn num_members(&self) -> u32 {
        self.num_members
    }

    pub(super) fn last_step(&self) -> Micros {
        self.last_step
    }

    pub(super) fn members(&self) -> impl Iterator<Item = RequestId> {
        self.lanes.iter().flat_map(|lane| &lane.members).map(|&(_, id)| id)
    }

    /// A step ended at `now`.
    pub(super) fn advance(&mut self, now: Micros) -> CohortTick {
        let gap = now - self.last_step;
        self.steps += 1;
        self.last_step = now;
        self.peaks.advance(self.steps, gap);
        let on_time = self.lanes.iter().map(|lane| lane.on_time(now, self.steps)).sum();
        CohortTick { gap, on_time }
    }

    /// `record`, whose last token appeared in the last step, is that of a member from now on. Returns the number of that
    /// step, under which the member is known.
    pub(super) fn join(&mut self, id: RequestId, record: &Record) -> u64 {
        if self.num_members == 0 {
            self.strictest_stall = Micros::MAX;
        }
        self.num_members += 1;
        self.peaks.fresh += 1;
        if !record.violated {
            self.strictest_stall = self.strictest_stall.min(record.slo.stall);
        }
        let member = (Lane::bar(record, self.steps), id);
        let lane = self.lane(record.slo.tpot).unwrap_or_else(|| {
            self.lanes.push(Lane { tpot: record.slo.tpot, members: Vec::new() });
            self.lanes.len() - 1
        });
        let members = &mut self.lanes[lane].members;
        members.insert(members.partition_point(|other| *other < member), member);
        self.steps
    }

    /// Takes out the member that joined in step `joined` with `record`, and brings the record up to date.
    ///
    /// # Panics
    /// If it is none.
    pub(super) fn leave(&mut self, id: RequestId, joined: u64, record: &mut Record) {
        let member = (Lane::bar(record, joined), id);
        let lane = self.lane(record.slo.tpot).expect("a member has a lane");
        let members = &mut self.lanes[lane].members;
        members.remove(members.binary_search(&member).expect("a member is in its lane"));
        if members.is_empty() {
            self.lanes.swap_remove(lane);
        }
        *record = self.settled(joined, *record);
        self.num_members -= 1;
        self.peaks.leave(joined);
    }

    /// The record, as of the last step, of a member that joined in step `joined` with `record`.
    pub(super) fn settled(&self, joined: u64, record: Record) -> Record {
        Record {
            tokens: record.tokens + (self.steps - joined) as u32,
            last_token: self.last_step,
            longest_stall: record.longest_stall.max(self.peaks.since(joined)),
            ..record
        }
    }

    fn lane(&self, tpot: Micros) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.tpot == tpot)
    }

    /// Members as the lanes and as the peaks have them.
    pub(super) fn recount(&self) -> [u64; 2] {
        let peaks = self.peaks.peaks.iter().map(|peak| u64::from(peak.members)).sum::<u64>();
        [self.members().count() as u64, peaks + u64::from(self.peaks.fresh)]
    }
}

/// Members with the same TPOT target.
///
/// Token `j` is on time if it appears by `arrival + ttft + j * tpot`. A member that joined in step `joined` with `n`
/// tokens gets token `n + step - joined - 1` in `step`, so that it is on time if
/// `now - step * tpot <= arrival + ttft + (n - joined - 1) * tpot`. The right side is its bar, a constant.
#[derive(Debug, Clone)]
struct Lane {
    tpot: Micros,
    /// Sorted.
    members: Vec<(i128, RequestId)>,
}

impl Lane {
    fn bar(record: &Record, joined: u64) -> i128 {
        let tokens = i128::from(record.tokens) - i128::from(joined) - 1;
        i128::from(record.arrival.0) + i128::from(record.slo.ttft.0) + tokens * i128::from(record.slo.tpot.0)
    }

    fn on_time(&self, now: Micros, step: u64) -> u64 {
        let height = i128::from(now.0) - i128::from(step) * i128::from(self.tpot.0);
        (self.members.len() - self.members.partition_point(|&(bar, _)| bar < height)) as u64
    }
}

/// The longest gap since each member joined.
///
/// A gap matters as long as none after it is as long, so that those that matter form a stack, the latest and shortest on
/// top; and only if it is the longest of some member, so that there are never more of them than members.
#[derive(Debug, Clone, Default)]
struct Peaks {
    peaks: Vec<Peak>,
    /// Members that joined in the last step and have no gap yet.
    fresh: u32,
}

/// A gap that is the longest since some members joined.
#[derive(Debug, Clone, Copy)]
struct Peak {
    /// The step that ended it.
    step: u64,
    gap: Micros,
    /// Whose longest it is.
    members: u32,
}

impl Peaks {
    fn advance(&mut self, step: u64, gap: Micros) {
        let mut members = std::mem::take(&mut self.fresh);
        while let Some(peak) = self.peaks.pop_if(|peak| peak.gap <= gap) {
            members += peak.members;
        }
        if members > 0 {
            self.peaks.push(Peak { step, gap, members });
        }
    }

    /// Position of the longest gap after step `joined`; past the end if there was none.
    fn position(&self, joined: u64) -> usize {
        self.peaks.partition_point(|peak| peak.step <= joined)
    }

    fn since(&self, joined: u64) -> Micros {
        self.peaks.get(self.position(joined)).map_or(Micros::ZERO, |peak| peak.gap)
    }

    fn leave(&mut self, joined: u64) {
        let position = self.position(joined);
        let Some(peak) = self.peaks.get_mut(position) else {
            self.fresh -= 1;
            return;
        };
        peak.members -= 1;
        if peak.members == 0 {
            self.peaks.remove(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Group;
    use crate::sched::Slo;

    #[test]
    fn nothing_is_left_of_those_who_left() {
        let mut cohort = CohortRecord::default();
        for (index, stall) in [7, 9].into_iter().enumerate() {
            let slo = Slo { stall: Micros(stall), tpot: Micros(stall), ..Slo::default() };
            let mut record = Record { tokens: 1, ..Record::new(Micros::ZERO, slo, Group::default()) };
            let id = RequestId(index as u32);
            let joined = cohort.join(id, &record);
            assert_eq!(cohort.strictest_stall, slo.stall);
            cohort.advance(Micros(1 + index as u64));
            cohort.leave(id, joined, &mut record);
            assert_eq!((cohort.num_members, cohort.lanes.len(), cohort.recount()), (0, 0, [0, 0]));
        }
    }

    #[test]
    fn only_gaps_that_are_somebodys_longest_are_kept() {
        let mut peaks = Peaks::default();
        // Gaps of 100, 99, 98, …; somebody joins after steps 0, 20 and 40.
        for step in 1..=60 {
            peaks.fresh += u32::from((step - 1) % 20 == 0);
            peaks.advance(step, Micros(101 - step));
        }
        assert_eq!(peaks.peaks.len(), 3);
        assert_eq!([0, 20, 40].map(|joined| peaks.since(joined).0), [100, 80, 60]);
        peaks.leave(20);
        assert_eq!(peaks.peaks.len(), 2);
        // A gap as long as an earlier one takes its place.
        peaks.advance(61, Micros(60));
        assert_eq!([0, 40].map(|joined| peaks.since(joined).0), [100, 60]);
        peaks.advance(62, Micros(100));
        assert_eq!((peaks.peaks.len(), peaks.peaks[0].members), (1, 2));
        peaks.leave(0);
        peaks.leave(40);
        assert!(peaks.peaks.is_empty());
    }
}
