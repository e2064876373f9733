//! Models out of a `config.json`: the same as those known by name, refused by name where they are not simulated, and never a
//! panic; and what their steps take.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use kvtide_envs::cost::{Chunk, CostModel, StepLoad};
use kvtide_envs::deploy::{CardRow, Deployment, EngineKind, Model, ModelRow, Setting, card_rows, model_rows};
use kvtide_envs::tier::Links;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(name)
}

fn object(name: &str) -> Map<String, Value> {
    let text = std::fs::read_to_string(sample(name).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn parse(config: &Map<String, Value>) -> Result<Model, String> {
    Model::parse("sample", Value::Object(config.clone()).to_string().as_bytes())
}

/// The sample, changed.
fn changed(name: &str, changes: &[(&str, Value)]) -> Result<Model, String> {
    let mut config = object(name);
    config.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    parse(&config)
}

#[test]
fn a_file_says_what_the_name_says() {
    for name in ["qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-27b"] {
        let mut read = Model::read(&sample(name)).unwrap();
        assert_eq!(read, Model::read(&sample(name).join("config.json")).unwrap());
        read.structure.notes.clear();
        assert_eq!(Some(read), Model::named(name));
    }
    let fp8 = Model::read(&sample("llama-3.1-8b-fp8")).unwrap();
    let plain = Model::named("llama-3-8b").unwrap();
    assert_eq!((fp8.total_params(), fp8.max_model_len), (plain.total_params(), plain.max_model_len));
    // Embedding and head stay in two bytes.
    assert_eq!(fp8.total_weight_bytes(), plain.layer_params + 4.0 * plain.head_params);
    let notes = Model::read(&sample("gemma-3-27b")).unwrap().structure.notes;
    assert_eq!(notes, ["weights of vision_config are not counted"]);
    let mut config = object("llama-3.1-8b-fp8");
    config["quantization_config"]["kv_cache_scheme"] = serde_json::json!({"num_bits": 8, "type": "float"});
    let notes = parse(&config).unwrap().structure.notes;
    assert!(notes.iter().any(|note| note.contains("--set kv_cache_dtype=fp8")), "{notes:?}");
}

#[test]
fn a_deployment_takes_files() {
    let sample = sample("qwen3-30b-a3b").display().to_string();
    for path in [sample.clone(), format!("{sample}/config.json")] {
        let deployment = Deployment::load(&format!("{path}@2xh100")).unwrap();
        assert_eq!(deployment.name(), "qwen3-30b-a3b@2xh100");
        assert_eq!(deployment, Deployment::load("qwen3-30b-a3b@2xh100").unwrap());
    }
    let error = |env: &str| Deployment::load(env).unwrap_err().to_string();
    assert!(
        error("nowhere/Qwen3-8B@h100").starts_with("nowhere/Qwen3-8B: cannot open: No such file"),
        "{}",
        error("nowhere/Qwen3-8B@h100")
    );
    assert!(error("nowhere/Qwen3-8B@h100").ends_with("(known by name: qwen3-8b)"));
    assert!(error("qwen3-8@h100").ends_with("; was qwen3-8b meant?"), "{}", error("qwen3-8@h100"));
    assert!(
        error(&format!("{sample}@rtx-4090"))
            .contains("qwen3-30b-a3b needs 61.1 GB for weights, and 1 x rtx-4090 offers 21.7 GB")
    );
    assert!(error(&format!("{sample}@rtx-4090")).ends_with("as in qwen3-30b-a3b@4xrtx-4090"));
}

#[test]
fn every_form_of_windows_and_experts_is_read() {
    let window = |changes: &[(&str, Value)]| {
        let window = changed("llama-3.1-8b-fp8", changes).unwrap().structure.window;
        window.map(|window| (window.tokens, window.layers))
    };
    let sliding = ("sliding_window", json!(1000));
    assert_eq!(window(std::slice::from_ref(&sliding)), Some((1000, 32)));
    assert_eq!(window(&[sliding.clone(), ("use_sliding_window", json!(false))]), None);
    assert_eq!(window(&[("sliding_window", json!(131_072))]), None);
    assert_eq!(window(&[sliding.clone(), ("sliding_window_pattern", json!(4))]), Some((1000, 24)));
    assert_eq!(window(&[sliding.clone(), ("model_type", json!("gemma2"))]), Some((1000, 16)));
    assert_eq!(window(&[sliding.clone(), ("model_type", json!("qwen2"))]), None);
    let qwen = [("model_type", json!("qwen2")), ("use_sliding_window", json!(true)), ("max_window_layers", json!(30))];
    assert_eq!(window(&[&qwen[..], std::slice::from_ref(&sliding)].concat()), Some((1000, 2)));
    let types: Vec<&str> = (0..32).map(|layer| ["sliding_attention", "full_attention"][layer % 2]).collect();
    assert_eq!(window(&[sliding, ("layer_types", json!(types))]), Some((1000, 16)));

    let layers =
        |changes: &[(&str, Value)]| changed("qwen3-30b-a3b", changes).unwrap().structure.experts.unwrap().layers;
    assert_eq!(layers(&[("decoder_sparse_step", json!(2))]), 24);
    assert_eq!(layers(&[("mlp_only_layers", json!([0, 5, 47]))]), 45);
    assert_eq!(layers(&[("first_k_dense_replace", json!(3)), ("moe_layer_freq", json!(2))]), 22);
    assert_eq!(layers(&[("moe_layer_freq", json!([vec![0; 3], vec![1; 45]].concat()))]), 45);
    assert_eq!(changed("qwen3-30b-a3b", &[("num_experts", json!(0))]).unwrap().structure.experts, None);
    // Yarn stretches; the scaling of Llama 3 is in the length already.
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768});
    assert_eq!(changed("qwen3-30b-a3b", &[("rope_scaling", yarn)]).unwrap().max_model_len, 131_072);
}

