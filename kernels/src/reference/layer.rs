//! The small kernels of a transformer layer, in `f64`; rows lie one after the other.

use super::Element;

/// Adds `delta` to a residual row and normalises it (Zhang, Sennrich, 2019): the stored residual, and
/// `residual / sqrt(mean(residual^2) + epsilon) * weight` before it is rounded.
///
/// The norm is that of the residual as stored. Lengths are all `[width]`.
pub fn rms_norm(
    element: Element,
    residual: &[u16],
    delta: Option<&[u16]>,
    weight: &[u16],
    epsilon: f32,
) -> (Vec<u16>, Vec<f64>) {
    let stored: Vec<u16> = match delta {
        None => residual.to_vec(),
        Some(delta) => {
            let sum = |(&r, &d): (&u16, &u16)| element.narrow(element.widen(r) + element.widen(d));
            residual.iter().zip(delta).map(sum).collect()
        }
    };
    let values: Vec<f64> = stored.iter().map(|&bits| f64::from(element.widen(bits))).collect();
    let mean = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
    let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
    let out = values.iter().zip(weight).map(|(value, &w)| value * factor * f64::from(element.widen(w))).collect();
    (stored, out)
}

/// `gate * sigmoid(gate) * up` of a row `[gate | up]` (Shazeer, 2020); half as long as the row.
pub fn silu_mul(element: Element, gate_up: &[u16]) -> Vec<f64> {
    let (gate, up) = gate_up.split_at(gate_up.len() / 2);
    let value = |bits: u16| f64::from(element.widen(bits));
    gate.iter().zip(up).map(|(&g, &u)| value(g) / (1.0 + (-value(g)).exp()) * value(u)).collect()
}

/// A head's row turned to its position (Su et al., 2021): element `i` with element `i + head_dim / 2`, by the angle
/// `position * theta^(-2 i / head_dim)`.
pub fn rope(element: Element, head: &[u16], position: u32, theta: f32) -> Vec<f64> {
    let half = head.len() / 2;
    let value = |i: usize| f64::from(element.widen(head[i]));
    let turn = |i: usize| {
        let angle = f64::from(position) * f64::from(theta).powf(-2.0 * i as f64 / head.len() as f64);
        angle.sin_cos()
    };
    let low = (0..half).map(|i| value(i) * turn(i).1 - value(i + half) * turn(i).0);
    let high = (0..half).map(|i| value(i + half) * turn(i).1 + value(i) * turn(i).0);
    low.chain(high).collect()
}

/// Row `id` of a table of rows of `width` elements.
pub fn embed(table: &[u16], id: u32, width: usize) -> &[u16] {
    &table[id as usize * width..][..width]
}

/// Index of a row's largest element, the smallest of equals; a NaN never wins, and a row of nothing else gives 0.
pub fn argmax(element: Element, row: &[u16]) -> u32 {
    let mut best: Option<(f32, usize)> = None;
    for (index, &bits) in row.iter().enumerate() {
        let value = element.widen(bits);
        if !value.is_nan() && best.is_none_or(|(largest, _)| value > largest) {
            best = Some((value, index));
        }
    }
    best.map_or(0, |(_, index)| index as u32)
}
