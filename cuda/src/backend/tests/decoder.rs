//! The decoder on the device against the same decoder written out in `f64`.

use std::sync::Arc;

use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind, Hardware, Model, Structure, Widths};
use kvtide_envs::kv::{BlockId, blocks_for};
use kvtide_envs::memory::{Contents, KvShape, MemoryBackend, MemoryError, MemorySource, Span, Work};
use kvtide_envs::sched::RequestId;
use kvtide_envs::seed;
use kvtide_envs::tier::Routes;
use kvtide_kernels::launch::{PrefillChunk, decode_items, prefill_items};

use super::backend::serve;
use super::emulated_or_skip;
use crate::backend::{CudaMemory, Device, Element, Writer};
use crate::open;

/// Two layers, four heads of 64 over two key/value heads.
pub(super) fn model(head_dim: u32) -> Model {
    let (layers, heads, kv_heads, hidden, intermediate, vocabulary) = (2, 4, 2, 128, 192, 320);
    let width = f64::from(hidden);
    let attention = width * f64::from(head_dim * (2 * heads + 2 * kv_heads));
    Model {
        name: "tiny".to_owned(),
        num_layers: layers,
        num_heads: heads,
        num_kv_heads: kv_heads,
        head_dim,
        hidden_size: hidden,
        layer_params: f64::from(layers) * (attention + 3.0 * width * f64::from(intermediate)),
        head_params: width * f64::from(vocabulary),
        tied_embeddings: false,
        weight_bytes: 2.0,
        kv_bytes: 2.0,
        max_model_len: 4096,
        structure: Structure::default(),
        widths: Widths { intermediate, matrices: 3, vocabulary, ..Widths::default() },
    }
}

pub(super) fn deployment() -> Deployment {
    Deployment::new(model(64), Hardware::named("h200").unwrap(), 1)
}

fn engine() -> EngineConfig {
    EngineConfig {
        block_size: 16,
        num_gpu_blocks: 40,
        num_cpu_blocks: 8,
        max_num_seqs: 16,
        max_num_batched_tokens: 64,
        max_model_len: 512,
        ..EngineConfig::default()
    }
}

/// What the model computes for one sequence, token by token.
struct Reference {
    /// Keys and values of each layer: `[layer][token][kv_heads · head_dim]`.
    keys: Vec<Vec<Vec<f64>>>,
    values: Vec<Vec<Vec<f64>>>,
    /// Of the last token.
    logits: Vec<f64>,
}

fn rope(heads: &mut [f64], position: usize, head_dim: usize) {
    let half = head_dim / 2;
    for head in heads.chunks_exact_mut(head_dim) {
        for i in 0..half {
            let angle = position as f64 * 500_000_f64.powf(-2.0 * i as f64 / head_dim as f64);
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[i + half] = b * angle.cos() + a * angle.sin();
        }
    }
}

fn norm(row: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = row.iter().map(|value| value * value).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + 1e-5).sqrt();
    row.iter().zip(weight).map(|(value, weight)| value * scale * weight).collect()
}

/// `weight · row`, the weight `[outputs, inputs]`.
fn product(weight: &[f64], row: &[f64]) -> Vec<f64> {
    weight.chunks_exact(row.len()).map(|weight| weight.iter().zip(row).map(|(a, b)| a * b).sum()).collect()
}

fn add(to: &mut [f64], row: &[f64]) {
    to.iter_mut().zip(row).for_each(|(to, value)| *to += value);
}

/// Attention of one token's queries over all keys and values so far, heads side by side.
fn attend(query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>], head_dim: usize, group: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for (head, query) in query.chunks_exact(head_dim).enumerate() {
        let at = head / group * head_dim;
        let score = |key: &Vec<f64>| {
            let dot: f64 = query.iter().zip(&key[at..]).map(|(a, b)| a * b).sum();
            (dot / (head_dim as f64).sqrt()).exp()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let sum: f64 = scores.iter().sum();
        let mean =
            |place: usize| scores.iter().zip(values).map(|(score, value)| score / sum * value[at + place]).sum::<f64>();
        out.extend((0..head_dim).map(mean));
    }
    out
}

