//! What is run, in what order.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::cost::CostModel;
use kvtide_envs::token_price::{
    Attention, ConstantReturn, KeepRule, PriceRule, Return, ReturnPredictor, ServeConfig, Served, serve,
};
use rayon::prelude::*;

use super::{Line, ReturnNetwork, TokenPdPrice, TokenPdRegret, TokenPdRow, TokenPdTraining, TokenPdVerdict};

/// `η₀`, of which `η = η₀ / √T`.
pub const USUAL_RATE: f64 = 8.0;
/// Where prices begin, percent of a row of attention for a block.
const FIRST_PRICE: f64 = 0.1;
/// Shares of FIFO's peak that everybody is given in turn.
const SHARES: [f64; 7] = [0.2, 0.3, 0.41, 0.5, 0.65, 0.8, 1.0];
/// `λ` in turn.
const RISKS: [f64; 6] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5];
/// Constant prices that the moving one is held against: around what it comes to, each so many times the one before, so many on each side.
const PRICES: (f64, i32) = (1.04, 16);
/// The shortest horizon is the longest over two to the power of one less.
const HORIZONS: u32 = 6;

/// What is judged, on what.
pub struct Study<'a> {
    /// Attention to learn from.
    pub learned_from: &'a Attention,
    /// Attention to serve.
    pub attention: &'a Attention,
    /// Model and hardware.
    pub env: &'a str,
    /// What a step takes there.
    pub cost: &'a CostModel,
    /// Blocks of its pool.
    pub pool: u32,
    /// Tokens of a step.
    pub step_tokens: u32,
    /// Numbers of streams, in order; the one in the middle is looked at more closely.
    pub streams: &'a [u32],
    /// Scheduler steps of a run.
    pub steps: u32,
    /// What Token-PD's price aims at, as a share of FIFO's peak.
    pub target: f64,
    /// `λ`.
    pub risk_aversion: f64,
    /// `η₀`.
    pub rate: f64,
    /// Share of a row from which on a block is recomputed.
    pub demand: f32,
    /// `δ`.
    pub penalty: f64,
    /// Steps of Adam.
    pub training_steps: u32,
    /// Seed of what is drawn while learning, and of the attention where that is drawn.
    pub seed: u64,
}

/// A policy to run, without what is the same for all.
#[derive(Clone, Copy)]
struct Case {
    part: &'static str,
    streams: u32,
    capacity: u32,
    policy: Policy,
}

#[derive(Clone, Copy)]
enum Policy {
    Fifo,
    Lru,
    H2o,
    TokenPd { target: u32, risk_aversion: f64, is_learned: bool },
}

/// Whoever is asked for the next line: false to stop.
type Each<'a> = &'a mut dyn FnMut(Line) -> bool;

