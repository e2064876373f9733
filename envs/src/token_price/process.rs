//! Attention that is drawn: sinks, recency, heavy hitters, and topics that are come back to.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};

use super::{Attention, Conversation};
use crate::seed::{self, Stream};
use crate::workload::LogNormal;

/// What attention goes to, in shares of a row that sum to one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionProfile {
    /// Its name.
    pub name: &'static str,
    /// The first block (Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks").
    pub sink: f64,
    /// The latest blocks, each a fixed share of what the one after it has.
    pub recency: f64,
    /// Blocks that have much for ever, by a power law (Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference
    /// of Large Language Models", section 3).
    pub heavy: f64,
    /// Blocks of the topic that is spoken of: idle for long and then needed again.
    pub topic: f64,
}

/// How recency fades from one block to the one before.
const FADES: f64 = 0.7;
/// Standard deviations of logarithms: of a block's weight among heavy hitters, within its topic, and of a share from row to row.
const HEAVY: f64 = 1.5;
const WITHIN: f64 = 0.5;
const NOISE: f64 = 0.4;
/// Chance that a block of the answer speaks of another topic than the one before; blocks of a topic that stand together, on average.
const SWITCHES: f64 = 0.15;
const TOGETHER: f64 = 6.0;

impl AttentionProfile {
    /// Every one there is; what is left of a row goes to all blocks alike.
    pub const ALL: [AttentionProfile; 5] = [
        AttentionProfile { name: "mixed", sink: 0.25, recency: 0.3, heavy: 0.2, topic: 0.15 },
        AttentionProfile { name: "recency", sink: 0.05, recency: 0.75, heavy: 0.1, topic: 0.0 },
        AttentionProfile { name: "heavy-hitters", sink: 0.05, recency: 0.2, heavy: 0.65, topic: 0.0 },
        AttentionProfile { name: "sinks", sink: 0.6, recency: 0.3, heavy: 0.0, topic: 0.0 },
        AttentionProfile { name: "topics", sink: 0.1, recency: 0.2, heavy: 0.05, topic: 0.55 },
    ];
}

/// Conversations to draw: `mixed:prompt=1024,answer=512,n=256`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Process {
    /// What attention goes to.
    pub profile: AttentionProfile,
    /// Mean tokens of a prompt.
    pub prompt: u32,
    /// Mean tokens of an answer.
    pub answer: u32,
    /// Conversations drawn.
    pub conversations: u32,
}

/// Why there is no such process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "attention {text:?}: {part:?} is not {expected}; a process is PROFILE[:KEY=VALUE,…] with profile {profiles} and keys prompt, answer \
     (mean tokens, 16 to 131072) and n (conversations, 2 to 4096), as in mixed:prompt=1024,answer=512",
    profiles = AttentionProfile::ALL.map(|profile| profile.name).join(", ")
)]
pub struct ProcessError {
    text: String,
    part: String,
    expected: &'static str,
}

/// Tokens of a block, vLLM's.
const BLOCK_TOKENS: u32 = 16;
/// Shares that are drawn at most: 1 GiB of them.
const MOST_SHARES: f64 = 268_435_456.0;

impl FromStr for Process {
    type Err = ProcessError;

