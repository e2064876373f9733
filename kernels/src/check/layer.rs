//! The small kernels of a transformer layer: within what rounding explains.

use super::buffer::{AlignedBuffer, guarded, poisoned, same};
use super::random::Random;
use super::{Check, CheckArg, Launcher};
use crate::launch;
use crate::reference::{self, Element};

pub(super) const CHECKS: &[(&str, Check)] =
    &[("rms_norm", rms_norm), ("silu_mul", silu_mul), ("rope", rope), ("argmax", argmax)];

/// Relative error of a few operations in `f32`, and of `expf`, `sincosf` and `rsqrtf`.
const F32_NOISE: f64 = 4e-6;

/// What a result must be.
#[derive(Clone, Copy)]
pub(super) enum Want {
    /// What stood there before: nothing may be written.
    Poison,
    /// Within a distance.
    Near(f64, f64),
}

/// Half a unit in the last place of the element, and `noise` from before it was rounded.
pub(super) fn near(element: Element, value: f64, noise: f64) -> Want {
    Want::Near(value, (value.abs() + noise) * element.unit() + element.smallest() + noise)
}

/// Every element of a guarded output is as wanted; a NaN is near nothing.
pub(super) fn compare(what: &str, element: Element, got: &AlignedBuffer, want: &[Want]) -> Result<(), String> {
    let got = got.read::<u16>();
    for (i, &bits) in got.iter().enumerate() {
        match want.get(i).copied().unwrap_or(Want::Poison) {
            Want::Poison if bits != 0xA5A5 => return Err(format!("{what}[{i}] is written, must not be")),
            Want::Poison => {}
            Want::Near(value, tolerance) => {
                let got = f64::from(element.widen(bits));
                let distance = (got - value).abs();
                // Not `>`: a NaN must fail.
                if !matches!(distance.partial_cmp(&tolerance), Some(std::cmp::Ordering::Less)) {
                    return Err(format!("{what}[{i}] is {got}, must be {value} within {tolerance:e} ({element:?})"));
                }
            }
        }
    }
    Ok(())
}

fn rms_norm(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let element = random.element();
    let (tokens, width) = (random.range(0, 5) as usize, random.one_of(&[8, 64, 264, 1024, 2560]));
    let scale = random.one_of(&[1.0, 0.01, 20.0]);
    let with_delta = random.coin();
    let epsilon = 1e-5;
    let residual = random.normals(element, tokens * width, scale);
    let delta = random.normals(element, tokens * width, scale);
    let weight = random.normals(element, width, 1.0);
    let (mut stored, mut want) = (Vec::new(), Vec::new());
    for row in (0..tokens * width).step_by(width) {
        let added = with_delta.then(|| &delta[row..row + width]);
        let (kept, out) = reference::rms_norm(element, &residual[row..row + width], added, &weight, epsilon);
        stored.extend(kept);
        want.extend(out.iter().map(|&value| near(element, value, value.abs() * F32_NOISE)));
    }
    let mut residual = AlignedBuffer::of(&guarded(residual));
    let mut out = AlignedBuffer::of(&poisoned::<u16>(tokens * width));
    let delta = AlignedBuffer::of(&guarded(delta));
    let geometry = random.geometry(launch::rms_norm(tokens as u32, width as u32), false, 512);
    launcher.launch(
        &format!("kvtide_rms_norm_{}", element.suffix()),
        &geometry,
        &mut [
            CheckArg::Out(residual.bytes_mut()),
            if with_delta { CheckArg::In(delta.bytes()) } else { CheckArg::Null },
            CheckArg::In(AlignedBuffer::of(&weight).bytes()),
            CheckArg::Out(out.bytes_mut()),
            CheckArg::U32(tokens as u32),
            CheckArg::U32(width as u32),
            CheckArg::F32(epsilon),
        ],
    )?;
    same("residual", &residual, &guarded(stored))?;
    compare("out", element, &out, &want)
}

