//! `kvtide import-policy`, end to end: what others trained is judged, shown and distilled as what was trained here.

use std::fs;
use std::path::Path;

use kvtide_runtime::{NUM_FEATURES, SCHEMA_HASH};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::{TempDir, tempdir};

use super::common::{done, kvtide, lines, refused};

/// Little traffic, and nothing that would have to be looked for.
const EXPERIMENT: &str = "name = \"far\"\nprofile = \"core\"\nfallback = 0.02\n[world]\nworkload = \"chat:rate=2,duration=60\"\n\
                          set = [\"num_gpu_blocks=600\"]\n[episodes]\nfit = 0.8\nlength_s = 20.0\nload = [1.0, 2.0]\n";

/// A policy of stable-baselines3 that wants watermark 0.05, whatever it sees, and says so in the language of its framework.
fn folder(outputs: usize) -> TempDir {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("far.toml"), EXPERIMENT).unwrap();
    let mut bias = vec![0.0_f32; outputs];
    (bias[4], bias[20]) = (3.0, 1.0);
    let parts: [(&str, Vec<usize>, Vec<f32>); 6] = [
        ("mlp_extractor.policy_net.0.weight", vec![4, NUM_FEATURES], vec![0.01; 4 * NUM_FEATURES]),
        ("mlp_extractor.policy_net.0.bias", vec![4], vec![0.0; 4]),
        ("action_net.weight", vec![outputs, 4], vec![0.0; outputs * 4]),
        ("action_net.bias", vec![outputs], bias),
        ("value_net.weight", vec![1, 4], vec![0.0; 4]),
        ("value_net.bias", vec![1], vec![0.0]),
    ];
    let raw: Vec<Vec<u8>> =
        parts.iter().map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views: Vec<(&str, TensorView<'_>)> = parts
        .iter()
        .zip(&raw)
        .map(|((name, shape, _), raw)| (*name, TensorView::new(Dtype::F32, shape.clone(), raw).unwrap()))
        .collect();
    fs::write(folder.path().join("policy.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let manifest = format!(
        "layout = \"sb3\"\nweights = \"policy.safetensors\"\nexperiment = \"far.toml\"\nschema = \"{SCHEMA_HASH:016x}\"\n\
         decisions = 1000\nseed = 4\n"
    );
    fs::write(folder.path().join("import.toml"), manifest).unwrap();
    folder
}

const WORLD: [&str; 4] = ["--workload", "chat:rate=2,duration=60", "--set", "num_gpu_blocks=600"];

fn hashes(folder: &Path, policy: &str) -> Vec<String> {
    let arguments = [&["evaluate"], &WORLD[..], &["--loads", "1,2", "--json", "--policy", policy]].concat();
    let run = done(folder, &arguments);
    lines(&run.stdout, "run").iter().map(|row| row["hash"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_policy_of_elsewhere_is_judged_shown_and_distilled_as_ours() {
    let folder = folder(42);
    let path = folder.path();
    let run = done(path, &["import-policy", "import.toml", "--out", "adopted"]);
    assert_eq!(run.stdout, "");
    assert!(
        run.stderr.starts_with(
            "stable-baselines3 (policy.safetensors): 35 features as they are; hidden layers [4], tanh; outputs"
        ),
        "{}",
        run.stderr
    );
    // It decides what its numbers say, as a constant would that says the same.
    assert_eq!(hashes(path, "checkpoint:adopted"), hashes(path, "fixed:0.05"));
    assert_ne!(hashes(path, "checkpoint:adopted"), hashes(path, "default"));

    let shown = done(path, &["inspect", "adopted"]).stdout;
    for part in [
        "far, a policy",
        "imported, stable-baselines3, 1000 decisions, seed 4",
        "policy.safetensors, tanh between layers",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    let json = done(path, &["inspect", "adopted", "--json"]).stdout;
    let manifest = &lines(&json, "checkpoint")[0];
    assert_eq!((manifest["profile"].as_str(), manifest["decisions"].as_u64()), (Some("core"), Some(1000)));

    let export = ["export", "--checkpoint", "adopted", "--out", "policy.kvt", "--leaves", "4", "--episodes", "2"];
    done(path, &export);
    assert_eq!(hashes(path, "table:policy.kvt"), hashes(path, "fixed:0.05"));
    let shown = done(path, &["inspect", "policy.kvt"]).stdout;
    assert!(shown.contains("imported, stable-baselines3, 1000 decisions"), "{shown}");

    // Nothing can be resumed from it, and another import takes its place.
    assert!(refused(path, &["train", "--resume", "--out", "adopted"]).contains("no checkpoint here"));
    done(path, &["import-policy", "import.toml", "--out", "adopted", "--quiet"]);
}

#[test]
fn what_does_not_fit_leaves_nothing_behind() {
    let folder = folder(16_200);
    let path = folder.path();
    let error = refused(path, &["import-policy", "import.toml", "--out", "adopted"]);
    assert!(
        error.starts_with("error: policy.safetensors: tensor action_net.weight is [16200, 4], must be [25, 4] (watermark 20, victim 5) or "),
        "{error}"
    );
    assert!(error.contains("a flat Discrete over joint choices"), "{error}");
    assert!(!path.join("adopted").exists());
    assert!(refused(path, &["import-policy", "none.toml", "--out", "adopted"]).contains("none.toml: "));
    fs::write(path.join("import.toml"), "layout = \"sb4\"\n").unwrap();
    let error = refused(path, &["import-policy", "import.toml", "--out", "adopted"]);
    assert!(
        error.contains("import.toml: line 1: unknown variant `sb4`, expected one of `sb3`, `cleanrl`, `rllib`"),
        "{error}"
    );
    let run = kvtide(path, &["import-policy", "import.toml"]);
    assert_eq!(run.code, 2);
}
