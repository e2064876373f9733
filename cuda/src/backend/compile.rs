//! Kernels from source to machine code, once a device and version.

use std::ffi::{CString, c_char};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};
use kvtide_envs::files::NewFile;
use kvtide_envs::memory::MemoryError;
use kvtide_kernels::Kernel;

/// Kept from one run to the next in this folder: `KVTIDE_CACHE`, or kvtide's in the user's cache folder; `None` if there is
/// neither.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("KVTIDE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("kvtide")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/kvtide")))
}

/// Machine code of `kernel` for a device of `capability`, from the cache if it is there.
///
/// # Errors
/// There is no NVRTC, or the kernel does not compile.
pub(super) fn machine_code(kernel: &Kernel, capability: (u32, u32)) -> Result<Vec<u8>, MemoryError> {
    load_nvrtc()?;
    let options = [format!("--gpu-architecture=sm_{}{}", capability.0, capability.1), "--std=c++17".to_owned()];
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are to local integers.
    let _ = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    let key =
        blake3::hash(format!("{major}.{minor}\n{}\n{}\n{}", options.join("\n"), kernel.name, kernel.source).as_bytes());
    let cached = cache_folder().map(|folder| folder.join("kernels").join(format!("{}.cubin", key.to_hex())));
    if let Some(code) = cached.as_deref().and_then(read) {
        return Ok(code);
    }
    let code = compile(kernel, &options)?;
    if let Some(path) = &cached {
        // A cache that cannot be written costs the next run a second.
        let _ = write(path, &code);
    }
    Ok(code)
}

/// A cached file: its own hash, then the code. `None` if it is not there or not whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).ok()?;
    let (hash, code) = bytes.split_first_chunk::<32>()?;
    (blake3::hash(code).as_bytes() == hash).then(|| code.to_vec())
}

/// Written beside its place and renamed.
fn write(path: &Path, code: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = NewFile::create(path)?;
    file.write_all(blake3::hash(code).as_bytes())?;
    file.write_all(code)?;
    file.finish()
}

fn compile(kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, MemoryError> {
    let wrong = |error: String| MemoryError::Compile { kernel: kernel.name, error };
    let (Ok(source), Ok(name)) = (CString::new(kernel.source), CString::new(kernel.name)) else {
        return Err(wrong("the source has a zero byte".to_owned()));
    };
    let program = result::create_program(&source, Some(&name)).map_err(|error| wrong(format!("{error:?}")))?;
    // SAFETY: the program was just made; it is destroyed below, once.
    let compiled = unsafe { result::compile_program(program, options) };
    let code = match compiled {
        Ok(()) => cubin(program).map_err(|error| wrong(format!("{error:?}"))),
        Err(error) => {
            // SAFETY: the program is alive.
            let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
            let log: Vec<u8> = log.iter().map(|&byte| byte.cast_unsigned()).take_while(|&byte| byte != 0).collect();
            Err(wrong(format!("{error:?} {}", String::from_utf8_lossy(&log))))
        }
    };
    // SAFETY: made above, destroyed once.
    let _ = unsafe { result::destroy_program(program) };
    code
}

fn cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: the program is alive; the buffer has the size NVRTC asks for.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &raw mut size).result()?;
        let mut code = vec![0_u8; size];
        sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast::<c_char>()).result()?;
        Ok(code)
    }
}

/// Makes NVRTC known to the loader: from the folder `KVTIDE_CUDA_LIBRARIES`, from where `make setup` puts it, or from where the
/// system has it.
///
/// # Errors
/// It is nowhere.
pub(super) fn load_nvrtc() -> Result<(), MemoryError> {
    super::library::load(&["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]);
    // SAFETY: loading NVIDIA's compiler library runs its initialisers.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    Err(MemoryError::Unavailable(
        "NVRTC, the CUDA run-time compiler, is not found: put the folder of libnvrtc.so.13 into LD_LIBRARY_PATH or \
         KVTIDE_CUDA_LIBRARIES, or run make setup"
            .to_owned(),
    ))
}