#[test]
fn what_is_not_simulated_is_refused_by_name() {
    let error = |changes: &[(&str, Value)]| changed("qwen3-30b-a3b", changes).unwrap_err();
    for (key, value) in [
        ("mamba_d_state", json!(128)),
        ("linear_num_value_heads", json!(32)),
        ("is_encoder_decoder", json!(true)),
        ("index_topk", json!(2048)),
        ("attention_chunk_size", json!(8192)),
        ("moe_num_shared_experts_of_mine", json!(2)),
    ] {
        assert!(error(&[(key, value)]).starts_with(&format!("{key} is ")), "{key}");
    }
    let kinds = |kinds: [u32; 2]| changed("qwen3-30b-a3b", &[("attn_type_list", json!(kinds))]);
    assert!(kinds([1, 1]).is_ok() && kinds([1, 0]).unwrap_err().starts_with("attn_type_list is [1,0]: "));
    // Set to nothing they say nothing.
    assert!(changed("qwen3-30b-a3b", &[("is_encoder_decoder", json!(false)), ("index_topk", Value::Null)]).is_ok());
    for (changes, said) in [
        (vec![("model_type", json!("qwen3_next"))], "model_type is \"qwen3_next\": only decoders"),
        (vec![("model_type", json!("bert"))], "model_type is \"bert\": only decoders"),
        (vec![("model_type", json!("xlm-roberta"))], "model_type is \"xlm-roberta\": only decoders"),
        (vec![("layer_types", json!(vec!["linear_attention"; 48]))], "layer_types has \"linear_attention\""),
        (vec![("layer_types", json!(["full_attention"]))], "layer_types has 1 entries: num_hidden_layers is 48"),
        (vec![("num_attention_heads", json!(0))], "num_attention_heads is 0: expected a whole number from 1"),
        (vec![("num_attention_heads", json!("32"))], "num_attention_heads is \"32\": expected a whole number"),
        (vec![("num_key_value_heads", json!(5))], "num_key_value_heads is 5: 32 heads cannot be shared"),
        (vec![("hidden_size", json!(1e300))], "hidden_size is 1e+300: expected"),
        (vec![("vocab_size", json!(u64::MAX))], "vocab_size is 18446744073709551615: expected"),
        (vec![("num_experts_per_tok", json!(129))], "num_experts_per_tok is 129: there are 128 experts"),
        (
            vec![("quantization_config", json!({"quant_method": "exl2", "bits": 3}))],
            "quantization_config has quant_method \"exl2\" in 3 bits",
        ),
        (vec![("quantization_config", json!("fp8"))], "quantization_config is no object"),
    ] {
        assert!(error(&changes).starts_with(said), "{}", error(&changes));
    }
    let mut config = object("qwen3-30b-a3b");
    config.remove("hidden_size");
    assert_eq!(parse(&config).unwrap_err(), "hidden_size is missing");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let deep = vec![b'['; 100_000];
    for (bytes, said) in [
        (&b"{\"model_type\": \"llama\xff\"}"[..], "not UTF-8 from byte 21 on"),
        (b"{\"a\": NaN}", "not JSON: expected value at line 1 column 7"),
        (b"[]", "no JSON object"),
        (b"", "not JSON: EOF"),
        (&deep, "not JSON: recursion limit exceeded"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = Model::read(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: {said}", path.display())), "{error}");
    }
    let unknown = changed("llama-3.1-8b-fp8", &[("model_type", json!("alpaca9"))]).unwrap().structure.notes;
    assert!(unknown[0].starts_with("model_type \"alpaca9\" is not among those that were checked"), "{unknown:?}");
}

#[test]
fn every_quantisation_is_known_by_its_bytes() {
    let bytes = |config: Value| {
        let model = changed("qwen3-30b-a3b", &[("quantization_config", config)]).unwrap();
        (model.weight_bytes, model.structure.experts.unwrap().weight_bytes)
    };
    let four = 0.519_531_25;
    assert_eq!(bytes(json!({"quant_method": "fp8"})), (1.0, 1.0));
    assert_eq!(bytes(json!({"quant_method": "awq", "bits": 4})), (four, four));
    assert_eq!(bytes(json!({"quant_method": "gptq", "bits": 8})), (1.0, 1.0));
    assert_eq!(bytes(json!({"quant_method": "bitsandbytes", "load_in_4bit": true})), (four, four));
    assert_eq!(bytes(json!({"quant_method": "mxfp4"})), (2.0, 0.531_25));
    let group = json!({"group_0": {"weights": {"type": "int", "num_bits": 4}}});
    let compressed =
        json!({"quant_method": "compressed-tensors", "config_groups": group, "ignore": ["re:.*self_attn.*"]});
    assert_eq!(bytes(compressed), (2.0, four));
}

fn cost(env: &str, settings: &[&str]) -> CostModel {
    let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
    CostModel::new(&Deployment::load_with(env, &settings).unwrap(), 16)
}

fn decodes(cost: &CostModel, count: u32, context: u64) -> f64 {
    let decode_context = u64::from(count) * context;
    cost.device_seconds(&StepLoad {
        decodes: count,
        decode_context,
        chunks: std::iter::empty(),
        blocks: Links::default(),
    })
}

fn prompt(cost: &CostModel, context: u32, tokens: u32) -> f64 {
    let chunks = std::iter::once(Chunk { context, tokens });
    cost.device_seconds(&StepLoad { decodes: 0, decode_context: 0, chunks, blocks: Links::default() })
}

/// Bytes that a step reads, by a card that does nothing else: 2.68 TB/s of an H100.
fn gb(seconds: f64) -> f64 {
    seconds * 3350.0 * 0.8
}

fn near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 0.01, "{value}, expected {expected}");
}

