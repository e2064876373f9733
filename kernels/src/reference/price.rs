//! What cached blocks are worth above their price.

/// The excess value `return − risk_aversion · risk − price · cost` of each block, and the key of the least: its value as an integer of
/// the same order, above its index; all ones if no value is a number. Of equals the first.
///
/// In `f32` and fused where the kernel fuses, unlike the other references: which value is least hangs on the last bit.
pub fn block_price(returns: &[f32], risks: &[f32], costs: &[f32], risk_aversion: f32, price: f32) -> (Vec<f32>, u64) {
    let value = |((worth, risk), cost): ((&f32, &f32), &f32)| {
        (-price).mul_add(*cost, (-risk_aversion).mul_add(*risk, *worth)) + 0.0
    };
    let values: Vec<f32> = returns.iter().zip(risks).zip(costs).map(value).collect();
    let mut least: Option<(f32, usize)> = None;
    for (index, &value) in values.iter().enumerate() {
        if !value.is_nan() && least.is_none_or(|(smallest, _)| value < smallest) {
            least = Some((value, index));
        }
    }
    let key = least.map_or(u64::MAX, |(value, index)| u64::from(ordered(value)) << 32 | index as u64);
    (values, key)
}

/// A float that is a number as an integer of the same order.
fn ordered(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_sign_negative() { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_integers_is_that_of_floats() {
        let floats = [f32::NEG_INFINITY, -3.5, -1e-30, 0.0, 1e-30, 2.0, f32::INFINITY];
        assert!(floats.map(ordered).is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn the_least_is_the_first_of_equals_and_a_number() {
        let price = |returns: &[f32]| {
            let zeros = vec![0.0; returns.len()];
            block_price(returns, &zeros, &zeros, 0.5, 2.0)
        };
        assert_eq!(price(&[f32::NAN, 3.0, 1.0, 1.0]).1 & 0xFFFF_FFFF, 2);
        assert_eq!(price(&[0.0, -0.0]).1 & 0xFFFF_FFFF, 0, "two zeros are equal");
        assert_eq!((price(&[f32::NAN]).1, price(&[]).1), (u64::MAX, u64::MAX));
        assert_eq!(block_price(&[1.0], &[0.5], &[0.25], 0.5, 2.0).0, [0.25]);
    }
}
