//! The `kvtide` binary. It links no libtorch: see `torch/`.

fn main() -> std::process::ExitCode {
    kvtide::cli::run(None)
}
