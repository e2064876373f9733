//! Attention.
use super::Check;
pub(super) const CHECKS: &[(&str, Check)] = &[];
