//! Agentic sessions: prompts that grow turn by turn behind a system prompt that sessions share.
//!
//! Shaped after the coding sessions of `callanjfox/kv-cache-tester` (Apache-2.0; 512 sessions, 29,498 requests of their
//! main agents), of which only quantiles are used, and scaled so that a card of 24 GB serves several at a time:
//!
//! - What a session starts with, and what tools return between an answer and the next prompt, is a sixteenth of what was
//!   recorded, the start up to 10,000 tokens. (Recorded prompts have 110,000 tokens in the median; here, 8,000.)
//! - Answers are as long as recorded, up to 4,096 tokens: 236 in the median.
//! - A session has a quarter of the recorded turns, 15 on average.
//! - From a request to the next is as long as recorded, up to 300 s, the 95th percentile: longer pauses are nights and
//!   forgotten terminals. Times do not wait for answers: an open loop, see [`crate::trace::SessionArrivals`].
//! - System prompts, with the tools they describe, are chosen: eight, of a sixteenth of the recorded lengths, with shares
//!   as 1, 1/2, …, 1/8 (Zipf). What recorded sessions have in common is not in their trace.
//! - Where the next prompt would pass 16,384 tokens, the session is compacted as agents do: it goes on with the system
//!   prompt and a summary of 2,048 tokens. Both figures are chosen.
//!
//! The prompt of a turn is that of the turn before, its answer, and what the tool returned. So its blocks begin with
//! those of the turn before, and a cache that forgets nothing saves nine tenths of all prompt tokens. Hashes are of 64
//! tokens. As simulated with Llama-3-8B and V1, an RTX 4090 keeps up with 0.01 sessions a second, an A100 of 80 GB with
//! 0.1; above, prefixes are evicted before their next turn comes, and both fall off steeply.
//!
//! A workload of a duration is stationary: sessions start from two hours before it on, longer than hardly any lasts, and
//! what they sent before time 0 is left out. (Their prefixes are not cached then: the node starts cold amid traffic.) A
//! workload of `n` sessions has all of each, from first turn to last. In a closed loop a turn may be sent while the one
//! before it is under way, because clients take requests, not sessions.

use rand::RngExt;

use super::WorkloadError;
use super::profile::Quantiles;
use super::synthetic::{Extent, Gaps, MAX_REQUESTS, SyntheticSpec};
use crate::seed::{self, Stream};
use crate::time::Micros;
use crate::trace::{HashIds, Request};

/// Name of the profile.
pub(super) const NAME: &str = "agentic";

/// Turns of a session: a quarter of the recorded ones.
pub const TURNS: Quantiles = Quantiles::new(&[
    (0.0, 1.0),
    (0.1, 1.25),
    (0.25, 3.5),
    (0.5, 8.5),
    (0.75, 17.5),
    (0.9, 36.0),
    (0.95, 50.0),
    (0.99, 81.0),
    (1.0, 110.0),
]);

/// Tokens of the first prompt behind the system prompt: a sixteenth.
pub const TASK: Quantiles =
    Quantiles::new(&[(0.0, 8.0), (0.1, 46.0), (0.25, 236.0), (0.5, 3_325.0), (0.75, 7_530.0), (1.0, 10_000.0)]);

/// Tokens between an answer and the end of the next prompt, what a tool returned or the user said: a sixteenth.
pub const TOOL: Quantiles = Quantiles::new(&[
    (0.0, 1.0),
    (0.25, 5.25),
    (0.5, 21.0),
    (0.75, 63.0),
    (0.9, 178.0),
    (0.95, 352.0),
    (0.99, 928.0),
    (1.0, 4_000.0),
]);

/// Tokens of an answer, as recorded.
pub const OUTPUT: Quantiles = Quantiles::new(&[
    (0.0, 16.0),
    (0.05, 91.0),
    (0.25, 142.0),
    (0.5, 237.0),
    (0.75, 462.0),
    (0.9, 928.0),
    (0.95, 1_577.0),
    (0.99, 3_743.0),
    (1.0, 4_096.0),
]);

/// Milliseconds from a request of a session to its next, as recorded.
pub const GAP_MS: Quantiles = Quantiles::new(&[
    (0.0, 1_000.0),
    (0.05, 8_000.0),
    (0.25, 12_000.0),
    (0.5, 19_000.0),
    (0.75, 39_000.0),
    (0.9, 129_000.0),
    (0.95, 300_000.0),
    // No longer than that, but points must rise.
    (1.0, 300_001.0),
]);

/// Lengths of the system prompts in blocks, the most popular first.
const SYSTEM_BLOCKS: [u32; 8] = [14, 12, 16, 9, 18, 11, 15, 10];

/// Tokens of a hashed block.
const BLOCK_TOKENS: u32 = 64;

/// Longest prompt, tokens.
const WINDOW_TOKENS: u32 = 16_384;

/// What is left of a conversation that would be longer, tokens.
const SUMMARY_TOKENS: u32 = 2_048;

/// Seconds before time 0 from which on sessions start.
pub(super) const WARM_UP_S: f64 = 7_200.0;

/// Mean turns of a session, to reckon with.
pub(super) const MEAN_TURNS: f64 = 15.0;

/// About how many requests are drawn for so many sessions, those before time 0 included.
pub(super) fn expected(spec: &SyntheticSpec, sessions: u64) -> u64 {
    let before = if let Extent::Duration(_) = spec.extent { spec.rate_rps * WARM_UP_S } else { 0.0 };
    ((sessions as f64 + before) * MEAN_TURNS) as u64
}

