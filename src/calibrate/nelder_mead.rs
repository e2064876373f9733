//! The downhill simplex (Nelder and Mead 1965, "A Simplex Method for Function Minimization").
//!
//! Needs no gradient, which a count of preemptions does not have, and draws no random number.

/// When to stop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::calibrate) struct StoppingRule {
    /// Edge of the first simplex.
    pub(in crate::calibrate) edge: f64,
    /// Most iterations.
    pub(in crate::calibrate) iterations: u32,
    /// Done when no coordinate differs by more than this within the simplex.
    pub(in crate::calibrate) size: f64,
}

#[derive(Debug, Clone)]
struct Vertex {
    at: Vec<f64>,
    value: f64,
}

/// A point near `start` at which `function` is least. Of equal points the one found first stays.
///
/// # Panics
/// If `start` has no coordinates.
pub(in crate::calibrate) fn minimise<E>(
    start: &[f64],
    limits: StoppingRule,
    mut function: impl FnMut(&[f64]) -> Result<f64, E>,
) -> Result<Vec<f64>, E> {
    assert!(!start.is_empty(), "nothing to vary");
    let mut vertex = |at: Vec<f64>| function(&at).map(|value| Vertex { at, value });
    let mut simplex = vec![vertex(start.to_vec())?];
    for axis in 0..start.len() {
        let mut at = start.to_vec();
        at[axis] += limits.edge;
        simplex.push(vertex(at)?);
    }
    for _ in 0..limits.iterations {
        // Stable: of equal vertices the older one counts as the better.
        simplex.sort_by(|a, b| a.value.total_cmp(&b.value));
        if size(&simplex) < limits.size {
            break;
        }
        let worst = simplex.pop().expect("a simplex has at least two vertices");
        let centre = centre(&simplex);
        let towards = |share: f64| line(&centre, &worst.at, share);
        let (best, second_worst) = (simplex[0].value, simplex[simplex.len() - 1].value);
        let reflected = vertex(towards(-1.0))?;
        if reflected.value < best {
            let expanded = vertex(towards(-2.0))?;
            simplex.push(if expanded.value < reflected.value { expanded } else { reflected });
        } else if reflected.value < second_worst {
            simplex.push(reflected);
        } else {
            let share = if reflected.value < worst.value { -0.5 } else { 0.5 };
            let contracted = vertex(towards(share))?;
            if contracted.value < reflected.value.min(worst.value) {
                simplex.push(contracted);
            } else {
                simplex.push(worst);
                let best = simplex[0].at.clone();
                for other in &mut simplex[1..] {
                    *other = vertex(line(&best, &other.at, 0.5))?;
                }
            }
        }
    }
    simplex.sort_by(|a, b| a.value.total_cmp(&b.value));
    Ok(simplex.swap_remove(0).at)
}

/// `from` plus `share` of the way to `to`.
fn line(from: &[f64], to: &[f64], share: f64) -> Vec<f64> {
    from.iter().zip(to).map(|(from, to)| from + share * (to - from)).collect()
}

fn centre(simplex: &[Vertex]) -> Vec<f64> {
    let count = simplex.len() as f64;
    let axes = 0..simplex[0].at.len();
    axes.map(|axis| simplex.iter().map(|vertex| vertex.at[axis]).sum::<f64>() / count).collect()
}

fn size(simplex: &[Vertex]) -> f64 {
    let (best, others) = simplex.split_first().expect("a simplex has vertices");
    let gaps = others.iter().flat_map(|other| other.at.iter().zip(&best.at).map(|(a, b)| (a - b).abs()));
    gaps.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const FINE: StoppingRule = StoppingRule { edge: 0.5, iterations: 1000, size: 1e-9 };

    fn found(start: &[f64], limits: StoppingRule, function: impl Fn(&[f64]) -> f64) -> (Vec<f64>, u32) {
        let mut calls = 0;
        let counted = |at: &[f64]| {
            calls += 1;
            Ok::<f64, Infallible>(function(at))
        };
        let Ok(at) = minimise(start, limits, counted);
        (at, calls)
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}, not {expected:?}");
    }

    #[test]
    fn finds_the_bottom_of_a_bowl() {
        let bowl = |x: &[f64]| 3.0 * (x[0] - 1.0).powi(2) + (x[1] + 2.0).powi(2) + 0.5 * (x[2] - x[0]).powi(2);
        assert_near(&found(&[5.0, 5.0, 5.0], FINE, bowl).0, &[1.0, -2.0, 1.0]);
    }

    #[test]
    fn follows_rosenbrocks_valley() {
        let valley = |x: &[f64]| (1.0 - x[0]).powi(2) + 100.0 * (x[1] - x[0] * x[0]).powi(2);
        let (at, calls) = found(&[-1.2, 1.0], FINE, valley);
        assert_near(&at, &[1.0, 1.0]);
        assert!(calls < 240, "{calls}");
    }

    #[test]
    fn steps_and_kinks_do_not_stop_it() {
        // What a simulation looks like: no gradient anywhere.
        let rugged = |x: &[f64]| (((x[0] - 0.3).abs() + 2.0 * (x[1] - 0.7).abs()) * 1e4).floor();
        let (at, _) = found(&[0.0, 0.0], FINE, rugged);
        assert!((at[0] - 0.3).abs() < 1e-3 && (at[1] - 0.7).abs() < 1e-3, "{at:?}");
    }

    #[test]
    fn stops_when_told() {
        let limits = StoppingRule { iterations: 3, ..FINE };
        // Three vertices, then at most four calls an iteration.
        assert!(found(&[0.0, 0.0], limits, |x| x[0] + x[1]).1 <= 15);
        assert_eq!(found(&[4.0], FINE, |_| 0.0).0, [4.0]);
    }
}
