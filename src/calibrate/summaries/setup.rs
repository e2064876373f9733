//! What measured summaries are simulated on: runs of one card together, of each model the engine that served them.

use kvtide_envs::deploy::{DeadEnds, Deployment, EngineConfig, EngineKind, Hardware, Model, Setting};

use super::rows::{MeasuredSummaries, SummaryRun};
use crate::calibrate::served::CalibrateError;

/// Runs on one kind of accelerator, which have one clock.
#[derive(Debug, Clone, PartialEq)]
pub struct CardRuns {
    /// The accelerator, as the rows name it.
    pub gpu: String,
    /// The accelerator as it is simulated, before anything is fitted.
    pub hardware: Hardware,
    /// By model, in the order of their names.
    pub models: Vec<ModelRuns>,
}

/// Its runs of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRuns {
    /// The model, as the rows name it.
    pub model: String,
    /// Model and accelerator.
    pub deployment: Deployment,
    /// The engine, but for what each run says itself: the token budget, and how many may run at once.
    pub engine: EngineConfig,
    /// In the order of their lines.
    pub runs: Vec<SummaryRun>,
}

/// The profile of the card that `gpu` names: measured by shape, or else read from a relative that was, or else its data sheet. Where the
/// vendor sold several cards under a name, that which our list has first.
fn hardware_of(gpu: &str) -> Option<String> {
    let card = card_of(gpu)?;
    let is_measured = Hardware::named(card).is_some_and(|hardware| hardware.tables.is_some());
    let estimated = format!("{card}-estimated");
    if !is_measured && Hardware::named(&estimated).is_some() { Some(estimated) } else { Some(card.to_owned()) }
}

/// The card, however people write its name.
fn card_of(gpu: &str) -> Option<&'static str> {
    let squeezed = |name: &str| -> String {
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let wanted = squeezed(gpu);
    let find = |is_it: &dyn Fn(&str) -> bool| Hardware::NAMES.into_iter().find(|name| is_it(&squeezed(name)));
    let named = find(&|name| name == wanted).or_else(|| Hardware::of_device(gpu));
    named.or_else(|| find(&|name| !wanted.is_empty() && name.starts_with(&wanted)))
}

impl CardRuns {
    /// The runs of `summaries` by card, on `env`, or on what each row names, with `overrides` of engine and hardware. An `env` without
    /// a model, `@HARDWARE`, leaves the models to the rows.
    ///
    /// # Errors
    /// A model or an accelerator is not known, a setting is out of range, or a prompt does not fit.
    pub fn of(
        summaries: &MeasuredSummaries,
        env: Option<&str>,
        overrides: &[Setting],
    ) -> Result<Vec<CardRuns>, CalibrateError> {
        let mut cards: Vec<CardRuns> = Vec::new();
        for gpu in distinct(summaries.runs.iter().map(|run| run.gpu.as_str())) {
            let its = || summaries.runs.iter().filter(|run| run.gpu == gpu);
            let names = distinct(its().map(|run| run.model.as_str()));
            if let Some(env) = env.filter(|env| !env.starts_with('@') && names.len() > 1) {
                return Err(CalibrateError::SeveralModels { env: env.to_owned(), count: names.len() });
            }
            let of_model = |model: &&str| {
                let runs: Vec<SummaryRun> = its().filter(|run| run.model == *model).cloned().collect();
                ModelRuns::of(runs, &summaries.file, env, overrides)
            };
            let models: Vec<ModelRuns> = names.iter().map(of_model).collect::<Result<_, _>>()?;
            let hardware = models[0].deployment.hardware.clone();
            cards.push(CardRuns { gpu: gpu.to_owned(), hardware, models });
        }
        Ok(cards)
    }

    /// Whether its engines plan a step before the one before has ended.
    pub(super) fn is_async(&self) -> bool {
        self.models.iter().all(|model| model.engine.async_scheduling)
    }

    /// All its runs, each with what it is served by.
    pub fn runs(&self) -> impl Iterator<Item = (&ModelRuns, &SummaryRun)> {
        self.models.iter().flat_map(|model| model.runs.iter().map(move |run| (model, run)))
    }
}

impl ModelRuns {
    fn of(
        runs: Vec<SummaryRun>,
        file: &str,
        env: Option<&str>,
        overrides: &[Setting],
    ) -> Result<ModelRuns, CalibrateError> {
        let SummaryRun { line, gpu, model, .. } = &runs[0];
        let unknown = |what, name: &str, example| {
            let (file, name) = (file.to_owned(), name.to_owned());
            CalibrateError::Unknown { file, line: *line, what, name, example }
        };
        let named_model =
            || Model::published_as(model).ok_or_else(|| unknown("model", model, "path/to/config.json@HARDWARE"));
        let env = match env {
            Some(env) if env.starts_with('@') => format!("{}{env}", named_model()?),
            Some(env) => env.to_owned(),
            None => {
                let card = hardware_of(gpu).ok_or_else(|| unknown("accelerator", gpu, "@HARDWARE"))?;
                format!("{}@{card}", named_model()?)
            }
        };
        let deployment = Deployment::load_with(&env, overrides)?;
        let engine = deployment.engine(EngineKind::V1).with(overrides)?;
        if engine.engine != EngineKind::V1 || engine.dead_ends != DeadEnds::Safe {
            return Err(CalibrateError::Engine);
        }
        let max_model_len = engine.max_model_len;
        for run in &runs {
            let tokens = run.prompt_tokens.saturating_add(run.output_tokens);
            if tokens > max_model_len {
                let (file, line) = (file.to_owned(), run.line);
                return Err(CalibrateError::TooLong { file, line, tokens, max_model_len });
            }
        }
        Ok(ModelRuns { model: model.clone(), deployment, engine, runs })
    }
}

/// Each name once, sorted.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::card_of;

    #[test]
    fn cards_are_known_by_how_people_write_them() {
        for (gpu, name) in [
            ("RTX5090", Some("rtx-5090")),
            ("A100", Some("a100-80g")),
            ("NVIDIA A100-SXM4-40GB", Some("a100-40g")),
            ("H100", Some("h100")),
            ("rtx pro 6000", Some("rtx-pro-6000")),
            ("L40S", Some("l40s")),
            ("", None),
            ("abacus", None),
        ] {
            assert_eq!(card_of(gpu), name, "{gpu}");
        }
    }
}
