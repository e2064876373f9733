//! Reading measured times between and beyond the points they were taken at.
//!
//! Between two knots the logarithm of the time is linear in the logarithm of the size: constant where a kernel waits, in
//! proportion where it works, and exact on both sides of a roofline. Below the first knot the time is that of the first.

/// How a curve goes on beyond its last knot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beyond {
    /// In proportion.
    Linear,
    /// In proportion and with the square, as much of either as its last octave says: projections go by the token, attention by
    /// pairs of tokens.
    Square,
}

/// Times of one kernel against its size.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Where it was measured, ascending.
    pub knots: Vec<f64>,
    /// Microseconds at each of them.
    pub us: Vec<f64>,
}

impl Curve {
    /// The time at `x`, in proportion beyond the last knot. Microseconds; 0 without knots.
    pub fn at(&self, x: f64) -> f64 {
        at(&self.knots, &self.us, x, Beyond::Linear)
    }
}

/// The time at `x` of a curve with these knots; 0 without any.
pub(super) fn at<K: Copy + Into<f64>>(knots: &[K], us: &[f64], x: f64, beyond: Beyond) -> f64 {
    let count = knots.len().min(us.len());
    let Some(last) = count.checked_sub(1) else { return 0.0 };
    let above = knots[..count].partition_point(|knot| (*knot).into() <= x);
    if above == 0 {
        return us[0];
    }
    if above == count {
        let high: f64 = knots[last].into();
        let times = x / high;
        // What is in proportion doubles over an octave, what goes with the square takes four times as long.
        let square = match beyond {
            Beyond::Linear => 0.0,
            Beyond::Square => (2.0 - 4.0 * at(knots, us, high / 2.0, beyond) / us[last]).clamp(0.0, 1.0),
        };
        return us[last] * times * (1.0 + square * (times - 1.0));
    }
    log_between(knots[above - 1].into(), us[above - 1], knots[above].into(), us[above], x)
}

/// The time at `x` between two points, its logarithm linear in that of `x`.
pub(super) fn log_between(low: f64, low_us: f64, high: f64, high_us: f64, x: f64) -> f64 {
    let share = (x / low).ln() / (high / low).ln();
    low_us * (share * (high_us / low_us).ln()).exp()
}

/// The time of a row along context. Beyond its last knot it goes on by its last slope, because what it does not depend on stays.
fn along_context(context: &[u32], us: &[f64], x: f64) -> f64 {
    let count = context.len().min(us.len());
    if count < 2 || x <= f64::from(context[count - 1]) {
        return at(&context[..count], us, x, Beyond::Linear);
    }
    let [low, high] = [context[count - 2], context[count - 1]].map(f64::from);
    // No steeper than from nothing: between its last knots a row may have left the accelerator's cache.
    let slope = ((us[count - 1] - us[count - 2]) / (high - low)).clamp(0.0, us[count - 1] / high);
    us[count - 1] + (x - high) * slope
}

/// The time of `sequences` that attend to `context` tokens each; `None` if nothing was measured.
pub(super) fn on_grid(grid: (&[u32], &[u32], &[Vec<f64>]), sequences: f64, context: f64) -> Option<f64> {
    let (rows, columns, us) = grid;
    let row = |index: usize| (f64::from(rows[index]), along_context(columns, &us[index], context));
    let count = (0..rows.len().min(us.len())).take_while(|index| !us[*index].is_empty()).count();
    let last = count.checked_sub(1)?;
    let above = rows[..count].partition_point(|knot| f64::from(*knot) <= sequences);
    if above == 0 {
        return Some(row(0).1);
    }
    let (low, low_us) = row(above - 1);
    if above > last {
        return Some(low_us * sequences / low);
    }
    let (high, high_us) = row(above);
    Some(log_between(low, low_us, high, high_us, sequences))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_roofline_are_exact() {
        let curve = Curve { knots: vec![1.0, 16.0, 64.0, 1024.0], us: vec![5.0, 5.0, 20.0, 320.0] };
        for (x, us) in
            [(0.5, 5.0), (1.0, 5.0), (4.0, 5.0), (32.0, 10.0), (64.0, 20.0), (512.0, 160.0), (4096.0, 1280.0)]
        {
            assert!((curve.at(x) / us - 1.0).abs() < 1e-12, "{x}: {}", curve.at(x));
        }
        // Twice for twice the size, four times, and half of both: 4 = 2 + 2 becomes 4 + 8.
        let beyond = |us: [f64; 3]| at(&[1_u32, 2, 4], &us, 8.0, Beyond::Square);
        assert_eq!((beyond([1.0, 2.0, 4.0]), beyond([1.0, 2.0, 8.0]), beyond([1.0, 1.5, 4.0])), (8.0, 32.0, 12.0));
        // Neither falls below proportion nor rises beyond the square.
        assert_eq!((beyond([1.0, 3.0, 4.0]), beyond([1.0, 1.0, 8.0])), (8.0, 32.0));
        assert_eq!(Curve { knots: vec![], us: vec![] }.at(3.0), 0.0);
    }

    #[test]
    fn short_rows_go_on_by_their_last_slope() {
        let us = [vec![4.0, 4.0, 8.0], vec![6.0, 10.0]];
        let at = |sequences, context| on_grid((&[1, 8], &[128, 1024, 8192], &us), sequences, context).unwrap();
        assert_eq!((at(1.0, 10.0), at(1.0, 8192.0), at(8.0, 1024.0)), (4.0, 8.0, 10.0));
        // 4 µs for 896 tokens.
        assert!((at(8.0, 1024.0 + 1792.0) - 18.0).abs() < 1e-12);
        assert!((at(16.0, 128.0) - 12.0).abs() < 1e-12 && (at(0.5, 128.0) - 4.0).abs() < 1e-12);
        let between = at(4.0, 1024.0);
        assert!(between > 4.0 && between < 10.0);
        assert_eq!(on_grid((&[], &[], &[]), 1.0, 1.0), None);
    }
}
