//! A slow model of vLLM's V1 decisions, written from the rules and not from the scheduler under test: a queue is a list,
//! every request is looked at in every step, every content is compared token by token.
//!
//! Synchronous and asynchronous scheduling are one model: a step is scheduled, then the output of a batch is processed,
//! this step's or the one's before. In a synchronous engine `placeholders` and `in_flight` are 0 whenever a rule looks at
//! them. Policy fcfs, the newest is the victim, dead ends as the engine has them.

use std::collections::{BTreeMap, VecDeque};

use super::record_v1::Record;
use super::reference_pool::{Contents, Key, Pool};

/// Settings, under golden logs' names.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    pub block_size: u32,
    pub num_blocks: u32,
    pub prefix_caching: bool,
    pub max_num_batched_tokens: u32,
    pub max_num_seqs: u32,
    pub max_model_len: u32,
    pub long_prefill_token_threshold: u32,
    pub scheduler_reserve_full_isl: bool,
    pub chunked_prefill: bool,
    pub async_scheduling: bool,
}

/// A request as it arrives.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// Its name, and the stream of its own tokens.
    pub id: u32,
    pub prompt: u32,
    pub output: u32,
    /// Requests of different scopes share nothing.
    pub scope: u32,
    /// `(stream, end)`: positions below `end`, from the end before, are of this stream; those after the last are its own.
    pub prefix: Vec<(u32, u32)>,
}

#[derive(Debug, Clone, Default)]
struct Request {
    ask: Ask,
    generated: i64,
    computed: i64,
    /// Tokens sampled and not yet known.
    placeholders: i64,
    /// Tokens of steps not yet processed.
    in_flight: i64,
    /// Of those, the ones that were under way when it was preempted.
    stale: i64,
    preempted: bool,
    table: Vec<u32>,
    /// Blocks at the head of the table that are registered.
    registered: i64,
    /// Keys of its full blocks, as far as anybody asked.
    keys: Vec<Key>,
}

impl Request {
    /// Known tokens.
    fn len(&self) -> i64 {
        i64::from(self.ask.prompt) + self.generated
    }

    /// Stream of the token at `position`.
    fn stream(&self, position: i64) -> u32 {
        let prefix = self.ask.prefix.iter().find(|(_, end)| position < i64::from(*end));
        prefix.map_or(self.ask.id, |&(stream, _)| stream)
    }
}

/// Somebody in a batch.
#[derive(Debug, Clone, Copy)]
struct Scheduled {
    id: u32,
    tokens: i64,
    samples: bool,
}

/// The model's state.
#[derive(Debug)]
pub struct Reference {
    params: Params,
    requests: BTreeMap<u32, Request>,
    waiting: VecDeque<u32>,
    running: Vec<u32>,
    pool: Pool,
    contents: Contents,
    /// The batch not yet processed, if asynchronous.
    batch: Vec<Scheduled>,
    preemptions: u64,
    /// Prompts from which on they are limited, and to how many tokens.
    pressure: Option<(usize, i64)>,
    /// Steps in which they were.
    pressed: u64,
    /// Tokens a step is to have, beside what decodes need.
    budget: Option<i64>,
    /// Steps that had fewer tokens than the engine allows, and those of them in which decodes had more than was set.
    budgeted: [u64; 2],
}

/// The step being scheduled.
struct Draft {
    record: Record,
    batch: Vec<Scheduled>,
    /// Tokens left to schedule.
    budget: i64,
    /// Tokens left to schedule of prompts.
    prompts: i64,
    /// `long_prefill_token_threshold` as it applies; 0 is off.
    threshold: i64,
    watermark_blocks: i64,
}

fn ceil(value: i64, by: i64) -> i64 {
    -(-value).div_euclid(by)
}

impl Reference {
    pub fn new(params: Params) -> Reference {
        Reference {
            pool: Pool::new(params.num_blocks),
            params,
            requests: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            contents: Contents::default(),
            batch: Vec::new(),
            preemptions: 0,
            pressure: None,
            pressed: 0,
            budget: None,
            budgeted: [0; 2],
        }
    }

    pub fn submit(&mut self, ask: Ask) {
        self.waiting.push_back(ask.id);
        self.requests.insert(ask.id, Request { ask, ..Request::default() });
    }

