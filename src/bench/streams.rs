//! Steps of 256 streams that share a pool too small for them, on one core: everything but drawing the attention, so that what a price for
//! blocks costs is the difference to FIFO, and less than the whole.

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, DeploymentError, EngineKind};
use kvtide_envs::token_price::{KeepRule, PriceRule, Process, ServeConfig, Serving};

use super::{Throughput, seconds};
use crate::token_pd::{ReturnNetwork, USUAL_RATE};

/// The batch of the paper that the price is from, and half the blocks that it would fill.
const STREAMS: u32 = 256;
const CAPACITY: u32 = 8500;
/// Steps until the pool is full and conversations are at all stages, and those that are timed.
const BEFORE: u32 = 1024;
const TIMED: u32 = 1024;
/// Enough for ranks that are not those of weights at random.
const TRAINING_STEPS: u32 = 300;

/// Steps a second of each rule.
///
/// # Errors
/// The deployment is not there.
pub fn stream_steps(repeats: usize, each: &mut dyn FnMut(Throughput)) -> Result<(), DeploymentError> {
    let deployment = Deployment::load("llama-3-8b@h100")?;
    let cost = CostModel::new(&deployment, deployment.engine(EngineKind::V1).block_size);
    let process = Process::USUAL;
    let attention = process.draw(1);
    let (network, _) = ReturnNetwork::learn(&attention, TRAINING_STEPS, 1);
    let rate = USUAL_RATE / f64::from(BEFORE + TIMED).sqrt();
    let price = PriceRule { risk_aversion: 0.1, rate, first_price: 0.1, target: CAPACITY, predictor: &network };
    for rule in [KeepRule::Fifo, KeepRule::Lru, KeepRule::H2o, KeepRule::TokenPd(price)] {
        let turn = |_| {
            let config = ServeConfig {
                attention: &attention,
                streams: STREAMS,
                steps: BEFORE + TIMED,
                capacity: Some(CAPACITY),
                rule,
                cost: &cost,
                step_tokens: 8192,
                demand: 0.02,
                penalty: 0.02,
            };
            let mut serving = Serving::new(config);
            (0..BEFORE).for_each(|_| serving.step());
            seconds(|| (0..TIMED).for_each(|_| serving.step()))
        };
        let taken: Vec<f64> = (0..repeats).map(turn).collect();
        let case = format!("{}, {STREAMS} streams, {CAPACITY} blocks", rule.name());
        each(Throughput::rate("stream_steps", case, "steps/s", TIMED.into(), &taken));
    }
    Ok(())
}
