//! Kernels measured by shape, ready to price steps of one deployment without a search: [`TabledTimes`] read once at the knots of
//! grids that follow a number's bits. The formulas stand there.

use super::grid::{Ramp, Slope};
use super::{Chunk, StepLoad};
use crate::deploy::{BeforeChunks, GroupedTimes, LatentTimes, TabledTimes};

/// Octaves of tokens computed in a step, of sequences, of tokens attended to and of pairs of a chunk. Beyond them curves are
/// straight.
const TOKENS: u32 = 18;
const SEQUENCES: u32 = 12;
const ATTENDED: u32 = 24;
const PAIRS: u32 = 36;

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
    /// What attention of chunks takes however small they are.
    chunks_fixed: f64,
    /// Layers that attend to all tokens, if there are any.
    full: Option<GroupedCost>,
    /// Layers with a window, and its tokens.
    window: Option<(f64, GroupedCost)>,
    latent: Option<LatentCost>,
}

/// What a chunk attends to: pairs of its tokens with each other and with those before them.
struct Attended {
    tokens: f64,
    own: f64,
    before: f64,
    context: f64,
}

/// Attention of chunks.
#[derive(Debug, Clone, PartialEq)]
struct GroupedCost {
    /// By pairs of a chunk.
    chunk: Ramp<3>,
    before: BeforeChunks,
}

/// Latent attention of chunks.
#[derive(Debug, Clone, PartialEq)]
struct LatentCost {
    /// By tokens of a chunk.
    chunk: Ramp<3>,
    pair: f64,
    expand: f64,
    before: BeforeChunks,
}

impl TabledCost {
    pub(super) fn new(times: &TabledTimes<'_>) -> TabledCost {
        let of_kind = |is_windowed: bool| times.grouped.iter().find(|kind| kind.window().is_finite() == is_windowed);
        TabledCost {
            layers: Ramp::new(TOKENS, |tokens| times.layers(tokens)),
            head: Ramp::new(SEQUENCES, |sequences| times.head(sequences)),
            decodes: Slope::new([SEQUENCES, ATTENDED], |sequences, tokens| times.decodes(sequences, tokens)),
            chunks_fixed: times.chunks_fixed(),
            full: of_kind(false).map(GroupedCost::new),
            window: of_kind(true).map(|kind| (kind.window(), GroupedCost::new(kind))),
            latent: times.latent.as_ref().map(LatentCost::new),
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
        if load.chunks.len() > 0 {
            attention = attention.max(self.chunks_fixed) + self.chunks(load.chunks.clone());
        }
        self.layers.at(f64::from(load.tokens())) + self.head.at(sequences) + attention
    }

    /// Attention of chunks, beyond what is fixed.
    fn chunks(&self, chunks: impl Iterator<Item = Chunk> + Clone) -> f64 {
        let mut sum = 0.0;
        if let Some(full) = &self.full {
            sum += full.chunks(chunks.clone().map(|chunk| {
                let [context, tokens] = [chunk.context, chunk.tokens].map(f64::from);
                Attended { tokens, own: tokens * (tokens + 1.0) / 2.0, before: tokens * context, context }
            }));
        }
        if let Some((width, cost)) = &self.window {
            sum += cost.chunks(chunks.clone().map(|chunk| {
                let [context, tokens] = [chunk.context, chunk.tokens].map(f64::from);
                // What is before them in a window is too little for waves to tell.
                let own = pairs_within(*width, context, tokens);
                Attended { tokens, own, before: 0.0, context: context.min(width - 1.0) }
            }));
        }
        sum + self.latent.as_ref().map_or(0.0, |latent| latent.chunks(chunks))
    }
}

impl GroupedCost {
    fn new(times: &GroupedTimes<'_>) -> GroupedCost {
        GroupedCost { chunk: Ramp::new(PAIRS, |pairs| times.chunk(pairs)), before: times.before() }
    }

    /// All chunks of a step: their pairs, and no less than the whole waves that any of them takes by itself.
    #[inline]
    fn chunks(&self, chunks: impl Iterator<Item = Attended>) -> f64 {
        let (mut sum, mut alone, mut before) = (0.0_f64, 0.0_f64, Before::default());
        for Attended { tokens, own, before: pairs, context } in chunks {
            sum += self.chunk.at(own + pairs);
            alone = alone.max(self.chunk.at(own + pairs * self.before.stretch(tokens)));
            before.add(context);
        }
        before.at_least(sum.max(alone), &self.before)
    }
}

impl LatentCost {
    fn new(times: &LatentTimes<'_>) -> LatentCost {
        LatentCost {
            chunk: Ramp::new(TOKENS, |tokens| (times.alone(tokens) - times.fixed).max(0.0)),
            pair: times.pair(),
            expand: times.expand(),
            before: times.before(),
        }
    }

    fn chunks(&self, chunks: impl Iterator<Item = Chunk>) -> f64 {
        let (mut alone, mut pairs, mut before) = (0.0, 0.0, Before::default());
        for chunk in chunks {
            let [context, tokens] = [chunk.context, chunk.tokens].map(f64::from);
            alone += self.chunk.at(tokens);
            pairs += context * tokens;
            before.add(context);
        }
        alone + before.at_least(pairs * self.pair, &self.before) + before.tokens * self.expand
    }
}

/// What stands before the chunks of a step.
#[derive(Default)]
struct Before {
    longest: f64,
    tokens: f64,
}

impl Before {
    #[inline]
    fn add(&mut self, context: f64) {
        self.longest = self.longest.max(context);
        self.tokens += context;
    }

    /// The time of all chunks, at least what this takes.
    #[inline]
    fn at_least(&self, time: f64, price: &BeforeChunks) -> f64 {
        time.max(self.longest * price.row).max(self.tokens * price.read)
    }
}

/// Pairs of `tokens` after `context` others with themselves and with those before them in a window.
fn pairs_within(width: f64, context: f64, tokens: f64) -> f64 {
    // Its first tokens see all before them, the others a whole window.
    let growing = (width - context).clamp(0.0, tokens);
    growing * context + growing * (growing + 1.0) / 2.0 + (tokens - growing) * width
}

#[cfg(test)]
mod tests {
    use super::pairs_within;

    #[test]
    fn a_window_is_seen_token_by_token() {
        let slow = |width: u32, context: u32, tokens: u32| -> u32 {
            (1..=tokens).map(|place| (context + place).min(width)).sum()
        };
        for width in [1, 3, 8] {
            for context in 0..12 {
                for tokens in 1..12 {
                    let fast = pairs_within(f64::from(width), f64::from(context), f64::from(tokens));
                    assert_eq!(fast, f64::from(slow(width, context, tokens)), "{width} {context} {tokens}");
                }
            }
        }
    }
}
