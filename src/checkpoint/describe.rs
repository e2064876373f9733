//! A manifest for people.

use std::path::Path;

use super::{Manifest, Origin};
use crate::text::{labelled, printable};

/// Where what labels stand beside begins.
const AT: usize = 12;

impl Manifest {
    /// What the checkpoint in `path` is, was made of, how good it was and what to do with it, in plain language at most `width`
    /// columns wide.
    pub fn summary(&self, path: &Path, width: usize) -> String {
        let says = |key: &str| self.metadata.get(key).map(|value| printable(value));
        let name = says("name").unwrap_or_else(|| "a run".to_owned());
        let host = says("host").map_or_else(String::new, |host| format!(" for {host}"));
        let mut told = vec![
            ("what", format!("{name}, a policy{host} that was trained; profile {}", self.profile)),
            ("made by", format!("{}, seed {}", self.trained(), self.seed)),
        ];
        if let Some(trace) = says("trace") {
            let range = says("fit_range").map_or_else(String::new, |range| format!(", {range} of it"));
            let env = says("env").map_or_else(String::new, |env| format!(", on {}", env.replace("; ", ", ")));
            told.push(("made of", format!("{trace}{range}{env}")));
        }
        told.extend(says("slo").map(|slo| ("targets", slo)));
        told.push(("decides by", self.decides_by()));
        if let Some(fallback) = says("fallback") {
            told.push((
                "in doubt",
                format!("its tables fall back to watermark {fallback}, the best constant one there"),
            ));
        }
        told.push(("how good", self.how_good()));
        let at = printable(&path.display().to_string());
        told.push(("make table", format!("kvtide export --checkpoint {at} --out policy.kvt")));
        told.push((
            "judge it",
            format!("kvtide evaluate --trace TRACE --loads auto --policy default --policy best-fixed --policy checkpoint:{at}"),
        ));
        told.into_iter().map(|(label, text)| labelled(label, &text, AT, width)).collect()
    }

    /// How much it has learned from, and how.
    pub fn trained(&self) -> String {
        let (iteration, decisions) = (self.iteration, self.decisions);
        match (&self.cross_entropy, &self.imported) {
            (Some(_), _) => format!("cross-entropy search, {iteration} generations, {decisions} decisions"),
            (None, Some(_)) => printable(&self.taught_by()),
            (None, None) => format!("PPO, {iteration} iterations, {decisions} decisions"),
        }
    }

    fn decides_by(&self) -> String {
        let features = self.observation_size;
        match (&self.cross_entropy, &self.config.hidden[..]) {
            (Some(_), _) | (None, []) => format!("{features} features, each weighed (a linear policy)"),
            (None, hidden) => format!("{features} features, in a network of hidden layers {hidden:?}"),
        }
    }

    /// How its table did on validation traffic, if it was validated.
    pub fn how_good(&self) -> String {
        let percent = |key: &str| {
            let share = self.metadata.get(key)?.parse::<f64>().ok()?;
            Some(format!("{:.1} %", share * 100.0))
        };
        let network =
            percent("validation_network").map_or_else(String::new, |share| format!(", the policy itself for {share}"));
        match percent("validation_attainment") {
            Some(share) => format!("its table met all targets for {share} of requests on validation traffic{network}"),
            None => "it was not validated; judge it".to_owned(),
        }
    }

    fn trained_line(&self) -> String {
        let (seed, profile) = (self.seed, &self.profile);
        if self.imported.is_some() {
            return format!("trained     elsewhere ({}), seed {seed}, profile {profile}", printable(&self.taught_by()));
        }
        let unit = if self.cross_entropy.is_some() { "generations of a cross-entropy search" } else { "iterations" };
        format!("trained     {} decisions in {} {unit}, seed {seed}, profile {profile}", self.decisions, self.iteration)
    }

    /// What the checkpoint in `path` says of itself, line by line.
    pub fn text(&self, path: &Path) -> String {
        let mut lines = vec![
            format!("checkpoint  {}", path.display()),
            format!(
                "made by     kvtide {}, commit {}",
                self.kvtide_version,
                self.commit.as_deref().unwrap_or("unknown")
            ),
            self.trained_line(),
            format!("network     {:?} from {} features", self.config.hidden, self.observation_size),
        ];
        lines.extend(self.imported.as_ref().map(|Origin { file, blake3, activation, .. }| {
            let file = file.as_ref().map_or_else(String::new, |file| format!("{}, ", printable(file)));
            let digest = blake3.as_ref().and_then(|digest| digest.get(..16));
            let digest = digest.map_or_else(String::new, |digest| format!(", BLAKE3 {digest}"));
            format!("imported    {file}{} between layers{digest}", activation.name())
        }));
        lines.extend(self.metadata.iter().map(|(key, value)| format!("{key:11} {}", printable(value))));
        lines.push("files".to_owned());
        lines.extend(self.files.iter().map(|(name, file)| {
            format!("  {name:24} {:>9} bytes  {}", file.bytes, &file.blake3[..16.min(file.blake3.len())])
        }));
        lines.push("experiment".to_owned());
        lines.extend(self.experiment.lines().map(|line| format!("  {line}")));
        lines.join("\n") + "\n"
    }
}
