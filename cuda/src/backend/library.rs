//! Where CUDA's libraries are.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Loads libraries for good, so that whoever asks the loader for them by name finds them: from the folder
/// `KVTIDE_CUDA_LIBRARIES`, or from where `make setup` puts them beside this program. Those that are in neither are left to
/// the loader's own search.
///
/// NVRTC looks for its built-ins by name alone and has no search path, so they are named before it.
pub(super) fn load(names: &[&'static str]) {
    static LOADED: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut loaded = LOADED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for name in names.iter().filter(|name| !loaded.contains(*name)).copied().collect::<Vec<_>>() {
        let found = folders().into_iter().map(|folder| folder.join(name)).find(|path| path.exists());
        let Some(path) = found else { continue };
        // SAFETY: NVIDIA's own libraries (or what whoever runs this puts in their place), which stay loaded.
        if let Ok(library) = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
            std::mem::forget(library);
            loaded.push(name);
        }
    }
}

fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::env::var_os("KVTIDE_CUDA_LIBRARIES").map(PathBuf::from).into_iter().collect();
    let program = std::env::current_exe().unwrap_or_default();
    // target/<profile>/kvtide, target/<profile>/deps/<test>
    let above = program.ancestors().skip(1).take(4);
    folders.extend(above.map(|folder: &Path| folder.join("third_party/libtorch/nvidia/cu13/lib")));
    folders
}
