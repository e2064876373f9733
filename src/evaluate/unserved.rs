//! Policies that served nobody: no result, and why.

use std::fmt;

use kvtide_envs::trace::Request;
use kvtide_envs::workload::{Workload, WorkloadError};

use super::matrix::{Matrix, window_name};
use super::row::RunRow;
use crate::policy::PolicyName;
use crate::world::{Draw, World};

/// A policy under which no request was completed in any run.
#[derive(Debug, Clone, PartialEq)]
pub struct Unserved {
    policy: PolicyName,
    requests: u64,
    rejected: u64,
    /// Tokens of the smallest request, prompt and answer, and of the longest sequence the engine takes and the pool holds.
    smallest: u64,
    max_model_len: u64,
    pool: u64,
}

/// Those of whose `rows`, in `world`, none has a completed request.
///
/// # Errors
/// The traffic cannot be drawn again.
pub fn unserved(world: &World, matrix: &Matrix, rows: &[RunRow]) -> Result<Vec<Unserved>, WorkloadError> {
    let mut found = Vec::new();
    for (policy, _) in &matrix.policies {
        let own = || rows.iter().filter(|row| row.policy == *policy);
        let sum = |count: fn(&RunRow) -> u64| own().map(count).sum::<u64>();
        let (requests, completed) = (sum(|row| row.summary.requests), sum(|row| row.summary.completed));
        if requests == 0 || completed > 0 {
            continue;
        }
        let mut smallest = u64::MAX;
        for row in own() {
            let window = matrix.windows.iter().copied().find(|window| window_name(*window) == row.window).flatten();
            let drawn = world.draw(&Draw { window, load: row.load, seed: row.seed })?;
            smallest = smallest.min(Unserved::smallest(&drawn));
        }
        let rejected = sum(|row| row.summary.rejected);
        found.push(Unserved::of(world, policy.clone(), (requests, rejected), smallest));
    }
    Ok(found)
}

impl Unserved {
    /// A policy that completed none of so many requests in `world`, of which so many were rejected and the smallest is of so many
    /// tokens.
    pub fn of(world: &World, policy: PolicyName, (requests, rejected): (u64, u64), smallest: u64) -> Unserved {
        let engine = &world.node.engine;
        let pool = u64::from(engine.num_gpu_blocks) * u64::from(engine.block_size);
        Unserved { policy, requests, rejected, smallest, max_model_len: engine.max_model_len.into(), pool }
    }

    /// Tokens of the smallest request of `drawn`, prompt and answer.
    pub fn smallest(drawn: &Workload) -> u64 {
        drawn.requests().iter().map(tokens).fold(u64::MAX, u64::min)
    }
}

fn tokens(request: &Request) -> u64 {
    u64::from(request.prompt_tokens) + u64::from(request.output_tokens)
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unserved { policy, requests, rejected, smallest, max_model_len, pool } = self;
        write!(
            f,
            "{policy} completed none of {requests} requests ({rejected} rejected): the smallest has {smallest} tokens, "
        )?;
        match (smallest > max_model_len, smallest > pool) {
            (true, false) => write!(f, "max_model_len is {max_model_len}; a larger --set max_model_len would take it"),
            // A pool that holds less than the model's context lowers it.
            (_, true) => write!(
                f,
                "the pool holds {pool} and max_model_len is {max_model_len}; it takes a larger --pool or --set num_gpu_blocks, and \
                 a --set max_model_len as large if there is one"
            ),
            (false, false) => {
                write!(
                    f,
                    "max_model_len is {max_model_len} and the pool holds {pool}, of which a watermark may take too much"
                )
            }
        }
    }
}