impl Study<'_> {
    /// Learns, then runs everything; whether it came to the end. `each` is told what there is as it comes, and says whether to go on.
    pub fn run(&self, stop: &AtomicBool, each: Each<'_>) -> bool {
        let (network, fit) = ReturnNetwork::learn(self.learned_from, self.training_steps, self.seed);
        let training = TokenPdTraining {
            seed: self.seed,
            attention: self.learned_from.name.clone(),
            steps: self.training_steps,
            examples: fit.examples,
            explained: fit.explained,
            calibration: fit.calibration,
        };
        if !each(Line::Training(training)) {
            return false;
        }
        let mut peaks = Vec::new();
        for &streams in self.streams {
            let Some(peak) = self.at(streams, &network, stop, each) else { return false };
            peaks.push(peak);
        }
        let middle = self.streams.len() / 2;
        let (streams, peak) = (self.streams[middle], peaks[middle]);
        self.closely(streams, peak, &network, stop, each) && self.horizons(streams, peak, &network, stop, each)
    }

    fn target(&self, peak: u32) -> u32 {
        ((f64::from(peak) * self.target).round() as u32).max(1)
    }

    fn priced(&self, target: u32) -> Policy {
        Policy::TokenPd { target, risk_aversion: self.risk_aversion, is_learned: true }
    }

    /// Everybody at one number of streams, with all of the pool and with the target; FIFO's peak, or none where it was stopped.
    fn at(&self, streams: u32, network: &ReturnNetwork, stop: &AtomicBool, each: Each<'_>) -> Option<u32> {
        let case = |capacity, policy| Case { part: "streams", streams, capacity, policy };
        let mut rows = self.rows(&[case(self.pool, Policy::Fifo)], network, stop)?;
        let peak = rows[0].0.peak_blocks;
        let target = self.target(peak);
        let (all, little) = (self.pool, target);
        let cases = [
            case(all, Policy::Lru),
            case(all, Policy::H2o),
            case(all, self.priced(target)),
            case(little, Policy::Fifo),
            case(little, Policy::Lru),
            case(little, Policy::H2o),
            case(little, self.priced(target)),
        ];
        rows.extend(self.rows(&cases, network, stop)?);
        let verdict = TokenPdVerdict::of(&rows.iter().map(|row| row.0.clone()).collect::<Vec<TokenPdRow>>());
        let price = rows.iter().find(|row| row.0.target_blocks.is_some() && row.0.capacity_blocks == all);
        let price = price.map(|(row, served)| Line::Price(TokenPdPrice::of(row, served)));
        let lines = rows.into_iter().map(|(row, _)| Line::Row(row));
        lines.chain(price).chain(verdict.map(Line::Verdict)).all(each).then_some(peak)
    }

    /// How much memory each needs, what risk is worth, and what the predictor is.
    fn closely(&self, streams: u32, peak: u32, network: &ReturnNetwork, stop: &AtomicBool, each: Each<'_>) -> bool {
        let target = self.target(peak);
        let mut cases = Vec::new();
        for share in SHARES {
            let capacity = ((f64::from(peak) * share).round() as u32).max(1);
            let policies = [Policy::Fifo, Policy::Lru, Policy::H2o, self.priced(capacity)];
            cases.extend(policies.map(|policy| Case { part: "memory", streams, capacity, policy }));
        }
        for risk_aversion in RISKS {
            let policy = Policy::TokenPd { target, risk_aversion, is_learned: true };
            cases.push(Case { part: "risk", streams, capacity: self.pool, policy });
        }
        for capacity in [self.pool, target] {
            for is_learned in [true, false] {
                let policy = Policy::TokenPd { target, risk_aversion: self.risk_aversion, is_learned };
                cases.push(Case { part: "predictor", streams, capacity, policy });
            }
        }
        let Some(rows) = self.rows(&cases, network, stop) else { return false };
        rows.into_iter().all(|(row, _)| each(Line::Row(row)))
    }

    /// Runs on all cores, in order; none where it was stopped.
    fn rows(&self, cases: &[Case], network: &ReturnNetwork, stop: &AtomicBool) -> Option<Vec<(TokenPdRow, Served)>> {
        let run = |case: &Case| (!stop.load(Ordering::Relaxed)).then(|| self.row(case, network));
        cases.par_iter().map(run).collect()
    }

    fn row(&self, case: &Case, network: &ReturnNetwork) -> (TokenPdRow, Served) {
        // What a block would return if all did alike.
        let mean = 100.0 / self.attention.longest().max(1) as f32;
        let constant = ConstantReturn(Return { mean, variance: 0.0 });
        let (mut target_blocks, mut risk, mut predictor) = (None, None, None);
        let rule = match case.policy {
            Policy::Fifo => KeepRule::Fifo,
            Policy::Lru => KeepRule::Lru,
            Policy::H2o => KeepRule::H2o,
            Policy::TokenPd { target, risk_aversion, is_learned } => {
                (target_blocks, risk) = (Some(target), Some(risk_aversion));
                predictor = Some(if is_learned { "learned" } else { "constant" });
                let predictor: &dyn ReturnPredictor = if is_learned { network } else { &constant };
                let rate = self.rate / f64::from(self.steps).sqrt();
                let risk_aversion = risk_aversion as f32;
                KeepRule::TokenPd(PriceRule { risk_aversion, rate, first_price: FIRST_PRICE, target, predictor })
            }
        };
        let served = serve(&self.config(case.streams, self.steps, Some(case.capacity), rule));
        let row = TokenPdRow {
            seed: self.seed,
            part: case.part,
            attention: self.attention.name.clone(),
            env: self.env.to_owned(),
            streams: case.streams,
            steps: self.steps,
            policy: rule.name(),
            predictor,
            risk_aversion: risk,
            capacity_blocks: case.capacity,
            target_blocks,
            peak_blocks: served.peak_blocks,
            mean_blocks: served.mean_blocks,
            requests: served.latencies.len(),
            requests_per_s: served.requests_per_s(),
            latency_p50_ms: served.latency_ms(50.0),
            latency_p95_ms: served.latency_ms(95.0),
            retained: served.retained,
            evicted_blocks: served.evicted,
            recomputed_blocks: served.recomputed,
        };
        (row, served)
    }

    fn config<'b>(&'b self, streams: u32, steps: u32, capacity: Option<u32>, rule: KeepRule<'b>) -> ServeConfig<'b> {
        ServeConfig {
            attention: self.attention,
            streams,
            steps,
            capacity,
            rule,
            cost: self.cost,
            step_tokens: self.step_tokens,
            demand: self.demand,
            penalty: self.penalty,
        }
    }

    /// The price alone, without a limit, over longer and longer horizons, and constant ones.
    fn horizons(&self, streams: u32, peak: u32, network: &ReturnNetwork, stop: &AtomicBool, each: Each<'_>) -> bool {
        let target = self.target(peak);
        let horizons: Vec<u32> =
            (0..HORIZONS).rev().map(|power| self.steps >> power).filter(|&steps| steps > 0).collect();
        let run = |steps: u32, rate: f64, first_price: f64| {
            let risk_aversion = self.risk_aversion as f32;
            let rule = PriceRule { risk_aversion, rate, first_price, target, predictor: network };
            let config = self.config(streams, steps, None, KeepRule::TokenPd(rule));
            (!stop.load(Ordering::Relaxed)).then(|| serve(&config))
        };
        let rate = |steps: u32| self.rate / f64::from(steps).sqrt();
        let moving: Option<Vec<Served>> =
            horizons.par_iter().map(|&steps| run(steps, rate(steps), FIRST_PRICE)).collect();
        let Some(moving) = moving else { return false };
        let prices = around(&moving[moving.len() - 1]);
        let constant: Option<Vec<Served>> = prices.par_iter().map(|&price| run(self.steps, 0.0, price)).collect();
        let Some(constant) = constant else { return false };
        horizons
            .iter()
            .zip(&moving)
            .filter_map(|(&steps, served)| {
                let best = best_constant(&prices, &constant, steps, target);
                best.map(|best| regret((self.seed, streams), rate(steps), target, best, served))
            })
            .all(|line| each(Line::Regret(line)))
    }
}

