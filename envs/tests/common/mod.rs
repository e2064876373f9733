//! What the scheduler tests share.

#![allow(dead_code, reason = "each test takes what it needs")]
#![allow(clippy::needless_pass_by_value, reason = "stories are easier to read without references")]

pub mod defective;
pub mod line;
pub mod record_v1;
pub mod reference;
pub mod reference_pool;
pub mod reference_v1;
pub mod rooms;
pub mod rules;
pub mod sim;
pub mod story;
pub mod traffic;
pub mod world_v1;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{DeadEnds, Deployment, EngineConfig};
use kvtide_envs::env::NodeConfig;
use kvtide_envs::sched::{Pricing, Slo};
use kvtide_envs::time::Micros;
use kvtide_runtime::{Action, Controls, Host};

/// A safe engine without chunks whose longest sequence fills the pool.
pub fn engine(block_size: u32, num_gpu_blocks: u32, num_cpu_blocks: u32) -> EngineConfig {
    EngineConfig {
        block_size,
        num_gpu_blocks,
        num_cpu_blocks,
        max_num_seqs: 8,
        max_num_batched_tokens: block_size * num_gpu_blocks,
        max_model_len: block_size * num_gpu_blocks,
        enable_chunked_prefill: false,
        dead_ends: DeadEnds::Safe,
        max_wait: Micros::MAX,
        pricing: Pricing::default(),
        ..EngineConfig::default()
    }
}

/// A node with this engine, its step times those of an RTX 4090, in an open loop.
pub fn node_config(engine: EngineConfig, slo: Slo) -> NodeConfig {
    let deployment: Deployment = "llama-3-8b@rtx-4090".parse().unwrap();
    NodeConfig { cost: CostModel::new(&deployment, engine.block_size), engine, slo, clients: None, host: Host::KVTIDE }
}

/// The same engine as vLLM has it, dead ends included.
pub fn faithful(block_size: u32, num_gpu_blocks: u32, num_cpu_blocks: u32) -> EngineConfig {
    EngineConfig { dead_ends: DeadEnds::Faithful, ..engine(block_size, num_gpu_blocks, num_cpu_blocks) }
}

/// With chunked prefill and this token budget.
pub fn chunked(engine: EngineConfig, budget: u32) -> EngineConfig {
    EngineConfig { enable_chunked_prefill: true, max_num_batched_tokens: budget, ..engine }
}

/// vLLM's controls with a watermark of 0: newest victim, recompute, first come first served.
pub fn controls() -> Controls {
    Controls { watermark: 0.0, ..Action::ENGINE_DEFAULT.controls() }
}
