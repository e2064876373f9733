//! The accelerator's part.

use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, Hardware, KernelShapes, KernelTables, Precision};
use proptest::prelude::*;

use super::{CONTEXT, KINDS, KNOTS, SEQUENCES, Step, deployment, price, smooth_deployment};

fn steps() -> impl Strategy<Value = Step> {
    let chunks = prop::collection::vec((1..9000_u32, 0..20_000_u32), 0..4);
    (0..600_u32, 0..2_000_000_u64, chunks).prop_map(|(decodes, context, chunks)| Step { decodes, context, chunks })
}

/// Every time of the tables changed by a factor of its own: what was measured is noisy, and need not rise.
fn noisy(tables: &KernelTables, factors: &[f64]) -> KernelTables {
    let mut tables = tables.clone();
    let mut next = factors.iter().cycle();
    let mut blur = |us: &mut Vec<f64>| us.iter_mut().for_each(|us| *us *= next.next().unwrap());
    tables.products.iter_mut().flat_map(|table| &mut table.rows).for_each(|row| blur(&mut row.us));
    tables.prefill.iter_mut().for_each(|table| blur(&mut table.us));
    tables.decode.iter_mut().flat_map(|table| &mut table.us).for_each(&mut blur);
    tables.all_reduce.iter_mut().for_each(|table| blur(&mut table.us));
    tables.experts.iter_mut().for_each(|table| blur(&mut table.us));
    tables.latent.iter_mut().for_each(|table| blur(&mut table.prefill_us));
    tables.latent.iter_mut().flat_map(|table| &mut table.decode_us).for_each(&mut blur);
    tables
}

fn with(deployment: &Deployment, change: impl FnOnce(&mut KernelTables)) -> Deployment {
    let mut changed = deployment.clone();
    change(Arc::make_mut(changed.hardware.tables.as_mut().unwrap()));
    changed
}

fn near(value: f64, expected: f64, within: f64) {
    assert!((value - expected).abs() <= within * expected.abs(), "{value}, expected {expected}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn more_of_anything_never_costs_less(
        kind in 0..KINDS.len(),
        devices in 0..2_u32,
        factors in prop::collection::vec(0.5..2.0_f64, 97),
        all in prop::collection::vec((steps(), 1..3000_u32), 24),
    ) {
        let smooth = smooth_deployment(KINDS[kind], 1 << devices);
        let noisy = with(&smooth, |tables| *tables = noisy(tables, &factors));
        let cost = CostModel::new(&noisy, 16);
        let price = |step: &Step| cost.device_seconds(&step.load());
        for (step, more) in all {
            let base = price(&step) * (1.0 - 1e-12);
            let changed = |change: &dyn Fn(&mut Step)| {
                let mut changed = step.clone();
                change(&mut changed);
                price(&changed)
            };
            prop_assert!(base.is_finite() && (base > 0.0 || step.load().sequences() == 0));
            prop_assert!(changed(&|step| step.decodes += more) >= base);
            prop_assert!(changed(&|step| step.context += u64::from(more)) >= base);
            prop_assert!(changed(&|step| step.chunks.push((more, 0))) >= base);
            prop_assert!(changed(&|step| step.chunks.iter_mut().for_each(|chunk| chunk.0 += more)) >= base);
            prop_assert!(changed(&|step| step.chunks.iter_mut().for_each(|chunk| chunk.1 += more)) >= base);
        }
    }

    #[test]
    fn yardsticks_agree_with_steps(kind in 0..KINDS.len(), batch in 1..500_u32, context in 1..5000_u32) {
        let cost = CostModel::new(&smooth_deployment(KINDS[kind], 1), 16);
        let step = Step::decodes(batch, u64::from(context));
        let measured = f64::from(batch) / cost.step_seconds(&step.load());
        prop_assert!((measured / cost.decode_tokens_per_s(batch, context) - 1.0).abs() < 1e-9);
        // A token of a long prompt costs what the price list says, with what comes before it.
        let pricing = cost.pricing();
        let prompt = |tokens: u32| cost.device_seconds(&Step::prompt(tokens).load());
        let more = (prompt(16_384) - prompt(8192)) * 1e9;
        let listed = 8192.0 * pricing.prefill_ns_per_token
            + pricing.attention_ns_per_token_pair * (16_384_f64.powi(2) - 8192_f64.powi(2)) / 2.0;
        prop_assert!((more / listed - 1.0).abs() < 0.1, "{more} {listed}");
    }
}

