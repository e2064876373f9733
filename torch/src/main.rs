//! `kvtide-train`: the whole of `kvtide`, with libtorch. `kvtide` hands over to it when training by PPO starts.

fn main() -> std::process::ExitCode {
    kvtide::cli::run(Some(&kvtide_torch::Torch))
}
