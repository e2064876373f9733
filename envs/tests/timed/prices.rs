//! What holds of every price made from measured kernels.

use kvtide_envs::calibrate::StepShape;
use kvtide_envs::cost::{Chunk, CostModel, StepLoad};
use kvtide_envs::deploy::{Deployment, KernelTimes};
use kvtide_envs::tier::Links;
use proptest::prelude::*;

fn kernels() -> impl Strategy<Value = KernelTimes> {
    let knots = prop::collection::btree_map(1..10_000_u32, 0.0..2.0_f64, 2..64);
    let attention = (0.05..1.0_f64, 0.0..1e-5_f64, 0.05..1.0_f64, 1..300_u32, 0.0..1e-4_f64);
    (knots, attention, 0.0..0.01_f64, 0.0..=1.0_f64).prop_map(|(knots, attention, launch, swap_overlap)| {
        let mut height = 0.1;
        let climb = |rise: &f64| {
            height += rise;
            height
        };
        KernelTimes {
            tokens: knots.keys().copied().collect(),
            ps_per_weight: knots.values().map(climb).collect(),
            decode_bandwidth: attention.0,
            decode_sequence: attention.1,
            chunk_compute: attention.2,
            chunk_tile: attention.3,
            attention_fixed: attention.4,
            launch,
            swap_overlap,
        }
    })
}

fn shapes() -> impl Strategy<Value = StepShape> {
    let chunks = prop::collection::vec((0..5000_u32, 1..5000_u32), 0..5);
    (prop::collection::vec(0..10_000_u32, 0..300), chunks).prop_map(|(decodes, chunks)| StepShape {
        decodes,
        chunks: chunks.into_iter().map(|(context, tokens)| Chunk { context, tokens }).collect(),
    })
}

fn cost(kernels: KernelTimes, devices: u32) -> CostModel {
    let mut deployment: Deployment = "llama-3-8b@h100-datasheet".parse().unwrap();
    deployment.hardware.kernels = Some(kernels);
    assert_eq!(deployment.hardware.validate(), Ok(()));
    CostModel::new(&Deployment { devices, ..deployment }, 16)
}

proptest! {
    #[test]
    fn more_of_anything_never_costs_less(
        kernels in kernels(), shape in shapes(), blocks in 0..500_usize, more in 1..2000_u32, devices in 1..3_u32,
    ) {
        let launch = kernels.launch;
        let cost = cost(kernels, devices);
        let price = |shape: &StepShape, blocks: usize| {
            cost.device_seconds(&StepLoad { blocks: Links::from_fn(|_| blocks), ..shape.load() })
        };
        // Sums are taken in another order where something is added.
        let base = price(&shape, blocks) * (1.0 - 1e-12);
        let changed = |change: &dyn Fn(&mut StepShape)| {
            let mut changed = shape.clone();
            change(&mut changed);
            price(&changed, blocks)
        };
        prop_assert!(base.is_finite() && (shape.load().sequences() == 0 || base >= launch * (1.0 - 1e-12)));
        prop_assert!(price(&shape, blocks + more as usize) >= base);
        prop_assert!(changed(&|shape| shape.decodes.push(0)) >= base);
        prop_assert!(changed(&|shape| shape.decodes.iter_mut().for_each(|context| *context += more)) >= base);
        let added = Chunk { context: 0, tokens: more };
        prop_assert!(changed(&|shape| shape.chunks.push(added)) >= base);
        prop_assert!(changed(&|shape| shape.chunks.iter_mut().for_each(|chunk| chunk.tokens += more)) >= base);
        prop_assert!(changed(&|shape| shape.chunks.iter_mut().for_each(|chunk| chunk.context += more)) >= base);
        // Both at once take at least as long as the longer, and at most as long as one after the other.
        let (compute, swap) = (price(&shape, 0), price(&StepShape::default(), blocks));
        prop_assert!(base <= compute + swap && price(&shape, blocks) >= compute.max(swap) * (1.0 - 1e-12));
        let host = cost.step_seconds(&shape.load()) - cost.device_seconds(&shape.load());
        let expected = 3e-3 + 15e-6 * shape.load().sequences() as f64;
        prop_assert!((host / expected - 1.0).abs() < 1e-9, "{host}");
    }

    #[test]
    fn yardsticks_agree_with_steps(kernels in kernels(), batch in 1..500_u32, context in 1..5000_u32) {
        let last = *kernels.tokens.last().unwrap();
        let cost = cost(kernels, 1);
        let shape = StepShape { decodes: vec![context - 1; batch as usize], chunks: Vec::new() };
        let measured = f64::from(batch) / cost.step_seconds(&shape.load());
        prop_assert!((measured / cost.decode_tokens_per_s(batch, context) - 1.0).abs() < 1e-9);
        let pricing = cost.pricing();
        prop_assert!(pricing.prefill_ns_per_token > 0.0 && pricing.attention_ns_per_token_pair > 0.0);
        // Beyond the last knot a token more costs what the price list says, but for attention and the head.
        let alone = |tokens| {
            let load = StepShape { decodes: Vec::new(), chunks: vec![Chunk { context: 0, tokens }] };
            cost.device_seconds(&load.load())
        };
        let difference = (alone(4 * last) - alone(2 * last)) / f64::from(2 * last);
        prop_assert!(difference * 1e9 >= 0.999 * pricing.prefill_ns_per_token || alone(2 * last) < 0.0101, "{difference}");
    }
}
