//! Streams that decode together on one pool and one clock.
//!
//! Each stream answers one conversation after the other, without a pause. In a step every stream that decodes computes a token, and prompts
//! and blocks that are recomputed as many as [`ServeConfig::step_tokens`] leaves room for, first come first served. The step takes what
//! [`CostModel`] says of it: attention reads the blocks that are kept, a recomputed block is a chunk behind all that was before it. What
//! deciding costs is measured by `kvtide bench`, and is not in the clock.

use std::collections::VecDeque;

use super::keeper::{Block, Held, Keeper, Place};
use super::{Attention, Conversation, KeepRule};
use crate::cost::{Chunk, CostModel, StepLoad};
use crate::percentile::percentile;
use crate::tier::Links;
use crate::time::Micros;

/// What is served, and how.
#[derive(Clone, Copy)]
pub struct ServeConfig<'a> {
    /// Conversations; streams take them in turn.
    pub attention: &'a Attention,
    /// Streams.
    pub streams: u32,
    /// Scheduler steps, `T`.
    pub steps: u32,
    /// Blocks of the pool; `None` for as many as are asked for.
    pub capacity: Option<u32>,
    /// Who goes first.
    pub rule: KeepRule<'a>,
    /// What a step takes.
    pub cost: &'a CostModel,
    /// Tokens of a step.
    pub step_tokens: u32,
    /// Share of a row from which on a block that is not there is recomputed.
    pub demand: f32,
    /// `δ`, what recomputing a block takes from the utility, as a share of a row.
    pub penalty: f64,
}

/// The price and the pool after a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stamp {
    /// Steps so far.
    pub step: u32,
    /// `μ`, percent of attention for a block; 0 of rules without a price.
    pub price: f64,
    /// Blocks asked for in the step, before anybody went for it.
    pub demanded: u32,
    /// Blocks kept after it.
    pub kept: u32,
    /// Utility of all rows so far.
    pub utility: f64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Served {
    /// Simulated time.
    pub time: Micros,
    /// Most blocks kept after any step.
    pub peak_blocks: u32,
    /// Blocks kept, mean over steps.
    pub mean_blocks: f64,
    /// How long each finished conversation took from its prompt's arrival, in the order they finished.
    pub latencies: Vec<Micros>,
    /// Rows seen.
    pub rows: u64,
    /// Attention that was there, a mean over rows.
    pub retained: f64,
    /// Blocks that were let go while their conversation went on.
    pub evicted: u64,
    /// Blocks computed again.
    pub recomputed: u64,
    /// Attention that was there less the penalty, summed over rows.
    pub utility: f64,
    /// One for each step.
    pub stamps: Vec<Stamp>,
}

impl Served {
    /// Conversations finished a second.
    pub fn requests_per_s(&self) -> f64 {
        self.latencies.len() as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// A percentile of how long conversations took, milliseconds; `None` if none finished.
    pub fn latency_ms(&self, percent: f64) -> Option<f64> {
        let mut all: Vec<f64> = self.latencies.iter().map(|latency| latency.as_millis_f64()).collect();
        all.sort_by(f64::total_cmp);
        (!all.is_empty()).then(|| percentile(&all, percent))
    }
}

/// Plays `config` from start to end.
pub fn serve(config: &ServeConfig<'_>) -> Served {
    let mut serving = Serving::new(*config);
    for _ in 0..config.steps {
        serving.step();
    }
    serving.finish()
}

/// Where a stream is in its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// So many tokens of its prompt are computed.
    Prompt(u32),
    /// So many tokens of the current block are.
    Answer(u32),
}

struct Stream<'a> {
    conversation: &'a Conversation,
    phase: Phase,
    /// Rows seen; the next has this index.
    row: u32,
    arrival: Micros,
}

