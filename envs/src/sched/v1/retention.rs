//! What the scheduler knows of those who give blocks back, where the pool has classes for them.
//!
//! A node is asked the same at the same moments: when a request finishes or is preempted, at most once for the blocks that
//! were cached when it was first admitted and once for those it computed. What it is asked by is
//! [`Release`](kvtide_runtime::Release), filled in here as an adapter fills it in from its engine; a pool without classes
//! has nothing of this.

use kvtide_rules::{Micros, Reuse, Shadow, Visit};
use kvtide_runtime::{GuardConfig, Observation, Part, Release, ReleaseObservation, Retention, RetentionGuard, Stop};

use super::super::RequestId;
use super::super::retain::{Retain, RetentionReport};
use super::V1;
use super::releases::{ReleaseLog, ReleaseSample};
use super::sequence::Sequence;
use crate::deploy::EngineConfig;
use crate::evict::Classes;
use crate::kv::PrefixPool;

/// Everything that classes are chosen by.
#[derive(Debug, Clone)]
pub(super) struct ReleaseDesk {
    retain: Retain,
    guard: RetentionGuard,
    reuse: Reuse,
    shadow: Shadow,
    /// The node as it was last observed, and when.
    node: (Observation, Micros),
    /// By request.
    known: Vec<Known>,
    report: RetentionReport,
    /// What becomes of each release, for who learns.
    log: Option<ReleaseLog>,
}

/// What is kept of a request from its arrival on.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// Stands for its tenant.
    kind: u64,
    /// Blocks that were cached when it was first admitted.
    head_blocks: u32,
    /// From its first admission on, if anybody looks.
    visit: Option<Visit>,
}

/// An admission, as far as classes are concerned.
#[derive(Debug, Clone, Copy)]
struct Admission {
    /// Blocks that were cached.
    hits: u32,
    /// Blocks nobody held before it.
    free: u32,
    now: Micros,
    /// Blocks evicted since the beginning.
    evicted: u64,
}

impl ReleaseDesk {
    pub(super) fn new(num_blocks: u32) -> ReleaseDesk {
        ReleaseDesk {
            retain: Retain::NORMAL,
            guard: RetentionGuard::new(GuardConfig::default()),
            reuse: Reuse::new(num_blocks),
            shadow: Shadow::new(num_blocks),
            node: (Observation::ZERO, Micros::ZERO),
            known: Vec::new(),
            report: RetentionReport::default(),
            log: None,
        }
    }

    fn known(&mut self, id: RequestId) -> &mut Known {
        if self.known.len() <= id.index() {
            self.known.resize(id.index() + 1, Known::default());
        }
        &mut self.known[id.index()]
    }

    /// A request is admitted.
    fn admitted(&mut self, id: RequestId, sequence: &Sequence, admission: Admission, block_size: u32) {
        let Admission { hits, free, now, evicted } = admission;
        let known = *self.known(id);
        if sequence.preemptions > 0 {
            if let Some(visit) = &known.visit {
                self.reuse.resumed(visit, now);
                self.shadow.held(&sequence.keys);
            }
            if let Some(log) = &mut self.log {
                log.asked(&sequence.keys, hits, evicted);
            }
            return;
        }
        self.known(id).head_blocks = hits;
        if !self.retain.looks() {
            return;
        }
        // The last token is never taken from the cache.
        let asked = (sequence.prompt_tokens - 1) / block_size;
        let keys = &sequence.keys[..sequence.keys.len().min(asked as usize)];
        self.known(id).visit = Some(self.reuse.admitted(keys, asked, hits, known.kind, now, evicted));
        self.shadow.admitted(keys, asked, hits, free);
        if let Some(log) = &mut self.log {
            log.asked(keys, hits, evicted);
        }
        self.guard.set_behind(self.shadow.is_behind());
    }