    fn from_str(text: &str) -> Result<Process, ProcessError> {
        let wrong = |part: &str, expected| ProcessError { text: text.to_owned(), part: part.to_owned(), expected };
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let profile = AttentionProfile::ALL.into_iter().find(|profile| profile.name == name);
        let profile = profile.ok_or_else(|| wrong(name, "a profile"))?;
        let mut process = Process { profile, ..Process::USUAL };
        let mut seen = Vec::new();
        for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let (key, value) = part.split_once('=').ok_or_else(|| wrong(part, "KEY=VALUE"))?;
            if seen.contains(&key) {
                return Err(wrong(part, "the only one of its key"));
            }
            seen.push(key);
            let (slot, range) = match key {
                "prompt" => (&mut process.prompt, BLOCK_TOKENS..=131_072),
                "answer" => (&mut process.answer, BLOCK_TOKENS..=131_072),
                "n" => (&mut process.conversations, 2..=4096),
                _ => return Err(wrong(part, "a key that is known")),
            };
            *slot = value.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| wrong(part, "in range"))?;
        }
        // Rows of a mean answer, each as long as its conversation then is, with room for the longer ones.
        let blocks = [process.prompt, process.answer].map(|tokens| f64::from(tokens / BLOCK_TOKENS));
        if f64::from(process.conversations) * blocks[1] * (blocks[0] + blocks[1]) * 2.0 > MOST_SHARES {
            return Err(wrong(text, "little enough to be kept in a gibibyte"));
        }
        Ok(process)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Process { profile, prompt, answer, conversations } = self;
        write!(f, "{}:prompt={prompt},answer={answer},n={conversations}", profile.name)
    }
}

impl Process {
    /// What is meant where nothing is said.
    pub const USUAL: Process =
        Process { profile: AttentionProfile::ALL[0], prompt: 1024, answer: 512, conversations: 256 };

    /// Draws its conversations. The same seed draws the same.
    pub fn draw(&self, seed: u64) -> Attention {
        let conversations =
            (0..self.conversations).map(|index| self.conversation(seed::stream(seed, "attention", index.into())));
        Attention { name: self.to_string(), block_tokens: BLOCK_TOKENS, conversations: conversations.collect() }
    }

    fn conversation(&self, mut stream: Stream) -> Conversation {
        let mut blocks = |mean: u32| {
            let lengths = LogNormal { mean, p95: 2 * mean };
            (lengths.draw(&mut stream, 4 * mean) / BLOCK_TOKENS).max(1)
        };
        let (prompt, answer) = (blocks(self.prompt), blocks(self.answer));
        let mut blocks = Blocks::new(&mut stream, prompt);
        let rows = (0..=answer).map(|row| {
            if row > 0 {
                blocks.go_on(&mut stream);
            }
            blocks.row(&self.profile, &mut stream)
        });
        Conversation::new(prompt, rows.collect::<Vec<Vec<f32>>>()).expect("rows are normalised as they are drawn")
    }
}

/// What the blocks of a conversation are about.
struct Blocks {
    topics: u32,
    topic: u32,
    /// Topic, weight among heavy hitters, weight within the topic.
    known: Vec<(u32, f64, f64)>,
}

fn log_normal(stream: &mut Stream, deviation: f64) -> f64 {
    let normal: f64 = StandardNormal.sample(stream);
    (deviation * normal).exp()
}

impl Blocks {
    fn new(stream: &mut Stream, prompt: u32) -> Blocks {
        let mut blocks = Blocks { topics: (prompt / 8).clamp(2, 32), topic: 0, known: Vec::new() };
        for _ in 0..prompt {
            if stream.random::<f64>() < 1.0 / TOGETHER {
                blocks.topic = stream.random_range(0..blocks.topics);
            }
            blocks.add(stream);
        }
        blocks
    }

    fn add(&mut self, stream: &mut Stream) {
        self.known.push((self.topic, log_normal(stream, HEAVY), log_normal(stream, WITHIN)));
    }

    /// A block of the answer, perhaps of another topic.
    fn go_on(&mut self, stream: &mut Stream) {
        if stream.random::<f64>() < SWITCHES {
            self.topic = stream.random_range(0..self.topics);
        }
        self.add(stream);
    }

