//! Properties of every kernel, checked on anything that can launch one: a GPU, or the emulator.
//!
//! Each check draws sizes and inputs from its seed, poisons what it does not set (an element that must not be read is a
//! NaN, an output is a pattern with a guard behind it), launches, and compares with [`crate::reference`]: bit for bit
//! where bytes move, within what the element type's rounding explains where there is arithmetic.

mod attention;
mod buffer;
mod layer;
mod memory;
mod price;
mod random;

use crate::launch::Geometry;

/// Something that launches kernels by the name of their entry and waits for them.
pub trait Launcher {
    /// Runs `entry` to its end. Slices start at an address that is a multiple of 16 and are never empty; what the kernel
    /// gets for each must start so, too.
    ///
    /// # Errors
    /// Why it could not be launched, or how it failed.
    fn launch(&mut self, entry: &str, geometry: &Geometry, args: &mut [CheckArg<'_>]) -> Result<(), String>;

    /// Multiprocessors of the device.
    fn multiprocessors(&self) -> u32;
}

/// An argument of a kernel.
#[derive(Debug)]
pub enum CheckArg<'a> {
    /// A pointer to bytes that the kernel reads. Aligned to 16.
    In(&'a [u8]),
    /// A pointer to bytes that the kernel reads and writes: uploaded before, downloaded after. Aligned to 16.
    Out(&'a mut [u8]),
    /// A null pointer.
    Null,
    /// An `unsigned`.
    U32(u32),
    /// An `unsigned long long`.
    U64(u64),
    /// A `float`.
    F32(f32),
}

/// A check: an error names the first difference.
pub type Check = fn(&mut dyn Launcher, u64) -> Result<(), String>;

/// Every check and its name. The second argument of a check is the seed of its sizes and inputs.
pub fn all() -> impl Iterator<Item = (&'static str, Check)> {
    let layers = memory::CHECKS.iter().chain(layer::CHECKS).chain(attention::CHECKS);
    layers.chain(price::CHECKS).copied()
}
