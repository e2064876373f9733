//! The waiting queue, with the order in which admission looks at it.
//!
//! First in, first out, but for requests that were preempted, which return to the front. Under queue order that is all
//! there is to it. The first time another order is asked for, an index over the queue is made, and kept from then on: who
//! is next, and every change, then takes time logarithmic in the queue.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use kvtide_runtime::Admission;

use crate::index::{Index, Standing};
use crate::{Ageing, Answer, Micros, Patience, Pricing, Slo, lateness};

/// What admission order needs of a waiting request; constant while it waits, but see
/// [`lengthen`](AdmissionQueue::lengthen).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<Id> {
    /// The request, by the node's own name for it.
    pub id: Id,
    /// Tokens to compute.
    pub tokens: u32,
    /// When it arrived.
    pub arrival: Micros,
    /// From when on it cannot meet its targets any more; see [`admit_by`](crate::lateness::admit_by).
    pub late_at: Micros,
    /// By when its first token is on time; `None` if it has had it, before a preemption.
    pub first_token_by: Option<Micros>,
}

impl<Id> Entry<Id> {
    /// Of a request with `tokens` to compute, whose prefill is priced by `pricing`.
    pub fn new(id: Id, slo: Slo, arrival: Micros, answer: Answer, tokens: u32, pricing: &Pricing) -> Entry<Id> {
        Entry {
            id,
            tokens,
            arrival,
            late_at: lateness::admit_by(slo, arrival, answer, tokens, pricing),
            first_token_by: (answer == Answer::Awaited).then(|| slo.deadline(arrival, 0)),
        }
    }
}

/// A place in a queue. Ascends in queue order, is never given twice, and stays the same until its request leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seat(pub i64);

/// The waiting requests, and who of them is next.
#[derive(Debug, Clone)]
pub struct AdmissionQueue<Id> {
    /// In the order of seats. The first and the last are taken.
    slots: VecDeque<QueueSlot<Id>>,
    /// Slots that are vacant, because whoever had them left from between others.
    vacant: usize,
    /// Seats are given from here on, to the back and to the front.
    back: i64,
    front: i64,
    ageing: Ageing,
    /// Of positions in `slots`. `None` until an order other than the queue's is asked for.
    index: Option<Index>,
}

#[derive(Debug, Clone, Copy)]
struct QueueSlot<Id> {
    seat: Seat,
    is_vacant: bool,
    entry: Entry<Id>,
}

impl<Id> QueueSlot<Id> {
    fn standing(&self) -> Standing {
        if self.is_vacant {
            return Standing::VACANT;
        }
        Standing::new(self.entry.arrival, self.entry.tokens, self.entry.late_at)
    }
}

/// Vacant slots that are always borne; beyond them, as many as are taken.
const MIN_VACANT: usize = 32;

