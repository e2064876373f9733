//! The waiting queue, with the order in which admission looks at it.

use std::collections::VecDeque;

use kvtide_runtime::Admission;

use super::EngineConfig;
use super::ageing::Ageing;
use super::request::RequestId;
use crate::time::Micros;

/// What admission order needs of a waiting request; constant while it waits, and kept in the queue so that a scan
/// reads memory in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: RequestId,
    /// Tokens to compute.
    pub(super) tokens: u32,
    pub(super) arrival: Micros,
    /// From when on it cannot meet its targets any more.
    pub(super) late_at: Micros,
}

/// First in, first out, but for recompute victims, which return to the front.
#[derive(Debug, Clone, Default)]
pub(super) struct WaitingQueue {
    entries: VecDeque<Entry>,
    choice: Option<Choice>,
    ageing: Ageing,
}

/// The request chosen last, which stays the choice until the queue changes or a clock runs out. A request that waits is
/// asked for in every step; looking at the whole queue each time would make a step linear in it.
#[derive(Debug, Clone, Copy)]
struct Choice {
    order: Admission,
    max_wait: Micros,
    position: usize,
    rank: Rank,
    made: Micros,
    /// Last moment at which nothing but a change of the queue can change the choice: then the chosen one is late, or
    /// somebody has waited too long. That others become late only confirms it.
    until: Micros,
}

/// Less is sooner: waited too long, on time, late; within these, by the order.
type Rank = (u8, u32);

fn rank(entry: &Entry, order: Admission, now: Micros, max_wait: Micros) -> Rank {
    if now.since(entry.arrival) > max_wait {
        (0, 0)
    } else if now > entry.late_at {
        (2, 0)
    } else if order == Admission::ShortestOnTimeFirst {
        (1, entry.tokens)
    } else {
        (1, 0)
    }
}

/// Last moment at which `entry` has not waited too long.
fn patience(entry: &Entry, max_wait: Micros) -> Micros {
    Micros(entry.arrival.0.saturating_add(max_wait.0))
}

impl WaitingQueue {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn push_back(&mut self, entry: Entry) {
        // The newcomer is behind its equals, so it is chosen only if it ranks before the choice, which is then made anew.
        self.choice = self.choice.filter(|choice| {
            choice.until <= patience(&entry, choice.max_wait)
                && choice.rank <= rank(&entry, choice.order, choice.made, choice.max_wait)
        });
        self.ageing.arrive(entry.arrival, entry.tokens);
        self.entries.push_back(entry);
    }

    pub(super) fn push_front(&mut self, entry: Entry) {
        self.choice = None;
        self.ageing.join(entry.tokens);
        self.entries.push_front(entry);
    }

    /// Takes the request at `position` out, to be admitted.
    ///
    /// # Panics
    /// If there is none: `position` comes from [`next`](Self::next).
    pub(super) fn admit(&mut self, position: usize, now: Micros) -> RequestId {
        self.choice = None;
        let entry = self.entries.remove(position).expect("a position of this queue");
        self.ageing.admit(entry.tokens, now);
        entry.id
    }