#[test]
fn a_step_reads_the_experts_its_tokens_are_routed_to() {
    let cost = cost("qwen3-30b-a3b@h100-datasheet", &[]);
    let model = Model::named("qwen3-30b-a3b").unwrap();
    let shared = (model.layer_params + model.head_params) * 2e-9;
    let experts = model.structure.experts.unwrap();
    // One token reads the experts it is routed to; a crowd reads nearly all of them.
    near(gb(decodes(&cost, 1, 1)), shared + experts.params_of(8.0) * 2e-9);
    near(gb(decodes(&cost, 128, 1)), shared + experts.params_of(128.0 * (1.0 - (120.0_f64 / 128.0).powi(128))) * 2e-9);
    // A long prompt is bound by the arithmetic of the active weights.
    let flops = 2.0 * 40_000.0 * model.active_layer_params();
    let attention = 4.0 * 48.0 * 32.0 * 128.0 * 40_000.0 * 40_001.0 / 2.0;
    near(prompt(&cost, 0, 40_000), (flops + attention) / (989.4e12 * 0.7));
}

#[test]
fn a_window_caps_what_is_read_and_multiplied() {
    let windowed = cost("gemma-3-27b@h100-datasheet", &[]);
    let per_token = Model::named("gemma-3-27b").unwrap().kv_bytes_per_token() * 1e-9;
    let grown = |from: u64, to: u64| gb(decodes(&windowed, 8, to) - decodes(&windowed, 8, from));
    near(grown(500, 1000), 8.0 * 500.0 * per_token);
    near(grown(2000, 4000), 8.0 * 2000.0 * per_token * 10.0 / 62.0);
    // Token by token a prompt is as many pairs as at once.
    let pairs = |context: u32, tokens: u32| prompt(&windowed, context, tokens) - prompt(&windowed, 0, tokens);
    assert!(pairs(8000, 2000) < 0.3 * (prompt(&cost("mistral-small-24b@h100-datasheet", &[]), 8000, 2000)));
    assert!(pairs(1024, 4096) > 0.0 && pairs(2048, 4096) > pairs(1024, 4096));
}

