//! A manifest for people.

use std::path::Path;

use super::Manifest;

impl Manifest {
    /// What the checkpoint in `path` says of itself, line by line.
    pub fn text(&self, path: &Path) -> String {
        let mut lines = vec![
            format!("checkpoint  {}", path.display()),
            format!(
                "made by     kvtide {}, commit {}",
                self.kvtide_version,
                self.commit.as_deref().unwrap_or("unknown")
            ),
            format!(
                "trained     {} decisions in {} {}, seed {}, profile {}",
                self.decisions,
                self.iteration,
                if self.cross_entropy.is_some() { "generations of a cross-entropy search" } else { "iterations" },
                self.seed,
                self.profile
            ),
            format!("network     {:?} from {} features", self.config.hidden, self.observation_size),
        ];
        lines.extend(self.metadata.iter().map(|(key, value)| format!("{key:11} {value}")));
        lines.push("files".to_owned());
        lines.extend(self.files.iter().map(|(name, file)| {
            format!("  {name:24} {:>9} bytes  {}", file.bytes, &file.blake3[..16.min(file.blake3.len())])
        }));
        lines.push("experiment".to_owned());
        lines.extend(self.experiment.lines().map(|line| format!("  {line}")));
        lines.join("\n") + "\n"
    }
}
