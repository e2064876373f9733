//! Blocks that move: into HBM, out of it, and what that takes.

use kvtide_rules::intent::Tier;

use super::{Place, Tiers};
use crate::intent::event::IntentEvent;
use crate::intent::policy::TierPolicy;
use crate::intent::ranking::{Held, Now};

impl<P: TierPolicy> Tiers<P> {
    pub(super) fn spill(&mut self, block: u32) -> u64 {
        let one = self.one(block);
        let room = self.setup.capacity.dram_bytes.saturating_sub(self.used.dram);
        if self.rules.dram_is_finite && !one.in_dram && one.intent.size_bytes > room {
            self.place(block, Place::Nowhere);
            return 0;
        }
        self.counts.spills += 1;
        self.place(block, Place::Dram);
        self.setup.latencies.spill_us
    }

    pub(super) fn prefetch(&mut self, event: &IntentEvent, names: &[Box<str>]) -> u64 {
        let mut intent = event.intent;
        if self.rules.prefetch_yields {
            intent.last_access_step = intent.last_access_step.max(self.one(event.block).intent.last_access_step);
        }
        self.declare(event.block, intent);
        let is_wanted = intent.current_tier != Tier::Hbm && P::prefetches(&intent);
        if !is_wanted || (self.rules.prefetch_yields && !self.may_prefetch(event.block, event.step, names)) {
            return 0;
        }
        self.counts.prefetches += 1;
        let cost = self.setup.latencies.prefetch_us + self.bring_in(event, true, names);
        // What went for it is told first.
        let now = self.now(event.step);
        if let Some(log) = &mut self.log {
            log.prefetched::<P>(&self.held, event.block, now, names);
        }
        cost
    }

    /// Whether there is room for a block, or what would go for it goes first in the policy's own order.
    fn may_prefetch(&mut self, block: u32, step: u64, names: &[Box<str>]) -> bool {
        let size = self.one(block).intent.size_bytes;
        if self.used.hbm + size <= self.setup.capacity.hbm_bytes {
            return true;
        }
        let now = self.now(step);
        let rank = |one: &Held| P::rank(&one.intent, now.of(one));
        let victim = self.free.victim(&self.held, names, now, is_free::<P>);
        size <= self.setup.capacity.hbm_bytes
            && victim.is_some_and(|victim| rank(self.one(victim)).compare(&rank(self.one(block))).is_gt())
    }

    fn now(&self, step: u64) -> Now {
        Now { step, fadings: self.fadings }
    }

    /// Puts the block of an event into HBM, out of DRAM if it `moves`, and makes room; what that takes.
    pub(super) fn bring_in(&mut self, event: &IntentEvent, moves: bool, names: &[Box<str>]) -> u64 {
        let (block, capacity) = (event.block, self.setup.capacity.hbm_bytes);
        let cost;
        if self.rules.capacity_holds {
            // Until there is room it is out.
            self.change(block, |one| one.in_hbm = false);
            let size = self.one(block).intent.size_bytes;
            if size > capacity {
                self.counts.capacity_exhaustion += 1;
                return 0;
            }
            self.place(block, Place::Nowhere);
            cost = self.make_room(capacity - size, event, names);
            self.place(block, Place::Hbm);
        } else {
            self.change(block, |one| {
                one.in_hbm = true;
                one.in_dram &= !moves;
            });
            cost = self.make_room(capacity, event, names);
        }
        self.counts.actual_peak_hbm = self.counts.actual_peak_hbm.max(self.used.hbm);
        cost
    }

    /// Moves blocks out of HBM until it holds no more than `most` bytes; what that takes.
    fn make_room(&mut self, most: u64, event: &IntentEvent, names: &[Box<str>]) -> u64 {
        let mut cost = 0;
        while self.used.hbm > most {
            let now = self.now(event.step);
            let mut victim = None;
            if P::SPARES_PINNED && self.pinned_in_hbm == self.in_hbm {
                self.counts.pinned_capacity_exhaustion += 1;
                if !self.rules.capacity_holds {
                    self.counts.capacity_exhaustion += 1;
                    return cost;
                }
                victim = self.pinned.victim(&self.held, names, now, |one| one.in_hbm && one.intent.pin_requested);
            }
            let victim = victim.or_else(|| self.free.victim(&self.held, names, now, is_free::<P>));
            let Some(victim) = victim else {
                self.counts.capacity_exhaustion += 1;
                return cost;
            };
            cost += self.evict(victim, (event.block, now), names);
        }
        cost
    }

    fn evict(&mut self, victim: u32, (room_for, now): (u32, Now), names: &[Box<str>]) -> u64 {
        let intent = &self.one(victim).intent;
        let is_critical = intent.is_decode_critical();
        let fits = self.used.dram + intent.size_bytes <= self.setup.capacity.dram_bytes;
        let place = match intent.allowed_tiers.below_hbm() {
            Some(Tier::Dram) if fits => Place::Dram,
            _ => Place::Nowhere,
        };
        if let Some(log) = &mut self.log {
            log.evicted::<P>(&self.held, victim, (room_for, now), place == Place::Dram, names);
        }
        self.counts.evictions += 1;
        self.counts.decode_critical_evictions += u64::from(is_critical);
        self.counts.spills += u64::from(place == Place::Dram);
        let stays_in_dram = self.one(victim).in_dram;
        self.change(victim, |one| {
            one.in_hbm = false;
            one.in_dram = stays_in_dram || place == Place::Dram;
        });
        if place == Place::Dram { self.setup.latencies.spill_us } else { 0 }
    }
}

/// Whether a block is a candidate.
#[inline]
fn is_free<P: TierPolicy>(one: &Held) -> bool {
    one.in_hbm && !(P::SPARES_PINNED && one.intent.pin_requested)
}