    /// Whether nobody waits or runs.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Free blocks.
    pub fn free(&self) -> u32 {
        self.pool.num_free() as u32
    }

    /// Waiting and running, head first.
    pub fn queues(&self) -> [Vec<u32>; 2] {
        [self.waiting.iter().copied().collect(), self.running.clone()]
    }

    /// Generated and computed tokens of a request that has not finished.
    pub fn progress(&self, id: u32) -> [u32; 2] {
        let request = &self.requests[&id];
        [request.generated as u32, request.computed as u32]
    }

    /// One step, to the end of the output it processes.
    pub fn step(&mut self, watermark: f64) -> Record {
        let alone = self.waiting.len() + self.running.len() == 1;
        let mut draft = Draft {
            record: Record::default(),
            batch: Vec::new(),
            budget: self.params.max_num_batched_tokens.into(),
            prompts: self.prompt_budget(),
            threshold: if alone { 0 } else { self.params.long_prefill_token_threshold.into() },
            watermark_blocks: (watermark * f64::from(self.params.num_blocks)).trunc() as i64,
        };
        draft.budget = self.step_budget(&mut draft);
        self.run(&mut draft);
        if draft.record.preempted.is_empty() {
            self.admit(&mut draft);
        }
        let Draft { mut record, batch, .. } = draft;
        record.tokens = batch.iter().map(|scheduled| scheduled.tokens as u32).sum();
        record.free = self.free();
        record.queues = self.queues();
        record.tables = batch.iter().map(|scheduled| self.requests[&scheduled.id].table.clone()).collect();
        record.free_queue = self.pool.free_queue();
        record.cached = self.params.prefix_caching.then(|| self.pool.num_keys());
        let due = if self.params.async_scheduling { std::mem::replace(&mut self.batch, batch) } else { batch };
        record.finished = self.process(&due);
        record.free_end = self.free();
        record
    }

    /// From now on prompts are limited to `tokens` in a step before which somebody decodes and `prompts` have prompt left.
    pub fn limit_prompts(&mut self, prompts: u32, tokens: u32) {
        self.pressure = Some((prompts as usize, tokens.into()));
    }

    /// Steps in which prompts were limited.
    pub fn pressed(&self) -> u64 {
        self.pressed
    }

    /// Rule 0: before anybody is looked at.
    fn prompt_budget(&mut self) -> i64 {
        let has_prompt_left = |id: &&u32| self.is_prompt(**id);
        let prompts = self.running.iter().chain(&self.waiting).filter(has_prompt_left).count();
        let decodes = self.running.iter().filter(|id| !self.is_prompt(**id)).count();
        match self.pressure {
            Some((from, tokens)) if prompts >= from && decodes > 0 => {
                self.pressed += 1;
                tokens
            }
            _ => i64::MAX,
        }
    }

    /// From now on a step has so many tokens, but for what decodes need and the engine allows.
    pub fn set_budget(&mut self, tokens: u32) {
        self.budget = Some(tokens.into());
    }

    /// Steps that had fewer tokens than the engine allows, and those of them in which decodes needed more than was set.
    pub fn budgeted(&self) -> [u64; 2] {
        self.budgeted
    }

    /// Rule 0 as well: everybody who decodes is reached.
    fn step_budget(&mut self, draft: &mut Draft) -> i64 {
        let engine = draft.budget;
        let Some(budget) = self.budget else { return engine };
        let prompts = std::mem::replace(&mut draft.prompts, i64::MAX);
        draft.budget = i64::MAX;
        let (mut asked, mut needed) = (0, 0);
        for &id in &self.running {
            let request = &self.requests[&id];
            let known = request.len() + request.placeholders;
            let tokens = self.rest(id, draft);
            asked += tokens;
            let decodes = known > i64::from(request.ask.prompt) && known - request.computed == 1 && tokens == 1;
            needed = if decodes { asked } else { needed };
        }
        draft.prompts = prompts;
        let tokens = engine.min(budget.max(needed));
        self.budgeted[0] += u64::from(tokens < engine);
        self.budgeted[1] += u64::from(tokens < engine && tokens > budget);
        tokens
    }

    fn is_prompt(&self, id: u32) -> bool {
        let request = &self.requests[&id];
        request.computed < i64::from(request.ask.prompt)
    }

