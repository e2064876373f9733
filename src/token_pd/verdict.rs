//! What Token-PD is said to do, and what is found here.

use serde::Serialize;

use super::TokenPdRow;

/// Less peak memory than FIFO, "up to 60 %" in the abstract and 59 % in its table.
pub const CLAIMED_MEMORY: f64 = 0.59;
/// Requests a second over FIFO's.
pub const CLAIMED_THROUGHPUT: f64 = 1.3;
/// Attention that may be lost against FIFO and is still "without degrading": a point in a hundred.
const SLACK: f64 = 0.01;

/// What is found of the two claims at one number of streams.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPdVerdict {
    /// Seed of the attention and of the predictor.
    pub seed: u64,
    /// Streams at once.
    pub streams: u32,
    /// Share of FIFO's peak memory that Token-PD does without, its target being all it has.
    pub memory_saved: f64,
    /// The same where it has all of the pool, and nothing but the price keeps it from that.
    pub memory_saved_by_price: f64,
    /// Its requests a second over FIFO's with all of the pool.
    pub throughput: f64,
    /// FIFO's requests a second with as little memory as Token-PD aims at, over FIFO's with all of it: what less memory does by itself.
    pub throughput_of_fifo: f64,
    /// Attention retained by FIFO with all of the pool.
    pub retained_by_fifo: f64,
    /// Attention retained by Token-PD.
    pub retained: f64,
    /// By the best of the others with as little memory.
    pub retained_by_best_other: f64,
    /// Which of them that is.
    pub best_other: &'static str,
    /// Whether it saves that much memory and retains what FIFO does, within a point.
    pub memory_confirmed: bool,
    /// Whether it is that much faster and retains what FIFO does, within a point.
    pub throughput_confirmed: bool,
}

impl TokenPdVerdict {
    /// From the rows of one number of streams: FIFO with all of the pool first, then whoever else has it, and everybody with as little as
    /// Token-PD aims at.
    pub(super) fn of(rows: &[TokenPdRow]) -> Option<TokenPdVerdict> {
        let all = rows.first()?.capacity_blocks;
        let with = |policy: &str, is_all: bool| {
            rows.iter().find(|row| row.policy == policy && (row.capacity_blocks == all) == is_all)
        };
        let (fifo, by_price) = (with("fifo", true)?, with("token-pd", true)?);
        let (little, priced) = (with("fifo", false)?, with("token-pd", false)?);
        let others = rows.iter().filter(|row| row.capacity_blocks != all && row.policy != "token-pd");
        let best = others.max_by(|a, b| a.retained.total_cmp(&b.retained))?;
        let saved = |row: &TokenPdRow| 1.0 - f64::from(row.peak_blocks) / f64::from(fifo.peak_blocks.max(1));
        let memory_saved = saved(priced);
        let throughput = priced.requests_per_s / fifo.requests_per_s.max(1e-12);
        let is_as_good = priced.retained >= fifo.retained - SLACK;
        Some(TokenPdVerdict {
            seed: fifo.seed,
            streams: fifo.streams,
            memory_saved,
            memory_saved_by_price: saved(by_price),
            throughput,
            throughput_of_fifo: little.requests_per_s / fifo.requests_per_s.max(1e-12),
            retained_by_fifo: fifo.retained,
            retained: priced.retained,
            retained_by_best_other: best.retained,
            best_other: best.policy,
            memory_confirmed: is_as_good && memory_saved >= CLAIMED_MEMORY - SLACK,
            throughput_confirmed: is_as_good && throughput >= CLAIMED_THROUGHPUT,
        })
    }

    /// In words.
    pub fn text(&self) -> String {
        let is_as_good = self.retained >= self.retained_by_fifo - SLACK;
        let word = |is_confirmed| match (is_confirmed, is_as_good) {
            (true, _) => "confirmed",
            (false, true) => "not confirmed",
            (false, false) => "not confirmed, for attention is lost",
        };
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        format!(
            "{} streams: {} less peak memory than FIFO (said: {:.0} %), {}, by the price alone {}; {:.2} times FIFO's requests a second (said: {CLAIMED_THROUGHPUT}), \
             {}, where FIFO with as little memory has {:.2} times; {} of attention retained, FIFO {} with all of the pool, {} {} with as \
             little",
            self.streams,
            percent(self.memory_saved),
            CLAIMED_MEMORY * 100.0,
            word(self.memory_confirmed),
            percent(self.memory_saved_by_price),
            self.throughput,
            word(self.throughput_confirmed),
            self.throughput_of_fifo,
            percent(self.retained),
            percent(self.retained_by_fifo),
            self.best_other,
            percent(self.retained_by_best_other),
        )
    }
}
