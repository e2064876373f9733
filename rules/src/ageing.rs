//! When waiting has become too long: the bound that keeps every admission order from starving anybody.
//!
//! A fixed bound is wrong at every load but one. In calm it lets a long request be overtaken for a minute where first
//! come, first served would make nobody wait five seconds; in overload everybody is past it, and admission is first come,
//! first served again. So the bound is relative: `patience` times the longest wait that first come, first served would
//! have given anybody in the last ten minutes, and at least `max_wait`.
//!
//! What first come, first served would have given is known without a second simulation. It admits the same tokens in
//! another order; so a request would have been admitted once as many tokens have been admitted as were waiting before it,
//! with its own, when it arrived.

use alloc::collections::VecDeque;

use crate::Micros;

/// How long a wait is remembered.
const MEMORY: Micros = Micros::from_millis(600_000);

/// How long somebody may be overtaken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Patience {
    /// The least bound.
    pub max_wait: Micros,
    /// The bound as a multiple of the longest wait in queue order, where that is above `max_wait`; 0 for `max_wait` alone.
    pub factor: f64,
}

impl Default for Patience {
    /// Five seconds, and 1.75 times the longest wait in queue order: what policies are trained with. Overtaking goes on until
    /// the bound is met, and whoever is past it waits behind those past it before, so a wait can exceed it; chosen so that the
    /// longest wait is seldom three times that of queue order (`experiments/results/off-road.txt` says where it is).
    fn default() -> Patience {
        Patience { max_wait: Micros::from_millis(5_000), factor: 1.75 }
    }
}

/// The bound, and what it takes to know it. Constant time a request, amortised.
#[derive(Debug, Clone, Default)]
pub struct Ageing {
    /// Tokens admitted since the start, and tokens waiting.
    admitted: u64,
    waiting: u64,
    /// Arrivals that first come, first served would not have admitted yet, with the count of admitted tokens at which it
    /// would.
    line: VecDeque<(Micros, u64)>,
    /// Waits it would have given, `(when it ended, how long)`, each longer than all after it.
    waits: VecDeque<(Micros, Micros)>,
}

impl Ageing {
    /// A request with `tokens` to compute arrives.
    pub fn arrive(&mut self, arrival: Micros, tokens: u32) {
        self.join(tokens);
        self.line.push_back((arrival, self.admitted + self.waiting));
    }

    /// Tokens wait that did not arrive just now: of a request that was preempted, or that turned out to be longer.
    pub fn join(&mut self, tokens: u32) {
        self.waiting += u64::from(tokens);
    }

    /// Tokens that waited do so no longer, but were not admitted either.
    pub fn leave(&mut self, tokens: u32) {
        self.advance(tokens);
    }

    /// A request with `tokens` to compute is admitted.
    pub fn admit(&mut self, tokens: u32, now: Micros) {
        self.advance(tokens);
        while let Some(&(arrival, mark)) = self.line.front()
            && (mark <= self.admitted || self.waiting == 0)
        {
            self.line.pop_front();
            self.remember(now, now.since(arrival));
        }
        while self.waits.front().is_some_and(|&(ended, _)| now.since(ended) > MEMORY) {
            self.waits.pop_front();
        }
    }

    /// Tokens that counted as admitted were not.
    pub fn take_back(&mut self, tokens: u32) {
        self.admitted = self.admitted.saturating_sub(u64::from(tokens));
        self.join(tokens);
    }

    fn advance(&mut self, tokens: u32) {
        self.waiting = self.waiting.saturating_sub(u64::from(tokens));
        self.admitted += u64::from(tokens);
    }

    fn remember(&mut self, now: Micros, wait: Micros) {
        while self.waits.back().is_some_and(|&(_, shorter)| shorter <= wait) {
            self.waits.pop_back();
        }
        self.waits.push_back((now, wait));
    }

    /// How long a request may wait before it comes first. Changes only when somebody is admitted.
    pub fn bound(&self, patience: Patience) -> Micros {
        let longest = self.waits.front().map_or(0, |&(_, wait)| wait.0);
        patience.max_wait.max(Micros((longest as f64 * patience.factor) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(seconds: u64) -> Micros {
        Micros(seconds * SECOND)
    }

    fn bound(ageing: &Ageing, max_wait: u64, factor: f64) -> Micros {
        ageing.bound(Patience { max_wait: at(max_wait), factor })
    }

    #[test]
    fn the_bound_is_a_multiple_of_what_queue_order_would_have_given() {
        let mut ageing = Ageing::default();
        ageing.arrive(at(0), 100);
        ageing.arrive(at(1), 10);
        assert_eq!(bound(&ageing, 5, 3.0), at(5));
        // The short one overtakes. In queue order the long one would not be in yet.
        ageing.admit(10, at(4));
        assert_eq!(bound(&ageing, 5, 3.0), at(5));
        // Both are in, and in queue order would be: the first after 8 s, the second after 7.
        ageing.admit(100, at(8));
        assert_eq!(bound(&ageing, 5, 3.0), at(24));
        assert_eq!(bound(&ageing, 5, 0.0), at(5));
        assert_eq!(ageing.bound(Patience { max_wait: Micros::MAX, factor: 3.0 }), Micros::MAX);
    }

    #[test]
    fn a_long_wait_is_forgotten_after_ten_minutes() {
        let mut ageing = Ageing::default();
        for (arrived, admitted) in [(0, 30), (100, 110), (640, 641)] {
            ageing.arrive(at(arrived), 7);
            ageing.admit(7, at(admitted));
        }
        assert_eq!(bound(&ageing, 0, 1.0), at(10));
    }
}
