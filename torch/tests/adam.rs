//! The optimiser that can be saved takes the steps of the one that cannot.

use kvtide::agent::adam::AdamState;
use kvtide_torch::tensor;
use tch::nn::{Adam, OptimizerConfig, VarStore, adam as of_libtorch};

#[test]
fn libtorchs_own_adam_takes_the_same_steps() {
    let start = [1.0_f32, -2.0, 0.5];
    let store = VarStore::new(tch::Device::Cpu);
    let theirs = store.root().var_copy("x", &tensor::of(&start, &[3]));
    let config = Adam { eps: 1e-5, ..of_libtorch(0.9, 0.999, 0.0) };
    let mut optimizer = config.build(&store, 0.05).unwrap();
    let mut ours = [start.to_vec()];
    let mut adam = AdamState::new([3].into_iter());
    for _ in 0..20 {
        let gradient = ours[0].iter().map(|value| value * 2.0 + value.sin()).collect();
        adam.step(&mut ours, &[gradient], 0.05);
        optimizer.backward_step(&(theirs.square() - theirs.cos()).sum(tch::Kind::Float));
    }
    let theirs = tensor::values(&theirs);
    let difference = ours[0].iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-6, "{difference}");
}
