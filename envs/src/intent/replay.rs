//! Blocks in HBM and DRAM under one policy: events in, counts out.

mod moves;

use kvtide_rules::intent::{MemoryIntent, Priority, Tier};

use super::account::{Counts, DecodeStep, TierResult, Used};
use super::decision::{LogLine, Waited};
use super::event::{EventBatch, EventKind, IntentEvent};
use super::log::Log;
use super::policy::{PolicyName, TierPolicy, with_policy};
use super::ranking::{Held, Ranking};
use super::rules::{Latencies, Mode, Rules, TierCapacity};
use super::series::{Sample, Series};

/// What is replayed: a policy under some rules, in tiers of some size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierSetup {
    /// The policy.
    pub policy: PolicyName,
    /// The rules.
    pub mode: Mode,
    /// The tiers.
    pub capacity: TierCapacity,
    /// What things take.
    pub latencies: Latencies,
    /// Whether every decision is explained.
    pub explains: bool,
}

/// A replay under way.
pub struct TierReplay(Box<dyn Replays + Send>);

impl std::fmt::Debug for TierReplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TierReplay").field(&self.setup()).finish()
    }
}

impl TierReplay {
    /// Of nothing yet.
    pub fn new(setup: TierSetup) -> TierReplay {
        with_policy!(setup.policy, Policy => TierReplay(Box::new(Tiers::<Policy>::new(setup))))
    }

    /// What it replays.
    pub fn setup(&self) -> TierSetup {
        self.0.setup()
    }

    /// Goes on with the events that follow.
    pub fn run(&mut self, batch: &EventBatch) {
        self.0.run(batch);
    }

    /// What was explained since this was last asked for, in order.
    pub fn explained(&mut self) -> Vec<LogLine> {
        self.0.explained()
    }

    /// How it went, by samples at equal distances.
    pub fn series(&self) -> &[Sample] {
        self.0.series()
    }

    /// What came of it, of a stream with `total_blocks` different blocks.
    pub fn finish(&mut self, total_blocks: u64) -> TierResult {
        self.0.finish(total_blocks)
    }

    /// Bytes that it keeps.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// What any policy's replay can do.
trait Replays {
    fn setup(&self) -> TierSetup;
    fn run(&mut self, batch: &EventBatch);
    fn explained(&mut self) -> Vec<LogLine>;
    fn series(&self) -> &[Sample];
    fn finish(&mut self, total_blocks: u64) -> TierResult;
    fn bytes(&self) -> usize;
}

/// Tiers under a policy.
struct Tiers<P> {
    setup: TierSetup,
    rules: Rules,
    held: Vec<Held>,
    /// Candidates: what is in HBM; without what is pinned where the policy spares that.
    free: Ranking<P>,
    /// What is pinned in HBM, where the policy spares it and pins can yield.
    pinned: Ranking<P>,
    in_hbm: u64,
    pinned_in_hbm: u64,
    used: Used,
    /// How often recency has faded, and at which step it last did.
    fadings: u64,
    faded_at: Option<u64>,
    counts: Counts,
    decode: Option<DecodeStep>,
    /// Per block, the last decode step that accessed it, counted from 1.
    accessed_in: Vec<u64>,
    decode_steps: u64,
    series: Series,
    log: Option<Box<Log>>,
}

/// Where a block goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Hbm,
    Dram,
    Nowhere,
}

impl<P: TierPolicy> Tiers<P> {
    fn new(setup: TierSetup) -> Tiers<P> {
        Tiers {
            setup,
            rules: setup.mode.rules(),
            held: Vec::new(),
            free: Ranking::new(),
            pinned: Ranking::new(),
            in_hbm: 0,
            pinned_in_hbm: 0,
            used: Used::default(),
            fadings: 0,
            faded_at: None,
            counts: Counts::new(setup.latencies.base_us),
            decode: None,
            accessed_in: Vec::new(),
            decode_steps: 0,
            series: Series::default(),
            log: setup.explains.then(|| Box::new(Log::new(setup))),
        }
    }

    fn grow(&mut self, count: usize) {
        if count > self.held.len() {
            let nobody =
                Held { intent: MemoryIntent::new(0, 1), faded: 0, is_live: false, in_hbm: false, in_dram: false };
            self.held.resize(count, nobody);
            self.accessed_in.resize(count, 0);
            self.free.grow(count);
            self.pinned.grow(count);
            if let Some(log) = &mut self.log {
                log.grow(count);
            }
        }
    }

    #[inline]
    fn one(&self, block: u32) -> &Held {
        &self.held[block as usize]
    }