    /// Rule 1: the running loop.
    fn run(&mut self, draft: &mut Draft) {
        let mut index = 0;
        while index < self.running.len() && draft.budget > 0 {
            let id = self.running[index];
            let tokens = self.rest(id, draft);
            if tokens > 0 {
                let need = self.need(id, self.requests[&id].computed + tokens);
                if !self.make_room(id, need, draft) {
                    break;
                }
                self.take(id, need);
                draft.prompts -= if self.is_prompt(id) { tokens } else { 0 };
                self.schedule(id, tokens, draft);
                draft.record.running.push((id, tokens as u32));
            }
            index += 1;
        }
    }

    /// Tokens a running request computes in this step; 0 if it sits the step out.
    fn rest(&self, id: u32, draft: &Draft) -> i64 {
        let request = &self.requests[&id];
        let most = i64::from(request.ask.prompt) + i64::from(request.ask.output);
        let last_is_in_flight = request.placeholders > 0 && request.computed + 2 - request.placeholders >= most;
        if last_is_in_flight {
            return 0;
        }
        let mut tokens = request.len() + request.placeholders - request.computed;
        if 0 < draft.threshold && draft.threshold < tokens {
            tokens = draft.threshold;
        }
        let prompts = if self.is_prompt(id) { draft.prompts } else { i64::MAX };
        tokens.min(draft.budget).min(i64::from(self.params.max_model_len) - request.computed - 1).min(prompts)
    }

    /// Blocks missing for the first `tokens` tokens.
    fn need(&self, id: u32, tokens: i64) -> i64 {
        let most = tokens.min(self.params.max_model_len.into());
        (ceil(most, self.params.block_size.into()) - self.requests[&id].table.len() as i64).max(0)
    }

    /// Preempts from the tail until the blocks are there; false if that was the request itself.
    fn make_room(&mut self, id: u32, need: i64, draft: &mut Draft) -> bool {
        while need > self.pool.num_free() {
            draft.record.refused.push((id, 'G', need as u32, 0, self.free()));
            let victim = self.running.pop().expect("at least the request itself runs");
            self.preempt(victim, draft);
            if victim == id {
                return false;
            }
        }
        true
    }

    /// Rule P.
    fn preempt(&mut self, id: u32, draft: &mut Draft) {
        let request = self.requests.get_mut(&id).expect("it runs");
        draft.record.preempted.push((id, request.computed as u32));
        self.pool.give_back(&request.table);
        request.table.clear();
        request.computed = 0;
        request.registered = 0;
        request.placeholders = 0;
        request.stale = request.in_flight;
        request.preempted = true;
        self.waiting.push_front(id);
        self.preemptions += 1;
    }

    /// Rule 2: the waiting loop.
    fn admit(&mut self, draft: &mut Draft) {
        while draft.budget > 0 && self.running.len() < self.params.max_num_seqs as usize {
            let Some(&id) = self.waiting.front() else { break };
            if !self.admit_head(id, draft) {
                break;
            }
        }
    }

    /// Admits the head of waiting, or says no.
    fn admit_head(&mut self, id: u32, draft: &mut Draft) -> bool {
        let Params { max_model_len, scheduler_reserve_full_isl, chunked_prefill, .. } = self.params;
        let block_size = i64::from(self.params.block_size);
        assert_eq!(self.requests[&id].stale, 0, "its output comes before the next scan");
        let hits = self.look_up(id);
        let hit = hits.len() as i64 * block_size;
        let len = self.requests[&id].len();
        let mut tokens = len - hit;
        if 0 < draft.threshold && draft.threshold < tokens {
            tokens = draft.threshold;
        }
        if !chunked_prefill && tokens > draft.budget {
            return false;
        }
        if draft.prompts == 0 {
            return false;
        }
        tokens = tokens.min(draft.budget).min(draft.prompts);
        let idle = hits.iter().filter(|&&block| self.pool.is_idle(block)).count() as i64;
        let reserve = if self.running.is_empty() { 0 } else { draft.watermark_blocks };
        let need = |tokens: i64| ceil(tokens.min(max_model_len.into()), block_size) - hits.len() as i64 + idle;
        let tests = [('F', need(len), scheduler_reserve_full_isl), ('A', need(hit + tokens), true)];
        for (kind, need, applies) in tests {
            if applies && need + reserve > self.pool.num_free() {
                draft.record.refused.push((id, kind, need as u32, reserve as u32, self.free()));
                return false;
            }
        }
        for &block in &hits {
            self.pool.share(block);
        }
        let request = self.requests.get_mut(&id).expect("it waits");
        request.registered = hits.len() as i64;
        request.computed = hit;
        request.table = hits;
        let list = if request.preempted { &mut draft.record.resumed } else { &mut draft.record.new };
        list.push((id, tokens as u32, hit as u32));
        self.waiting.pop_front();
        self.running.push(id);
        self.take(id, self.need(id, hit + tokens));
        draft.prompts -= tokens;
        self.schedule(id, tokens, draft);
        true
    }