/// The decoder, in the words of its documentation.
fn reference(memory: &CudaMemory, element: Element, model: &Model, ids: &[u32]) -> Reference {
    let Writer::Decoder(decoder) = &memory.writer else { unreachable!("the test made a decoder") };
    let weights = decoder.weights();
    let read = |address: u64, elements: u32| -> Vec<f64> {
        let bits = memory.device.read(address, elements as usize);
        bits.into_iter().map(|bits| f64::from(element.widen(bits))).collect()
    };
    let (hidden, head_dim) = (model.hidden_size, model.head_dim);
    let (heads, kv_heads) = (model.num_heads, model.num_kv_heads);
    let (queries, rows) = ((heads * head_dim) as usize, (kv_heads * head_dim) as usize);
    let (intermediate, vocabulary) = (192, 320);
    let embedding = read(weights.embedding, vocabulary * hidden);
    let mut residuals: Vec<Vec<f64>> =
        ids.iter().map(|&id| embedding[(id * hidden) as usize..][..hidden as usize].to_vec()).collect();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for layer in &weights.layers {
        let input_norm = read(layer.input_norm, hidden);
        let qkv = read(layer.qkv, (heads + 2 * kv_heads) * head_dim * hidden);
        let attention_out = read(layer.attention_out, heads * head_dim * hidden);
        let feed_forward_norm = read(layer.feed_forward_norm, hidden);
        let gate_up = read(layer.gate_up, 2 * intermediate * hidden);
        let down = read(layer.down, intermediate * hidden);
        let (mut layer_keys, mut layer_values): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
        for (position, residual) in residuals.iter_mut().enumerate() {
            let mut qkv = product(&qkv, &norm(residual, &input_norm));
            rope(&mut qkv[..queries + rows], position, head_dim as usize);
            layer_keys.push(qkv[queries..queries + rows].to_vec());
            layer_values.push(qkv[queries + rows..].to_vec());
            let attended =
                attend(&qkv[..queries], &layer_keys, &layer_values, head_dim as usize, (heads / kv_heads) as usize);
            add(residual, &product(&attention_out, &attended));
            let both = product(&gate_up, &norm(residual, &feed_forward_norm));
            let (gate, up) = both.split_at(intermediate as usize);
            let gated: Vec<f64> = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
            add(residual, &product(&down, &gated));
        }
        keys.push(layer_keys);
        values.push(layer_values);
    }
    let last = norm(residuals.last().unwrap(), &read(weights.norm, hidden));
    Reference { keys, values, logits: product(&read(weights.head, vocabulary * hidden), &last) }
}

/// Root of the mean square of the difference, relative to that of `expected`.
fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    (square(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / square(&mut expected.iter().copied())).sqrt()
}

/// A span of a step: tokens before it, tokens computed, and whose.
type Part = (u32, u32, usize);

/// Computes steps of two sequences that begin with the same text, and compares the first one's keys, values and logits with
/// what they must be. The last step has a token of the other, then one of the first.
fn validate(element: Element, head_dim: u32, engine: &EngineConfig, tables: &[Vec<BlockId>; 2], steps: &[&[Part]]) {
    let model = model(head_dim);
    let device = Arc::new(Device::open(0).unwrap());
    let mut memory = CudaMemory::decoder(&device, &model, element, engine).unwrap();
    memory.reset().unwrap();
    let seeds: Vec<u64> = (0..u64::from(engine.max_model_len)).map(|token| seed::derive(7, "text", token)).collect();
    let mut tokens_computed = 0;
    for &parts in steps {
        let (mut work_tables, mut work_seeds, mut work_spans) = (Vec::new(), Vec::new(), Vec::new());
        for &(context, tokens, who) in parts {
            let (table, first) = (work_tables.len(), work_seeds.len());
            work_tables.extend_from_slice(&tables[who][..blocks_for(context + tokens, 16) as usize]);
            work_seeds.extend_from_slice(&seeds[context as usize..][..tokens as usize]);
            let id = RequestId(who as u32);
            work_spans.push(Span { id, context, tokens, samples: true, table, seeds: first });
            if who == 0 {
                tokens_computed = context + tokens;
            }
        }
        let (spans, tables, seeds) = (&work_spans[..], &work_tables[..], &work_seeds[..]);
        memory.submit(&Work { copies: Routes::default(), spans, tables, seeds, block_size: 16 }).unwrap();
        assert!(memory.wait().unwrap().is_some());
    }
    let ids: Vec<u32> = seeds.iter().map(|seed| (seed % 320) as u32).collect();
    let expected = reference(&memory, element, &model, &ids[..tokens_computed as usize]);
    let bound = if element == Element::Bf16 { 0.03 } else { 0.004 };
    let shape = memory.shape();
    for (layer, (keys, values)) in (0..).zip(expected.keys.iter().zip(&expected.values)) {
        for (token, (keys, values)) in keys.iter().zip(values).enumerate() {
            let block = tables[0][token / 16];
            for (offset, expected) in [(0, keys), (shape.layer_elements(), values)] {
                let found = memory.slot(block, token as u32 % 16, shape.layer_offset(layer) + offset, element);
                let distance = distance(&found, expected);
                assert!(distance < bound, "{element:?}, layer {layer}, token {token}, {offset}: {distance}");
            }
        }
    }
    let Writer::Decoder(decoder) = &memory.writer else { unreachable!("the test made a decoder") };
    let logits = device.read(decoder.logits(), 2 * 320);
    let found: Vec<f64> = logits[320..].iter().map(|&bits| f64::from(element.widen(bits))).collect();
    let distance = distance(&found, &expected.logits);
    assert!(distance < bound, "{element:?}: {distance}");
}

