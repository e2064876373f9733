//! The `kvtide` binary.

fn main() -> std::process::ExitCode {
    kvtide::cli::run()
}
