//! Factors on measured times: what a run that was served says of tables that were measured kernel by kernel.

use serde::{Deserialize, Serialize};

use super::super::SettingError;

/// Factors on the times of [`KernelTables`](super::KernelTables), from 0.1 to 10; all 1 where nothing else is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KernelScales {
    /// Of matrix products and what is done element by element.
    pub products: f64,
    /// Of attention of prompts.
    pub prefill: f64,
    /// Of attention of sequences that decode.
    pub decode: f64,
    /// Of all-reduces.
    pub all_reduce: f64,
    /// Of routed experts.
    pub experts: f64,
    /// Of kernels that are bound by arithmetic, on top: their rate falls while they run one after the other, because clocks follow
    /// power, and tables were measured in bursts.
    pub sustained: f64,
}

impl KernelScales {
    /// No factor at all.
    pub const ONE: KernelScales =
        KernelScales { products: 1.0, prefill: 1.0, decode: 1.0, all_reduce: 1.0, experts: 1.0, sustained: 1.0 };

    /// The factor of a kernel whose arithmetic takes this share of its traffic's time: nothing where memory is waited for.
    pub(crate) fn sustained_at(&self, arithmetic: f64) -> f64 {
        1.0 + (self.sustained - 1.0) * arithmetic.min(1.0)
    }

    /// Each by its key in a file.
    pub fn named(self) -> [(&'static str, f64); 6] {
        let KernelScales { products, prefill, decode, all_reduce, experts, sustained } = self;
        [
            ("products", products),
            ("prefill", prefill),
            ("decode", decode),
            ("all_reduce", all_reduce),
            ("experts", experts),
            ("sustained", sustained),
        ]
    }

    pub(super) fn is_one(&self) -> bool {
        *self == KernelScales::ONE
    }

    pub(super) fn validate(self) -> Result<(), SettingError> {
        let factors = self.named();
        match factors.into_iter().find(|(_, factor)| !(0.1..=10.0).contains(factor)) {
            Some((key, factor)) => Err(SettingError::value(key, &factor.to_string(), "a factor from 0.1 to 10")),
            None => Ok(()),
        }
    }
}

impl Default for KernelScales {
    fn default() -> KernelScales {
        KernelScales::ONE
    }
}