impl<'a> Stream<'a> {
    fn new(conversation: &'a Conversation, arrival: Micros) -> Stream<'a> {
        Stream { conversation, phase: Phase::Prompt(0), row: 0, arrival }
    }
}

/// A run that goes step by step.
pub struct Serving<'a> {
    config: ServeConfig<'a>,
    keeper: Keeper<'a>,
    streams: Vec<Stream<'a>>,
    /// Their blocks, in the same order.
    held: Vec<Held>,
    /// Streams whose prompts are to be computed.
    prompts: VecDeque<u32>,
    /// Blocks to be computed again: tokens before them.
    again: VecDeque<u32>,
    chunks: Vec<Chunk>,
    used: u32,
    born: u32,
    kept_steps: u64,
    retained: f64,
    served: Served,
}

impl<'a> Serving<'a> {
    /// Nothing has happened yet; every stream's first prompt has arrived.
    pub fn new(config: ServeConfig<'a>) -> Serving<'a> {
        let conversations = &config.attention.conversations;
        let streams = (0..config.streams as usize)
            .map(|index| Stream::new(&conversations[index % conversations.len()], Micros::ZERO));
        Serving {
            keeper: Keeper::new(config.rule, config.capacity, config.streams),
            streams: streams.collect(),
            held: vec![Held::default(); config.streams as usize],
            prompts: (0..config.streams).collect(),
            again: VecDeque::new(),
            chunks: Vec::new(),
            used: 0,
            born: 0,
            kept_steps: 0,
            retained: 0.0,
            served: Served {
                time: Micros::ZERO,
                peak_blocks: 0,
                mean_blocks: 0.0,
                latencies: Vec::new(),
                rows: 0,
                retained: 0.0,
                evicted: 0,
                recomputed: 0,
                utility: 0.0,
                stamps: Vec::with_capacity(config.steps as usize),
            },
            config,
        }
    }

    /// One step: tokens, rows, the clock, and who goes.
    pub fn step(&mut self) {
        let block_tokens = self.config.attention.block_tokens;
        let (mut decodes, mut decode_context) = (0, 0);
        for (stream, held) in self.streams.iter().zip(&self.held) {
            if let Phase::Answer(tokens) = stream.phase {
                decodes += 1;
                decode_context += u64::from((held.kept - 1) * block_tokens + tokens + 1);
            }
        }
        self.compute_chunks(self.config.step_tokens.saturating_sub(decodes).max(1));
        let chunks = self.chunks.iter().copied();
        let load = StepLoad { decodes, decode_context, chunks, blocks: Links::default() };
        self.served.time.0 += Micros::from_secs_f64(self.config.cost.step_seconds(&load)).0.max(1);
        self.answer();
        self.make_room();
    }

    /// What there is to compute beside the answers, at most `room` tokens of it.
    fn compute_chunks(&mut self, mut room: u32) {
        let block_tokens = self.config.attention.block_tokens;
        self.chunks.clear();
        while room >= block_tokens
            && let Some(context) = self.again.pop_front()
        {
            self.chunks.push(Chunk { context, tokens: block_tokens });
            room -= block_tokens;
        }
        while room > 0
            && let Some(&index) = self.prompts.front()
        {
            let stream = &mut self.streams[index as usize];
            let Phase::Prompt(computed) = stream.phase else { break };
            let prompt = stream.conversation.prompt_blocks();
            if computed == 0 {
                let born = self.born..self.born + prompt;
                let held = &mut self.held[index as usize];
                held.blocks.extend((0..prompt).zip(born).map(|(at, born)| Block::new(at, born, born)));
                held.kept = prompt;
                self.used += prompt;
                self.born += prompt;
            }
            let tokens = (prompt * block_tokens - computed).min(room);
            self.chunks.push(Chunk { context: computed, tokens });
            room -= tokens;
            stream.phase = Phase::Prompt(computed + tokens);
            if computed + tokens < prompt * block_tokens {
                break;
            }
            self.prompts.pop_front();
            // Its last step has the first token of the answer as well.
            self.see_row(index);
        }
    }

    /// A token of every answer.
    fn answer(&mut self) {
        let block_tokens = self.config.attention.block_tokens;
        for index in 0..self.config.streams {
            let stream = &mut self.streams[index as usize];
            let Phase::Answer(tokens) = stream.phase else { continue };
            stream.phase = Phase::Answer(tokens + 1);
            if tokens + 1 == block_tokens {
                self.see_row(index);
            }
        }
    }

    /// The next row of a stream: what was there is seen, what is missed most comes back, and the next block begins.
    fn see_row(&mut self, index: u32) {
        let clock = self.born;
        let ServeConfig { demand, penalty, attention, .. } = self.config;
        let (stream, held) = (&mut self.streams[index as usize], &mut self.held[index as usize]);
        let row = stream.conversation.row(stream.row);
        let kept = row.iter().zip(&held.blocks).filter(|(_, block)| block.is_kept);
        let retained: f32 = kept.map(|(share, _)| share).sum();
        // What is kept has all of the attention there is.
        let (scale, fair) = (100.0 / retained.max(1e-6), 100.0 / held.kept.max(1) as f32);
        let mut missed = 0_u32;
        for (at, (&share, block)) in row.iter().zip(&mut held.blocks).enumerate() {
            if !block.is_kept && share >= demand {
                block.is_kept = true;
                missed += 1;
                self.again.push_back(at as u32 * attention.block_tokens);
            }
            if block.is_kept {
                block.stats.observe(share * scale, fair);
            }
        }
        held.kept += missed;
        self.used += missed;
        // The prompt's row is computed whole, whatever the rule.
        if stream.row > 0 {
            self.served.rows += 1;
            self.served.recomputed += u64::from(missed);
            self.retained += f64::from(retained);
            self.served.utility += f64::from(retained) - penalty * f64::from(missed);
        }
        let at = Place { stream: index, turn: held.turn, index: 0 };
        self.keeper.row(&mut held.blocks, at, stream.row, clock);
        if stream.row == stream.conversation.answer_blocks() {
            return self.end(index);
        }
        // Those that came back are offered again, and the one that has just filled; after the prompt's row, all.
        let all = held.blocks.len() as u32;
        let from = if missed > 0 || stream.row == 0 { 0 } else { all - 1 };
        self.keeper.offer(&mut held.blocks, at, (from, all));
        stream.row += 1;
        held.blocks.push(Block::new(all, self.born, clock));
        stream.phase = Phase::Answer(0);
        held.kept += 1;
        self.used += 1;
        self.born += 1;
    }

    /// A conversation is over, and the next one's prompt is there.
    fn end(&mut self, index: u32) {
        let now = self.served.time;
        let conversations = &self.config.attention.conversations;
        let (stream, held) = (&mut self.streams[index as usize], &mut self.held[index as usize]);
        self.served.latencies.push(now.since(stream.arrival));
        self.used -= held.kept;
        (held.turn, held.kept) = (held.turn + 1, 0);
        held.blocks.clear();
        let next = index as usize + held.turn as usize * self.config.streams as usize;
        *stream = Stream::new(&conversations[next % conversations.len()], now);
        self.prompts.push_back(index);
    }

    /// The price of what was asked for, and those that are not worth it, or that there is no room for.
    fn make_room(&mut self) {
        let demanded = self.used;
        self.keeper.move_price(demanded);
        if matches!(self.config.rule, KeepRule::TokenPd(_)) {
            while self.let_go(true) {}
        }
        while self.config.capacity.is_some_and(|capacity| self.used > capacity) && self.let_go(false) {}
        self.keeper.sweep(&self.held, self.used);
        let Served { stamps, peak_blocks, utility, .. } = &mut self.served;
        *peak_blocks = (*peak_blocks).max(self.used);
        self.kept_steps += u64::from(self.used);
        let (step, price) = (stamps.len() as u32 + 1, self.keeper.price());
        stamps.push(Stamp { step, price, demanded, kept: self.used, utility: *utility });
    }

    fn let_go(&mut self, is_priced: bool) -> bool {
        let is_found = self.keeper.pop(is_priced, &mut self.held);
        self.used -= u32::from(is_found);
        self.served.evicted += u64::from(is_found);
        is_found
    }

    /// What came of all steps.
    pub fn finish(self) -> Served {
        let steps = self.served.stamps.len().max(1) as f64;
        Served {
            mean_blocks: self.kept_steps as f64 / steps,
            retained: self.retained / self.served.rows.max(1) as f64,
            ..self.served
        }
    }
}
