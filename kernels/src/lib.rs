//! CUDA sources