#[test]
fn a_product_is_what_was_measured_at_its_knots() {
    for kind in KINDS {
        let smooth = smooth_deployment(kind, 1);
        let shapes = KernelShapes::of(&smooth.model, 1);
        let products = &smooth.hardware.tables.as_ref().unwrap().products;
        for (knot, tokens) in KNOTS.into_iter().enumerate() {
            for product in &shapes.products {
                let table = products.iter().position(|table| table.precision == product.precision).unwrap();
                // Between its neighbours, so that it still rises.
                let add = 0.4;
                let slower = with(&smooth, |tables| {
                    let rows = &mut tables.products[table].rows;
                    let row = rows.iter_mut().find(|row| (row.n, row.k) == (product.n, product.k)).unwrap();
                    row.us[knot..].iter_mut().for_each(|us| *us += add);
                });
                let same = |other: &&kvtide_envs::deploy::Product| {
                    (other.n, other.k, other.precision) == (product.n, product.k, product.precision)
                };
                let layers: u32 = shapes.products.iter().filter(same).map(|product| product.layers).sum();
                let step = Step::prompt(tokens);
                let difference = price(&slower, &step) - price(&smooth, &step);
                near(difference, f64::from(layers) * add * 1e-6, 1e-6);
            }
        }
    }
}

#[test]
fn attention_of_a_prompt_is_what_was_measured_at_its_knots() {
    let smooth = smooth_deployment(KINDS[0], 1);
    let [nothing, all] = [1e-9, 1.0].map(|factor| {
        with(&smooth, |tables| {
            let table = &mut tables.prefill[0];
            let fixed = table.us[0];
            table.us.iter_mut().for_each(|us| *us = fixed + (*us - fixed) * factor);
        })
    });
    let table = &smooth.hardware.tables.as_ref().unwrap().prefill[0];
    for (tokens, us) in table.tokens.iter().zip(&table.us) {
        let step = Step::prompt(*tokens);
        let difference = price(&all, &step) - price(&nothing, &step);
        // Pairs of a knot lie within a cell, so that it is not exact.
        assert!((difference - 32.0 * (us - table.us[0]) * 1e-6).abs() < 0.02 * difference + 2e-6, "{tokens}");
    }
}

#[test]
fn decodes_are_what_was_measured_at_its_knots() {
    for kind in KINDS {
        let smooth = smooth_deployment(kind, 1);
        let shapes = KernelShapes::of(&smooth.model, 1);
        let one = |sequences: u32, context: u32| {
            // The same tokens computed, and next to nothing attended to.
            price(&smooth, &Step::decodes(sequences, u64::from(context))) - price(&smooth, &Step::decodes(sequences, 1))
        };
        let tables = smooth.hardware.tables.as_ref().unwrap();
        for (row, sequences) in SEQUENCES.into_iter().enumerate() {
            for (column, context) in CONTEXT.into_iter().enumerate() {
                if u64::from(sequences) * u64::from(context) > 1 << 22 {
                    continue;
                }
                let grouped = shapes.attention.iter().zip(&tables.decode);
                let expected: f64 = grouped
                    .map(|((_, layers), table)| f64::from(*layers) * (table.us[row][column] - table.us[row][0]))
                    .sum();
                let latent = shapes.latent.zip(tables.latent.first());
                let expected = expected
                    + latent.map_or(0.0, |((_, layers), table)| {
                        f64::from(layers) * (table.decode_us[row][column] - table.decode_us[row][0])
                    });
                let difference = one(sequences, context);
                let close = (difference - expected * 1e-6).abs() < 0.02 * expected * 1e-6 + 2e-5;
                assert!(close, "{kind:?} {sequences} x {context}: {difference}, {expected} us");
            }
        }
    }
}

