//! The admission queue against one that looks at everybody each time it is asked.

use kvtide_rules::queue::rank;
use kvtide_rules::{AdmissionQueue, Ageing, Entry, Micros, Patience, Seat};
use kvtide_runtime::Admission;
use proptest::prelude::*;

/// The slow, obvious queue.
#[derive(Debug, Default)]
struct Linear {
    entries: Vec<(Seat, Entry<u64>)>,
    ageing: Ageing,
}

impl Linear {
    fn next(&self, order: Admission, now: Micros, patience: Patience) -> Option<u64> {
        let max_wait = self.ageing.bound(patience);
        // `min_by_key` keeps the first of equals: queue order.
        let ranked = |(_, entry): &&(Seat, Entry<u64>)| match order {
            Admission::Fcfs => (0, 0),
            _ => rank(entry, order, now, max_wait),
        };
        self.entries.iter().min_by_key(ranked).map(|(_, entry)| entry.id)
    }

    fn take(&mut self, seat: Seat) -> Option<Entry<u64>> {
        let position = self.entries.iter().position(|&(taken, _)| taken == seat)?;
        Some(self.entries.remove(position).1)
    }
}

/// One thing that happens; `who` picks among those that wait.
#[derive(Debug, Clone)]
enum Event {
    Arrive {
        tokens: u32,
        waited: u64,
        late_in: u64,
    },
    Return {
        tokens: u32,
        waited: u64,
        late_in: u64,
    },
    Admit {
        who: usize,
    },
    AdmitNext {
        order: usize,
    },
    Leave {
        who: usize,
    },
    Lengthen {
        who: usize,
        tokens: u32,
    },
    /// Time passes; far back at times, as a clock that was set.
    Pass {
        micros: i64,
    },
    Patience {
        max_wait: u64,
        factor: f64,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let request = || (1..9_u32, 0..200_u64, 0..300_u64);
    let event = prop_oneof![
        6 => request().prop_map(|(tokens, waited, late_in)| Event::Arrive { tokens, waited, late_in }),
        2 => request().prop_map(|(tokens, waited, late_in)| Event::Return { tokens, waited, late_in }),
        2 => any::<usize>().prop_map(|who| Event::Admit { who }),
        3 => (0..3_usize).prop_map(|order| Event::AdmitNext { order }),
        1 => any::<usize>().prop_map(|who| Event::Leave { who }),
        1 => (any::<usize>(), 1..12_u32).prop_map(|(who, tokens)| Event::Lengthen { who, tokens }),
        6 => (0..60_i64).prop_map(|micros| Event::Pass { micros }),
        1 => (-100..0_i64).prop_map(|micros| Event::Pass { micros }),
        1 => (0..600_u64, 0.0..3.0_f64).prop_map(|(max_wait, factor)| Event::Patience { max_wait, factor }),
    ];
    proptest::collection::vec(event, 0..400)
}

/// Both queues, and the time.
#[derive(Debug)]
struct Pair {
    fast: AdmissionQueue<u64>,
    slow: Linear,
    now: Micros,
    patience: Patience,
    arrived: u64,
}

impl Pair {
    fn new() -> Pair {
        let patience = Patience { max_wait: Micros(500), factor: 0.0 };
        Pair { fast: AdmissionQueue::new(), slow: Linear::default(), now: Micros(0), patience, arrived: 0 }
    }

    fn entry(&mut self, tokens: u32, waited: u64, late_in: u64) -> Entry<u64> {
        self.arrived += 1;
        let arrival = Micros(self.now.0.saturating_sub(waited));
        let late_at = Micros(self.now.0 + late_in);
        Entry { id: self.arrived, tokens, arrival, late_at, first_token_by: Some(late_at) }
    }

    fn who(&self, who: usize) -> Option<Seat> {
        self.slow.entries.get(who % self.slow.entries.len().max(1)).map(|&(seat, _)| seat)
    }

