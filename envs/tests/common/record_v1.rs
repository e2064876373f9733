//! What golden logs of vLLM's V1 scheduler say of a step, in full: queues and tables are lists, not checksums.

use std::fmt::{self, Display};

use kvtide_envs::sched::{Outcome, PrefillSource, Refusal, RequestId, StepPlan, Test, V1};
use serde_json::{Map, Value, json};

/// One step. Field names are the log's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Scheduled requests that ran before: `(id, tokens)`.
    pub running: Vec<(u32, u32)>,
    /// Admitted for the first time: `(id, tokens, hit tokens)`.
    pub new: Vec<(u32, u32, u32)>,
    /// Admitted again after a preemption.
    pub resumed: Vec<(u32, u32, u32)>,
    /// `(id, computed tokens lost)`.
    pub preempted: Vec<(u32, u32)>,
    /// `(id, G, F or A, need, watermark blocks used, free)`.
    pub refused: Vec<(u32, char, u32, u32, u32)>,
    pub tokens: u32,
    pub free: u32,
    /// Ids waiting and running, head first.
    pub queues: [Vec<u32>; 2],
    /// Tokens of each scheduled request computed before the step.
    pub computed: Vec<u32>,
    /// Block tables of the scheduled requests.
    pub tables: Vec<Vec<u32>>,
    pub free_queue: Vec<u32>,
    /// Distinct contents cached; `None` without prefix caching.
    pub cached: Option<usize>,
    pub finished: Vec<u32>,
    /// Free blocks at the step's end.
    pub free_end: u32,
}

/// CRC-32 of the values as little-endian words.
pub fn crc<'a>(values: impl IntoIterator<Item = &'a u32>) -> u32 {
    let bytes: Vec<u8> = values.into_iter().flat_map(|value| value.to_le_bytes()).collect();
    crc32fast::hash(&bytes)
}

/// vLLM's KV usage, to 6 places.
pub fn usage(free: u32, num_blocks: u32) -> f64 {
    let usage = 1.0 - f64::from(free) / f64::from(num_blocks - 1);
    format!("{usage:.6}").parse().expect("a printed number is a number")
}

impl Record {
    /// Of our scheduler, after `schedule`; what finishes is added later.
    pub fn of(plan: &StepPlan, scheduler: &V1) -> Record {
        let scheduled = scheduler.scheduled(plan);
        let admitted = |id| plan.prefills.iter().any(|chunk| chunk.id == id && chunk.source == PrefillSource::Waiting);
        let again = |id| scheduler.view(id).preemptions > 0;
        let admissions = |wanted: bool| {
            let list = scheduled.iter().filter(|turn| admitted(turn.id) && again(turn.id) == wanted);
            list.map(|turn| (turn.id.0, turn.tokens, turn.context)).collect()
        };
        let refusal = |&Refusal { id, test, need, reserve, free, .. }: &Refusal| {
            let kind = match test {
                Test::Growth => 'G',
                Test::Prompt => 'F',
                Test::Chunk => 'A',
            };
            (id.0, kind, need, reserve, free)
        };
        let ids = |queue: &mut dyn Iterator<Item = RequestId>| queue.map(|id| id.0).collect();
        let pool = scheduler.pool();
        Record {
            running: scheduled.iter().filter(|turn| !admitted(turn.id)).map(|turn| (turn.id.0, turn.tokens)).collect(),
            new: admissions(false),
            resumed: admissions(true),
            preempted: plan.preempted.iter().map(|victim| (victim.id.0, victim.lost_tokens)).collect(),
            refused: plan.growth_refused.iter().chain(&plan.admissions_refused).map(refusal).collect(),
            tokens: plan.batched_tokens(),
            free: pool.num_free(),
            queues: [ids(&mut scheduler.waiting()), ids(&mut scheduler.running().iter().copied())],
            computed: scheduled.iter().map(|turn| turn.context).collect(),
            tables: scheduled
                .iter()
                .map(|turn| scheduler.table(turn.id).iter().map(|block| block.0).collect())
                .collect(),
            free_queue: pool.free_blocks().map(|block| block.0).collect(),
            cached: scheduler.config().enable_prefix_caching.then(|| pool.num_keys()),
            finished: Vec::new(),
            free_end: pool.num_free(),
        }
    }

    /// Adds what the processed step came to.
    pub fn finish(mut self, outcome: &Outcome, scheduler: &V1) -> Record {
        self.finished = outcome.finished.iter().map(|id| id.0).collect();
        self.free_end = scheduler.pool().num_free();
        self
    }

    /// Nothing scheduled, nobody preempted.
    pub fn is_idle(&self) -> bool {
        self.tokens == 0 && self.preempted.is_empty()
    }

    /// Hit tokens of the step.
    pub fn hits(&self) -> u64 {
        self.new.iter().chain(&self.resumed).map(|admitted| u64::from(admitted.2)).sum()
    }

    /// The step as a log has it.
    pub fn to_json(&self, step: usize, num_blocks: u32) -> Map<String, Value> {
        let running: Vec<Value> = self
            .running
            .iter()
            .map(|&(id, tokens)| if tokens == 1 { json!(id) } else { json!([id, tokens]) })
            .collect();
        let mut log = Map::new();
        let lists = [
            ("running", json!(running)),
            ("new", json!(self.new)),
            ("resumed", json!(self.resumed)),
            ("preempted", json!(self.preempted)),
            ("refused", json!(self.refused)),
            ("finished", json!(self.finished)),
        ];
        for (name, list) in lists {
            if list.as_array().is_some_and(|list| !list.is_empty()) {
                log.insert(name.to_owned(), list);
            }
        }
        let mut insert = |name: &str, value: Value| log.insert(name.to_owned(), value);
        insert("step", json!(step));
        insert("tokens", json!(self.tokens));
        insert("free", json!(self.free));
        insert("usage", json!(usage(self.free, num_blocks)));
        insert("q", json!(self.queues.each_ref().map(Vec::len)));
        insert("q_crc", json!(self.queues.each_ref().map(crc)));
        insert("comp_crc", json!(crc(&self.computed)));
        insert("bt_crc", json!(crc(self.tables.iter().flatten())));
        insert("fq_crc", json!(crc(&self.free_queue)));
        if let Some(cached) = self.cached {
            insert("cached", json!(cached));
        }
        if !self.finished.is_empty() {
            insert("free_end", json!(self.free_end));
        }
        log
    }
}

impl Display for Record {
    /// One line for each kind of field.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { running, new, resumed, preempted, refused, tokens, free, .. } = self;
        let [waiting, queue] = &self.queues;
        writeln!(f, "  scheduled {running:?} new {new:?} resumed {resumed:?}, {tokens} tokens")?;
        writeln!(f, "  preempted {preempted:?} refused {refused:?}")?;
        writeln!(f, "  waiting {waiting:?} running {queue:?}")?;
        writeln!(f, "  computed {:?} tables {:?}", self.computed, self.tables)?;
        writeln!(f, "  free {free}: {:?} cached {:?}", self.free_queue, self.cached)?;
        write!(f, "  finished {:?} then free {}", self.finished, self.free_end)
    }
}
