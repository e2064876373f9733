//! A small database, written here, and what is read of it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use kvtide_envs::deploy::{AttentionShape, HardwareProfile, KvPrecision, Model, Precision};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::columns::Columns;
use super::{PerfDb, PerfDbAccount};
use crate::calibrate::Account;

enum Column {
    Text(Vec<&'static str>),
    Whole(Vec<i64>),
    Real(Vec<f64>),
}

/// A Parquet file of these columns, packed as those of the database are.
fn write(path: &Path, columns: &[(&str, Column)]) {
    let field = |(name, column): &(&str, Column)| match column {
        Column::Text(_) => format!("required binary {name} (STRING);"),
        Column::Whole(_) => format!("required int64 {name};"),
        Column::Real(_) => format!("required double {name};"),
    };
    let fields: Vec<String> = columns.iter().map(field).collect();
    let schema = Arc::new(parse_message_type(&format!("message rows {{ {} }}", fields.join(" "))).unwrap());
    let packed = parquet::basic::Compression::ZSTD(parquet::basic::ZstdLevel::default());
    let properties = Arc::new(WriterProperties::builder().set_compression(packed).build());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut writer = SerializedFileWriter::new(fs::File::create(path).unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, column) in columns {
        let mut place = group.next_column().unwrap().unwrap();
        match column {
            Column::Text(values) => {
                let values: Vec<ByteArray> = values.iter().map(|text| ByteArray::from(*text)).collect();
                place.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap()
            }
            Column::Whole(values) => place.typed::<Int64Type>().write_batch(values, None, None).unwrap(),
            Column::Real(values) => place.typed::<DoubleType>().write_batch(values, None, None).unwrap(),
        };
        place.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

/// Products of 64 × 32 and 64 × 64 at 1, 16, 17 and 32 tokens, the first measured twice and more.
fn gemm(path: &Path) {
    let m = vec![1, 1, 1, 16, 17, 32, 1, 16, 17, 32, 1, 16, 32];
    let n = vec![64; 13];
    let k = vec![32, 32, 32, 32, 32, 32, 64, 64, 64, 64, 32, 32, 32];
    let mut dtype = vec!["bfloat16"; 10];
    dtype.extend(["fp8"; 3]);
    // The medians are 2 µs; 16 tokens scatter below one; 17 are not aligned.
    let latency = [2.0, 2.5, 1.0, 1.0, 99.0, 4.0, 3.0, 3.0, 99.0, 6.0, 1.0, 1.0, 2.0];
    write(
        path,
        &[
            ("device", Column::Text(vec!["Toy 1"; 13])),
            ("gemm_dtype", Column::Text(dtype)),
            ("m", Column::Whole(m)),
            ("n", Column::Whole(n)),
            ("k", Column::Whole(k)),
            ("latency", Column::Real(latency.iter().map(|us| us / 1000.0).collect())),
        ],
    );
}

/// Attention of 4 heads on 2, of prompts of 16 and 32 tokens, or of decodes with 16 and 32 tokens to attend to. Two prompts at once,
/// and another kernel's times, are passed over.
fn attention(path: &Path, is_prefill: bool) {
    let (isl, step) = if is_prefill { (vec![16, 32, 32, 32], vec![0; 4]) } else { (vec![1; 4], vec![15, 31, 31, 31]) };
    let batch = if is_prefill { vec![1, 1, 1, 2] } else { vec![1, 1, 1, 8] };
    let kernels = ["vllm_flash_attn_fa3", "vllm_flash_attn_fa3", "vllm_other", "vllm_flash_attn_fa3"];
    write(
        path,
        &[
            ("kernel_source", Column::Text(kernels.to_vec())),
            ("batch_size", Column::Whole(batch)),
            ("isl", Column::Whole(isl)),
            ("step", Column::Whole(step)),
            ("num_heads", Column::Whole(vec![4; 4])),
            ("num_key_value_heads", Column::Whole(vec![2; 4])),
            ("head_dim", Column::Whole(vec![64; 4])),
            ("kv_cache_dtype", Column::Text(vec!["bfloat16"; 4])),
            ("latency", Column::Real(vec![0.005, 0.008, 0.001, 0.009])),
        ],
    );
}

fn reduce(path: &Path) {
    write(
        path,
        &[
            ("allreduce_dtype", Column::Text(vec!["bfloat16"; 3])),
            ("num_gpus", Column::Whole(vec![2; 3])),
            ("message_size", Column::Whole(vec![128, 128, 1024])),
            ("backend", Column::Text(vec!["vllm_eager", "vllm_graph", "vllm_graph"])),
            ("latency", Column::Real(vec![0.02, 0.004, 0.006])),
        ],
    );
}

fn experts(path: &Path) {
    write(
        path,
        &[
            ("moe_dtype", Column::Text(vec!["bfloat16", "bfloat16", "bfloat16", "fp8", "fp8_block"])),
            ("num_tokens", Column::Whole(vec![8; 5])),
            ("hidden_size", Column::Whole(vec![64; 5])),
            ("inter_size", Column::Whole(vec![32; 5])),
            ("topk", Column::Whole(vec![2; 5])),
            ("num_experts", Column::Whole(vec![8; 5])),
            ("moe_tp_size", Column::Whole(vec![2, 1, 1, 1, 1])),
            ("moe_ep_size", Column::Whole(vec![1, 4, 1, 1, 1])),
            (
                "distribution",
                Column::Text(vec!["power_law_1.2", "power_law_1.2", "balanced", "power_law_1.2", "power_law_1.2"]),
            ),
            ("latency", Column::Real(vec![0.01, 0.02, 0.03, 0.04, 0.05])),
        ],
    );
}

/// The database, below its `systems` folder.
fn database(systems: &Path) {
    let data = systems.join("data/toy");
    let at = |family: &str, version: &str, file: &str| data.join(family).join("vllm").join(version).join(file);
    for version in ["0.9.0", "0.10.0"] {
        gemm(&at("gemm", version, "gemm_perf.parquet"));
        attention(&at("attention", version, "context_attention_perf.parquet"), true);
        attention(&at("attention", version, "generation_attention_perf.parquet"), false);
    }
    // Newer, but without attention.
    gemm(&at("gemm", "0.11.0", "gemm_perf.parquet"));
    reduce(&at("comm", "0.8.0", "custom_allreduce_perf.parquet"));
    experts(&at("moe", "0.10.0", "moe_perf.parquet"));
    let meta = at("moe", "0.10.0", "collection_meta.yaml");
    fs::write(meta, "tables:\n  moe_perf:\n    # 2026-08-12: appended rows\n    status: complete\n").unwrap();
    let yaml = "gpu:\n  mem_bw: 1000000000000 # 1 TB/s\n  mem_capacity: 8589934592\n  bfloat16_tc_flops: 100e12\n\
                node:\n  intra_node_bw: 50000000000\n  pcie_bw: 32000000000\n";
    fs::write(systems.join("toy.yaml"), yaml).unwrap();
}

fn read(path: &Path, framework: &str) -> Result<PerfDb, String> {
    let framework = framework.parse().unwrap();
    PerfDb::read(path, "toy", &framework, [false, true]).map_err(|error| error.to_string())
}

#[test]
fn every_family_is_read_as_its_columns_mean() {
    let folder = tempfile::tempdir().unwrap();
    database(&folder.path().join("systems"));
    let toy = read(folder.path(), "vllm").unwrap();
    assert_eq!(toy.framework(), "vllm@0.10.0");
    let tables = toy.tables();
    let rows = |index: usize| &tables.products[index].rows;
    assert_eq!((&tables.products[0].tokens[..], rows(0).len(), rows(1).len()), (&[1, 16, 32][..], 2, 1));
    // The median of the first three is 2; with 1 at 16 tokens it is levelled to the root of both.
    let near = |us: f64, expected: f64| assert!((us / expected - 1.0).abs() < 1e-9, "{us} {expected}");
    near(rows(0)[0].us[0], 2.0_f64.sqrt());
    near(rows(0)[0].us[2], 4.0);
    near(tables.product_us(Precision::Bf16, 64, 64, 16.0).unwrap(), 3.0);
    near(tables.product_us(Precision::Fp8, 64, 32, 64.0).unwrap(), 4.0);
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 64, window: 0, kv: KvPrecision::Bf16 };
    near(tables.prefill_us(&shape, 32.0).unwrap(), 8.0);
    assert_eq!((&tables.decode[0].sequences[..], &tables.decode[0].context[..]), (&[1][..], &[16, 32][..]));
    near(tables.decode_us(&shape, 1.0, 32.0).unwrap(), 8.0);
    // Elements of two bytes, as a graph launches them.
    assert_eq!((&tables.all_reduce[0].bytes[..], tables.all_reduce[0].devices), (&[256, 2048][..], 2));
    near(tables.all_reduce_us(2, 256.0).unwrap(), 4.0);
    // Half of each expert on one of two devices; blocks before tensors in fp8; neither the balanced nor the distributed.
    let found: Vec<(Precision, u32, f64)> =
        tables.experts.iter().map(|table| (table.precision, table.inter, table.us[0])).collect();
    assert_eq!(found, [(Precision::Bf16, 16, 10.0), (Precision::Fp8, 32, 50.0)]);
    let hardware = toy.hardware();
    assert_eq!((hardware.peak_flops, hardware.peak_fp8_flops, hardware.pcie_bandwidth), (100e12, 0.0, 25.6e9));
}

#[test]
fn a_profile_says_what_it_is_made_of() {
    let folder = tempfile::tempdir().unwrap();
    database(&folder.path().join("systems"));
    let toy = read(&folder.path().join("systems"), "vllm@0.9.0").unwrap();
    let model = Model::named("qwen3-30b-a3b").unwrap();
    let account = PerfDbAccount::new(&toy, toy.hardware().clone(), Some(&model), &[1, 2], "made so".to_owned());
    let profile = account.profile(Path::new("some/mine.toml"));
    let text = profile.to_toml();
    assert_eq!(HardwareProfile::parse(&text), Ok(profile.clone()), "{text}");
    assert!(text.len() < 20_000, "{}", text.len());
    let source = profile.hardware.tables.unwrap().source.clone().unwrap();
    assert_eq!(
        (source.licence.as_str(), source.date.as_str(), source.system.as_str()),
        ("Apache-2.0", "2026-08-12", "toy")
    );
    assert_eq!(source.files[0], "data/toy/gemm/vllm/0.9.0/gemm_perf.parquet");
    assert_eq!(source.files[3], "data/toy/comm/vllm/0.8.0/custom_allreduce_perf.parquet");
    assert!(source.modelled.iter().any(|said| said.contains("32/4 heads of 128")), "{:?}", source.modelled);
    assert!(source.modelled.iter().any(|said| said.contains("128 experts of 768 wide")), "{:?}", source.modelled);
    assert!(account.text().contains("for qwen3-30b-a3b on 1, 2 of them"), "{}", account.text());
}

/// Field by field: `tests/json.rs` has no database.
#[test]
fn what_is_written_as_json_is_in_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    database(&folder.path().join("systems"));
    let toy = read(folder.path(), "vllm").unwrap();
    let model = Model::named("qwen3-30b-a3b").unwrap();
    let account = PerfDbAccount::new(&toy, toy.hardware().clone(), Some(&model), &[1], "made so".to_owned());
    let written = serde_json::to_value(&account.data()[0]).unwrap();
    let schema: serde_json::Value = serde_json::from_str(include_str!("../../../docs/schema.json")).unwrap();
    let names = |object: &serde_json::Value| -> Vec<String> { object.as_object().unwrap().keys().cloned().collect() };
    for (name, written) in
        [("PerfDb", &written), ("FamilyTaken", &written["taken"][0]), ("TablesMade", &written["made"])]
    {
        let (mut documented, mut written) = (names(&schema["$defs"][name]["properties"]), names(written));
        documented.sort_unstable();
        written.sort_unstable();
        assert_eq!(documented, written, "{name}");
    }
}

#[test]
fn a_wheel_is_read_as_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("aiconfigurator_core/systems");
    database(&root);
    let path = folder.path().join("aiconfigurator_core-9.9.9.whl");
    let mut wheel = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    let mut folders = vec![root];
    while let Some(inside) = folders.pop() {
        for entry in fs::read_dir(&inside).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            let name = entry.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned();
            wheel.start_file(name, options).unwrap();
            wheel.write_all(&fs::read(&entry).unwrap()).unwrap();
        }
    }
    wheel.start_file("aiconfigurator_core-9.9.9.dist-info/METADATA", options).unwrap();
    wheel.write_all(b"Name: aiconfigurator-core\nVersion: 9.9.9\nLicense-Expression: Apache-2.0\n\nbody\n").unwrap();
    wheel.finish().unwrap();
    let (packed, unpacked) = (read(&path, "vllm").unwrap(), read(folder.path(), "vllm").unwrap());
    assert_eq!(packed.tables(), unpacked.tables());
    let source = packed.source(String::new(), Vec::new(), Vec::new());
    assert_eq!(source.database, "aiconfigurator-core 9.9.9");
    // Cut off.
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(read(&path, "vllm").err().unwrap().contains("no wheel that can be read"));
}

