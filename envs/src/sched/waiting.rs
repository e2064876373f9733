//! The waiting queue, with the order in which admission looks at it.

use std::collections::VecDeque;

use kvtide_runtime::Admission;

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
}

impl WaitingQueue {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn push_back(&mut self, entry: Entry) {
        self.entries.push_back(entry);
    }

    pub(super) fn push_front(&mut self, entry: Entry) {
        self.entries.push_front(entry);
    }

    /// Takes the request at `position` out.
    ///
    /// # Panics
    /// If there is none: `position` comes from [`next`](Self::next).
    pub(super) fn remove(&mut self, position: usize) -> RequestId {
        self.entries.remove(position).expect("a position of this queue").id
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.entries.iter().map(|entry| entry.id)
    }

    /// Position of the request to admit next, with its entry. Linear in the queue unless the order is first come first
    /// served.
    pub(super) fn next(&self, order: Admission, now: Micros, max_wait: Micros) -> Option<(usize, Entry)> {
        let rank = |entry: &Entry| {
            if now.since(entry.arrival) > max_wait {
                (0, 0)
            } else if now > entry.late_at {
                (2, 0)
            } else if order == Admission::ShortestOnTimeFirst {
                (1, entry.tokens)
            } else {
                (1, 0)
            }
        };
        let position = match order {
            Admission::Fcfs => 0,
            // `min_by_key` keeps the first of equals: queue order.
            Admission::OnTimeFirst | Admission::ShortestOnTimeFirst => {
                self.entries.iter().enumerate().min_by_key(|(_, entry)| rank(entry))?.0
            }
        };
        Some((position, *self.entries.get(position)?))
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

    fn next(queue: &WaitingQueue, order: Admission, now: u64) -> u32 {
        queue.next(order, Micros(now), Micros(1000)).unwrap().1.id.0
    }

    #[test]
    fn those_on_time_come_before_those_late() {
        let queue = queue(&[(9, 0, 50), (8, 60, 200), (3, 70, 210)]);
        assert_eq!(next(&queue, Admission::Fcfs, 100), 0);
        assert_eq!(next(&queue, Admission::OnTimeFirst, 100), 1);
        assert_eq!(next(&queue, Admission::ShortestOnTimeFirst, 100), 2);
        assert_eq!(next(&queue, Admission::OnTimeFirst, 300), 0);
    }

    #[test]
    fn whoever_waited_too_long_comes_first() {
        let queue = queue(&[(9, 900, 5000), (8, 0, 50)]);
        assert_eq!(next(&queue, Admission::ShortestOnTimeFirst, 1000), 0);
        assert_eq!(next(&queue, Admission::ShortestOnTimeFirst, 1001), 1);
    }

    #[test]
    fn an_empty_queue_has_no_next() {
        assert!(queue(&[]).next(Admission::OnTimeFirst, Micros(0), Micros(0)).is_none());
        assert!(queue(&[]).next(Admission::Fcfs, Micros(0), Micros(0)).is_none());
    }
}
