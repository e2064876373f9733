//! Kernels measured by shape, ready to price steps of one deployment without a search: [`TabledTimes`] read once at the knots of
//! grids that follow a number's bits. The formulas stand there.

use super::grid::{Ramp, Slope};
use super::{Chunk, StepLoad};
use crate::deploy::{BeforeChunk, TabledTimes};

/// Octaves of tokens computed in a step, of sequences, of tokens attended to and of a prompt. Beyond them curves are straight.
const TOKENS: u32 = 18;
const SEQUENCES: u32 = 12;
const ATTENDED: u32 = 24;
const PROMPT: u32 = 18;

/// Everything is seconds, over all layers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TabledCost {
    /// By tokens computed: all but attention and the head.
    layers: Ramp<3>,
    /// By sequences.
    head: Ramp<3>,
    /// By sequences that decode and the tokens they attend to together. By those rather than by their mean, because time grows
    /// with both, and nothing has to be divided.
    decodes: Slope<2>,
    /// By tokens of a chunk: what it would take as a whole prompt, beyond what any takes.
    chunk: Ramp<3>,
    chunks_fixed: f64,
    full: BeforeChunk,
    /// Of layers with a window, and its tokens.
    window: Option<(f64, BeforeChunk)>,
}

impl TabledCost {
    pub(super) fn new(times: &TabledTimes<'_>) -> TabledCost {
        let (full, window) = times.before_chunks();
        TabledCost {
            layers: Ramp::new(TOKENS, |tokens| times.layers(tokens)),
            head: Ramp::new(SEQUENCES, |sequences| times.head(sequences)),
            decodes: Slope::new([SEQUENCES, ATTENDED], |sequences, tokens| times.decodes(sequences, tokens)),
            chunk: Ramp::new(PROMPT, |tokens| times.chunk_alone(tokens)),
            chunks_fixed: times.chunks_fixed(),
            full,
            window,
        }
    }

    /// Time on the accelerator, without copies, of at least one sequence. Seconds.
    pub(super) fn seconds<C>(&self, load: &StepLoad<C>, sequences: f64) -> f64
    where
        C: ExactSizeIterator<Item = Chunk> + Clone,
    {
        let mut attention = 0.0;
        if load.decodes > 0 {
            attention = self.decodes.at(f64::from(load.decodes), load.decode_context as f64);
        }
        let mut tokens = f64::from(load.decodes);
        if load.chunks.len() > 0 {
            // One kernel has all sequences in it.
            attention = attention.max(self.chunks_fixed);
            let (mut full, mut window) = (Before::default(), Before::default());
            for chunk in load.chunks.clone() {
                let [context, count] = [chunk.context, chunk.tokens].map(f64::from);
                tokens += count;
                attention += self.chunk.at(count);
                full.add(context, context * count);
                if let Some((width, _)) = self.window {
                    window.add(context.min(width - 1.0), seen_before(width, context, count));
                }
            }
            attention += full.seconds(&self.full);
            attention += self.window.as_ref().map_or(0.0, |(_, price)| window.seconds(price));
        }
        self.layers.at(tokens) + self.head.at(sequences) + attention
    }
}

/// What stands before the chunks of a step.
#[derive(Default)]
struct Before {
    pairs: f64,
    longest: f64,
    tokens: f64,
}

impl Before {
    #[inline]
    fn add(&mut self, context: f64, pairs: f64) {
        self.pairs += pairs;
        self.longest = self.longest.max(context);
        self.tokens += context;
    }

    #[inline]
    fn seconds(&self, price: &BeforeChunk) -> f64 {
        let BeforeChunk { pair, row, read, expand } = *price;
        (self.pairs * pair).max(self.longest * row).max(self.tokens * read) + self.tokens * expand
    }
}

/// Pairs of `tokens` with those of `context` tokens before them that are in their window.
fn seen_before(width: f64, context: f64, tokens: f64) -> f64 {
    // The j-th sees min(context + j, width) tokens, of which min(j, width) are of the chunk itself.
    let up_to = |tokens: f64| tokens * (tokens + 1.0) / 2.0;
    let all = (width - context).clamp(0.0, tokens);
    let own = width.min(tokens);
    (all * context + up_to(all) + (tokens - all) * width) - (up_to(own) + (tokens - own) * width)
}

#[cfg(test)]
mod tests {
    use super::seen_before;

    #[test]
    fn a_window_sees_what_is_before_a_chunk_token_by_token() {
        let slow = |width: u32, context: u32, tokens: u32| -> u32 {
            (1..=tokens).map(|place| (context + place).min(width) - place.min(width)).sum()
        };
        for width in [1, 3, 8] {
            for context in 0..12 {
                for tokens in 1..12 {
                    let fast = seen_before(f64::from(width), f64::from(context), f64::from(tokens));
                    assert_eq!(fast, f64::from(slow(width, context, tokens)), "{width} {context} {tokens}");
                }
            }
        }
    }
}
