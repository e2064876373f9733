//! Networks of known numbers, as each framework leaves them, decide as by hand.

use std::fs;
use std::path::PathBuf;

use kvtide_runtime::{Action, ActionMask, Observation, Policy, SCHEMA_HASH};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

use super::*;
use crate::checkpoint::load_policy;

/// A world and what is played of it; nothing is looked for.
const EXPERIMENT: &str = "name = \"far\"\nprofile = \"full\"\nfallback = 0.02\n[world]\nworkload = \"chat:rate=1,n=99\"\n\
                          [episodes]\nfit = 0.8\nlength_s = 9.0\nload = [1.0, 1.0]\n";

type Named = (String, Vec<usize>, Vec<f64>);

/// A network by hand: weights by row, and a bias.
type Layers = Vec<(Vec<Vec<f64>>, Vec<f64>)>;

/// A folder with an experiment.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("far.toml", EXPERIMENT.as_bytes());
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn tensors(&self, tensors: &[Named], dtype: Dtype) {
        let bytes = |values: &[f64]| -> Vec<u8> {
            let one = |value: &f64| match dtype {
                Dtype::F64 => value.to_le_bytes().to_vec(),
                _ => (*value as f32).to_le_bytes().to_vec(),
            };
            values.iter().flat_map(one).collect()
        };
        let raw: Vec<(String, Vec<usize>, Vec<u8>)> =
            tensors.iter().map(|(name, shape, values)| (name.clone(), shape.clone(), bytes(values))).collect();
        let views =
            raw.iter().map(|(name, shape, raw)| (name.clone(), TensorView::new(dtype, shape.clone(), raw).unwrap()));
        self.write("policy.safetensors", &safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap());
    }

    fn manifest(&self, lines: &str) -> PathBuf {
        let schema = if lines.contains("schema") || lines.contains("features =") {
            String::new()
        } else {
            format!("schema = \"{SCHEMA_HASH:016x}\"\n")
        };
        let text = format!("weights = \"policy.safetensors\"\nexperiment = \"far.toml\"\n{schema}{lines}\n");
        self.write("import.toml", text.as_bytes());
        self.path("import.toml")
    }

    fn refusal(&self, lines: &str) -> String {
        let text = Imported::read(&self.manifest(lines)).unwrap_err().to_string();
        text.replace(&format!("{}/", self.0.path().display()), "")
    }

    /// What the checkpoint of this manifest decides.
    fn decider(&self, lines: &str) -> impl Fn(&Observation) -> [u8; 6] {
        let imported = Imported::read(&self.manifest(lines)).unwrap();
        imported.save(&self.path("checkpoint")).unwrap();
        let policy = load_policy(&self.path("checkpoint")).unwrap();
        move |observation| policy.decide(observation, ActionMask::ALL).indices()
    }
}

/// Numbers like any others, in `-1..1`.
fn number(index: usize) -> f64 {
    // Exact in `f32`.
    ((index as u64).wrapping_mul(2_654_435_761) % 4001) as f64 / 2048.0 - 0.977_539_062_5
}

/// Weights small enough that nothing between the layers saturates.
fn layers(widths: &[usize]) -> Layers {
    let layer = |(at, pair): (usize, &[usize])| {
        let row = |row: usize| (0..pair[0]).map(|column| number(at * 7919 + row * 101 + column) / 4.0).collect();
        ((0..pair[1]).map(row).collect(), (0..pair[1]).map(|row| number(at * 31 + row + 5) / 64.0).collect())
    };
    widths.windows(2).enumerate().map(layer).collect()
}

/// The layers under these names, weight and bias each.
fn named(layers: &Layers, names: &[&str]) -> Vec<Named> {
    let pair = |((rows, bias), name): (&(Vec<Vec<f64>>, Vec<f64>), &&str)| {
        let shape = vec![rows.len(), rows[0].len()];
        [(format!("{name}.weight"), shape, rows.concat()), (format!("{name}.bias"), vec![bias.len()], bias.clone())]
    };
    layers.iter().zip(names).flat_map(pair).collect()
}

fn observation(seed: usize) -> Observation {
    Observation { values: std::array::from_fn(|index| number(seed * 977 + index) as f32 * 3.0) }
}