    /// The classes of the head and the tail of what a request gives back.
    fn classes(
        &mut self,
        id: RequestId,
        sequence: &Sequence,
        stop: Stop,
        now: Micros,
        pool: &PrefixPool,
        config: &EngineConfig,
    ) -> [Retention; 2] {
        let Known { head_blocks, visit, .. } = *self.known(id);
        let Some(visit) = visit.filter(|_| self.retain.looks()) else {
            let Retain::Always(classes) = self.retain else { return [Retention::Normal; 2] };
            return classes;
        };
        let evicted = pool.classes().map_or(0, Classes::evicted);
        let kept = pool.classes().map_or(0, |classes| classes.idle_of()[Retention::Keep as usize..].iter().sum());
        self.reuse.released(&visit, stop, now, evicted);
        self.shadow.released(&sequence.keys, sequence.registered);
        let held = sequence.blocks.len() as u32;
        let head_blocks = head_blocks.min(held);
        let mut release = Release {
            block_size: config.block_size,
            num_gpu_blocks: config.num_gpu_blocks,
            prompt_tokens: sequence.prompt_tokens,
            hit_tokens: head_blocks * config.block_size,
            generated_tokens: sequence.tokens - sequence.prompt_tokens,
            kept_blocks: kept,
            ttft_target_us: sequence.slo.ttft.0,
            ..Release::default()
        };
        let mut decide = |part, before: u32, blocks: u32| {
            if blocks == 0 {
                return Retention::Normal;
            }
            release.part = part;
            (release.depth_blocks, release.part_blocks) = (before, blocks);
            let range = before as usize..(before + blocks) as usize;
            release.shared_blocks = pool.shared_among(&sequence.blocks[range.clone()]);
            self.reuse.describe(&visit, stop, evicted, &mut release);
            let age = now.since(self.node.1).0;
            let seen = release.observe(&self.node.0);
            let class = choose(&self.retain, &mut self.guard, &seen, age);
            if let Some(log) = &mut self.log {
                let keys = sequence.keys.get(before as usize..range.end.min(sequence.keys.len())).unwrap_or_default();
                let (asked_again, found, asked_at) = (0, 0, None);
                log.released(
                    ReleaseSample { at: now, part, seen, class, blocks, asked_again, found, evicted, asked_at },
                    keys,
                );
            }
            let counts = if part == Part::Head { &mut self.report.heads } else { &mut self.report.tails };
            counts[class as usize] += 1;
            class
        };
        [decide(Part::Head, 0, head_blocks), decide(Part::Tail, head_blocks, held - head_blocks)]
    }
}

fn choose(retain: &Retain, guard: &mut RetentionGuard, seen: &ReleaseObservation, age_us: u64) -> Retention {
    match retain {
        Retain::Always([class, _]) => *class,
        Retain::Guarded(table) => guard.decide(table.as_ref().map_err(|reason| *reason), seen, age_us),
        Retain::Policy(policy) => policy.retain(seen),
    }
}

impl V1 {
    /// Whether its pool has classes for what is given back.
    pub fn has_classes(&self) -> bool {
        self.desk.is_some()
    }

    /// Lets `retain` choose classes from now on; nothing where the pool has none.
    pub fn set_retain(&mut self, retain: Retain) {
        if let Some(desk) = &mut self.desk {
            desk.retain = retain;
        }
    }

    /// Notes from now on what becomes of each release somebody looks at.
    pub fn collect_releases(&mut self) {
        if let Some(desk) = &mut self.desk {
            desk.log.get_or_insert_default();
        }
    }

    /// What became of each release so far; nothing unless it was to be [collected](Self::collect_releases).
    pub fn releases(&self) -> &[ReleaseSample] {
        self.desk.as_ref().and_then(|desk| desk.log.as_ref()).map_or(&[], ReleaseLog::samples)
    }

    /// Whether classes are chosen by what the node looks like.
    pub fn wants_observation(&self) -> bool {
        self.desk.as_ref().is_some_and(|desk| desk.retain.looks())
    }

    /// The node was observed.
    pub fn observed(&mut self, node: Observation, now: Micros) {
        if let Some(desk) = &mut self.desk {
            desk.node = (node, now);
        }
    }

    /// A number that stands for the tenant of a request, to be told before it is admitted.
    pub fn set_kind(&mut self, id: RequestId, kind: u64) {
        if let Some(desk) = &mut self.desk {
            desk.known(id).kind = kind;
        }
        if let Some(intents) = &mut self.intents {
            intents.set_kind(id, kind);
        }
    }

    /// What became of given-back blocks; `None` without classes.
    pub fn retention_report(&self) -> Option<RetentionReport> {
        let desk = self.desk.as_ref()?;
        let mut report = desk.report.clone();
        report.set_guard(desk.guard.counters());
        report.shadow = desk.shadow.counts();
        report.evicted_blocks = self.pool.classes().map(Classes::evicted_of).unwrap_or_default();
        Some(report)
    }

    /// Tells of an admission with so many cached blocks, before which so many were free.
    pub(super) fn note_admitted(&mut self, id: RequestId, hits: u32, free: u32, now: Micros) {
        if let Some(intents) = &mut self.intents {
            intents.admitted(id, &self.sequences[id.index()], hits, now, self.config.block_size);
        }
        if let Some(desk) = &mut self.desk {
            let evicted = self.pool.classes().map_or(0, Classes::evicted);
            let admission = Admission { hits, free, now, evicted };
            desk.admitted(id, &self.sequences[id.index()], admission, self.config.block_size);
            // What is in force already would go on losing.
            let is_guarded = matches!(desk.retain, Retain::Guarded(_));
            self.pool.set_flat(is_guarded && desk.shadow.is_behind());
        }
    }

    /// A request gives its blocks back.
    pub(super) fn release(&mut self, id: RequestId, stop: Stop, now: Micros) {
        self.declare(id, stop, now);
        let sequence = &mut self.sequences[id.index()];
        match &mut self.desk {
            Some(desk) if !sequence.blocks.is_empty() => {
                let classes = desk.classes(id, sequence, stop, now, &self.pool, &self.config);
                let head_blocks = desk.known(id).head_blocks;
                self.pool.give_back_as(&mut sequence.blocks, head_blocks, classes);
            }
            _ => self.pool.give_back(&mut sequence.blocks),
        }
    }
}
