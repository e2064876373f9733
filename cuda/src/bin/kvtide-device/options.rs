//! The command line.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, value_parser};
use kvtide_cuda::devices;
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind, Setting};
use kvtide_envs::workload::SyntheticSpec;

/// Everything there is to find out about a GPU.
#[derive(Debug, Parser)]
// An option that is given again counts as it was given last: scripts add theirs behind others'.
#[command(name = "kvtide-device", args_override_self = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The devices the driver knows.
    Info(DeviceOptions),
    /// Kernels against references, random schedules on real blocks; in host memory alone without a device.
    Check(DeviceOptions),
    /// Speeds of block copies, checksums and attention, beside ceilings measured in the same call.
    Speed(DeviceOptions),
    /// Time steps and copies, fit a hardware profile, report errors on points held out.
    Calibrate(DeviceOptions),
    /// Serve traffic on the device and in the model.
    Compare(DeviceOptions),
    /// All of these into --out: report.md, report.json, profile.toml, timings.json; what cannot be done is skipped.
    ///
    /// Each part runs in a process of its own, so that a device lost in one does not take the others along.
    All(DeviceOptions),
    /// One part of a report, as data in --out: how `all` calls itself.
    #[command(hide = true)]
    Part {
        /// Which part.
        name: String,
        #[command(flatten)]
        options: DeviceOptions,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DeviceOptions {
    /// Which device.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) device: u32,
    /// Model and hardware; the hardware may be a profile FILE.toml.
    #[arg(long, value_name = "MODEL@HW", default_value = "llama-3-8b@h200")]
    env: String,
    /// Whose scheduling is compared.
    #[arg(long, value_name = "v0|v1", default_value = "v1")]
    pub(crate) engine: EngineKind,
    /// Engine setting under vLLM's name, such as `num_gpu_blocks=4000`; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Seeds of each kernel check.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one())]
    pub(crate) seeds: u64,
    /// Random schedules in host memory; a fifth of them on the device.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one())]
    pub(crate) schedules: u64,
    /// Points that are timed, at most.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = value_parser!(u32).range(20..))]
    pub(crate) points: u32,
    /// Repeats of each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) repeats: u32,
    /// Traffic that is compared, repeatable.
    #[arg(
        long = "workload",
        value_name = "SPEC",
        value_parser = workload,
        default_values = ["chat:rate=12,duration=20s", "reasoning:rate=3,duration=6s"]
    )]
    pub(crate) workloads: Vec<String>,
    /// Day that is written into reports and profiles.
    #[arg(long, value_name = "DAY", default_value = "unknown")]
    pub(crate) date: String,
    /// What this was built from.
    #[arg(long, value_name = "ID", default_value = "unknown")]
    pub(crate) commit: String,
    /// Where reports and profiles go: a folder for all, a file for calibrate.
    #[arg(long, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,
}

fn at_least_one() -> RangedU64ValueParser<u64> {
    value_parser!(u64).range(1..)
}

/// The text of a generator that can be read.
fn workload(text: &str) -> Result<String, String> {
    text.parse::<SyntheticSpec>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

impl DeviceOptions {
    /// These options as arguments, but for --out.
    pub(crate) fn args(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut give = |name: &str, value: String| args.extend([name.to_owned(), value]);
        give("--device", self.device.to_string());
        give("--env", self.env.clone());
        give("--engine", self.engine.name().to_owned());
        self.settings.iter().for_each(|setting| give("--set", setting.to_string()));
        give("--seeds", self.seeds.to_string());
        give("--schedules", self.schedules.to_string());
        give("--points", self.points.to_string());
        give("--repeats", self.repeats.to_string());
        self.workloads.iter().for_each(|workload| give("--workload", workload.clone()));
        give("--date", self.date.clone());
        give("--commit", self.commit.clone());
        args
    }

    pub(crate) fn deployment(&self) -> Result<Deployment, String> {
        let deployment = Deployment::load_with(&self.env, &self.settings);
        deployment.map_err(|error| error.to_string())
    }

    /// The engine vLLM would start there, with host blocks: V1 has no host tier of its own, and swaps are looked at all the
    /// same.
    pub(crate) fn engine(&self, deployment: &Deployment) -> Result<EngineConfig, String> {
        let mut engine = deployment.engine(self.engine);
        engine.num_cpu_blocks = engine.num_cpu_blocks.max(HOST_BLOCKS);
        engine.with(&self.settings).map_err(|error| format!("--set: {error}"))
    }

    /// Why there is no device, or nothing.
    pub(crate) fn no_device(&self) -> Option<String> {
        let devices = devices();
        (self.device >= devices).then(|| match devices {
            0 => "no CUDA device: there is no driver, or it knows none".to_owned(),
            devices => format!("no CUDA device {}: the driver knows {devices}", self.device),
        })
    }
}

/// Host blocks of an engine that is given fewer.
const HOST_BLOCKS: u32 = 1024;

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command, DeviceOptions};

    fn options(args: &[&str]) -> DeviceOptions {
        match Cli::try_parse_from([&["kvtide-device", "check"], args].concat()).unwrap().command {
            Some(Command::Check(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_survive_being_passed_on_and_the_last_one_counts() {
        let given = options(&[
            "--seeds",
            "3",
            "--set",
            "num_gpu_blocks=400",
            "--set",
            "max_num_seqs=8",
            "--workload",
            "chat:rate=1,duration=1",
            "--seeds",
            "4",
            "--out",
            "somewhere",
            "--env",
            "llama-3-8b@rtx-4090",
        ]);
        assert_eq!((given.seeds, given.settings.len(), given.workloads.len()), (4, 2, 1));
        let args = given.args();
        let again = options(&args.iter().map(String::as_str).chain(["--env", "llama-3-8b@h200"]).collect::<Vec<_>>());
        assert_eq!((again.env.as_str(), &again.out), ("llama-3-8b@h200", &None));
        assert_eq!(DeviceOptions { env: given.env.clone(), ..again }.args(), args);
    }
}