/// Less is sooner: waited too long, on time, late; within these, by the order, and among equals in queue order.
pub fn rank<Id>(entry: &Entry<Id>, order: Admission, now: Micros, max_wait: Micros) -> (u8, u32) {
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

impl<Id> Default for AdmissionQueue<Id> {
    fn default() -> AdmissionQueue<Id> {
        AdmissionQueue { slots: VecDeque::new(), vacant: 0, back: 0, front: -1, ageing: Ageing::default(), index: None }
    }
}

impl<Id: Copy> AdmissionQueue<Id> {
    /// An empty queue.
    pub fn new() -> AdmissionQueue<Id> {
        AdmissionQueue::default()
    }

    /// A request arrives.
    pub fn push_back(&mut self, entry: Entry<Id>) -> Seat {
        let seat = Seat(self.back);
        self.back += 1;
        self.ageing.arrive(entry.arrival, entry.tokens);
        self.slots.push_back(QueueSlot { seat, is_vacant: false, entry });
        self.tell(self.slots.len() - 1);
        seat
    }

    /// A request that was admitted before returns, as the first.
    pub fn push_front(&mut self, entry: Entry<Id>) -> Seat {
        self.ageing.join(entry.tokens);
        self.seat_first(entry)
    }

    /// A request that was taken as admitted is not, and is the first again: vLLM takes those out it cannot admit yet, such as
    /// one whose grammar is being compiled, and puts them back at the end of the step.
    pub fn put_back(&mut self, entry: Entry<Id>) -> Seat {
        self.ageing.take_back(entry.tokens);
        self.seat_first(entry)
    }

    fn seat_first(&mut self, entry: Entry<Id>) -> Seat {
        let seat = Seat(self.front);
        self.front -= 1;
        let slot = QueueSlot { seat, is_vacant: false, entry };
        self.slots.push_front(slot);
        if let Some(index) = &mut self.index
            && !index.push_front(slot.standing())
        {
            self.tidy();
        }
        seat
    }

    /// A request is admitted; `None` if nobody has that seat.
    pub fn admit(&mut self, seat: Seat, now: Micros) -> Option<Entry<Id>> {
        let entry = self.vacate(seat)?;
        self.ageing.admit(entry.tokens, now);
        Some(entry)
    }

    /// A request leaves without having been admitted; `None` if nobody has that seat.
    pub fn remove(&mut self, seat: Seat) -> Option<Entry<Id>> {
        let entry = self.vacate(seat)?;
        self.ageing.leave(entry.tokens);
        Some(entry)
    }

    /// A waiting request has so many tokens to compute now. If that is more than before, a token was on its way when it was
    /// preempted, so that it has its first; whether it is late stays as it was. False if nobody has that seat.
    pub fn lengthen(&mut self, seat: Seat, tokens: u32) -> bool {
        let Some(position) = self.position(seat) else { return false };
        let entry = &mut self.slots[position].entry;
        if tokens > entry.tokens {
            self.ageing.join(tokens - entry.tokens);
            entry.first_token_by = None;
        }
        entry.tokens = tokens;
        self.tell(position);
        true
    }

    /// Who is to be admitted next, under `order`. A clock that goes back costs a look at everybody.
    pub fn next(&mut self, order: Admission, now: Micros, patience: Patience) -> Option<(Seat, Entry<Id>)> {
        let position = match order {
            Admission::Fcfs => 0,
            _ => self.next_position(order, now, self.bound(patience)),
        };
        self.slots.get(position).map(|slot| (slot.seat, slot.entry))
    }

    fn next_position(&mut self, order: Admission, now: Micros, max_wait: Micros) -> usize {
        let slots = &self.slots;
        let index = self.index.take_if(|index| index.passed() <= now);
        let index = index.unwrap_or_else(|| Index::new(slots.iter().map(QueueSlot::standing)));
        self.index.insert(index).next(order, now, max_wait).unwrap_or(0)
    }

    /// Every request, in the order in which [`next`](Self::next) would name them if each was taken out. Sorts all.
    pub fn in_order(&self, order: Admission, now: Micros, patience: Patience) -> Vec<&Entry<Id>> {
        let mut entries: Vec<&Entry<Id>> = self.iter().collect();
        if order != Admission::Fcfs {
            let max_wait = self.bound(patience);
            entries.sort_by_key(|entry| rank(entry, order, now, max_wait));
        }
        entries
    }

    /// Whoever waited longer than this is next. Changes only when somebody is admitted.
    pub fn bound(&self, patience: Patience) -> Micros {
        self.ageing.bound(patience)
    }

    /// Takes whoever has `seat` out.
    fn vacate(&mut self, seat: Seat) -> Option<Entry<Id>> {
        let position = self.position(seat)?;
        let slot = &mut self.slots[position];
        slot.is_vacant = true;
        let entry = slot.entry;
        self.vacant += 1;
        self.tell(position);
        self.trim();
        Some(entry)
    }

    /// Drops vacant slots at the ends, and all of them once they are more than those taken.
    fn trim(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.is_vacant) {
            self.slots.pop_front();
            self.vacant -= 1;
            if let Some(index) = &mut self.index {
                index.pop_front();
            }
        }
        while self.slots.back().is_some_and(|slot| slot.is_vacant) {
            self.slots.pop_back();
            self.vacant -= 1;
        }
        if self.vacant > self.len().max(MIN_VACANT) {
            self.tidy();
        }
    }

    /// Drops every vacant slot and makes the index, if there is one, anew.
    fn tidy(&mut self) {
        self.slots.retain(|slot| !slot.is_vacant);
        self.vacant = 0;
        if self.index.is_some() {
            self.index = Some(Index::new(self.slots.iter().map(QueueSlot::standing)));
        }
    }

    /// Tells the index, if there is one, what is at `position` now.
    fn tell(&mut self, position: usize) {
        if let Some(index) = &mut self.index
            && !index.set(position, self.slots[position].standing())
        {
            self.tidy();
        }
    }
}

impl<Id> AdmissionQueue<Id> {
    /// Who has `seat`.
    pub fn get(&self, seat: Seat) -> Option<&Entry<Id>> {
        Some(&self.slots[self.position(seat)?].entry)
    }