#[test]
fn what_is_wrong_is_named_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let systems = folder.path().join("systems");
    database(&systems);
    let error = || read(folder.path(), "vllm").err().unwrap();
    let framework = "vllm".parse().unwrap();
    let unknown = PerfDb::read(folder.path(), "h100", &framework, [false; 2]).err().unwrap().to_string();
    assert!(unknown.ends_with("unknown system \"h100\"; of vllm there are toy"), "{unknown}");
    let version = read(folder.path(), "vllm@0.7.0").err().unwrap();
    assert!(version.ends_with("no matrix products of vllm 0.7.0 on toy; there are 0.9.0, 0.10.0, 0.11.0"), "{version}");
    let nowhere = read(Path::new("nowhere.whl"), "vllm").err().unwrap();
    assert!(nowhere.starts_with("nowhere.whl: cannot open: No such file"), "{nowhere}");
    let other = tempfile::tempdir().unwrap();
    assert!(read(other.path(), "vllm").err().unwrap().contains("no database: expected the folder"));

    let file = systems.join("data/toy/gemm/vllm/0.10.0/gemm_perf.parquet");
    let whole = fs::read(&file).unwrap();
    let starts = |error: String, reason: &str| {
        assert!(error.starts_with(&format!("{}: {reason}", file.display())), "{error}");
    };
    fs::write(&file, "m,n,k\n1,2,3\n").unwrap();
    starts(error(), "no Parquet file that can be read: ");
    fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    starts(error(), "no Parquet file that can be read: ");
    let mut broken = whole.clone();
    broken[20..60].fill(0xff);
    fs::write(&file, &broken).unwrap();
    assert!(error().starts_with(&file.display().to_string()));
    write(&file, &[("gemm_dtype", Column::Text(vec!["bfloat16"])), ("m", Column::Real(vec![1.0]))]);
    starts(error(), "column m: expected whole numbers");
    write(&file, &[("gemm_dtype", Column::Text(vec!["bfloat16"]))]);
    starts(error(), "column m is missing");
    let row = |latency: f64, dtype| {
        let sizes = ["m", "n", "k"].map(|name| (name, Column::Whole(vec![64])));
        let others = [("gemm_dtype", Column::Text(vec![dtype])), ("latency", Column::Real(vec![latency]))];
        write(&file, &sizes.into_iter().chain(others).collect::<Vec<_>>());
    };
    row(-1.0, "bfloat16");
    starts(error(), "column latency has -1: expected milliseconds, from 1e-6 to 1e6");
    row(1.0, "int3");
    starts(error(), "has nothing of what is read");
    fs::remove_dir_all(systems.join("data/toy/attention")).unwrap();
    assert!(error().ends_with("no version of vllm has both products and attention on toy"), "{}", error());
}

/// The reader of Parquet panics at some files whose parts contradict each other; nobody else is to.
#[test]
fn no_damage_to_a_file_ends_in_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gemm_perf.parquet");
    gemm(&path);
    let whole = fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        Columns::read(&path, bytes.to_vec(), super::families::PRODUCT_COLUMNS).map(|columns| columns.rows)
    };
    assert_eq!(read(&whole).unwrap(), 13);
    let refusals = |damaged: &dyn Fn(usize) -> Vec<u8>| {
        let errors = (0..whole.len()).filter_map(|place| read(&damaged(place)).err());
        errors.inspect(|error| assert_eq!(error.path, path)).count()
    };
    assert_eq!(refusals(&|place| whole[..place].to_vec()), whole.len());
    for byte in [0x00, 0x15, 0x7f, 0xff] {
        let with = |place: usize| {
            let mut bytes = whole.clone();
            bytes[place] = byte;
            bytes
        };
        assert!(refusals(&with) > 0);
    }
    assert!(refusals(&|place| [&whole[..place], &whole[(place + 20).min(whole.len())..]].concat()) > whole.len() / 2);
}