    /// Takes the request at `position` out for good.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn reject(&mut self, position: usize) -> RequestId {
        self.choice = None;
        let entry = self.entries.remove(position).expect("a position of this queue");
        self.ageing.leave(entry.tokens);
        entry.id
    }

    /// Takes a request out by its id; linear, and for what happens rarely.
    pub(super) fn take(&mut self, id: RequestId) {
        if let Some(position) = self.entries.iter().position(|entry| entry.id == id) {
            self.reject(position);
        }
    }

    /// A request has more tokens to compute than before; linear, and for what happens rarely.
    pub(super) fn lengthen(&mut self, id: RequestId, tokens: u32) {
        self.choice = None;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            self.ageing.join(tokens.saturating_sub(entry.tokens));
            entry.tokens = tokens;
        }
    }

    /// How long a request may wait before it comes first.
    pub(super) fn bound(&self, config: &EngineConfig) -> Micros {
        self.ageing.bound(config.max_wait, config.patience)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(super) fn ids(&self) -> impl DoubleEndedIterator<Item = RequestId> {
        self.entries.iter().map(|entry| entry.id)
    }

    /// Every request, in the order in which [`next`](Self::next) would name them if each was taken out.
    pub(super) fn in_order(&self, order: Admission, now: Micros, max_wait: Micros) -> Vec<RequestId> {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        if order != Admission::Fcfs {
            entries.sort_by_key(|entry| rank(entry, order, now, max_wait));
        }
        entries.into_iter().map(|entry| entry.id).collect()
    }

    /// Position of the request to admit next, with its entry. `now` never goes back.
    pub(super) fn next(&mut self, order: Admission, now: Micros, max_wait: Micros) -> Option<(usize, Entry)> {
        if order == Admission::Fcfs {
            return Some((0, *self.entries.front()?));
        }
        let is_valid = |choice: &Choice| (choice.order, choice.max_wait) == (order, max_wait) && now <= choice.until;
        if !self.choice.as_ref().is_some_and(is_valid) {
            self.choice = self.choose(order, now, max_wait);
        }
        let position = self.choice?.position;
        Some((position, self.entries[position]))
    }

    /// Looks at the whole queue.
    fn choose(&self, order: Admission, now: Micros, max_wait: Micros) -> Option<Choice> {
        let ranked = |entry: &Entry| rank(entry, order, now, max_wait);
        // `min_by_key` keeps the first of equals: queue order.
        let (position, chosen) = self.entries.iter().enumerate().min_by_key(|(_, entry)| ranked(entry))?;
        let rank = ranked(chosen);
        // Among those that waited too long the first counts, so only who is before it can displace it.
        let rivals = if rank.0 == 0 { position } else { self.entries.len() };
        let first_to_lose_patience = self.entries.iter().take(rivals).map(|entry| patience(entry, max_wait)).min();
        let until = first_to_lose_patience.unwrap_or(Micros::MAX);
        let until = if rank.0 == 1 { until.min(chosen.late_at) } else { until };
        Some(Choice { order, max_wait, position, rank, made: now, until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (tokens, arrival, `late_at`) of requests 0, 1, 2, ….
    fn queue(entries: &[(u32, u64, u64)]) -> WaitingQueue {
        let mut queue = WaitingQueue::default();
        for (id, &(tokens, arrival, late_at)) in entries.iter().enumerate() {
            let id = RequestId(id as u32);
            queue.push_back(Entry { id, tokens, arrival: Micros(arrival), late_at: Micros(late_at) });
        }
        queue
    }

    fn next(queue: &mut WaitingQueue, order: Admission, now: u64) -> u32 {
        queue.next(order, Micros(now), Micros(1000)).unwrap().1.id.0
    }

    #[test]
    fn those_on_time_come_before_those_late() {
        let mut queue = queue(&[(9, 0, 50), (8, 60, 200), (3, 70, 210)]);
        assert_eq!(next(&mut queue, Admission::Fcfs, 100), 0);
        assert_eq!(next(&mut queue, Admission::OnTimeFirst, 100), 1);
        assert_eq!(next(&mut queue, Admission::ShortestOnTimeFirst, 100), 2);
        assert_eq!(next(&mut queue, Admission::OnTimeFirst, 300), 0);
    }

    #[test]
    fn whoever_waited_too_long_comes_first() {
        let mut queue = queue(&[(9, 900, 5000), (8, 0, 50)]);
        assert_eq!(next(&mut queue, Admission::ShortestOnTimeFirst, 1000), 0);
        assert_eq!(next(&mut queue, Admission::ShortestOnTimeFirst, 1001), 1);
    }

    #[test]
    fn an_empty_queue_has_no_next() {
        assert!(queue(&[]).next(Admission::OnTimeFirst, Micros(0), Micros(0)).is_none());
        assert!(queue(&[]).next(Admission::Fcfs, Micros(0), Micros(0)).is_none());
    }

    /// The choice kept from step to step is the one a look at the whole queue would make.
    #[test]
    fn a_kept_choice_is_the_right_one() {
        use rand::RngExt;
        let mut stream = crate::seed::stream(1, "waiting.test", 0);
        let mut queue = WaitingQueue::default();
        let (mut now, mut looked, mut kept) = (0, 0, 0);
        for id in 0..20_000 {
            now += stream.random_range(0..40);
            let entry = Entry {
                id: RequestId(id),
                tokens: stream.random_range(1..9),
                arrival: Micros(now - stream.random_range(0..=now.min(200))),
                late_at: Micros(now + stream.random_range(0..300)),
            };
            match stream.random_range(0..10) {
                0 => queue.push_front(entry),
                1..4 => queue.push_back(entry),
                4 if !queue.is_empty() => drop(queue.admit(stream.random_range(0..queue.len()), Micros(now))),
                5 if !queue.is_empty() => queue.lengthen(queue.entries[0].id, stream.random_range(1..9)),
                _ => {}
            }
            let order = [Admission::OnTimeFirst, Admission::ShortestOnTimeFirst][usize::from(id % 1000 < 500)];
            let was_kept = queue.choice.map(|choice| choice.made);
            let found = queue.next(order, Micros(now), Micros(500));
            looked += 1;
            kept += u32::from(queue.choice.map(|choice| choice.made) == was_kept && was_kept.is_some());
            let expected = queue.choose(order, Micros(now), Micros(500)).map(|choice| choice.position);
            assert_eq!(found.map(|(position, _)| position), expected, "entry {id}");
        }
        assert!(kept > looked / 4, "{kept} of {looked}");
    }
}
