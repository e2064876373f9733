//! What deployments are called on the command line and in files: `model@hardware`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::keys::MAX_DEVICES;
use super::{Deployment, DeploymentError, Hardware, HardwareProfile, Model, Setting};

/// What a deployment is called: `llama-3-8b@rtx-4090`, `llama-3-70b@4xh100`, `path/to/config.json@2xmine.toml`. A built-in model,
/// built-in hardware and the number of devices are known to be there; files are read when the deployment is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentName {
    model: ModelName,
    devices: u32,
    hardware: HardwareName,
}

#[derive(Debug, Clone, PartialEq)]
enum ModelName {
    BuiltIn(Box<Model>),
    /// A `config.json`'s file, or the folder it lies in.
    File(PathBuf),
}

#[derive(Debug, Clone, PartialEq)]
enum HardwareName {
    BuiltIn(Box<Hardware>),
    /// A [`HardwareProfile`]'s file.
    File(PathBuf),
}

impl DeploymentName {
    /// The deployment, with its files if it names any.
    ///
    /// # Errors
    /// No such file, or the model does not fit.
    pub fn load(&self) -> Result<Deployment, DeploymentError> {
        self.load_with(&[])
    }

    /// The same with `overrides` of hardware and deployment, which may be what makes the model fit.
    ///
    /// # Errors
    /// No such file, or the model does not fit.
    pub fn load_with(&self, overrides: &[Setting]) -> Result<Deployment, DeploymentError> {
        let hardware = match &self.hardware {
            HardwareName::BuiltIn(hardware) => Hardware::clone(hardware),
            HardwareName::File(path) => HardwareProfile::read(path)?.hardware,
        };
        Deployment::new(self.model.load()?, hardware, self.devices).with(overrides)
    }

    /// The same by the data sheet of its card, where the plain name of a card is its measured kernels; `None` if it names no such card.
    #[must_use]
    pub fn by_data_sheet(&self) -> Option<DeploymentName> {
        let HardwareName::BuiltIn(hardware) = &self.hardware else { return None };
        let is_plain = hardware.tables.is_some() && hardware.card() == hardware.name;
        let sheet = Hardware::named(&format!("{}-datasheet", hardware.name)).filter(|_| is_plain)?;
        Some(DeploymentName { hardware: HardwareName::BuiltIn(Box::new(sheet)), ..self.clone() })
    }

    /// The same with files that were relative to `folder`; `None` if it names none.
    #[must_use]
    pub fn relative_to(&self, folder: &Path) -> Option<DeploymentName> {
        self.with_files(&mut |path| folder.join(path))
    }

    /// The same with each of its files where `place` says it lies; `None` if it names none.
    #[must_use]
    pub fn with_files(&self, place: &mut dyn FnMut(&Path) -> PathBuf) -> Option<DeploymentName> {
        let mut moved = self.clone();
        if let ModelName::File(path) = &mut moved.model {
            *path = place(path);
        }
        if let HardwareName::File(path) = &mut moved.hardware {
            *path = place(path);
        }
        let names_one = matches!(self.model, ModelName::File(_)) || matches!(self.hardware, HardwareName::File(_));
        names_one.then_some(moved)
    }
}

impl Model {
    /// The model of what may stand before the `@` of a deployment's name: a name, a `config.json`, or the folder of one.
    ///
    /// # Errors
    /// No such model or file.
    pub fn load(text: &str) -> Result<Model, DeploymentError> {
        text.parse::<ModelName>()?.load()
    }
}

impl ModelName {
    fn load(&self) -> Result<Model, DeploymentError> {
        match self {
            ModelName::BuiltIn(model) => Ok(Model::clone(model)),
            ModelName::File(path) => Ok(Model::read(path)?),
        }
    }
}

impl FromStr for ModelName {
    type Err = DeploymentError;

    fn from_str(text: &str) -> Result<ModelName, DeploymentError> {
        if let Some(model) = Model::named(text) {
            return Ok(ModelName::BuiltIn(Box::new(model)));
        }
        let is_json = Path::new(text).extension().is_some_and(|extension| extension == "json");
        let is_path = is_json || is_with_folders(text) || [".", ".."].contains(&text);
        if is_path {
            return Ok(ModelName::File(text.into()));
        }
        // A download lies in a folder of the model's name, which is written as a path so that it stays one wherever it is read.
        let here = Path::new(".").join(text);
        let is_here = !text.is_empty() && here.join("config.json").is_file();
        if is_here { Ok(ModelName::File(here)) } else { Err(DeploymentError::Model(text.to_owned())) }
    }
}

