//! What a step takes, as the simulator prices it: for checks that play an engine and must not price it otherwise.

use kvtide_envs::cost::{Chunk, CostModel, StepLoad};
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind};
use kvtide_envs::tier::Links;
use kvtide_envs::time::Micros;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A deployment's prices, and vLLM's settings for it.
#[pyclass(name = "StepCost", module = "kvtide._sim", frozen)]
#[derive(Debug)]
pub struct PyStepCost {
    cost: CostModel,
    engine: EngineConfig,
}

#[pymethods]
impl PyStepCost {
    /// Of `MODEL@HARDWARE`. Raises `ValueError`.
    #[new]
    fn new(env: &str) -> PyResult<PyStepCost> {
        let deployment = Deployment::load(env).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let engine = deployment.engine(EngineKind::V1);
        Ok(PyStepCost { cost: CostModel::new(&deployment, engine.block_size).under(&engine), engine })
    }

    /// Microseconds of a step in which so many sequences decode, which attend to `decode_context` tokens together, their
    /// new ones included, and chunks of prompts are computed, each (tokens before it, tokens).
    fn step_us(&self, decodes: u32, decode_context: u64, chunks: Vec<(u32, u32)>) -> u64 {
        let chunks = chunks.into_iter().map(|(context, tokens)| Chunk { context, tokens });
        let load = StepLoad { decodes, decode_context, chunks, blocks: Links::default() };
        Micros::from_secs_f64(self.cost.step_seconds(&load)).max(Micros(1)).0
    }

    #[getter]
    fn num_gpu_blocks(&self) -> u32 {
        self.engine.num_gpu_blocks
    }

    #[getter]
    fn max_num_seqs(&self) -> u32 {
        self.engine.max_num_seqs
    }

    #[getter]
    fn max_num_batched_tokens(&self) -> u32 {
        self.engine.max_num_batched_tokens
    }

    #[getter]
    fn prefill_ns_per_token(&self) -> f64 {
        self.engine.pricing.prefill_ns_per_token
    }

    #[getter]
    fn attention_ns_per_token_pair(&self) -> f64 {
        self.engine.pricing.attention_ns_per_token_pair
    }
}