fn forward(layers: &Layers, inputs: &[f64], activation: fn(f64) -> f64) -> Vec<f64> {
    let mut values = inputs.to_vec();
    for (index, (rows, bias)) in layers.iter().enumerate() {
        let sum = |(row, bias): (&Vec<f64>, &f64)| row.iter().zip(&values).map(|(w, x)| w * x).sum::<f64>() + bias;
        values = rows.iter().zip(bias).map(sum).collect();
        if index + 1 < layers.len() {
            for value in &mut values {
                *value = activation(*value);
            }
        }
    }
    values
}

/// The largest logit of each head of `profile`, all heads being outputs; the engine's own of the others.
fn by_hand(logits: &[f64], profile: ActionProfile) -> [u8; 6] {
    let mut choices = Action::V1_DEFAULT.indices();
    let mut first = 0;
    for head in Head::ALL {
        let row = &logits[first..first + head.size()];
        first += head.size();
        if profile.decides(head) {
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            choices[head as usize] = best as u8;
        }
    }
    choices
}

fn full(observation: &Observation) -> Vec<f64> {
    observation.values.iter().map(|&value| f64::from(value)).collect()
}

/// Heads outside the profile are the engine's by default, which is V0's where nobody says whose: only the watermark differs.
fn agrees(decide: impl Fn(&Observation) -> [u8; 6], expected: impl Fn(&Observation) -> [u8; 6]) {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..64 {
        let observation = observation(seed);
        assert_eq!(decide(&observation), expected(&observation), "observation {seed}");
        seen.insert(decide(&observation));
    }
    assert!(seen.len() > 2, "a policy that always does the same proves nothing: {seen:?}");
}

#[test]
fn each_layout_decides_as_by_hand() {
    let network = layers(&[35, 4, 3, 42]);
    let critic = |names: &[&str]| named(&layers(&[35, 7, 1]), names);
    let moments = [
        ("obs_rms.mean".to_owned(), vec![35], (0..35).map(|index| number(index) / 2.0).collect::<Vec<f64>>()),
        ("obs_rms.var".to_owned(), vec![35], (0..35).map(|index| number(index + 9).abs()).collect()),
        ("obs_rms.count".to_owned(), vec![], vec![9.0]),
    ];
    let shown = |observation: &Observation, scale: fn(f64) -> f64| -> Vec<f64> {
        let pairs = moments[0].2.iter().zip(&moments[1].2);
        full(observation)
            .iter()
            .zip(pairs)
            .map(|(value, (mean, variance))| ((value - mean) * scale(*variance)).clamp(-10.0, 10.0))
            .collect()
    };
    let variance: fn(f64) -> f64 = |variance| 1.0 / (variance + 1e-8).sqrt();
    let deviation: fn(f64) -> f64 = |variance| 1.0 / (variance.sqrt() + 1e-6);
    for (layout, actor, beside, scale) in [
        (
            "sb3",
            ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"],
            ["mlp_extractor.value_net.0", "value_net"],
            variance,
        ),
        ("cleanrl", ["actor.0", "actor.2", "actor.4"], ["critic.0", "critic.2"], variance),
        (
            "rllib",
            ["encoder.actor_encoder.net.mlp.0", "encoder.actor_encoder.net.mlp.2", "pi.net.mlp.0"],
            ["encoder.critic_encoder.net.mlp.0", "vf.net.mlp.0"],
            deviation,
        ),
        (
            "rllib",
            ["encoder.encoder.net.mlp.0", "encoder.encoder.net.mlp.2", "pi.net.mlp.0"],
            ["encoder.critic_encoder.net.mlp.0", "vf.net.mlp.0"],
            deviation,
        ),
    ] {
        let folder = Folder::new();
        folder.tensors(&[named(&network, &actor), critic(&beside)].concat(), Dtype::F32);
        let layout = format!("layout = \"{layout}\"");
        agrees(folder.decider(&layout), |observation| {
            by_hand(&forward(&network, &full(observation), f64::tanh), ActionProfile::Full)
        });
        // The moments are taken where they lie in the file, and only if that is not forbidden.
        let all = [named(&network, &actor), critic(&beside), moments.to_vec()].concat();
        folder.tensors(&all, Dtype::F64);
        agrees(folder.decider(&layout), |observation| {
            by_hand(&forward(&network, &shown(observation, scale), f64::tanh), ActionProfile::Full)
        });
        agrees(folder.decider(&format!("{layout}\nnormalise = false\nprofile = \"core\"")), |observation| {
            by_hand(&forward(&network, &full(observation), f64::tanh), ActionProfile::Core)
        });
    }
}

