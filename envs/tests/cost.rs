//! What holds of the price of every step: more of anything never costs less, and nothing is free.

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, Hardware};
use kvtide_envs::kv::BlockId;
use kvtide_envs::sched::{BlockCopy, Prefill, PrefillSource, RequestId, StepPlan};
use kvtide_envs::tier::{Route, Routes};
use kvtide_envs::time::Micros;
use proptest::prelude::*;

const DEPLOYMENTS: [&str; 4] =
    ["llama-3-8b@rtx-4090", "qwen2.5-7b@a10", "llama-3-70b@4xh100-datasheet", "llama-3-8b@2xa100-80g-datasheet"];

fn cost(index: usize) -> CostModel {
    CostModel::new(&DEPLOYMENTS[index].parse().unwrap(), 16)
}

/// What a step is made of.
#[derive(Debug, Clone)]
struct Load {
    /// `(tokens, context)`.
    prefills: Vec<(u32, u32)>,
    decodes: u32,
    context: u64,
    copies_in: usize,
    copies_out: usize,
}

impl Load {
    fn plan(&self) -> StepPlan {
        let prefill = |(index, &(tokens, context)): (usize, &(u32, u32))| Prefill {
            id: RequestId(index as u32),
            tokens,
            context,
            source: PrefillSource::Waiting,
            samples: true,
        };
        let copy = BlockCopy { src: BlockId(0), dst: BlockId(0) };
        StepPlan {
            prefills: self.prefills.iter().enumerate().map(prefill).collect(),
            cohort: self.decodes,
            decode_context: if self.decodes == 0 { 0 } else { self.context },
            copies: Routes::from_fn(|route| match route {
                Route::GpuToHost => vec![copy; self.copies_out],
                Route::HostToGpu => vec![copy; self.copies_in],
            }),
            ..StepPlan::default()
        }
    }
}

fn loads() -> impl Strategy<Value = Load> {
    let prefills = prop::collection::vec((1..5000_u32, 0..5000_u32), 0..5);
    (prefills, 0..300_u32, 0..1_000_000_u64, 0..500_usize, 0..500_usize).prop_map(
        |(prefills, decodes, context, copies_in, copies_out)| Load {
            prefills,
            decodes,
            context,
            copies_in,
            copies_out,
        },
    )
}

proptest! {
    #[test]
    fn more_of_anything_never_costs_less(load in loads(), model in 0..DEPLOYMENTS.len(), more in 1..2000_u32) {
        let cost = cost(model);
        let price = |change: &dyn Fn(&mut Load)| {
            let mut changed = load.clone();
            change(&mut changed);
            cost.step_time(&changed.plan())
        };
        let base = cost.step_time(&load.plan());
        let step = price(&|load| *load = Load { prefills: Vec::new(), decodes: 0, context: 0, copies_in: 0, copies_out: 0 });
        prop_assert!(base >= step && step > Micros::ZERO);
        prop_assert!(price(&|load| load.decodes += more) >= base);
        prop_assert!(price(&|load| load.context += u64::from(more)) >= base);
        prop_assert!(price(&|load| load.prefills.push((more, 0))) > base);
        prop_assert!(price(&|load| load.copies_in += more as usize) > base);
        prop_assert_eq!(price(&|load| load.copies_out += more as usize), price(&|load| load.copies_in += more as usize));
        if !load.prefills.is_empty() {
            prop_assert!(price(&|load| load.prefills[0].0 += more) >= base);
            prop_assert!(price(&|load| load.prefills[0].1 += more) >= base);
            // A prompt in two chunks costs at least what it costs in one.
            let (tokens, context) = load.prefills[0];
            let half = tokens / 2;
            let halves = [(half, context), (tokens - half, context + half)].map(|chunk| {
                cost.step_time(&Load { prefills: vec![chunk], decodes: 0, context: 0, copies_in: 0, copies_out: 0 }.plan())
            });
            let whole = Load { prefills: vec![(tokens, context)], decodes: 0, context: 0, copies_in: 0, copies_out: 0 };
            prop_assert!(half == 0 || halves[0] + halves[1] > cost.step_time(&whole.plan()));
        }
    }

    #[test]
    fn price_lists_grow_and_agree_with_steps(model in 0..DEPLOYMENTS.len(), blocks in 1..2000_u32, tokens in 1..8000_u32) {
        let cost = cost(model);
        let pricing = cost.pricing();
        prop_assert!(pricing.swap(blocks + 50) > pricing.swap(blocks));
        prop_assert!(pricing.prefill(tokens + 50) > pricing.prefill(tokens));
        // A swap out and in again costs two steps with as many copies each, less what every step and swap costs.
        let idle = cost.step_time(&StepPlan::default());
        let copies = |copies| Load { prefills: Vec::new(), decodes: 0, context: 0, copies_in: copies, copies_out: 0 };
        let one = cost.step_time(&copies(blocks as usize).plan()) - idle;
        let fixed = Micros(100);
        let difference = (one.0 - fixed.0).abs_diff(pricing.swap(blocks).0 / 2);
        prop_assert!(difference <= 2, "{difference}");
        prop_assert!(cost.decode_tokens_per_s(blocks + 1, tokens) > cost.decode_tokens_per_s(blocks, tokens) * 0.999);
        prop_assert!(cost.decode_tokens_per_s(blocks, tokens + 1) <= cost.decode_tokens_per_s(blocks, tokens));
    }
}

#[test]
fn even_on_perfect_hardware_a_step_takes_a_microsecond() {
    let mut deployment: Deployment = DEPLOYMENTS[0].parse().unwrap();
    deployment.hardware = Hardware {
        peak_flops: 1e40,
        peak_bandwidth: 1e40,
        pcie_bandwidth: 1e40,
        step_overhead: 0.0,
        sequence_overhead: 0.0,
        swap_overhead: 0.0,
        ..deployment.hardware
    };
    let cost = CostModel::new(&deployment, 16);
    let load = Load { prefills: vec![(100, 0)], decodes: 0, context: 0, copies_in: 3, copies_out: 0 };
    assert_eq!(cost.step_time(&load.plan()), Micros(1));
    assert_eq!(cost.step_time(&StepPlan::default()), Micros(1));
}

#[test]
fn a_batch_decodes_as_fast_as_its_yardstick_says() {
    let cost = cost(0);
    let load = Load { prefills: Vec::new(), decodes: 32, context: 32 * 1024, copies_in: 0, copies_out: 0 };
    let measured = 32.0 / cost.step_time(&load.plan()).as_secs_f64();
    assert!((measured / cost.decode_tokens_per_s(32, 1024) - 1.0).abs() < 1e-3, "{measured}");
}
