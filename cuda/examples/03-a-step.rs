//! A decoder serves two requests, step by step: the scheduler plans, the device computes, and its time is the clock.
//!
//!     cargo run -p kvtide-cuda --example 03-a-step

use std::error::Error;
use std::sync::Arc;

use kvtide_cuda::{devices, lend};
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::deploy::{Deployment, Hardware, Model, Structure, Widths};
use kvtide_envs::env::{Node, NodeConfig, NodeStatus};
use kvtide_envs::metrics::Collector;
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::{Action, Host};

/// A decoder of two layers that any device holds: four heads over two key/value heads, a vocabulary of 320.
fn tiny() -> Result<Deployment, Box<dyn Error>> {
    let (layers, heads, kv_heads, head_dim, hidden, intermediate, vocabulary) = (2, 4, 2, 64, 128, 192, 320);
    let width = f64::from(hidden);
    let attention = width * f64::from(head_dim * (2 * heads + 2 * kv_heads));
    let model = Model {
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
        max_model_len: 512,
        structure: Structure::default(),
        widths: Widths { intermediate, matrices: 3, vocabulary, ..Widths::default() },
    };
    Ok(Deployment::new(model, Hardware::named("h200").ok_or("a built-in profile")?, 1))
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    if devices() == 0 {
        eprintln!("skipped: 03-a-step: no CUDA device");
        return Ok(());
    }
    // An engine with chunked prefill: at most 64 tokens a step.
    let deployment = tiny()?;
    let engine = EngineConfig {
        num_gpu_blocks: 40,
        num_cpu_blocks: 8,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_model_len: 512,
        enable_chunked_prefill: true,
        ..EngineConfig::default()
    };
    // The device with the model's weights and both pools on it, for one node at a time.
    let source = lend(0, &deployment, &engine)?;
    let cost = CostModel::new(&deployment, engine.block_size);
    let config = NodeConfig { cost, engine, slo: Slo::default(), clients: None, host: Host::KVTIDE };

    // One prompt that fits a step, one that takes two.
    let requests: Arc<[Request]> =
        [(40, 3), (90, 2)].map(|(prompt, answer)| Request::new(Micros::ZERO, prompt, answer)).into();
    let memory = source.memory(&config.engine)?;
    let mut node = Node::new(&config, requests, Collector::default())?.with_memory(memory);
    let controls = Action::ENGINE_DEFAULT.controls();
    let mut before = node.now();
    while node.step(&controls)? == NodeStatus::Stepped {
        // Every block in use is read off the device and compared with what it held when it was written.
        node.verify_memory()?;
        let prompts = node.plan().prefills.iter().map(|prefill| format!("{} of a prompt", prefill.tokens));
        let decodes = (node.plan().cohort > 0).then(|| format!("{} decoded", node.plan().cohort));
        let step = prompts.chain(decodes).collect::<Vec<_>>().join(" + ");
        println!("{step:<36} {:>6} µs", (node.now() - before).0);
        before = node.now();
    }
    let report = node.memory_report().ok_or("a node with memory reports on it")?;
    println!("{}: {} tokens written, {} blocks checked", report.backend, report.written_tokens, report.blocks_checked);
    Ok(())
}