#[test]
fn any_names_activation_features_and_heads_will_do() {
    let folder = Folder::new();
    let network = layers(&[3, 8, 25]);
    folder.tensors(&named(&network, &["in", "out"]), Dtype::F32);
    let decide = folder.decider(
        "tensors = [[\"in.weight\", \"in.bias\"], [\"out.weight\", \"out.bias\"]]\nactivation = \"relu\"\n\
         features = [\"waiting\", \"free_fraction\", \"token_time\"]\nheads = [\"victim\", \"watermark\"]\n\
         normalise = {mean = [0.5, 0.25, 0.0], deviation = [2.0, 1.0, 4.0], epsilon = 1e-6, added_to = \"deviation\", clip = 0}",
    );
    agrees(decide, |observation| {
        let value = |index: usize, mean: f64, deviation: f64| {
            (f64::from(observation.values[index]) - mean) / (deviation + 1e-6)
        };
        let inputs = [value(8, 0.5, 2.0), value(0, 0.25, 1.0), value(34, 0.0, 4.0)];
        let logits = forward(&network, &inputs, |value| value.max(0.0));
        let best = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u8;
        let [_, _, preemption, admission, budget, eviction] = Action::V1_DEFAULT.indices();
        [best(&logits[5..]), best(&logits[..5]), preemption, admission, budget, eviction]
    });
}

#[test]
fn a_linear_policy_is_one_layer() {
    let folder = Folder::new();
    let network = layers(&[35, 40]);
    folder.tensors(&named(&network, &["actor.0"]), Dtype::F32);
    // As wide as the heads of its profile.
    agrees(folder.decider("layout = \"cleanrl\""), |observation| {
        let logits = [forward(&network, &full(observation), f64::tanh), vec![0.0; 2]].concat();
        by_hand(&logits, ActionProfile::Full)
    });
}

#[test]
fn outputs_are_those_an_environment_asks_for() {
    let folder = Folder::new();
    // A world without a host tier leaves no choice of preemption.
    let network = layers(&[35, 37]);
    folder.tensors(&named(&network, &["actor.0"]), Dtype::F32);
    agrees(folder.decider("layout = \"cleanrl\""), |observation| {
        let logits = forward(&network, &full(observation), f64::tanh);
        let all = [&logits[..25], &[0.0, 1.0, 0.0], &logits[25..], &[1.0, 0.0]].concat();
        by_hand(&all, ActionProfile::Cache)
    });
    // What the experiment leaves to the engine is no choice either.
    folder.tensors(&named(&layers(&[35, 28]), &["actor.0"]), Dtype::F32);
    folder.write("far.toml", EXPERIMENT.replace("[world]", "without_heads = [\"budget\"]\n[world]").as_bytes());
    let text = "layout = \"cleanrl\"\nprofile = \"full\"";
    agrees(folder.decider(text), |observation| {
        let logits = forward(&layers(&[35, 28]), &full(observation), f64::tanh);
        let own = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        let all = [&logits[..25], &[0.0, 1.0, 0.0], &logits[25..], &own, &[1.0, 0.0]].concat();
        by_hand(&all, ActionProfile::Cache)
    });
}

#[test]
fn json_will_do_as_well() {
    let folder = Folder::new();
    folder.tensors(&named(&layers(&[35, 4, 42]), &["actor.0", "actor.2"]), Dtype::F32);
    let text = format!(
        "{{\"layout\": \"cleanrl\", \"weights\": \"policy.safetensors\", \"experiment\": \"far.toml\", \"schema\": {SCHEMA_HASH}, \
         \"name\": \"mine\", \"decisions\": 7, \"seed\": 3}}"
    );
    folder.write("import.json", text.as_bytes());
    let imported = Imported::read(&folder.path("import.json")).unwrap();
    assert_eq!((imported.policy().decisions, imported.policy().seed), (7, 3));
    assert_eq!(imported.experiment().name, "mine");
    assert!(
        imported
            .summary()
            .starts_with("cleanrl (policy.safetensors): 35 features as they are; hidden layers [4], tanh;")
    );
}

