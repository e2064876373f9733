//! `kvtide calibrate --perf-db`: a profile out of a database of measured kernels.

use std::path::PathBuf;

use clap::Args;

use crate::calibrate::perf_db::Framework;

#[derive(Debug, Args)]
pub(super) struct PerfDbArgs {
    /// Database of measured kernels instead: the wheel of aiconfigurator-core, or its folder `systems` as it was unpacked. Needs a
    /// kvtide that was built with --features perf-db.
    #[arg(
        long,
        value_name = "PATH",
        requires = "system",
        conflicts_with_all = ["measured", "device", "timings", "load", "plot", "fit_fraction", "env"]
    )]
    pub(super) perf_db: Option<PathBuf>,
    /// With --perf-db: the system, as the database names it: `h100_sxm`, `a100_sxm`, `l40s`. An unknown one lists those there are.
    #[arg(long, value_name = "NAME", requires = "perf_db")]
    pub(super) system: Option<String>,
    /// With --perf-db: serving framework and its version. Without a version the newest that has products and attention; families
    /// it does not have are of the newest that has them.
    #[arg(long, value_name = "NAME[@VERSION]", default_value = "vllm", requires = "perf_db")]
    pub(super) framework: Framework,
    /// With --perf-db: the model whose kernels are kept, as in --env: a name, a config.json or its folder.
    #[arg(long, value_name = "MODEL", requires = "perf_db")]
    pub(super) model: Option<String>,
    /// With --perf-db: degrees of tensor parallelism the profile is for.
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,2,4,8",
        requires = "perf_db",
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub(super) devices: Vec<u32>,
    /// With --perf-db: in place of --model a grid of all shapes, as the built-in profiles have it.
    #[arg(long, requires = "perf_db", conflicts_with_all = ["model", "devices"])]
    pub(super) all_shapes: bool,
}

#[cfg(not(feature = "perf-db"))]
mod account {
    use anyhow::bail;
    use kvtide_envs::deploy::Setting;

    use super::PerfDbArgs;
    use crate::calibrate::served::RunAccount;

    impl PerfDbArgs {
        /// What this program cannot do.
        pub(in crate::cli) fn account(&self, _: &[Setting]) -> anyhow::Result<RunAccount> {
            // Read all the same, so that a mistake in them is told.
            let _ = (&self.system, &self.framework, &self.devices, self.all_shapes);
            bail!(
                "--perf-db: this kvtide was built without what reads Parquet; build one that can with: cargo build --release -p kvtide \
                 --features perf-db"
            )
        }
    }
}

#[cfg(feature = "perf-db")]
mod account {
    use std::fmt::Write;

    use anyhow::{Context, ensure};
    use kvtide_envs::deploy::{Deployment, Model, Setting};

    use super::PerfDbArgs;
    use crate::calibrate::perf_db::{PerfDb, PerfDbAccount};

    impl PerfDbArgs {
        /// The profile, and what it was made of.
        pub(in crate::cli) fn account(&self, settings: &[Setting]) -> anyhow::Result<PerfDbAccount> {
            let path = self.perf_db.as_deref().context("--perf-db says where the database is")?;
            let system = self.system.as_deref().context("--system says which of its systems")?;
            ensure!(
                self.model.is_some() || self.all_shapes,
                "--perf-db: --model MODEL says whose kernels are kept (--all-shapes: a grid for any model)"
            );
            let model = self.model.as_deref().map(Model::load).transpose().context("--model")?;
            // Models in fp8 with experts are published with scales of blocks; of dense ones both kinds are.
            let by_blocks = model.as_ref().map_or([false, true], |model| [model.widths.by_blocks; 2]);
            let database = PerfDb::read(path, system, &self.framework, by_blocks)?;
            let hardware = database.hardware().clone();
            let (model, hardware) = match model {
                Some(model) => {
                    let Deployment { model, hardware, .. } = Deployment::new(model, hardware, 1).changed(settings);
                    (Some(model), hardware)
                }
                None => (None, hardware.with(settings)),
            };
            Ok(PerfDbAccount::new(&database, hardware, model.as_ref(), &self.devices, self.command(settings)))
        }

        /// The command that does the same again, without the folders of whoever ran it.
        fn command(&self, settings: &[Setting]) -> String {
            let name =
                |path: &std::path::Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            let mut command = "kvtide calibrate".to_owned();
            let system = self.system.as_deref().unwrap_or_default();
            // However the database lies here, it is the same.
            let _ = write!(command, " --perf-db aiconfigurator_core --system {system}");
            if let Some(version) = &self.framework.version {
                let _ = write!(command, " --framework {}@{version}", self.framework.name);
            } else if self.framework.name != "vllm" {
                let _ = write!(command, " --framework {}", self.framework.name);
            }
            match &self.model {
                Some(model) => {
                    let devices: Vec<String> = self.devices.iter().map(u32::to_string).collect();
                    let model = std::path::Path::new(model);
                    let _ = write!(command, " --model {} --devices {}", name(model), devices.join(","));
                }
                None => command.push_str(" --all-shapes"),
            }
            for setting in settings {
                let _ = write!(command, " --set {setting}");
            }
            command
        }
    }
}
