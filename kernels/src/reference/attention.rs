//! Attention of one query over tokens in pool blocks, in `f64`.

use std::ops::Range;

use super::{Element, KvLayer};

/// What attention over some tokens gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Attended {
    /// `max_j s_j`, with scores `s_j = scale * log2(e) * (query . key_j)`; minus infinity without tokens.
    pub maximum: f64,
    /// `sum_j 2^(s_j - maximum)`.
    pub sum: f64,
    /// `sum_j 2^(s_j - maximum) * value_j`, `[head_dim]`: not yet divided by the sum.
    pub values: Vec<f64>,
    /// The same of `|value_j|`: what an error in the weights can do.
    pub magnitudes: Vec<f64>,
}

/// The keys and values of a sequence in one layer of a pool.
#[derive(Debug, Clone, Copy)]
pub struct KvSequence<'a> {
    /// Type of the pool's elements and of queries.
    pub element: Element,
    /// The pool.
    pub pool: &'a [u16],
    /// Where the layer lies in it.
    pub layer: &'a KvLayer,
    /// The sequence's blocks.
    pub table: &'a [u32],
}

/// Attention of `query[head_dim]` over `tokens` of a sequence in `kv_head`.
///
/// The result of attention is `values / sum`: softmax of the scores (in base 2, which is the same), times values.
pub fn attend(sequence: &KvSequence<'_>, query: &[u16], kv_head: usize, tokens: Range<usize>, scale: f32) -> Attended {
    let KvSequence { element, pool, layer, table } = *sequence;
    let number = |bits: u16| f64::from(element.widen(bits));
    let rows = |token: usize| {
        let slot = table[token / layer.block_size] as usize * layer.block_size + token % layer.block_size;
        let (key, value) = layer.rows(slot, kv_head);
        (&pool[key..key + layer.head_dim], &pool[value..value + layer.head_dim])
    };
    let score = |token: usize| {
        let product: f64 = query.iter().zip(rows(token).0).map(|(&q, &k)| number(q) * number(k)).sum();
        product * f64::from(scale) * std::f64::consts::LOG2_E
    };
    let scores: Vec<f64> = tokens.clone().map(score).collect();
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut attended =
        Attended { maximum, sum: 0.0, values: vec![0.0; layer.head_dim], magnitudes: vec![0.0; layer.head_dim] };
    for (token, score) in tokens.zip(scores) {
        let weight = (score - maximum).exp2();
        attended.sum += weight;
        for (i, &bits) in rows(token).1.iter().enumerate() {
            attended.values[i] += weight * number(bits);
            attended.magnitudes[i] += weight * number(bits).abs();
        }
    }
    attended
}