#[test]
fn what_does_not_fit_is_refused_by_the_tensor() {
    let folder = Folder::new();
    let sb3 = ["mlp_extractor.policy_net.0", "action_net"];
    let told = |widths: [&[usize]; 2], extra: Option<Named>, lines: &str| {
        let mut tensors = named(&layers(widths[0]), &sb3[..1]);
        tensors.extend(named(&layers(widths[1]), &sb3[1..]));
        tensors.extend(extra);
        folder.tensors(&tensors, Dtype::F32);
        folder.refusal(&format!("layout = \"sb3\"\n{lines}"))
    };
    for (refusal, expected) in [
        (
            told([&[31, 4], &[4, 42]], None, ""),
            "policy.safetensors: tensor mlp_extractor.policy_net.0.weight is [4, 31], must be [4, 35]: the policy sees 35 features",
        ),
        (
            told([&[35, 4], &[5, 42]], None, ""),
            "policy.safetensors: tensor action_net.weight is [42, 5], must be [42, 4]: watermark 20, victim 5, preemption 3, \
             admission 3, budget 9, eviction 2",
        ),
        (
            told([&[35, 4], &[4, 16200]], None, ""),
            "policy.safetensors: tensor action_net.weight is [16200, 4], must be [37, 4] (watermark 20, victim 5, admission 3, \
             budget 9) or [40, 4] (watermark 20, victim 5, preemption 3, admission 3, budget 9) or [42, 4] (watermark 20, \
             victim 5, preemption 3, admission 3, budget 9, eviction 2); a flat Discrete over joint choices is not one choice a \
             head: train on the MultiDiscrete actions",
        ),
        (
            told([&[35, 4], &[4, 20]], None, "heads = [\"watermark\", \"victim\"]"),
            "policy.safetensors: tensor action_net.weight is [20, 4], must be [25, 4] (watermark 20, victim 5); name the heads it \
             has outputs for under `heads`",
        ),
        (
            told([&[35, 4], &[4, 42]], Some(("log_std".to_owned(), vec![2], vec![0.0; 2])), ""),
            "policy.safetensors: tensor log_std has no place in a policy of layout stable-baselines3: actions are continuous there; \
             train on the MultiDiscrete space",
        ),
        (
            told([&[35, 4], &[4, 42]], Some(("obs_rms.mean".to_owned(), vec![31], vec![0.0; 31])), ""),
            "policy.safetensors: tensor obs_rms.mean is [31], must be [35]: one number for each of 35 features",
        ),
        (
            told([&[35, 4], &[4, 42]], Some(("obs_rms.mean".to_owned(), vec![35], vec![0.0; 35])), ""),
            "policy.safetensors: tensor obs_rms.var is missing, must be [35]",
        ),
        (
            told([&[35, 5000], &[5000, 42]], None, ""),
            "policy.safetensors: tensor mlp_extractor.policy_net.0.weight is [5000, 35], must be [outputs, inputs] with 1 to 4096 \
             outputs",
        ),
        (
            told([&[35, 4], &[4, 42]], None, "activation = \"gelu\""),
            "import.toml: line 5: unknown variant `gelu`, expected `tanh` or `relu`",
        ),
    ] {
        assert_eq!(refusal, expected);
    }
    let mut tensors = named(&layers(&[35, 4, 42]), &sb3);
    tensors[1].2[2] = f64::INFINITY;
    folder.tensors(&tensors, Dtype::F32);
    let holds = folder.refusal("layout = \"sb3\"");
    assert_eq!(holds, "policy.safetensors: tensor mlp_extractor.policy_net.0.bias holds inf");
    folder.tensors(&named(&layers(&[35, 4, 42]), &["actor.0", "actor.2"]), Dtype::F32);
    let other = folder.refusal("layout = \"sb3\"");
    assert!(
        other.contains("no tensor mlp_extractor.shared_net.0.weight or mlp_extractor.policy_net.0.weight or"),
        "{other}"
    );
}