#[test]
fn keys_and_values_come_from_memory_though_they_were_measured_in_a_cache() {
    let smooth = smooth_deployment(KINDS[0], 1);
    // As if 2048 tokens of 16 sequences were none.
    let cached = with(&smooth, |tables| {
        let us = &mut tables.decode[0].us;
        us.iter_mut().take(5).for_each(|row| row.copy_within(..1, 10));
    });
    let step = Step::decodes(16, 2048);
    // The floor takes the lower of two rates, and decodes are what the least of more sequences takes.
    near(price(&cached, &step), price(&smooth, &step), 0.05);
    let attended = price(&cached, &step) - price(&cached, &Step::decodes(16, 1));
    assert!(attended > 32.0 * 30e-6, "{attended}");
}

#[test]
fn a_chunk_is_the_prompt_with_as_many_pairs() {
    let smooth = smooth_deployment(KINDS[0], 1);
    let cost = CostModel::new(&smooth, 16);
    let price =
        |chunks: &[(u32, u32)]| cost.device_seconds(&Step { chunks: chunks.to_vec(), ..Step::default() }.load());
    // A prompt in two chunks has the pairs of the whole, and the weights are read twice.
    let [whole, first, second] = [vec![(8192, 0)], vec![(4096, 0)], vec![(4096, 4096)]].map(|chunks| price(&chunks));
    assert!(first + second > whole && first + second < 1.05 * whole, "{first} {second} {whole}");
    // What is fixed is paid once by all chunks of a step, and not beside decodes.
    let both = price(&[(2048, 1000), (2048, 3000)]);
    let apart = price(&[(2048, 1000)]) + price(&[(2048, 3000)]);
    assert!(both < apart - 32.0 * 9e-6, "{both} {apart}");
    // A few tokens after many take as long as a tile on each of 132 multiprocessors over them.
    let few = price(&[(16, 100_000)]) - price(&[(16, 0)]);
    let pair = cost.pricing().attention_ns_per_token_pair * 1e-9;
    near(few, pair * (132.0 * 128.0 / 32.0) * 100_000.0, 0.1);
    // A wave and a half takes two: what is before 792 tokens costs what it costs 1,056, of 528 at once.
    let before = |tokens: u32| price(&[(tokens, 50_000)]) - price(&[(tokens, 0)]);
    near(before(792), before(1056), 0.02);
    assert!(before(1057) > 1.3 * before(1056), "{} {}", before(1057), before(1056));
}

#[test]
fn a_window_hides_what_is_before_it() {
    let cost = CostModel::new(&smooth_deployment(KINDS[2], 1), 16);
    let chunk = |context: u32| cost.device_seconds(&Step { chunks: vec![(4096, context)], ..Step::default() }.load());
    // Of 62 layers 10 see more than 1024 tokens.
    let pair = cost.pricing().attention_ns_per_token_pair * 1e-9;
    near(chunk(60_000) - chunk(30_000), pair * 4096.0 * 30_000.0, 0.05);
}