/// Whether a text can only be a path.
fn is_with_folders(text: &str) -> bool {
    text.contains(['/', '\\'])
}

/// Model and hardware: what follows the last `@`, because a folder may have one in its name, or the first after a model's name,
/// because a profile may.
fn taken_apart(text: &str) -> Option<(&str, &str)> {
    let first = text.split_once('@').filter(|(model, _)| Model::named(model).is_some());
    first.or_else(|| text.rsplit_once('@'))
}

impl FromStr for DeploymentName {
    type Err = DeploymentError;

    fn from_str(text: &str) -> Result<DeploymentName, DeploymentError> {
        let (model, hardware) = taken_apart(text).ok_or_else(|| DeploymentError::Form(text.to_owned()))?;
        let model = model.parse()?;
        let (devices, hardware) = counted(hardware);
        if !(1..=MAX_DEVICES).contains(&devices) {
            return Err(DeploymentError::Devices(devices));
        }
        let is_toml = Path::new(hardware).extension().is_some_and(|extension| extension == "toml");
        let hardware = match Hardware::named(hardware) {
            Some(known) => HardwareName::BuiltIn(Box::new(known)),
            None if is_toml || is_with_folders(hardware) => HardwareName::File(hardware.into()),
            // A profile may have been written under any name.
            None if Path::new(hardware).is_file() => HardwareName::File(Path::new(".").join(hardware)),
            None => return Err(DeploymentError::Hardware(hardware.to_owned())),
        };
        Ok(DeploymentName { model, devices, hardware })
    }
}

/// The name of a deployment by its card alone, however the card's clock is known: `llama-3-70b@4xh100` of
/// `llama-3-70b@4xh100-datasheet`.
pub fn without_clock(deployment: &str) -> &str {
    let Some((_, hardware)) = taken_apart(deployment) else { return deployment };
    let (_, name) = counted(hardware);
    &deployment[..deployment.len() - name.len() + Hardware::card_of(name).len()]
}

/// The built-in hardware in the name of a deployment.
pub fn hardware_of(deployment: &str) -> Option<Hardware> {
    let (_, hardware) = taken_apart(deployment)?;
    Hardware::named(counted(hardware).1)
}

/// `4xh100`, taken apart; one of it without a number.
fn counted(hardware: &str) -> (u32, &str) {
    match hardware.split_once(['x', 'X']) {
        Some((count, name)) if !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()) => {
            (count.parse().unwrap_or(u32::MAX), name)
        }
        _ => (1, hardware),
    }
}

impl fmt::Display for DeploymentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hardware = match &self.hardware {
            HardwareName::BuiltIn(hardware) => hardware.name.clone(),
            HardwareName::File(path) => path.display().to_string(),
        };
        // A file whose name begins with a number and an x is one of it, and not as many.
        let is_one = self.devices == 1 && counted(&hardware).1 == hardware;
        let count = if is_one { String::new() } else { format!("{}x", self.devices) };
        match &self.model {
            ModelName::BuiltIn(model) => write!(f, "{}@{count}{hardware}", model.name),
            ModelName::File(path) => write!(f, "{}@{count}{hardware}", path.display()),
        }
    }
}

/// Built-in names only; [`Deployment::load`] also reads files.
impl FromStr for Deployment {
    type Err = DeploymentError;