    /// Rule L: cached blocks that hold the beginning of the request.
    fn look_up(&mut self, id: u32) -> Vec<u32> {
        let mut hits = Vec::new();
        if !self.params.prefix_caching {
            return hits;
        }
        // The last token is never taken from the cache.
        let most = (self.requests[&id].len() - 1) / i64::from(self.params.block_size);
        for index in 0..most {
            let key = self.key(id, index);
            let Some(block) = self.pool.cached(key) else { break };
            hits.push(block);
        }
        hits
    }

    /// Key of a full block of known tokens.
    fn key(&mut self, id: u32, index: i64) -> Key {
        let block_size = i64::from(self.params.block_size);
        let request = self.requests.get_mut(&id).expect("it is known");
        for block in request.keys.len() as i64..=index {
            let tokens = block * block_size..(block + 1) * block_size;
            assert!(tokens.end <= request.len(), "the block's tokens are known");
            let mut streams: Vec<u32> = tokens.map(|position| request.stream(position)).collect();
            if block == 0 {
                streams.push(request.ask.scope);
            }
            let key = self.contents.key(request.keys.last().copied(), streams);
            request.keys.push(key);
        }
        request.keys[index as usize]
    }

    fn take(&mut self, id: u32, blocks: i64) {
        let table = &mut self.requests.get_mut(&id).expect("it runs").table;
        table.extend((0..blocks).map(|_| self.pool.take()));
    }

    /// Blocks are there: counts the tokens, and registers the blocks they fill before the step has run.
    fn schedule(&mut self, id: u32, tokens: i64, draft: &mut Draft) {
        let request = &self.requests[&id];
        draft.record.computed.push(request.computed as u32);
        draft.budget -= tokens;
        self.register(id, (request.computed + tokens).min(request.len()));
        let request = self.requests.get_mut(&id).expect("it runs");
        request.computed += tokens;
        request.in_flight += tokens;
        let samples = request.computed >= request.len() + request.placeholders;
        request.placeholders += i64::from(samples);
        draft.batch.push(Scheduled { id, tokens, samples });
    }

    /// Rule C: registers the full blocks among the first `tokens` tokens.
    fn register(&mut self, id: u32, tokens: i64) {
        if !self.params.prefix_caching {
            return;
        }
        let full = tokens / i64::from(self.params.block_size);
        for index in self.requests[&id].registered..full {
            let key = self.key(id, index);
            self.pool.register(self.requests[&id].table[index as usize], key);
        }
        let request = self.requests.get_mut(&id).expect("it runs");
        request.registered = request.registered.max(full);
    }

    /// The output of a batch, in its order; who finished.
    fn process(&mut self, batch: &[Scheduled]) -> Vec<u32> {
        let mut finished = Vec::new();
        for &Scheduled { id, tokens, samples } in batch {
            let request = self.requests.get_mut(&id).expect("it was scheduled");
            request.in_flight -= tokens;
            let is_stale = request.stale > 0;
            if is_stale {
                request.stale -= tokens;
            }
            if !samples {
                continue;
            }
            request.generated += 1;
            if !is_stale {
                request.placeholders -= 1;
                let known = request.computed - request.in_flight;
                self.register(id, known);
            }
            let request = self.requests.get_mut(&id).expect("it was scheduled");
            if request.len() >= self.params.max_model_len.into() || request.generated >= request.ask.output.into() {
                self.pool.give_back(&request.table);
                request.table.clear();
                finished.push(id);
            }
        }
        self.running.retain(|id| !finished.contains(id));
        self.waiting.retain(|id| !finished.contains(id));
        finished
    }
}
