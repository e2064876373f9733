//! The one thing that training leaves to a tensor library: a network multiplied over many rows at a time, and the way back.
//!
//! This crate links no such library. libtorch is behind this seam in `kvtide-torch`, whose program `kvtide-train` is the whole
//! tool with it; so `kvtide` starts without loading a hundred megabytes, and is built where there is no libtorch at all.

/// A tensor library. Called from several threads at once.
pub trait Tensors: Sync {
    /// Threads that an operation called from this thread may take.
    fn set_num_threads(&self, num_threads: usize);

    /// A multilayer perceptron with tanh between layers, from weights `[outputs, inputs]`, row-major, and biases of each layer.
    fn network<'a>(&self, layers: &mut dyn Iterator<Item = (&'a [f32], &'a [f32])>) -> Box<dyn Network>;
}

/// A multilayer perceptron on one thread.
pub trait Network {
    /// Outputs `[rows, outputs]` for `inputs` `[rows, inputs]`, both row-major. What the way back needs is kept.
    fn forward(&mut self, inputs: &[f32]) -> Vec<f32>;

    /// The derivative of a loss by every weight and bias, in the order they were given in, from that by the outputs of the last
    /// [`forward`](Self::forward), `[rows, outputs]`.
    ///
    /// # Panics
    /// If nothing went forward.
    fn backward(&self, gradient: &[f32]) -> Vec<Vec<f32>>;
}