    /// Changes a block, and what is counted of it with it.
    #[inline]
    fn change(&mut self, block: u32, change: impl FnOnce(&mut Held)) {
        let one = &mut self.held[block as usize];
        if one.in_hbm {
            self.used.hbm -= one.intent.size_bytes;
            self.in_hbm -= 1;
            self.pinned_in_hbm -= u64::from(one.intent.pin_requested);
            self.free.touch(block);
            if P::SPARES_PINNED {
                self.pinned.touch(block);
            }
        }
        if one.in_dram {
            self.used.dram -= one.intent.size_bytes;
        }
        let was_in_hbm = one.in_hbm;
        change(one);
        if one.in_hbm {
            self.used.hbm += one.intent.size_bytes;
            self.in_hbm += 1;
            self.pinned_in_hbm += u64::from(one.intent.pin_requested);
            if !was_in_hbm {
                self.free.touch(block);
                if P::SPARES_PINNED {
                    self.pinned.touch(block);
                }
            }
        }
        if one.in_dram {
            self.used.dram += one.intent.size_bytes;
        }
    }

    fn place(&mut self, block: u32, place: Place) {
        self.change(block, |one| {
            one.in_hbm = place == Place::Hbm;
            one.in_dram = place == Place::Dram;
        });
    }

    /// What is declared anew replaces all that was.
    fn declare(&mut self, block: u32, intent: MemoryIntent) {
        let fadings = self.fadings;
        self.change(block, |one| {
            one.intent = intent;
            one.faded = fadings;
            one.is_live = true;
        });
    }

    fn event(&mut self, event: &IntentEvent, names: &[Box<str>]) {
        let latencies = self.setup.latencies;
        let mut cost = if self.rules.latency_of_decode_steps { 0 } else { latencies.base_us };
        let (block, is_known) = (event.block, self.one(event.block).is_live);
        match event.kind {
            EventKind::Allocated => cost += self.allocate(event, names),
            EventKind::Accessed => cost = self.access(event, cost, names),
            EventKind::MarkedDecodeCritical => self.mark_decode_critical(event, is_known),
            EventKind::MarkedCold if is_known => self.mark_cold(event),
            EventKind::Committed if is_known => self.change(block, |one| {
                one.intent.is_committed = true;
                one.intent.is_draft = false;
            }),
            EventKind::Spilled if is_known && event.intent.allowed_tiers.has(Tier::Dram) => {
                cost += self.spill(block);
            }
            EventKind::Prefetched if is_known && !self.one(block).in_hbm => cost += self.prefetch(event, names),
            EventKind::Evicted if is_known => {
                self.counts.evictions += 1;
                let is_critical = self.one(block).intent.is_decode_critical();
                self.counts.decode_critical_evictions += u64::from(is_critical);
                self.place(block, Place::Nowhere);
            }
            EventKind::Freed if is_known => {
                self.place(block, Place::Nowhere);
                self.forget(block);
            }
            _ => {}
        }
        self.counts.events += 1;
        self.counts.total_latency = self.counts.total_latency.saturating_add(cost);
        self.counts.of_events.add(cost);
        if self.faded_at != Some(event.step) {
            self.faded_at = Some(event.step);
            self.fadings += 1;
        }
        if self.series.is_due(self.counts.events) {
            self.series.take(&self.counts, self.used);
        }
    }

    /// Nothing of a block is left, for whoever has its number next.
    fn forget(&mut self, block: u32) {
        self.held[block as usize].is_live = false;
        self.accessed_in[block as usize] = 0;
        if let Some(log) = &mut self.log {
            log.forget(block);
        }
    }

    fn allocate(&mut self, event: &IntentEvent, names: &[Box<str>]) -> u64 {
        let size = event.intent.size_bytes;
        self.declare(event.block, event.intent);
        self.counts.peak_hbm_demand = self.counts.peak_hbm_demand.max(self.used.hbm + size);
        match event.intent.current_tier {
            Tier::Hbm => self.bring_in(event, false, names),
            Tier::Dram if self.rules.dram_is_finite => {
                let room = self.setup.capacity.dram_bytes.saturating_sub(self.used.dram);
                let fits = self.one(event.block).in_dram || size <= room;
                self.place(event.block, if fits { Place::Dram } else { Place::Nowhere });
                0
            }
            Tier::Dram => {
                self.change(event.block, |one| one.in_dram = true);
                0
            }
            Tier::Cxl | Tier::Nvme => 0,
        }
    }

    fn access(&mut self, event: &IntentEvent, base: u64, names: &[Box<str>]) -> u64 {
        let (block, from, fadings) = (event.block, &event.intent, self.fadings);
        self.change(block, |one| {
            if !one.is_live {
                one.intent = *from;
                one.is_live = true;
            }
            let to = &mut one.intent;
            (to.phase, to.priority, to.pin_requested) = (from.phase, from.priority, from.pin_requested);
            (to.deadline_us, to.slack_us) = (from.deadline_us, from.slack_us);
            to.target_decode_step = from.target_decode_step;
            to.expected_reuse_window_tokens = from.expected_reuse_window_tokens;
            to.prefetch_ok = from.prefetch_ok;
            to.last_access_step = event.step;
            to.recency_score = 1.0;
            one.faded = fadings;
        });
        let is_critical = from.is_decode_critical();
        self.counts.accesses += 1;
        self.counts.decode_critical_accesses += u64::from(is_critical);
        let is_miss = !self.one(block).in_hbm;
        let mut cost = base;
        // Before room is made: it may be made of this block.
        let waited = self.log.as_ref().filter(|_| is_miss && is_critical).map(|log| log.had_left(block, names));
        if is_miss {
            self.counts.misses += 1;
            self.counts.decode_critical_misses += u64::from(is_critical);
            cost += self.cost_of_miss(block) + self.bring_in(event, true, names);
        }
        if is_critical { self.decode(event, cost, waited) } else { cost }
    }

