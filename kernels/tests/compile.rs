//! Every kernel compiles, on machines without a GPU too, and a broken one does not.
#![expect(unsafe_code, reason = "loading NVRTC runs its initialisers")]

use std::io::{self, Write};
use std::path::Path;

use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use kvtide_kernels::ALL;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Makes NVRTC known to the loader from where `make setup` puts it; false, with a word, if it is not there.
///
/// NVRTC looks for its built-ins by name and has no search path of its own, so they are loaded before it.
fn load_nvrtc() -> bool {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../third_party/libtorch/nvidia/cu13/lib");
    for name in ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"] {
        // SAFETY: both are NVIDIA's own libraries, verified by hash when they were fetched, and stay loaded for good.
        match unsafe { Library::open(Some(folder.join(name)), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => std::mem::forget(library),
            Err(error) => {
                let _ = writeln!(io::stderr(), "skipped: kernels are not compiled: {error} (run make setup)");
                return false;
            }
        }
    }
    true
}

fn options() -> CompileOptions {
    CompileOptions { options: vec!["--gpu-architecture=compute_90".to_owned()], ..CompileOptions::default() }
}

#[test]
fn every_kernel_compiles_to_its_entry() {
    if !load_nvrtc() {
        return;
    }
    for kernel in ALL {
        let ptx = compile_ptx_with_opts(kernel.source, options())
            .unwrap_or_else(|error| panic!("{} does not compile: {error:?}", kernel.name));
        for name in kernel.entries {
            let entry = format!(".entry {name}(");
            assert!(ptx.to_src().contains(&entry), "{} has no entry {name}", kernel.name);
        }
    }
}

#[test]
fn a_broken_kernel_does_not_compile() {
    if !load_nvrtc() {
        return;
    }
    for kernel in ALL {
        let broken = kernel.source.replacen("blockIdx", "blockIdxx", 1);
        assert_ne!(broken, kernel.source);
        assert!(compile_ptx_with_opts(broken, options()).is_err(), "{} broken still compiles", kernel.name);
    }
}
