//! Matrix products through cuBLAS.

use std::ffi::c_void;

use cudarc::cublas::{result, sys};
use kvtide_envs::memory::MemoryError;

use super::device::Device;
use super::{Element, library};

/// cuBLAS on the compute stream of a device.
#[derive(Debug)]
pub(super) struct Blas {
    handle: sys::cublasHandle_t,
    element: Element,
}

// SAFETY: a handle may be used from any thread, by one at a time.
unsafe impl Send for Blas {}

/// `output[tokens, outputs] = input[tokens, inputs] · weightᵀ`, the weight `[outputs, inputs]`; all dense and row-major,
/// at device addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product {
    pub(super) input: u64,
    pub(super) weight: u64,
    pub(super) output: u64,
    pub(super) tokens: u32,
    pub(super) inputs: u32,
    pub(super) outputs: u32,
}

impl Blas {
    pub(super) fn new(device: &Device, element: Element) -> Result<Blas, MemoryError> {
        library::load(&["libcublasLt.so.13", "libcublas.so.13"]);
        // SAFETY: loading NVIDIA's library runs its initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err(MemoryError::Unavailable(
                "cuBLAS (libcublas.so.13) is not found: put its folder into LD_LIBRARY_PATH or KVTIDE_CUDA_LIBRARIES"
                    .to_owned(),
            ));
        }
        let failed = |error| MemoryError::Driver { call: "starting cuBLAS", error: format!("{error:?}") };
        let handle = result::create_handle().map_err(failed)?;
        let blas = Blas { handle, element };
        // SAFETY: both are alive; the stream outlives the handle, which the backend drops first.
        unsafe { result::set_stream(blas.handle, device.compute.raw.cast()) }.map_err(failed)?;
        Ok(blas)
    }

    /// Sends a product to the stream.
    ///
    /// # Safety
    /// The three ranges are within allocations that live until it has run.
    pub(super) unsafe fn product(&self, product: Product) -> Result<(), MemoryError> {
        let Product { input, weight, output, tokens, inputs, outputs } = product;
        if tokens == 0 {
            return Ok(());
        }
        let (alpha, beta) = (1.0_f32, 0.0_f32);
        let scale = |value: &f32| std::ptr::from_ref(value).cast::<c_void>();
        let kind = match self.element {
            Element::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Element::Fp16 => sys::cudaDataType_t::CUDA_R_16F,
        };
        // cuBLAS counts by columns: a row-major matrix is its transpose there, so the product is turned round.
        let (m, n, k) = (outputs.cast_signed(), tokens.cast_signed(), inputs.cast_signed());
        // SAFETY: the caller's.
        unsafe {
            result::gemm_ex(
                self.handle,
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                m,
                n,
                k,
                scale(&alpha),
                weight as *const c_void,
                kind,
                k,
                input as *const c_void,
                kind,
                k,
                scale(&beta),
                output as *mut c_void,
                kind,
                m,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|error| {
            use sys::cublasStatus_t as Status;
            let (call, text) = ("a matrix product", format!("{error:?}"));
            match error.0 {
                Status::CUBLAS_STATUS_EXECUTION_FAILED | Status::CUBLAS_STATUS_INTERNAL_ERROR => {
                    MemoryError::DeviceLost { call, error: text }
                }
                _ => MemoryError::Driver { call, error: text },
            }
        })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
