//! Orthogonal initialisation (Saxe, `McClelland`, Ganguli 2014, "Exact solutions to the nonlinear dynamics of learning in
//! deep linear neural networks").

use kvtide_envs::seed::Stream;
use rand::RngExt;

/// A matrix `[outputs, inputs]`, row-major, whose shorter side is orthonormal times `gain`, uniformly distributed.
///
/// Gram–Schmidt on Gaussian vectors is a QR decomposition with a positive diagonal, hence Haar-distributed (Mezzadri
/// 2007, "How to generate random matrices from the classical compact groups").
pub(crate) fn orthogonal(outputs: usize, inputs: usize, gain: f64, stream: &mut Stream) -> Vec<f32> {
    let (count, length) = (outputs.min(inputs), outputs.max(inputs));
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(count);
    while basis.len() < count {
        let mut vector: Vec<f64> = (0..length).map(|_| gaussian(stream)).collect();
        // Twice is enough (Giraud, Langou 2005) to be orthogonal to machine precision.
        for _ in 0..2 {
            for unit in &basis {
                let along: f64 = unit.iter().zip(&vector).map(|(a, b)| a * b).sum();
                vector.iter_mut().zip(unit).for_each(|(value, unit)| *value -= along * unit);
            }
        }
        let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        basis.push(vector.into_iter().map(|value| value / norm).collect());
    }
    let at = |output: usize, input: usize| if outputs <= inputs { basis[output][input] } else { basis[input][output] };
    (0..outputs)
        .flat_map(|output| (0..inputs).map(move |input| (output, input)))
        .map(|(o, i)| (gain * at(o, i)) as f32)
        .collect()
}

/// A standard normal draw (Box, Muller 1958).
pub(crate) fn gaussian(stream: &mut Stream) -> f64 {
    let radius = (-2.0 * (1.0 - stream.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * stream.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use kvtide_envs::seed;

    use super::*;

    fn largest_deviation(outputs: usize, inputs: usize, gain: f64) -> f64 {
        let matrix = orthogonal(outputs, inputs, gain, &mut seed::stream(3, "test", 0));
        let at = |output: usize, input: usize| f64::from(matrix[output * inputs + input]);
        let (count, length) = (outputs.min(inputs), outputs.max(inputs));
        let entry = |vector: usize, along: usize| if outputs <= inputs { at(vector, along) } else { at(along, vector) };
        let mut worst = 0.0_f64;
        for a in 0..count {
            for b in 0..count {
                let product: f64 = (0..length).map(|along| entry(a, along) * entry(b, along)).sum();
                let expected = if a == b { gain * gain } else { 0.0 };
                worst = worst.max((product - expected).abs());
            }
        }
        worst
    }

    #[test]
    fn the_shorter_side_is_orthonormal_times_the_gain() {
        for (outputs, inputs, gain) in
            [(64, 28, 2.0_f64.sqrt()), (64, 64, 2.0_f64.sqrt()), (23, 64, 0.01), (1, 64, 1.0)]
        {
            let worst = largest_deviation(outputs, inputs, gain);
            assert!(worst < 1e-6, "[{outputs}, {inputs}]: {worst}");
        }
    }

    #[test]
    fn gaussians_have_mean_zero_and_variance_one() {
        let mut stream = seed::stream(3, "test", 1);
        let draws: Vec<f64> = (0..20_000).map(|_| gaussian(&mut stream)).collect();
        let mean = draws.iter().sum::<f64>() / 20_000.0;
        let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
