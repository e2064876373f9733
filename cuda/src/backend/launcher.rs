//! Kernels launched one at a time on bytes of the host: what their checks need.

use std::sync::Arc;

use kvtide_envs::memory::MemoryError;
use kvtide_kernels::check::{CheckArg, Launcher, all};
use kvtide_kernels::launch::Geometry;

use super::device::{Device, LaunchArg};
use super::driver::DeviceBuffer;
use crate::KernelCheck;

/// Runs every check of every kernel with each of `seeds`, and hands each over as it is done.
///
/// # Errors
/// The device cannot be used.
pub(super) fn check_kernels(
    device: &Arc<Device>,
    seeds: std::ops::Range<u64>,
    report: &mut dyn FnMut(&KernelCheck),
) -> Result<(), MemoryError> {
    let mut launcher = CheckedKernels { kernels: Kernels { device: Arc::clone(device) }, lost: None };
    for (name, check) in all() {
        let failed = seeds.clone().find_map(|seed| Some((seed, check(&mut launcher, seed).err()?)));
        if let Some(lost) = launcher.lost.take() {
            return Err(lost);
        }
        let tried = failed.as_ref().map_or(seeds.end, |failed| failed.0 + 1) - seeds.start;
        report(&KernelCheck { name: name.to_owned(), seeds: tried, failure: failed });
    }
    Ok(())
}

/// The kernels of a device, launched one at a time on bytes of the host.
#[derive(Debug)]
pub struct Kernels {
    device: Arc<Device>,
}

impl Kernels {
    /// Those of device `ordinal`, compiled for it.
    ///
    /// # Errors
    /// There is no such device, or a kernel does not compile.
    pub fn open(ordinal: u32) -> Result<Kernels, MemoryError> {
        Ok(Kernels { device: Arc::new(Device::open(ordinal)?) })
    }

    /// Multiprocessors of the device.
    pub fn multiprocessors(&self) -> u32 {
        self.device.multiprocessors()
    }

    /// Uploads what `args` point to, runs `entry` to its end, and downloads what it may have written.
    ///
    /// # Errors
    /// There is no such kernel, or it failed.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in order, and as large as it says; no number of them leads it elsewhere.
    pub unsafe fn launch(&self, entry: &str, geometry: Geometry, args: &mut [CheckArg<'_>]) -> Result<(), MemoryError> {
        let device = &self.device;
        device.enter()?;
        let entry =
            device.entry(entry).ok_or_else(|| MemoryError::Unsupported(format!("there is no kernel {entry}")))?;
        let stream = &device.compute;
        let mut buffers = Vec::new();
        for arg in args.iter() {
            let bytes: Option<&[u8]> = match arg {
                CheckArg::In(bytes) => Some(bytes),
                CheckArg::Out(bytes) => Some(bytes),
                _ => None,
            };
            let buffer = bytes.map(|bytes| {
                let buffer = DeviceBuffer::new(&device.context, bytes.len() as u64, "an argument")?;
                buffer.write(bytes, stream)?;
                Ok::<_, MemoryError>(buffer)
            });
            buffers.push(buffer.transpose()?);
        }
        let values: Vec<LaunchArg> = args
            .iter()
            .zip(&buffers)
            .map(|(arg, buffer)| match (arg, buffer) {
                (_, Some(buffer)) => LaunchArg::Long(buffer.address()),
                (CheckArg::U32(value), _) => LaunchArg::Int(*value),
                (CheckArg::U64(value), _) => LaunchArg::Long(*value),
                (CheckArg::F32(value), _) => LaunchArg::Float(*value),
                _ => LaunchArg::Long(0),
            })
            .collect();
        // SAFETY: the caller's; the buffers live until they are read below.
        unsafe { device.launch(entry, geometry, stream, &values)? };
        stream.synchronise()?;
        for (arg, buffer) in args.iter_mut().zip(&buffers) {
            if let (CheckArg::Out(bytes), Some(buffer)) = (arg, buffer) {
                buffer.read(bytes, stream)?;
            }
        }
        Ok(())
    }
}

/// Kernels under check.
struct CheckedKernels {
    kernels: Kernels,
    /// Why nothing can be launched any more.
    lost: Option<MemoryError>,
}

impl Launcher for CheckedKernels {
    fn launch(&mut self, entry: &str, geometry: &Geometry, args: &mut [CheckArg<'_>]) -> Result<(), String> {
        // SAFETY: a check gives the kernel's own arguments.
        let launched = unsafe { self.kernels.launch(entry, *geometry, args) };
        launched.map_err(|error| {
            let text = error.to_string();
            if matches!(error, MemoryError::DeviceLost { .. }) {
                self.lost.get_or_insert(error);
            }
            text
        })
    }

    fn multiprocessors(&self) -> u32 {
        self.kernels.multiprocessors()
    }
}