/// Draws the requests of all sessions, in order of arrival.
///
/// # Errors
/// If there are too many.
pub(super) fn requests(spec: &SyntheticSpec) -> Result<Vec<Request>, WorkloadError> {
    let mut arrivals = seed::stream(spec.seed, "synthetic.arrivals", 0);
    let gaps = Gaps::new(spec.rate_rps, spec.inter_arrival_cv());
    let (mut start_s, sessions, end) = match spec.extent {
        Extent::Requests(sessions) => (0.0, sessions, Micros::MAX),
        Extent::Duration(duration) => (-WARM_UP_S, u64::MAX, duration),
    };
    let starts = (0..sessions).map(|_| {
        start_s += gaps.draw(&mut arrivals);
        start_s
    });
    self::sessions(spec.seed, starts.take_while(|start_s| *start_s < end.as_secs_f64()), end)
}

/// Draws the requests of sessions that start then, seconds, as far as they arrive from time 0 on and before `end`; in order of
/// arrival.
///
/// # Errors
/// If there are too many.
pub(super) fn sessions(
    seed: u64,
    starts: impl Iterator<Item = f64>,
    end: Micros,
) -> Result<Vec<Request>, WorkloadError> {
    let mut requests = Vec::new();
    let mut texts = 0;
    for (number, start_s) in (0..).zip(starts) {
        let turns = turns(seed::stream(seed, "synthetic.sessions", number), start_s);
        for text in turns.chunk_by(|a, b| a.text == b.text) {
            texts += 1;
            add(text, number, texts, end, &mut requests);
        }
        if requests.len() as u64 > MAX_REQUESTS {
            return Err(WorkloadError::TooManyRequests { requests: requests.len() as u64 });
        }
    }
    // Turns that arrive together stay in the order of their sessions.
    requests.sort_by_key(|request: &Request| request.arrival);
    Ok(requests)
}

/// A request before it has its hashes.
struct Turn {
    at_s: f64,
    /// Which of the session's texts it continues; a compaction begins another.
    text: u32,
    system: usize,
    prompt_tokens: u32,
    output_tokens: u32,
}

/// The turns of a session from its first, at `start_s`.
fn turns(mut stream: Stream, start_s: f64) -> Vec<Turn> {
    let system = draw_system(&mut stream);
    let system_tokens = SYSTEM_BLOCKS[system] * BLOCK_TOKENS;
    let count = TURNS.draw(&mut stream);
    let (mut at_s, mut text) = (start_s, 0);
    let mut prompt_tokens = system_tokens + TASK.draw(&mut stream);
    let mut turns = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let output_tokens = OUTPUT.draw(&mut stream);
        turns.push(Turn { at_s, text, system, prompt_tokens, output_tokens });
        prompt_tokens += output_tokens + TOOL.draw(&mut stream);
        if prompt_tokens > WINDOW_TOKENS {
            prompt_tokens = system_tokens + SUMMARY_TOKENS;
            text += 1;
        }
        at_s += f64::from(GAP_MS.draw(&mut stream)) / 1e3;
    }
    turns
}

/// Which system prompt: number `k`, from 0, with a share of `1 / (k + 1)` over the sum of all.
fn draw_system(stream: &mut Stream) -> usize {
    let shares = (1..=SYSTEM_BLOCKS.len()).map(|rank| 1.0 / rank as f64);
    let mut left = stream.random::<f64>() * shares.clone().sum::<f64>();
    let passed = shares.take_while(|share| {
        left -= share;
        left >= 0.0
    });
    passed.count().min(SYSTEM_BLOCKS.len() - 1)
}

/// Appends those turns of one text that arrive from 0 on and before `end`; they share the hashes of its longest prompt.
fn add(text: &[Turn], session: u64, number: u64, end: Micros, requests: &mut Vec<Request>) {
    let within = |turn: &&Turn| turn.at_s >= 0.0 && Micros::from_secs_f64(turn.at_s) < end;
    let Some(longest) = text.iter().filter(within).map(|turn| turn.prompt_tokens).max() else { return };
    let system = text[0].system;
    let stream_of =
        |block: u32| if block < SYSTEM_BLOCKS[system] { system as u64 } else { SYSTEM_BLOCKS.len() as u64 + number };
    let hash_ids: HashIds =
        (0..longest / BLOCK_TOKENS).map(|block| stream_of(block) << 32 | u64::from(block)).collect();
    requests.extend(text.iter().filter(within).map(|turn| Request {
        hash_ids: hash_ids.first((turn.prompt_tokens / BLOCK_TOKENS) as usize),
        hash_block_tokens: BLOCK_TOKENS,
        session: Some(format!("s{session}")),
        ..Request::new(Micros::from_secs_f64(turn.at_s), turn.prompt_tokens, turn.output_tokens)
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_rise_and_the_longest_prompt_fits() {
        for quantiles in [TURNS, TASK, TOOL, OUTPUT, GAP_MS] {
            assert!(quantiles.is_rising());
        }
        let longest_system = SYSTEM_BLOCKS.into_iter().max().unwrap() * BLOCK_TOKENS;
        assert!(longest_system + TASK.at(1.0).max(SUMMARY_TOKENS) <= WINDOW_TOKENS);
    }

    #[test]
    fn system_prompts_have_the_shares_of_a_zipf_law() {
        let mut stream = seed::stream(1, "test", 0);
        let mut counts = [0_u32; SYSTEM_BLOCKS.len()];
        for _ in 0..100_000 {
            counts[draw_system(&mut stream)] += 1;
        }
        for (rank, count) in (1..).zip(counts) {
            let share = f64::from(count * rank) / f64::from(counts[0]);
            assert!((share - 1.0).abs() < 0.05, "{counts:?}");
        }
    }
}
