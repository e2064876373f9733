//! Small V1 engines and workloads drawn from seeds, extremes often.

use std::sync::Arc;

use kvtide_envs::deploy::{DeadEnds, EngineConfig, EngineKind};
use kvtide_envs::evict::Eviction;
use kvtide_envs::kv::{Content, Segment};
use kvtide_envs::seed::{self, Stream};
use kvtide_runtime::action::WATERMARK_LEVELS;
use rand::RngExt;

use super::reference_v1::{Ask, Params};

/// Streams from here on are nobody's own.
const FIRST_SHARED_STREAM: u32 = 1_000_000;

/// What a seed stands for.
#[derive(Debug, Clone)]
pub struct World {
    pub engine: EngineConfig,
    /// `(step of arrival, request)`, in the order of arrival and of ids.
    pub requests: Vec<(usize, Ask)>,
    /// Chance of another watermark in each step.
    pub fickle: f64,
}

fn pick<T: Copy>(stream: &mut Stream, choices: &[T]) -> T {
    choices[stream.random_range(0..choices.len())]
}

/// Mostly small, at times up to `most`; 1 at least.
fn size(s: &mut Stream, most: u32) -> u32 {
    let most = most.max(1);
    match s.random_range(0..8) {
        0 => most,
        1 => 1,
        2 | 3 => s.random_range(1..=most),
        _ => s.random_range(1..=most.div_ceil(4)),
    }
}

/// A level of the action, or anything between.
pub fn watermark(s: &mut Stream) -> f64 {
    if s.random_bool(0.5) { pick(s, &WATERMARK_LEVELS) } else { s.random_range(0.0..0.4) }
}

impl World {
    pub fn draw(seed: u64) -> World {
        let mut stream = seed::stream(seed, "reference_v1.world", 0);
        let s = &mut stream;
        let block_size = pick(s, &[1, 2, 3, 4, 4, 7, 16]);
        let num_gpu_blocks = if s.random_bool(0.1) { s.random_range(2..=4) } else { s.random_range(5..=60) };
        let tokens = block_size * (num_gpu_blocks - 1);
        let max_model_len = match s.random_range(0..10) {
            0 => s.random_range(2..=2 * tokens + 2),
            1..4 => s.random_range(2..=tokens + 1),
            _ => tokens.max(2),
        };
        let threshold = size(s, tokens);
        let engine = EngineConfig {
            engine: EngineKind::V1,
            block_size,
            num_gpu_blocks,
            max_num_seqs: pick(s, &[1, 2, 3, 5, 8, 64]),
            max_num_batched_tokens: if s.random_bool(0.5) {
                size(s, tokens)
            } else {
                s.random_range(tokens..=2 * tokens)
            },
            max_model_len,
            enable_chunked_prefill: s.random_bool(0.85),
            async_scheduling: s.random_bool(0.5),
            enable_prefix_caching: s.random_bool(0.65),
            long_prefill_token_threshold: if s.random_bool(0.7) { 0 } else { threshold },
            scheduler_reserve_full_isl: s.random_bool(0.7),
            dead_ends: DeadEnds::Faithful,
            // The reference has one queue, and classes nobody chooses are that.
            eviction: if seed.is_multiple_of(2) { Eviction::Lru } else { Eviction::Classes },
            ..EngineConfig::default()
        };
        World { requests: requests(s, &engine), engine, fickle: pick(s, &[0.0, 0.1, 0.5, 1.0]) }
    }

    /// The engine as the reference has it.
    pub fn params(&self) -> Params {
        let engine = &self.engine;
        Params {
            block_size: engine.block_size,
            num_blocks: engine.num_gpu_blocks,
            prefix_caching: engine.enable_prefix_caching,
            max_num_batched_tokens: engine.max_num_batched_tokens,
            max_num_seqs: engine.max_num_seqs,
            max_model_len: engine.max_model_len,
            long_prefill_token_threshold: engine.long_prefill_token_threshold,
            scheduler_reserve_full_isl: engine.scheduler_reserve_full_isl,
            chunked_prefill: engine.enable_chunked_prefill,
            async_scheduling: engine.async_scheduling,
        }
    }
}

/// What the request's tokens are, for our scheduler. Always told: `None` would say that nobody else has any of them, and
/// a later request may quote this one.
pub fn content(ask: &Ask) -> Content {
    let segments: Arc<[Segment]> =
        ask.prefix.iter().map(|&(stream, end)| Segment { stream: stream.into(), end }).collect();
    Content::new(ask.scope.into(), ask.id.into(), segments)
}

fn requests(s: &mut Stream, engine: &EngineConfig) -> Vec<(usize, Ask)> {
    let pool = engine.block_size * (engine.num_gpu_blocks - 1);
    let longest_prompt = engine.max_model_len - 1;
    let count = s.random_range(1..=40);
    let gap = pick(s, &[0, 1, 1, 3, 10]);
    let long_answers = s.random_bool(0.4);
    // Some workloads have a prompt or two that no pool of theirs could hold.
    let usual = if s.random_bool(0.15) { longest_prompt } else { longest_prompt.min(pool.div_ceil(2)) };
    let num_scopes = pick(s, &[1, 1, 1, 2]);
    let (mut step, mut asks) = (0, Vec::<(usize, Ask)>::new());
    for id in 0..count {
        step += s.random_range(0..=gap);
        let prompt = size(s, usual);
        let output = if long_answers { size(s, engine.max_model_len + 1) } else { s.random_range(1..=12) };
        let mut ask = Ask { id, prompt, output, scope: s.random_range(0..num_scopes), prefix: Vec::new() };
        match s.random_range(0..6) {
            // A system prompt.
            0 | 1 => ask.prefix = vec![(FIRST_SHARED_STREAM + s.random_range(0..3), size(s, prompt))],
            // Somebody's prompt again, to the last token.
            2 if !asks.is_empty() => {
                let (_, twin) = &asks[s.random_range(0..asks.len())];
                ask = Ask { prefix: whole_prompt(twin), prompt: twin.prompt, scope: twin.scope, ..ask };
            }
            // The next turn of a conversation: prompt and part of the answer, then more.
            3 if !asks.is_empty() => {
                let (_, before) = &asks[s.random_range(0..asks.len())];
                let end = before.prompt + s.random_range(0..=before.output);
                ask.prefix.extend(&before.prefix);
                ask.prefix.push((before.id, end));
                ask.prompt = (end + size(s, 3 * engine.block_size)).min(longest_prompt);
                ask.scope = before.scope;
                cut(&mut ask);
            }
            // Many parts.
            4 => {
                let parts = s.random_range(1..=5);
                ask.prefix = (1..=parts)
                    .map(|part| (FIRST_SHARED_STREAM + s.random_range(0..2), prompt * part / parts))
                    .collect();
                cut(&mut ask);
            }
            _ => {}
        }
        asks.push((step as usize, ask));
    }
    asks
}

/// The streams of a request's prompt, its own included.
fn whole_prompt(ask: &Ask) -> Vec<(u32, u32)> {
    let mut prefix = ask.prefix.clone();
    if prefix.last().is_none_or(|&(_, end)| end < ask.prompt) {
        prefix.push((ask.id, ask.prompt));
    }
    prefix
}

/// Leaves the parts that rise within the prompt.
fn cut(ask: &mut Ask) {
    let mut start = 0;
    let prompt = ask.prompt;
    ask.prefix.retain_mut(|(_, end)| {
        *end = (*end).min(prompt);
        let rises = *end > start;
        start = start.max(*end);
        rises
    });
}