#[test]
fn latents_are_read_once_a_device_and_multiplied_by_all_heads() {
    let per_token = Model::named("deepseek-v2-lite").unwrap().kv_bytes_per_token() * 1e-9;
    for devices in ["", "4x"] {
        let cost = cost(&format!("deepseek-v2-lite@{devices}h100-datasheet"), &[]);
        near(gb(decodes(&cost, 8, 9000) - decodes(&cost, 8, 1000)), 8.0 * 8000.0 * per_token);
    }
    // 128 heads on one latent are more arithmetic than a card does while it reads.
    let deepseek = cost("deepseek-v3@16xh100-datasheet", &[]);
    let slope = (decodes(&deepseek, 8, 9000) - decodes(&deepseek, 8, 1000)) / (8.0 * 8000.0);
    near(
        slope * 16.0 * 989.4e12 * 0.7,
        (2.0 * 61.0 * 128.0 * 1088.0f64).max(61.0 * 576.0 * 2.0 * 16.0 / (3350e9 * 0.8) * 989.4e12 * 0.7),
    );
}

#[test]
fn fewer_bits_are_read_and_fp8_is_multiplied_faster() {
    let seconds = |card: &str, settings: &[&str], tokens: u32| {
        let cost = cost(&format!("llama-3-8b@{card}"), settings);
        if tokens == 1 { decodes(&cost, 1, 1) } else { prompt(&cost, 0, tokens) }
    };
    let (layers, head) = (6.979e9, 0.525e9);
    for (setting, bytes) in [("weight_dtype=bf16", 2.0), ("weight_dtype=fp8", 1.0), ("quantization=awq", 0.5195)] {
        near(gb(seconds("h100-datasheet", &[setting], 1)), (layers * bytes + head * 2.0) * 1e-9);
    }
    let plain = seconds("h100-datasheet", &[], 4000);
    assert!(seconds("h100-datasheet", &["weight_dtype=fp8"], 4000) < 0.6 * plain);
    near(seconds("h100-datasheet", &["weight_dtype=int4"], 4000), plain);
    // An A100 has no fp8.
    near(seconds("a100-80g-datasheet", &["weight_dtype=fp8"], 4000), seconds("a100-80g-datasheet", &[], 4000));
}

/// Any value.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0..40_u32).prop_map(|bits| Value::from(1_u64 << bits)),
        any::<f64>().prop_map(Value::from),
        ".{0,9}".prop_map(Value::from),
        Just(json!("full_attention")),
    ];
    leaf.prop_recursive(2, 64, 50, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..50).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,9}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

