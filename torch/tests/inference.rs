//! What decides without libtorch decides as libtorch would.

use kvtide::agent::inference::Inference;
use kvtide::agent::{Architecture, Tensors, Weights};
use kvtide_envs::seed;
use kvtide_torch::Torch;
use rand::RngExt;

#[test]
fn it_agrees_with_libtorch() {
    for (hidden, head_sizes) in [(vec![64, 64], vec![12, 5, 3, 3]), (vec![], vec![3]), (vec![33], vec![40, 2])] {
        let architecture = Architecture { observation_size: 28, hidden, head_sizes };
        let mut stream = seed::stream(5, "test", 0);
        let observations: Vec<f32> = (0..64 * 28).map(|_| stream.random_range(-10.0..10.0)).collect();
        // Initial weights have zero biases and a tiny last layer; trained ones have not.
        let values = Weights::orthogonal(architecture.clone(), 5)
            .values()
            .iter()
            .map(|values| values.iter().map(|value| value + stream.random_range(-0.2..0.2)).collect())
            .collect();
        let weights = Weights::new(architecture.clone(), values).unwrap();
        for (inference, mut network) in [
            (Inference::new(weights.actor()), Torch.network(&mut weights.actor())),
            (Inference::new(weights.critic()), Torch.network(&mut weights.critic())),
        ] {
            let expected = network.forward(&observations);
            let mut outputs = vec![0.0; 64 * inference.outputs()];
            inference.forward(&observations, &mut outputs);
            for (ours, theirs) in outputs.iter().zip(&expected) {
                assert!((ours - theirs).abs() < 1e-5 * (1.0 + theirs.abs()), "{ours} {theirs}");
            }
        }
    }
}
