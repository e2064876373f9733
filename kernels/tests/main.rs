//! Kernels: that they compile. What they compute is looked at where something runs them, on the emulated device and on a real one.

mod compile;
