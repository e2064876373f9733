//! The 2-byte element types: bits to numbers and back.

/// Type of the elements of a pool and of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// bfloat16: sign, 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// IEEE 754 binary16: sign, 5 bits of exponent, 10 of mantissa.
    Fp16,
}

impl Element {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Bf16, Self::Fp16];

    /// How entry points name it: `bf16`, `fp16`.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }

    /// Largest relative error of rounding to nearest: half a unit in the last place.
    pub const fn unit(self) -> f64 {
        match self {
            Self::Bf16 => 1.0 / 256.0,
            Self::Fp16 => 1.0 / 2048.0,
        }
    }

    /// Largest absolute error of rounding a number below the normal range.
    pub const fn smallest(self) -> f64 {
        match self {
            Self::Bf16 => f32::MIN_POSITIVE as f64,
            Self::Fp16 => 1.0 / 33_554_432.0,
        }
    }

    /// The number that the bits mean; every one is exact in `f32`.
    pub fn widen(self, bits: u16) -> f32 {
        match self {
            Self::Bf16 => f32::from_bits(u32::from(bits) << 16),
            Self::Fp16 => widen_fp16(bits),
        }
    }

    /// The nearest element, ties to the even one; too large becomes infinity, a NaN stays one.
    pub fn narrow(self, value: f32) -> u16 {
        match self {
            Self::Bf16 => narrow_bf16(value),
            Self::Fp16 => narrow_fp16(value),
        }
    }
}

fn widen_fp16(bits: u16) -> f32 {
    let magnitude = match (bits >> 10 & 31, bits & 1023) {
        (31, 0) => f32::INFINITY,
        (31, _) => f32::NAN,
        // Subnormal: whole multiples of 2^-24.
        (0, mantissa) => f32::from(mantissa) / 16_777_216.0,
        (exponent, mantissa) => f32::from_bits((u32::from(exponent) + 112) << 23 | u32::from(mantissa) << 13),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // A carry out of the mantissa raises the exponent, up to infinity: what rounding should do.
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

fn narrow_fp16(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16 & 0x8000) as u16;
    let magnitude = value.abs();
    if value.is_nan() {
        return sign | 0x7E00;
    }
    // Half a step above the largest finite number, 65504.
    if magnitude >= 65_520.0 {
        return sign | 0x7C00;
    }
    // Below 2^-14 the step is 2^-24.
    if magnitude < 1.0 / 16_384.0 {
        return sign | (magnitude * 16_777_216.0).round_ties_even() as u16;
    }
    let bits = magnitude.to_bits();
    let rounded = bits + 0xFFF + (bits >> 13 & 1);
    sign | ((rounded >> 13) - (112 << 10)) as u16
}

#[cfg(test)]
mod tests {
    use super::Element;

    #[test]
    fn every_element_survives_the_round_trip() {
        for element in Element::ALL {
            for bits in 0..=u16::MAX {
                let value = element.widen(bits);
                if !value.is_nan() {
                    assert_eq!(element.narrow(value), bits, "{element:?} {bits:#06x} = {value}");
                }
            }
        }
    }

    #[test]
    fn between_two_elements_the_nearer_and_of_ties_the_even_one() {
        for element in Element::ALL {
            // All positive finite neighbours.
            for bits in 0..0x7BFF_u16 {
                let (low, high) = (element.widen(bits), element.widen(bits + 1));
                let middle = f32::midpoint(low, high);
                let even = if bits % 2 == 0 { bits } else { bits + 1 };
                assert_eq!(element.narrow(middle), even, "{element:?} {bits:#06x}");
                assert_eq!(element.narrow(middle.next_up()), bits + 1, "{element:?} {bits:#06x}");
                assert_eq!(element.narrow(-middle.next_down()), bits | 0x8000, "{element:?} {bits:#06x}");
            }
        }
    }

    #[test]
    fn extremes() {
        assert_eq!(Element::Fp16.narrow(65_519.0), 0x7BFF);
        assert_eq!(Element::Fp16.narrow(65_520.0), 0x7C00);
        assert_eq!(Element::Bf16.narrow(f32::MAX), 0x7F80);
        for element in Element::ALL {
            assert!(element.widen(element.narrow(f32::NAN)).is_nan());
        }
    }
}
