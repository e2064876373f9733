//! Least squares with coefficients that are never negative, and weights that forgive outliers.

/// Edge of a gradient below which a coefficient stays at nought, and of a pivot below which its column says nothing new.
/// Columns have length one.
const LEAST: f64 = 1e-10;

/// The `x >= 0` for which the products of `rows` with it come nearest to 1, each row with its weight.
///
/// The active-set method of Lawson and Hanson 1974 ("Solving Least Squares Problems", chapter 23), on the normal
/// equations: columns are few, and rows are relative, so that all are of one size.
///
/// # Panics
/// If there are no rows.
pub(super) fn nearest_to_one(rows: &[Vec<f64>], weights: &[f64]) -> Vec<f64> {
    let count = rows[0].len();
    let mut gram = vec![vec![0.0; count]; count];
    let mut target = vec![0.0; count];
    for (row, weight) in rows.iter().zip(weights) {
        for i in (0..count).filter(|i| row[*i] != 0.0) {
            let scaled = weight * row[i];
            target[i] += scaled;
            for j in 0..=i {
                gram[i][j] += scaled * row[j];
            }
        }
    }
    let scale: Vec<f64> = (0..count).map(|i| if gram[i][i] > 0.0 { gram[i][i].sqrt() } else { 1.0 }).collect();
    for i in 0..count {
        target[i] /= scale[i];
        for j in 0..=i {
            gram[i][j] /= scale[i] * scale[j];
            gram[j][i] = gram[i][j];
        }
        // Columns that say the same share what they say, rather than being divided by nothing.
        gram[i][i] += LEAST;
    }
    active_set(&gram, &target).iter().zip(scale).map(|(x, scale)| x / scale).collect()
}

fn active_set(gram: &[Vec<f64>], target: &[f64]) -> Vec<f64> {
    let count = target.len();
    let mut x = vec![0.0; count];
    let mut free: Vec<usize> = Vec::new();
    // Each round frees the coefficient with the steepest gradient; far fewer rounds are needed than allowed.
    for _ in 0..3 * count {
        let gradient = |i: usize| target[i] - gram[i].iter().zip(&x).map(|(a, b)| a * b).sum::<f64>();
        let steepest = (0..count).filter(|i| !free.contains(i)).map(|i| (i, gradient(i)));
        let Some((index, slope)) = steepest.max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        if slope <= LEAST {
            break;
        }
        free.push(index);
        loop {
            let solved = solve(gram, target, &free);
            let Some(share) = free
                .iter()
                .zip(&solved)
                .filter(|(_, to)| **to <= 0.0)
                .map(|(i, to)| if x[*i] > 0.0 { x[*i] / (x[*i] - to) } else { 0.0 })
                .min_by(f64::total_cmp)
            else {
                free.iter().zip(&solved).for_each(|(i, to)| x[*i] = *to);
                break;
            };
            // As far towards the solution as all stay positive; those that arrive at nought stay there.
            for (i, to) in free.iter().zip(&solved) {
                let moved = x[*i] + share * (to - x[*i]);
                x[*i] = if *to <= 0.0 && moved <= LEAST * LEAST { 0.0 } else { moved };
            }
            free.retain(|i| x[*i] > 0.0);
            if free.is_empty() {
                break;
            }
        }
    }
    x
}

/// Solves the equations of the `free` coefficients alone, by Cholesky's decomposition.
fn solve(gram: &[Vec<f64>], target: &[f64], free: &[usize]) -> Vec<f64> {
    let count = free.len();
    let mut lower = vec![vec![0.0; count]; count];
    for i in 0..count {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let rest: f64 = gram[free[i]][free[j]] - known;
            lower[i][j] = if i == j { rest.max(LEAST * LEAST).sqrt() } else { rest / lower[j][j] };
        }
    }
    let mut solved: Vec<f64> = free.iter().map(|i| target[*i]).collect();
    for i in 0..count {
        let known: f64 = (0..i).map(|k| lower[i][k] * solved[k]).sum();
        solved[i] = (solved[i] - known) / lower[i][i];
    }
    for i in (0..count).rev() {
        let known: f64 = (i + 1..count).map(|k| lower[k][i] * solved[k]).sum();
        solved[i] = (solved[i] - known) / lower[i][i];
    }
    solved
}

/// By how much the product of each row with `x` exceeds 1.
pub(super) fn residuals(rows: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    rows.iter().map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>() - 1.0).collect()
}

/// Weights under which squares count as Huber's loss does (Huber 1964, "Robust Estimation of a Location Parameter"): the
/// more a residual exceeds 1.345 times the usual one, the less it pulls. The usual one is at least a thousandth.
pub(super) fn forgiving(residuals: &[f64]) -> Vec<f64> {
    let mut sizes: Vec<f64> = residuals.iter().map(|residual| residual.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let usual = sizes.get(sizes.len() / 2).map_or(0.0, |median| 1.4826 * median).max(1e-3);
    residuals.iter().map(|residual| (1.345 * usual / residual.abs().max(1e-12)).min(1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_is_there_and_nothing_negative() {
        // 2a + b = 1, a + 3b = 1, a + b = 0.6: exactly a = 0.4, b = 0.2.
        let rows = [vec![2.0, 1.0], vec![1.0, 3.0], vec![1.0 / 0.6, 1.0 / 0.6]];
        let x = nearest_to_one(&rows, &[1.0; 3]);
        assert!((x[0] - 0.4).abs() < 1e-8 && (x[1] - 0.2).abs() < 1e-8, "{x:?}");
        // Without the bound the second would be -1.
        let x = nearest_to_one(&[vec![1.0, 0.0], vec![2.0, 1.0]], &[1.0; 2]);
        assert!((x[0] - 0.6).abs() < 1e-8 && x[1] == 0.0, "{x:?}");
        assert_eq!(nearest_to_one(&[vec![0.0, -1.0]], &[1.0]), [0.0, 0.0]);
    }

    #[test]
    fn columns_that_say_the_same_do_no_harm() {
        let x = nearest_to_one(&[vec![1.0, 1.0, 0.0], vec![2.0, 2.0, -1.0]], &[1.0; 2]);
        assert!((x[0] + x[1] - 1.0).abs() < 1e-6 && x[2] > 0.9, "{x:?}");
    }

    #[test]
    fn outliers_are_forgiven() {
        let weights = forgiving(&[0.01, -0.01, 0.01, -0.01, 0.5]);
        assert_eq!(weights[..4], [1.0; 4]);
        assert!(weights[4] < 0.05, "{weights:?}");
    }
}