    /// Position of a seat that is taken.
    fn position(&self, seat: Seat) -> Option<usize> {
        // Nearly always the first.
        if self.slots.front().is_some_and(|slot| slot.seat == seat) {
            return Some(0);
        }
        let position = self.slots.binary_search_by_key(&seat, |slot| slot.seat).ok()?;
        (!self.slots[position].is_vacant).then_some(position)
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.slots.len() - self.vacant
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Everybody, in queue order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry<Id>> {
        self.slots.iter().filter(|slot| !slot.is_vacant).map(|slot| &slot.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (tokens, arrival, `late_at`) of requests 0, 1, 2, ….
    fn queue(entries: &[(u32, u64, u64)]) -> AdmissionQueue<usize> {
        let mut queue = AdmissionQueue::new();
        for (id, &(tokens, arrival, late_at)) in entries.iter().enumerate() {
            let (arrival, late_at) = (Micros(arrival), Micros(late_at));
            queue.push_back(Entry { id, tokens, arrival, late_at, first_token_by: None });
        }
        queue
    }

    fn check(queue: &mut AdmissionQueue<usize>, order: Admission, now: u64, expected: usize) {
        let patience = Patience { max_wait: Micros(1000), factor: 0.0 };
        assert_eq!(queue.next(order, Micros(now), patience).map(|(_, entry)| entry.id), Some(expected));
        assert_eq!(queue.in_order(order, Micros(now), patience)[0].id, expected);
    }

    #[test]
    fn those_on_time_come_before_those_late() {
        let mut queue = queue(&[(9, 0, 50), (8, 60, 200), (3, 70, 210)]);
        check(&mut queue, Admission::Fcfs, 100, 0);
        check(&mut queue, Admission::OnTimeFirst, 100, 1);
        check(&mut queue, Admission::ShortestOnTimeFirst, 100, 2);
        check(&mut queue, Admission::OnTimeFirst, 300, 0);
    }

    #[test]
    fn whoever_waited_too_long_comes_first() {
        let mut queue = queue(&[(9, 900, 5000), (8, 0, 50)]);
        check(&mut queue, Admission::ShortestOnTimeFirst, 1000, 0);
        check(&mut queue, Admission::ShortestOnTimeFirst, 1001, 1);
    }

    #[test]
    fn an_empty_queue_has_no_next() {
        let mut queue = queue(&[]);
        for &order in Admission::ALL {
            assert!(queue.next(order, Micros(0), Patience::default()).is_none());
        }
    }

    #[test]
    fn whoever_is_passed_over_has_not_been_admitted() {
        let mut queue = queue(&[(10, 0, u64::MAX), (10, 0, u64::MAX)]);
        let mut first = Seat(0);
        for step in 1..=100 {
            let entry = queue.admit(first, Micros(step)).unwrap();
            first = queue.put_back(entry);
        }
        let bound = |queue: &AdmissionQueue<usize>| queue.bound(Patience { max_wait: Micros::ZERO, factor: 1.0 });
        // Two that arrive now would be admitted after the two before them, at 900.
        for id in 2..4 {
            let entry = Entry { id, tokens: 10, arrival: Micros(100), late_at: Micros::MAX, first_token_by: None };
            queue.push_back(entry);
        }
        for (seat, now) in [(first, 200), (Seat(1), 300), (Seat(2), 400)] {
            queue.admit(seat, Micros(now));
        }
        assert_eq!(bound(&queue), Micros(300));
        queue.admit(Seat(3), Micros(900));
        assert_eq!(bound(&queue), Micros(800));
    }

    #[test]
    fn a_seat_is_good_until_its_request_leaves() {
        let mut queue = queue(&[(9, 0, 50), (8, 0, 50), (7, 0, 50)]);
        let (middle, last) = (Seat(1), Seat(2));
        assert_eq!(queue.remove(middle).map(|entry| entry.id), Some(1));
        assert!(
            queue.remove(middle).is_none() && queue.admit(middle, Micros(0)).is_none() && queue.get(middle).is_none()
        );
        assert!(!queue.lengthen(middle, 3) && queue.lengthen(last, 9));
        assert_eq!(queue.get(last).map(|entry| entry.tokens), Some(9));
        let first = queue.push_front(Entry { id: 3, ..*queue.get(last).unwrap() });
        assert!(first < Seat(0));
        assert_eq!(queue.iter().map(|entry| entry.id).collect::<Vec<_>>(), [3, 0, 2]);
    }
}