#[test]
fn a_prompt_in_chunks_and_its_answer_are_computed_as_written_out() {
    let emulated = emulated_or_skip!();
    let tables: [Vec<BlockId>; 2] = [[31, 4, 17, 2].map(BlockId).to_vec(), [5, 30, 6, 11].map(BlockId).to_vec()];
    // A chunk, another behind it with a decode of somebody else beside it, then decodes of both.
    let steps: [&[Part]; 6] = [
        &[(0, 21, 0)],
        &[(21, 14, 0), (0, 9, 1)],
        &[(9, 1, 1), (35, 1, 0)],
        &[(36, 1, 0), (10, 1, 1)],
        &[(37, 3, 0)],
        &[(11, 1, 1), (40, 1, 0)],
    ];
    for (seed, (element, head_dim)) in
        [(Element::Bf16, 64), (Element::Fp16, 64), (Element::Bf16, 128)].into_iter().enumerate()
    {
        emulated.reset(seed as u64);
        validate(element, head_dim, &engine(), &tables, &steps);
    }
}

#[test]
fn attention_to_a_long_context_is_computed_in_pieces() {
    let emulated = emulated_or_skip!();
    let large = EngineConfig { num_gpu_blocks: 80, max_num_batched_tokens: 640, max_model_len: 640, ..engine() };
    // All blocks, in an order that is neither up nor down: 37 and 80 have no divisor in common.
    let blocks: Vec<BlockId> = (0..80).map(|i| BlockId(37 * i % 80)).collect();
    let tables = [blocks[..40].to_vec(), blocks[40..].to_vec()];
    // A decode and a short chunk in one step, each cut into pieces.
    let (decoded, context, tokens) = (300, 540, 21);
    let chunk = PrefillChunk { row: 1, tokens, context, table: 0 };
    let multiprocessors = Device::open(0).unwrap().multiprocessors();
    assert!(!decode_items(&[decoded + 1], &[0], 2, multiprocessors).1.is_empty());
    assert!(!prefill_items(&[chunk], 2, 2, multiprocessors, 0).1.is_empty());
    let steps: [&[Part]; 4] = [
        &[(0, context, 0)],
        &[(0, decoded, 1)],
        &[(decoded, 1, 1), (context, tokens, 0)],
        &[(decoded + 1, 1, 1), (context + tokens, 1, 0)],
    ];
    for (seed, element) in [Element::Bf16, Element::Fp16].into_iter().enumerate() {
        emulated.reset(seed as u64);
        validate(element, 64, &large, &tables, &steps);
    }
}

#[test]
fn a_node_on_the_decoder_keeps_its_blocks_and_measures_its_time() {
    let emulated = emulated_or_skip!();
    for (engine, seed) in [(EngineKind::V0, 0), (EngineKind::V1, 1)] {
        emulated.reset(seed);
        let (config, _) = super::backend::crowd(engine, 16);
        let device = Arc::new(Device::open(0).unwrap());
        let memory = CudaMemory::decoder(&device, &model(64), Element::Bf16, &config.engine).unwrap();
        assert_eq!(memory.contents(), Contents::Computed);
        let shape = memory.shape();
        let source = MemorySource::lend(Box::new(memory), shape, &config.engine);
        let summary = serve(engine, 16, &source).unwrap();
        let report = summary.memory.clone().unwrap();
        assert!(report.round_trips_checked > 10, "{report:?}");
        drop(source);
        let modelled = serve(engine, 16, &MemorySource::Modelled).unwrap();
        assert!(summary.makespan_s > 0.0 && summary.makespan_s != modelled.makespan_s);
        assert_eq!((summary.completed, summary.requests), (modelled.completed, modelled.requests));
    }
}

#[test]
fn what_cannot_be_computed_is_refused() {
    let _emulated = emulated_or_skip!();
    let error = |deployment: &Deployment, engine: &EngineConfig| open(0, deployment, engine).unwrap_err().to_string();
    let two = Deployment { devices: 2, ..deployment() };
    assert!(error(&two, &engine()).contains("one device is supported"));
    let blocks = EngineConfig { block_size: 32, ..engine() };
    assert_eq!(error(&deployment(), &blocks), "blocks of 32 tokens: attention on the device needs 16");
    let mut odd = deployment();
    odd.model.head_dim = 96;
    assert!(error(&odd, &engine()).starts_with("tiny: "), "{}", error(&odd, &engine()));
    let large: Deployment = "llama-3-8b@h200".parse().unwrap();
    let error = open(0, &large, &large.engine(EngineKind::V1)).unwrap_err();
    assert!(matches!(&error, MemoryError::OutOfMemory { what, .. } if what == "the weights of llama-3-8b"), "{error}");
    let _ = KvShape::of(&large.model, 16).unwrap();
}
