//! libtorch for kvtide's training: [`Torch`] multiplies the networks of [`kvtide::agent::ppo`], many rows at a time.
//!
//! It is a crate of its own so that the tool itself links no libtorch, which takes half a second to load and hundreds of
//! megabytes of disk; `kvtide` hands over to this crate's program, `kvtide-train`, when training by PPO starts. Without the feature
//! `train` the crate is empty, and nothing needs libtorch to be built.
#![cfg(feature = "train")]

mod perceptron;
pub mod tensor;

use kvtide::agent::{Network, Tensors};

use perceptron::Perceptron;

/// libtorch, on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct Torch;

impl Tensors for Torch {
    fn set_num_threads(&self, num_threads: usize) {
        tch::set_num_threads(num_threads as i32);
    }

    fn network<'a>(&self, layers: &mut dyn Iterator<Item = (&'a [f32], &'a [f32])>) -> Box<dyn Network> {
        Box::new(Perceptron::new(layers))
    }
}