    fn from_str(text: &str) -> Result<Deployment, DeploymentError> {
        let name: DeploymentName = text.parse()?;
        match (&name.model, &name.hardware) {
            (ModelName::BuiltIn(_), HardwareName::BuiltIn(_)) => name.load(),
            (ModelName::File(path), _) => Err(DeploymentError::Model(path.display().to_string())),
            (_, HardwareName::File(path)) => Err(DeploymentError::Hardware(path.display().to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_may_be_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut hardware = Hardware::named("h100").unwrap();
        "mine".clone_into(&mut hardware.name);
        let profile = HardwareProfile { hardware: hardware.clone(), provenance: None };
        std::fs::write(folder.path().join("2x.toml"), profile.to_toml()).unwrap();
        // `4x` is a number of devices, `2x.toml` is not.
        for (text, devices, name) in
            [("llama-3-70b@4x2x.toml", 4, "llama-3-70b@4xmine"), ("llama-3-8b@./2x.toml", 1, "llama-3-8b@mine")]
        {
            let there = text.parse::<DeploymentName>().unwrap().relative_to(folder.path()).unwrap();
            let deployment = there.load().unwrap();
            assert_eq!(there.to_string().parse(), Ok(there));
            assert_eq!((deployment.devices, &deployment.hardware), (devices, &hardware));
            assert_eq!(deployment.name(), name);
        }
        let one: DeploymentName = "llama-3-8b@1x2x.toml".parse().unwrap();
        assert_eq!((one.devices, one.to_string()), (1, "llama-3-8b@1x2x.toml".to_owned()));
        let built_in: DeploymentName = "llama-3-70b@4xh100".parse().unwrap();
        assert_eq!(
            (built_in.relative_to(folder.path()), built_in.to_string()),
            (None, "llama-3-70b@4xh100".to_owned())
        );
        assert_eq!(Deployment::load("llama-3-70b@4xh100"), "llama-3-70b@4xh100".parse());
        let missing = Deployment::load("llama-3-8b@nowhere.toml").unwrap_err().to_string();
        assert!(missing.starts_with("nowhere.toml: cannot open"), "{missing}");
        assert!("llama-3-8b@nowhere.toml".parse::<Deployment>().is_err());
    }

    #[test]
    fn capitals_and_files_of_any_name_will_do() {
        let name = |text: &str| text.parse::<DeploymentName>().map(|name| name.to_string());
        assert_eq!(name("Qwen3-30B-A3B@2xH100").unwrap(), "qwen3-30b-a3b@2xh100");
        assert_eq!(name("LLAMA-3.1-8B@RTX-4090-Measured").unwrap(), "llama-3-8b@rtx-4090-measured");
        // Tests run in the folder of the crate.
        assert_eq!(name("llama-3-8b@2xCargo.txt").unwrap_err(), DeploymentError::Hardware("Cargo.txt".into()));
        for (text, known) in
            [("llama-3-8b@2x./kept/mine", "llama-3-8b@2x./kept/mine"), ("phi-4@Cargo.toml", "phi-4@Cargo.toml")]
        {
            assert_eq!(name(text).unwrap(), known);
        }
    }

    #[test]
    fn one_card_has_one_name_without_its_clock() {
        for (name, plain) in [
            ("llama-3-8b@h100", "llama-3-8b@h100"),
            ("llama-3-8b@h100-datasheet", "llama-3-8b@h100"),
            ("llama-3-70b@4xh100-datasheet", "llama-3-70b@4xh100"),
            ("a@b@2xrtx-4090-measured", "a@b@2xrtx-4090"),
            ("llama-3-8b@mine-measured", "llama-3-8b@mine-measured"),
            ("h100-datasheet", "h100-datasheet"),
        ] {
            assert_eq!(without_clock(name), plain);
        }
    }

    #[test]
    fn what_was_measured_has_a_data_sheet() {
        let sheet = |name: &str| name.parse::<DeploymentName>().unwrap().by_data_sheet().map(|name| name.to_string());
        assert_eq!(sheet("llama-3-8b@2xh100").as_deref(), Some("llama-3-8b@2xh100-datasheet"));
        assert_eq!(sheet("a/config.json@l40s").as_deref(), Some("a/config.json@l40s-datasheet"));
        for own in ["h100-datasheet", "rtx-4090", "rtx-4090-measured", "rtx-5090-estimated", "mine.toml"] {
            assert_eq!(sheet(&format!("llama-3-8b@{own}")), None);
        }
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Deployment>().unwrap_err().to_string();
        assert!(error("llama-3-8b").contains("MODEL@HARDWARE"));
        assert!(error("gpt@h100").contains("unknown model \"gpt\"; known: llama-3-8b"));
        assert!(error("llama-3-8b@tpu").contains("unknown hardware \"tpu\"; known: rtx-4090"));
        assert!(error("llama-3-8b@0xh100").contains("0 devices"));
    }

    #[test]
    fn files_are_told_from_names() {
        let is_file = |model: &str| matches!(model.parse(), Ok(ModelName::File(_)));
        for path in ["a/config.json", "./a", "mine.json", "..", "meta-llama/Llama-3.1-8B", "/cache/models--a@b/c"] {
            assert!(is_file(path), "{path}");
            // A profile's name may have an `@` where the model is a name, a model's folder where it is a path.
            let name: DeploymentName = format!("{path}@4xh100").parse().unwrap();
            assert_eq!((&name.model, name.devices), (&ModelName::File(path.into()), 4));
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert!(!is_file("llama-3-8b") && !is_file("mine") && !is_file("src") && !is_file(""));
        let profile: DeploymentName = "llama-3-8b@a@b.toml".parse().unwrap();
        assert_eq!(profile.hardware, HardwareName::File("a@b.toml".into()));
        let moved = "a/config.json@h100".parse::<DeploymentName>().unwrap().relative_to(Path::new("folder")).unwrap();
        assert_eq!(moved.to_string(), "folder/a/config.json@h100");
    }
}