#[test]
fn fp8_is_priced_by_its_own_tables() {
    let fp8 = smooth_deployment(KINDS[4], 1);
    let bf16 = smooth_deployment(KINDS[0], 1);
    let (decode, prompt) = (Step::decodes(8, 100), Step::prompt(4096));
    assert!(price(&fp8, &decode) < 0.7 * price(&bf16, &decode));
    // Both were measured with the same arithmetic, so that only weights tell, and what quantises the inputs.
    let ratio = price(&fp8, &prompt) / price(&bf16, &prompt);
    assert!((1.0..1.1).contains(&ratio), "{ratio}");
    assert!(!fp8.modelled().iter().any(|said| said.contains("fp8")));
    // Without its tables it is the time in 16 bits, by what rooflines say of both: twice the rate, half the bytes.
    let without = with(&fp8, |tables| tables.products.retain(|table| table.precision == Precision::Bf16));
    assert!(
        without.modelled().iter().any(|said| said == "matrix products in fp8: from those in bf16, by both rooflines")
    );
    let ratio = price(&without, &prompt) / price(&bf16, &prompt);
    assert!((0.45..0.75).contains(&ratio), "{ratio}");
}

#[test]
fn what_no_table_has_is_priced_by_the_roofline_and_said() {
    for kind in KINDS {
        let empty = deployment(kind, 2, KernelTables::default());
        let plain = Deployment { hardware: Hardware { tables: None, ..empty.hardware.clone() }, ..empty.clone() };
        let said = empty.modelled();
        assert!(said.iter().any(|said| said.starts_with("matrix products in")), "{said:?}");
        assert!(said.iter().any(|said| said == "all-reduces: by the link's bandwidth"), "{said:?}");
        assert_eq!(plain.modelled(), Vec::<String>::new());
        // The same but for what the plain roofline does not count: element by element, and quantising in fp8.
        for step in [Step::decodes(64, 1000), Step::prompt(4000)] {
            let ratio = price(&empty, &step) / price(&plain, &step);
            assert!((0.95..1.5).contains(&ratio), "{kind:?} {step:?}: {ratio}");
        }
    }
    let full = smooth_deployment(KINDS[1], 2);
    assert!(!full.modelled().iter().any(|said| said.contains("roofline") || said.contains("link")));
}

#[test]
fn devices_share_the_work_and_pay_for_it() {
    let [one, two] = [1, 2].map(|devices| smooth_deployment(KINDS[0], devices));
    let step = Step::prompt(4096);
    let ratio = price(&one, &step) / price(&two, &step);
    assert!((1.5..2.0).contains(&ratio), "{ratio}");
    let slower = with(&two, |tables| tables.all_reduce[0].us.iter_mut().for_each(|us| *us += 100.0));
    near(price(&slower, &step) - price(&two, &step), 2.0 * 32.0 * 100e-6, 1e-9);
}

#[test]
fn factors_are_on_what_they_name() {
    let smooth = smooth_deployment(KINDS[0], 1);
    let scaled = |change: fn(&mut KernelTables)| with(&smooth, change);
    let (decode, prompt) = (Step::decodes(64, 2000), Step::prompt(8192));
    let all = scaled(|tables| {
        (tables.scales.products, tables.scales.prefill, tables.scales.decode) = (1.5, 1.5, 1.5);
    });
    for step in [&decode, &prompt] {
        near(price(&all, step), 1.5 * price(&smooth, step), 1e-9);
    }
    // Clocks fall where arithmetic is what takes time.
    let sustained = scaled(|tables| tables.scales.sustained = 1.2);
    assert!(price(&sustained, &prompt) > 1.17 * price(&smooth, &prompt));
    let one = Step::decodes(1, 100);
    assert!(price(&sustained, &one) < 1.01 * price(&smooth, &one));
    let others = scaled(|tables| {
        (tables.scales.prefill, tables.scales.experts, tables.scales.all_reduce) = (2.0, 2.0, 2.0);
    });
    near(price(&others, &decode), price(&smooth, &decode), 1e-9);
    let routed = smooth_deployment(KINDS[1], 2);
    let [experts, all_reduce] = [1.0, 3.0].map(|factor| {
        with(&routed, |tables| (tables.scales.experts, tables.scales.all_reduce) = (4.0 - factor, factor))
    });
    assert!(
        price(&experts, &decode) > price(&routed, &decode) && price(&all_reduce, &decode) > price(&routed, &decode)
    );
}