    /// What having a block takes that is not in HBM.
    fn cost_of_miss(&mut self, block: u32) -> u64 {
        let (latencies, one) = (self.setup.latencies, &self.held[block as usize]);
        self.counts.dram_hits += u64::from(one.in_dram);
        match (self.rules.dram_hits, one.in_dram) {
            (true, true) => latencies.prefetch_us,
            (true, false) => one.intent.recompute_cost_us.unwrap_or(latencies.miss_us),
            (false, _) => latencies.miss_us,
        }
    }

    /// An access of a decode step, which begins with it if another request's is under way or the block was read in this one; what
    /// the access takes in all.
    fn decode(&mut self, event: &IntentEvent, mut cost: u64, waited: Option<Waited>) -> u64 {
        let request = event.intent.request;
        let goes_on = self.decode.as_ref().is_some_and(|step| step.request == request)
            && self.accessed_in[event.block as usize] != self.decode_steps;
        if !goes_on {
            self.end_decode_step();
            self.decode_steps += 1;
            if self.rules.latency_of_decode_steps {
                cost += self.setup.latencies.base_us;
            }
        }
        self.accessed_in[event.block as usize] = self.decode_steps;
        let first_step = event.step;
        let step = self.decode.get_or_insert_with(|| DecodeStep { request, first_step, ..DecodeStep::default() });
        step.last_step = event.step;
        step.latency_us = step.latency_us.saturating_add(cost);
        step.deadline_us = [step.deadline_us, event.intent.deadline_us].into_iter().flatten().min();
        if let (Some(waited), Some(log)) = (waited, &mut self.log) {
            log.waited(Waited { cost_us: cost, ..waited });
        }
        cost
    }

    fn end_decode_step(&mut self) {
        if let Some(step) = self.decode.take() {
            let is_late = self.counts.end(&step);
            if let Some(log) = &mut self.log {
                log.end(&step, is_late);
            }
        }
    }

    fn mark_decode_critical(&mut self, event: &IntentEvent, is_known: bool) {
        if !is_known {
            self.declare(event.block, event.intent);
        }
        let (from, fadings) = (&event.intent, self.fadings);
        self.change(event.block, |one| {
            let to = &mut one.intent;
            (to.priority, to.pin_requested, to.phase) = (Priority::DecodeCritical, true, from.phase);
            (to.deadline_us, to.slack_us) = (from.deadline_us, from.slack_us);
            to.target_decode_step = from.target_decode_step;
            to.expected_reuse_window_tokens = from.expected_reuse_window_tokens;
            (to.request_priority, to.recency_score) = (from.request_priority, from.recency_score);
            one.faded = fadings;
        });
    }

    fn mark_cold(&mut self, event: &IntentEvent) {
        let (from, fadings, unpins) = (&event.intent, self.fadings, self.rules.cold_unpins);
        self.change(event.block, |one| {
            let to = &mut one.intent;
            (to.priority, to.phase) = (Priority::Cold, from.phase);
            (to.deadline_us, to.slack_us) = (from.deadline_us, from.slack_us);
            (to.compression_ok, to.recompute_ok) = (from.compression_ok, from.recompute_ok);
            (to.prefetch_ok, to.recency_score) = (from.prefetch_ok, from.recency_score);
            if unpins {
                to.pin_requested = from.pin_requested;
            }
            one.faded = fadings;
        });
    }
}

impl<P: TierPolicy> Replays for Tiers<P> {
    fn setup(&self) -> TierSetup {
        self.setup
    }

    fn run(&mut self, batch: &EventBatch) {
        self.grow(batch.names.len());
        for event in &batch.events {
            self.event(event, &batch.names);
        }
    }

    fn explained(&mut self) -> Vec<LogLine> {
        self.log.as_mut().map(|log| log.take()).unwrap_or_default()
    }

    fn series(&self) -> &[Sample] {
        self.series.samples()
    }

    fn finish(&mut self, total_blocks: u64) -> TierResult {
        self.end_decode_step();
        self.series.take(&self.counts, self.used);
        self.counts.result((P::NAME, self.setup.mode), self.setup.capacity, self.used, total_blocks)
    }

    fn bytes(&self) -> usize {
        let blocks = self.held.capacity() * size_of::<Held>() + self.accessed_in.capacity() * size_of::<u64>();
        blocks + self.free.bytes() + self.pinned.bytes()
    }
}
