//! Functions kept as numbers on a grid that grows with the number itself, so that reading one needs no search: the exponent
//! of a floating-point number and the first bits of its mantissa say which cell it lies in, the other bits where in it.
//!
//! A cell is an octave divided into `2^BITS`, and what lies between its knots is linear. That is exact for what is constant and for
//! what is in proportion, and for both together: the two sides of a roofline and a fixed time on top. On two axes the product of
//! both is exact too.

/// Bits of an `f64`'s mantissa.
const MANTISSA: u32 = 52;

/// Where a number of at least 1 lies on an axis with `2^BITS` knots an octave.
#[derive(Clone, Copy)]
struct Cell {
    index: usize,
    share: f64,
}

impl Cell {
    /// Below 1 it is that of 1. Whether there are so many cells is for the caller to see.
    #[inline]
    fn of<const BITS: u32>(x: f64) -> Cell {
        let bits = if x > 1.0 { x } else { 1.0 }.to_bits();
        let index = ((bits >> (MANTISSA - BITS)) - (1023 << BITS)) as usize;
        // What is left of the mantissa is that of a number from 1 to 2, whose distance from 1 is the share.
        let rest = (bits << BITS) & ((1 << MANTISSA) - 1);
        Cell { index, share: f64::from_bits((1023 << MANTISSA) | rest) - 1.0 }
    }

    /// The last of so many cells, with a share above 1, if `x` lies beyond it.
    fn within<const BITS: u32>(self, x: f64, cells: usize) -> Cell {
        if self.index < cells {
            return self;
        }
        let (low, high) = (knot::<BITS>(cells - 1), knot::<BITS>(cells));
        Cell { index: cells - 1, share: (x - low) / (high - low) }
    }
}

/// The number at a knot.
fn knot<const BITS: u32>(index: usize) -> f64 {
    f64::from_bits(((1023 << BITS) + index as u64) << (MANTISSA - BITS))
}

/// Values that never fall, as near to these as can be said at once: half of the way between what is never below any earlier one
/// and what is never above any later one. What never falls stays.
fn never_falling(values: &mut [f64]) {
    let mut least = values.to_vec();
    for index in (1..least.len()).rev() {
        least[index - 1] = least[index - 1].min(least[index]);
    }
    let mut most = f64::NEG_INFINITY;
    for (value, least) in values.iter_mut().zip(least) {
        most = most.max(*value);
        *value = f64::midpoint(most, least);
    }
}

/// A function of one number from 1 on that never falls: constant below 1, and on by its last slope beyond its last octave.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ramp<const BITS: u32> {
    values: Vec<f64>,
}

impl<const BITS: u32> Ramp<BITS> {
    /// That of `at`, over so many octaves.
    pub(super) fn new(octaves: u32, at: impl Fn(f64) -> f64) -> Ramp<BITS> {
        let mut values: Vec<f64> = (0..=(octaves << BITS) as usize).map(|index| at(knot::<BITS>(index))).collect();
        never_falling(&mut values);
        Ramp { values }
    }

    #[inline]
    pub(super) fn at(&self, x: f64) -> f64 {
        let cell = Cell::of::<BITS>(x);
        if let Some(&[low, high]) = self.values.get(cell.index..).and_then(|values| values.first_chunk()) {
            return low + cell.share * (high - low);
        }
        self.beyond(x)
    }

    #[cold]
    fn beyond(&self, x: f64) -> f64 {
        let Cell { index, share } = Cell::of::<BITS>(x).within::<BITS>(x, self.values.len() - 1);
        let low = self.values[index];
        low + share * (self.values[index + 1] - low)
    }
}

/// The same of two numbers, neither of which it falls with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slope<const BITS: u32> {
    columns: usize,
    values: Vec<f64>,
}

impl<const BITS: u32> Slope<BITS> {
    /// That of `at`, over so many octaves of each.
    pub(super) fn new(octaves: [u32; 2], at: impl Fn(f64, f64) -> f64) -> Slope<BITS> {
        let [rows, columns] = octaves.map(|octaves| (octaves << BITS) as usize + 1);
        let mut values: Vec<f64> =
            (0..rows * columns).map(|index| at(knot::<BITS>(index / columns), knot::<BITS>(index % columns))).collect();
        for row in values.chunks_exact_mut(columns) {
            never_falling(row);
        }
        // Of the first alone the least of what more of it takes: kernels that do not divide a sequence take longer for one long
        // sequence than for many short ones of as many tokens, and of these there are more in a step.
        for index in (0..(rows - 1) * columns).rev() {
            values[index] = values[index].min(values[index + columns]);
        }
        Slope { columns, values }
    }

    #[inline]
    pub(super) fn at(&self, x: f64, y: f64) -> f64 {
        let (row, column) = (Cell::of::<BITS>(x), Cell::of::<BITS>(y));
        if column.index + 1 < self.columns {
            let start = row.index * self.columns + column.index;
            if let Some(&[low, low_next, .., high, high_next]) = self.values.get(start..start + self.columns + 2) {
                let (low, high) = (low + column.share * (low_next - low), high + column.share * (high_next - high));
                return low + row.share * (high - low);
            }
        }
        self.beyond(x, y)
    }

    #[cold]
    fn beyond(&self, x: f64, y: f64) -> f64 {
        let row = Cell::of::<BITS>(x).within::<BITS>(x, self.values.len() / self.columns - 1);
        let column = Cell::of::<BITS>(y).within::<BITS>(y, self.columns - 1);
        let along = |row: usize| {
            let start = row * self.columns + column.index;
            let low = self.values[start];
            low + column.share * (self.values[start + 1] - low)
        };
        let low = along(row.index);
        low + row.share * (along(row.index + 1) - low)
    }
}