fn silu_mul(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let element = random.element();
    let (tokens, width) = (random.range(0, 5) as usize, random.one_of(&[8, 64, 1016, 4096]));
    let scale = random.one_of(&[1.0, 8.0]);
    let gate_up = random.normals(element, tokens * 2 * width, scale);
    let want: Vec<_> = gate_up
        .chunks_exact(2 * width)
        .flat_map(|row| reference::silu_mul(element, row))
        .map(|value| near(element, value, value.abs() * F32_NOISE))
        .collect();
    let mut out = AlignedBuffer::of(&poisoned::<u16>(tokens * width));
    let geometry = random.geometry(launch::silu_mul(tokens as u32, width as u32), true, 256);
    launcher.launch(
        &format!("kvtide_silu_mul_{}", element.suffix()),
        &geometry,
        &mut [
            CheckArg::In(AlignedBuffer::of(&guarded(gate_up)).bytes()),
            CheckArg::Out(out.bytes_mut()),
            CheckArg::U32(tokens as u32),
            CheckArg::U32(width as u32),
        ],
    )?;
    compare("out", element, &out, &want)
}

fn rope(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let element = random.element();
    let (tokens, heads) = (random.range(0, 5) as usize, random.range(1, 9) as usize);
    let head_dim = random.one_of(&[64, 128, 2, 96, 512]);
    let theta = random.one_of(&[10_000.0_f32, 500_000.0, 1_000_000.0]);
    let gap = random.one_of(&[0, 8, 5]);
    let row_stride = heads * head_dim + gap;
    let positions: Vec<u32> = (0..tokens).map(|_| random.range(0, 131_072)).collect();
    let mut rows = vec![0xA5A5; tokens * row_stride];
    let mut want = vec![Want::Poison; tokens * row_stride];
    for (token, &position) in positions.iter().enumerate() {
        for head in 0..heads {
            let first = token * row_stride + head * head_dim;
            let values = random.normals(element, head_dim, 1.0);
            rows[first..first + head_dim].copy_from_slice(&values);
            for (i, &turned) in reference::rope(element, &values, position, theta).iter().enumerate() {
                // The two halves may cancel: the noise is that of their length.
                let partner = (i + head_dim / 2) % head_dim;
                let length = f64::from(element.widen(values[i])).hypot(f64::from(element.widen(values[partner])));
                want[first + i] = near(element, turned, length * F32_NOISE);
            }
        }
    }
    let mut qk = AlignedBuffer::of(&guarded(rows));
    let geometry = random.geometry(launch::rope(tokens as u32, heads as u32, head_dim as u32), false, 256);
    launcher.launch(
        &format!("kvtide_rope_{}", element.suffix()),
        &geometry,
        &mut [
            CheckArg::Out(qk.bytes_mut()),
            CheckArg::U64(row_stride as u64),
            CheckArg::In(AlignedBuffer::of(&guarded(positions)).bytes()),
            CheckArg::U32(tokens as u32),
            CheckArg::U32(heads as u32),
            CheckArg::U32(head_dim as u32),
            CheckArg::F32(theta),
        ],
    )?;
    compare("qk", element, &qk, &want)
}

fn argmax(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let element = random.element();
    let (rows, width) = (random.range(0, 5) as usize, random.one_of(&[1, 7, 64, 1000, 4099]));
    let row_stride = width + random.one_of(&[0, 3, 8]);
    // Few distinct values make equals likely; bits at random bring NaNs, infinities and both zeros.
    let logits: Vec<u16> = match random.range(0, 2) {
        0 => random.normals(element, rows * row_stride, 1.0),
        1 => (0..rows * row_stride).map(|_| random.one_of(&[0x0000, 0x8000, 0x3C00, 0xBC00])).collect(),
        _ => random.bits16(rows * row_stride),
    };
    let want = (0..rows).map(|row| reference::argmax(element, &logits[row * row_stride..][..width])).collect();
    let mut ids = AlignedBuffer::of(&poisoned::<u32>(rows));
    let geometry = random.geometry(launch::argmax(rows as u32, width as u32), false, 1024);
    launcher.launch(
        &format!("kvtide_argmax_{}", element.suffix()),
        &geometry,
        &mut [
            CheckArg::In(AlignedBuffer::of(&guarded(logits)).bytes()),
            CheckArg::U64(row_stride as u64),
            CheckArg::Out(ids.bytes_mut()),
            CheckArg::U32(rows as u32),
            CheckArg::U32(width as u32),
        ],
    )?;
    same("ids", &ids, &guarded(want))
}