#[test]
fn what_a_manifest_may_not_say() {
    let folder = Folder::new();
    folder.tensors(&named(&layers(&[35, 4, 42]), &["actor.0", "actor.2"]), Dtype::F32);
    let refusal = |lines: &str| folder.refusal(&format!("layout = \"cleanrl\"\n{lines}"));
    let own = format!("{SCHEMA_HASH:016x}");
    for (refusal, expected) in [
        (
            refusal("schema = \"0123456789abcdef\""),
            format!("schema is 0123456789abcdef, this kvtide's is {own}: train again"),
        ),
        (refusal("schema = \"mine\""), "schema is \"mine\": expected a hash of sixteen hexadecimal digits".to_owned()),
        (refusal("actions = \"1\""), "actions is 0000000000000001, this kvtide's action set is".to_owned()),
        (refusal("features = [\"free\"]"), "features: there is no feature \"free\"".to_owned()),
        (refusal("features = [\"waiting\", \"waiting\"]"), "features: \"waiting\" is named twice".to_owned()),
        (refusal("heads = [\"swap\"]"), "heads: there is no head \"swap\"; there are watermark, victim,".to_owned()),
        (refusal("heads = [\"mode\", \"preemption\"]"), "heads: \"preemption\" is named twice".to_owned()),
        (refusal("profile = \"all\""), "profile is \"all\": expected watermark, core, full or cache".to_owned()),
        (refusal("name = \"\""), "name has 0 bytes, must have 1 to 200".to_owned()),
        (
            refusal("normalise = {mean = [0.0], variance = [1.0]}"),
            "normalise.mean has 1 numbers, must have 35".to_owned(),
        ),
        (refusal("layers = 3"), "line 5: unknown field `layers`".to_owned()),
    ] {
        assert!(refusal.starts_with("import.toml: ") && refusal.contains(&expected), "{refusal}\n{expected}");
    }
    folder.write("import.toml", b"layout = \"cleanrl\"\nweights = \"policy.safetensors\"\nexperiment = \"far.toml\"\n");
    let unsaid = Imported::read(&folder.path("import.toml")).unwrap_err().to_string();
    assert!(unsaid.contains(&format!("schema = \"{own}\"")), "{unsaid}");
    let nobody = folder.refusal("seed = 1");
    assert!(nobody.contains("it names no layout: sb3, cleanrl or rllib"), "{nobody}");
    let between = folder.refusal("tensors = [[\"actor.0.weight\", \"actor.0.bias\"], [\"actor.2.weight\"]]");
    assert!(between.contains("it does not say what is between layers"), "{between}");
    let missing = folder.refusal("tensors = [[\"actor.9.weight\"]]");
    assert!(missing.contains("tensor actor.9.weight is missing, must be [outputs, inputs]"), "{missing}");
}

#[test]
fn an_earlier_schema_is_a_beginning_of_this_one() {
    let folder = Folder::new();
    let network = layers(&[31, 4, 42]);
    folder.tensors(&named(&network, &["actor.0", "actor.2"]), Dtype::F32);
    let earlier = kvtide_runtime::edition::EDITIONS[0].schema_hash;
    agrees(folder.decider(&format!("layout = \"cleanrl\"\nschema = \"{earlier:016x}\"")), |observation| {
        by_hand(&forward(&network, &full(observation)[..31], f64::tanh), ActionProfile::Full)
    });
}

#[test]
fn half_a_file_is_no_policy() {
    let folder = Folder::new();
    folder.tensors(&named(&layers(&[35, 4, 42]), &["actor.0", "actor.2"]), Dtype::F32);
    let whole = fs::read(folder.path("policy.safetensors")).unwrap();
    for length in [0, 1, 7, 8, 9, 100, whole.len() / 2, whole.len() - 1] {
        folder.write("policy.safetensors", &whole[..length]);
        let refusal = folder.refusal("layout = \"cleanrl\"");
        assert!(refusal.starts_with("policy.safetensors: no safetensors file: "), "{length}: {refusal}");
    }
    folder.write("policy.safetensors", &[&[0xff; 8][..], &whole[8..]].concat());
    assert!(folder.refusal("layout = \"cleanrl\"").contains("no safetensors file"));
}
