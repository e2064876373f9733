//! What blocks are worth above their price: bit for bit, the order of equals included.

use super::buffer::{AlignedBuffer, guarded, poisoned, same};
use super::random::Random;
use super::{Check, CheckArg, Launcher};
use crate::launch;
use crate::reference;

pub(super) const CHECKS: &[(&str, Check)] = &[("block_price", block_price)];

fn block_price(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let count = random.one_of(&[0, 1, 3, 4, 31, 257, 1024, 4099]);
    // As blocks are; few distinct values, so that equals are likely; bits at random, which bring NaNs, infinities and both zeros.
    let kind = random.range(0, 2);
    let mut numbers = |usual: f32| -> Vec<f32> {
        let number = |_| match kind {
            0 => usual * random.normal().abs(),
            1 => random.one_of(&[0.0, -0.0, 0.5, 1.0, 2.0]),
            _ => f32::from_bits(random.next() as u32),
        };
        (0..count).map(number).collect()
    };
    let (returns, risks, costs) = (numbers(1.0), numbers(0.5), numbers(0.1));
    let (risk_aversion, price) = (random.one_of(&[0.0, 0.1, 0.5]), random.one_of(&[0.0, 0.5, 2.0, 40.0]));
    let (want, least) = reference::block_price(&returns, &risks, &costs, risk_aversion, price);

    let bits = |numbers: &[f32]| AlignedBuffer::of(&guarded(numbers.iter().map(|n| n.to_bits()).collect::<Vec<u32>>()));
    let mut values = AlignedBuffer::of(&poisoned::<u32>(count));
    let mut key = AlignedBuffer::of(&guarded(vec![u64::MAX]));
    let usual = launch::block_price(count as u32, launcher.multiprocessors());
    let geometry = random.geometry(usual, false, 256);
    launcher.launch(
        "kvtide_block_price",
        &geometry,
        &mut [
            CheckArg::In(bits(&returns).bytes()),
            CheckArg::In(bits(&risks).bytes()),
            CheckArg::In(bits(&costs).bytes()),
            CheckArg::F32(risk_aversion),
            CheckArg::F32(price),
            CheckArg::U32(count as u32),
            CheckArg::Out(values.bytes_mut()),
            CheckArg::Out(key.bytes_mut()),
        ],
    )?;
    // What a NaN's bits are is each device's own.
    let got = values.read::<u32>();
    let same_nan =
        |(want, &got): (&f32, &u32)| if want.is_nan() && f32::from_bits(got).is_nan() { got } else { want.to_bits() };
    let want = want.iter().zip(&got).map(same_nan).collect();
    same("values", &values, &guarded(want))?;
    same("least", &key, &guarded(vec![least]))
}
