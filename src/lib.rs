//! kvtide