/// Constant prices around the mean of the second half of a run.
fn around(served: &Served) -> Vec<f64> {
    let late = &served.stamps[served.stamps.len() / 2..];
    let mean = late.iter().map(|stamp| stamp.price).sum::<f64>() / late.len().max(1) as f64;
    let (factor, side) = PRICES;
    (-side..=side).map(|power| mean * factor.powi(power)).collect()
}

/// The price, and its utility after so many steps, of those that keep to the target on average till then whose utility is greatest.
fn best_constant(prices: &[f64], served: &[Served], steps: u32, target: u32) -> Option<(f64, f64)> {
    let until = |served: &Served| {
        let stamps = &served.stamps[..steps as usize];
        let mean = stamps.iter().map(|stamp| f64::from(stamp.kept)).sum::<f64>() / f64::from(steps);
        (mean <= f64::from(target)).then(|| stamps.last().map_or(0.0, |stamp| stamp.utility))
    };
    let kept = prices.iter().zip(served).filter_map(|(&price, served)| Some((price, until(served)?)));
    kept.max_by(|a, b| a.1.total_cmp(&b.1))
}

fn regret((seed, streams): (u64, u32), rate: f64, target: u32, best: (f64, f64), served: &Served) -> TokenPdRegret {
    let over = |kept: u32| f64::from(kept.saturating_sub(target)) / f64::from(target);
    let violation: f64 = served.stamps.iter().map(|stamp| over(stamp.kept)).sum();
    let regret = best.1 - served.utility;
    let root = (served.stamps.len() as f64).sqrt();
    TokenPdRegret {
        seed,
        streams,
        steps: served.stamps.len() as u32,
        rate,
        best_price: best.0,
        best_utility: best.1,
        utility: served.utility,
        regret,
        regret_over_sqrt_steps: regret / root,
        violation,
        violation_over_sqrt_steps: violation / root,
    }
}