    fn admit(&mut self, seat: Seat) {
        let admitted = self.fast.admit(seat, self.now);
        let expected = self.slow.take(seat);
        assert_eq!(admitted, expected);
        self.slow.ageing.admit(expected.map_or(0, |entry| entry.tokens), self.now);
    }

    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Arrive { tokens, waited, late_in } => {
                let entry = self.entry(tokens, waited, late_in);
                self.slow.ageing.arrive(entry.arrival, tokens);
                self.slow.entries.push((self.fast.push_back(entry), entry));
            }
            Event::Return { tokens, waited, late_in } => {
                let entry = self.entry(tokens, waited, late_in);
                self.slow.ageing.join(tokens);
                self.slow.entries.insert(0, (self.fast.push_front(entry), entry));
            }
            Event::Admit { who } => {
                if let Some(seat) = self.who(who) {
                    self.admit(seat);
                }
            }
            Event::AdmitNext { order } => {
                if let Some((seat, _)) = self.fast.next(Admission::ALL[order], self.now, self.patience) {
                    self.admit(seat);
                }
            }
            Event::Leave { who } => {
                if let Some(seat) = self.who(who) {
                    let expected = self.slow.take(seat);
                    assert_eq!(self.fast.remove(seat), expected);
                    self.slow.ageing.leave(expected.map_or(0, |entry| entry.tokens));
                }
            }
            Event::Lengthen { who, tokens } => self.lengthen(who, tokens),
            Event::Pass { micros } => self.now = Micros(self.now.0.saturating_add_signed(micros)),
            Event::Patience { max_wait, factor } => self.patience = Patience { max_wait: Micros(max_wait), factor },
        }
    }

    fn lengthen(&mut self, who: usize, tokens: u32) {
        let Some(seat) = self.who(who) else { return };
        assert!(self.fast.lengthen(seat, tokens));
        for (taken, entry) in &mut self.slow.entries {
            if *taken == seat {
                self.slow.ageing.join(tokens.saturating_sub(entry.tokens));
                entry.first_token_by = entry.first_token_by.filter(|_| tokens <= entry.tokens);
                entry.tokens = tokens;
            }
        }
    }

    fn check(&mut self, orders: &[Admission]) {
        assert_eq!(self.fast.len(), self.slow.entries.len());
        assert_eq!(self.fast.is_empty(), self.slow.entries.is_empty());
        assert!(self.fast.iter().eq(self.slow.entries.iter().map(|(_, entry)| entry)));
        assert!(self.fast.iter().rev().eq(self.slow.entries.iter().rev().map(|(_, entry)| entry)));
        assert_eq!(self.fast.bound(self.patience), self.slow.ageing.bound(self.patience));
        for &order in orders {
            let next = self.fast.next(order, self.now, self.patience).map(|(_, entry)| entry.id);
            assert_eq!(next, self.slow.next(order, self.now, self.patience), "{}", order.name());
            let first = self.fast.in_order(order, self.now, self.patience).first().map(|entry| entry.id);
            assert_eq!(next, first, "{}", order.name());
        }
    }
}

proptest! {
    /// With an index from the start.
    #[test]
    fn the_next_is_who_a_look_at_everybody_finds(events in events()) {
        let mut pair = Pair::new();
        for event in &events {
            pair.happens(event);
            pair.check(Admission::ALL);
        }
    }

    /// An index that is made late, and asked seldom, is as good.
    #[test]
    fn an_index_is_good_whenever_it_is_made(events in events(), every in 1..100_usize) {
        let mut pair = Pair::new();
        for (number, event) in events.iter().enumerate() {
            pair.happens(event);
            let orders = if number % every == every - 1 { &Admission::ALL[number % 3..] } else { &[Admission::Fcfs] };
            pair.check(orders);
        }
    }
}

/// One who is never taken while thousands pass it by: vacant seats between it and the others do not pile up, and seats
/// stay good.
#[test]
fn thousands_pass_one_by() {
    let mut queue = AdmissionQueue::new();
    let patience = Patience { max_wait: Micros::MAX, factor: 0.0 };
    let entry = |id: u64, tokens| Entry { id, tokens, arrival: Micros(0), late_at: Micros::MAX, first_token_by: None };
    let long = queue.push_back(entry(0, 1000));
    for id in 1..20_000 {
        queue.push_back(entry(id, 10));
        if id > 50 {
            let (seat, next) = queue.next(Admission::ShortestOnTimeFirst, Micros(id), patience).unwrap();
            assert_eq!(next.id, id - 50);
            queue.admit(seat, Micros(id));
        }
    }
    assert_eq!((queue.len(), queue.get(long).map(|entry| entry.id)), (51, Some(0)));
}
