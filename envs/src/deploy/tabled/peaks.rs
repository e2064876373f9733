//! The roofline of one device.

use crate::deploy::{Hardware, Precision};

/// Peaks of an accelerator, and the shares of them that kernels reach.
#[derive(Clone, Copy)]
pub(super) struct Peaks<'a> {
    pub(super) hardware: &'a Hardware,
}

impl Peaks<'_> {
    /// Arithmetic with weights of `precision` and traffic, both at the peaks. Seconds.
    pub(super) fn roofs(self, precision: Precision, flops: f64, bytes: f64) -> (f64, f64) {
        let Hardware { peak_flops, peak_fp8_flops, peak_bandwidth, .. } = *self.hardware;
        let is_fp8 = precision == Precision::Fp8 && peak_fp8_flops > 0.0;
        (flops / if is_fp8 { peak_fp8_flops } else { peak_flops }, bytes / peak_bandwidth)
    }

    /// The longer of both, by the shares of the peaks that are reached. Seconds.
    pub(super) fn roofline(self, precision: Precision, flops: f64, bytes: f64) -> f64 {
        let (arithmetic, traffic) = self.roofs(precision, flops, bytes);
        (arithmetic / self.hardware.compute_efficiency).max(traffic / self.hardware.bandwidth_efficiency)
    }

    /// Reading `bytes` at the bandwidth that is reached. Seconds.
    pub(super) fn read(self, bytes: f64) -> f64 {
        bytes / (self.hardware.peak_bandwidth * self.hardware.bandwidth_efficiency)
    }
}