/// A sample with some of its keys, or of those that matter, set to anything.
fn hostile() -> impl Strategy<Value = Map<String, Value>> {
    let samples = ["qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-27b", "llama-3.1-8b-fp8"].map(object);
    let mut keys: Vec<String> = samples.iter().flat_map(|sample| sample.keys().cloned()).collect();
    keys.extend(["layer_types", "sliding_window_pattern", "quantization_config", "mlp_layer_types"].map(str::to_owned));
    let changes = prop::collection::vec((prop::sample::select(keys), any_value()), 0..5);
    (prop::sample::select(samples.to_vec()), changes).prop_map(|(sample, changes)| {
        let mut config = sample;
        config.extend(changes);
        config
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_file_makes_anything_panic(config in hostile()) {
        let Ok(model) = parse(&config) else { return Ok(()) };
        prop_assert!(model.total_weight_bytes().is_finite() && model.kv_bytes_per_token() > 0.0);
        prop_assert!(model.active_params() <= model.total_params());
        let hardware = kvtide_envs::deploy::Hardware::named("b200").unwrap();
        if let Ok(deployment) = Deployment::new(model, hardware, 8).with(&[]) {
            // Too many blocks are refused when the engine is checked.
            let engine = deployment.engine(EngineKind::V1);
            let _ = (engine.validate(), deployment.notes());
            let cost = CostModel::new(&deployment, engine.block_size);
            let (one, prompt) = (decodes(&cost, 1, 100), prompt(&cost, 1000, 500));
            prop_assert!(one.is_finite() && one >= 0.0 && prompt.is_finite() && prompt >= 0.0);
        }
    }

    #[test]
    fn no_bytes_make_anything_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Model::parse("bytes", &bytes).is_err());
    }

    /// More of anything never costs less, whatever the model is made of.
    #[test]
    fn more_never_costs_less(
        name in prop::sample::select(vec!["qwen3-30b-a3b", "deepseek-v2-lite", "gemma-3-27b", "gpt-oss-20b"]),
        tokens in 1..4000_u32, context in 0..50_000_u32, more in 1..500_u32,
    ) {
        let cost = cost(&format!("{name}@h200-datasheet"), &[]);
        let least = prompt(&cost, context, tokens);
        prop_assert!(prompt(&cost, context, tokens + more) >= least && prompt(&cost, context + more, tokens) >= least);
        let least = decodes(&cost, tokens, u64::from(context));
        prop_assert!(decodes(&cost, tokens + more, u64::from(context)) >= least);
        prop_assert!(decodes(&cost, tokens, u64::from(context + more)) >= least);
    }
}

/// The tables of docs/MODELS.md.
fn tables() -> String {
    let mut text = String::new();
    let _ =
        writeln!(text, "| model | also | weights, 10⁹ | published | active, 10⁹ | GB | KB/token | longest | source |");
    let _ = writeln!(text, "|---|---|---|---|---|---|---|---|---|");
    for ModelRow { model, also, source, published: (published, _) } in model_rows() {
        let _ = writeln!(
            text,
            "| {} | {} | {:.2} | {published} | {:.2} | {:.1} | {:.1} | {} | [{source}](https://huggingface.co/{source}) |",
            model.name,
            also.join(", "),
            model.total_params() * 1e-9,
            model.active_params() * 1e-9,
            model.total_weight_bytes() * 1e-9,
            model.kv_bytes_per_token() * 1e-3,
            model.max_model_len,
        );
    }
    let _ = writeln!(
        text,
        "\n| accelerator | dense TFLOP/s | with sparsity | fp8, dense | GB/s | GiB | PCIe GB/s | link GB/s | source |"
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|---|---|---|");
    let tera = |flops: f64| if flops > 0.0 { format!("{:.1}", flops * 1e-12) } else { "–".to_owned() };
    for CardRow { hardware, sparse_flops, source } in card_rows() {
        let [memory, pcie, link] =
            [hardware.peak_bandwidth, hardware.pcie_bandwidth, hardware.link_bandwidth].map(|rate| rate * 1e-9);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {memory:.0} | {:.1} | {pcie:.0} | {link:.0} | {source} |",
            hardware.name,
            tera(hardware.peak_flops),
            tera(sparse_flops),
            tera(hardware.peak_fp8_flops),
            hardware.memory_bytes / f64::from(1 << 30),
        );
    }
    text
}

/// `KVTIDE_WRITE_DOCS=1` writes them anew.
#[test]
fn the_tables_of_the_documentation_are_those_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/MODELS.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("<!-- tables -->\n").unwrap();
    let (inside, after) = rest.split_once("<!-- end of tables -->\n").unwrap();
    if std::env::var_os("KVTIDE_WRITE_DOCS").is_some() {
        let whole = format!("{before}<!-- tables -->\n{}<!-- end of tables -->\n{after}", tables());
        std::fs::write(&path, whole).unwrap();
        return;
    }
    assert_eq!(inside, tables(), "KVTIDE_WRITE_DOCS=1 cargo test -p kvtide-envs --test all models:: writes them anew");
}
