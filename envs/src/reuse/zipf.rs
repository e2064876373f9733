//! References by Zipf's law.

use rand::RngExt;

use crate::seed;

/// `count` references to `blocks` blocks, of which the one of rank `r`, number `r - 1`, is asked for with a probability in
/// proportion to `r^-alpha`, whatever was asked for before.
///
/// # Panics
/// If there are no blocks, or `alpha` is no number.
pub fn zipf(seed: u64, blocks: u32, alpha: f64, count: usize) -> Vec<u32> {
    assert!(blocks > 0 && alpha.is_finite(), "some block is asked for");
    let mut total = 0.0;
    let cumulated: Vec<f64> = (1..=blocks)
        .map(|rank| {
            total += f64::from(rank).powf(-alpha);
            total
        })
        .collect();
    let mut random = seed::stream(seed, "zipf", 0);
    let mut draw = || {
        let at = random.random::<f64>() * total;
        (cumulated.partition_point(|&sum| sum <= at) as u32).min(blocks - 1)
    };
    (0..count).map(|_| draw()).collect()
}