    fn row(&self, profile: &AttentionProfile, stream: &mut Stream) -> Vec<f32> {
        let count = self.known.len();
        let heavy: f64 = self.known.iter().map(|known| known.1).sum();
        let topical = |known: &(u32, f64, f64)| if known.0 == self.topic { known.2 } else { 0.0 };
        let topic: f64 = self.known.iter().map(topical).sum();
        let recent: f64 = (0..count).map(|back| FADES.powi(back as i32)).sum();
        let rest = 1.0 - profile.sink - profile.recency - profile.heavy - profile.topic;
        let row: Vec<f64> = self
            .known
            .iter()
            .enumerate()
            .map(|(index, known)| {
                let sink = if index == 0 { profile.sink } else { 0.0 };
                let recency = profile.recency * FADES.powi((count - 1 - index) as i32) / recent;
                let topic = if topic > 0.0 { profile.topic * topical(known) / topic } else { 0.0 };
                let share = sink + recency + profile.heavy * known.1 / heavy + topic + rest / count as f64;
                share * log_normal(stream, NOISE)
            })
            .collect();
        let sum: f64 = row.iter().sum();
        row.into_iter().map(|share| (share / sum) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str) -> Attention {
        text.parse::<Process>().unwrap().draw(1)
    }

    /// Mean share of a row that the chosen blocks have.
    fn share(attention: &Attention, is_chosen: impl Fn(usize, usize) -> bool) -> f64 {
        let (mut sum, mut rows) = (0.0, 0.0);
        for one in &attention.conversations {
            for row in 1..=one.answer_blocks() {
                let row = one.row(row);
                let chosen = row.iter().enumerate().filter(|(index, _)| is_chosen(*index, row.len()));
                sum += chosen.map(|(_, &share)| f64::from(share)).sum::<f64>();
                rows += 1.0;
            }
        }
        sum / rows
    }

    #[test]
    fn attention_goes_where_the_profile_says() {
        let sink = |text| share(&drawn(text), |index, _| index == 0);
        let recent = |text| share(&drawn(text), |index, count| index + 4 >= count);
        let (sinks, recency) = ("sinks:n=32", "recency:n=32");
        assert!(sink(sinks) > 0.5 && sink(recency) < 0.15, "{} {}", sink(sinks), sink(recency));
        assert!(recent(recency) > 0.5 && recent("heavy-hitters:n=32") < 0.4);
    }

    #[test]
    fn lengths_are_those_asked_for_and_a_seed_draws_the_same() {
        let attention = drawn("mixed:prompt=640,answer=320,n=256");
        let mean = |blocks: fn(&Conversation) -> u32| {
            let all = attention.conversations.iter().map(|one| f64::from(blocks(one)));
            all.sum::<f64>() / attention.conversations.len() as f64 * f64::from(BLOCK_TOKENS)
        };
        // Whole blocks of what was drawn: half a block less on average.
        assert!((mean(Conversation::prompt_blocks) - 632.0).abs() < 40.0, "{}", mean(Conversation::prompt_blocks));
        assert!((mean(Conversation::answer_blocks) - 312.0).abs() < 20.0, "{}", mean(Conversation::answer_blocks));
        let process: Process = "mixed:n=2".parse().unwrap();
        assert_eq!(process.draw(7), process.draw(7));
        assert_ne!(process.draw(7), process.draw(8));
    }

    #[test]
    fn a_process_is_read_and_written_back() {
        let text = "topics:prompt=2048,answer=256,n=16";
        assert_eq!(text.parse::<Process>().unwrap().to_string(), text);
        for (bad, part) in [
            ("", "\"\" is not a profile"),
            ("uniform", "\"uniform\" is not a profile"),
            ("mixed:", "\"\" is not KEY=VALUE"),
            ("mixed:prompt=15", "\"prompt=15\" is not in range"),
            ("mixed:answer=-1", "not in range"),
            ("mixed:n=1", "not in range"),
            ("mixed:n=2,n=3", "\"n=3\" is not the only one"),
            ("mixed:seed=1", "not a key that is known"),
            ("mixed:prompt=131072,answer=131072,n=4096", "gibibyte"),
        ] {
            let error = bad.parse::<Process>().unwrap_err().to_string();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }
}
