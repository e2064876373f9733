//! Hosts and guards, from the command line.

use std::fs;
use std::path::PathBuf;

use crate::common::{done, lines, refused};
use kvtide::experiment::Experiment;
use kvtide::world::WorldSpec;
use tempfile::tempdir;

const BUSY: [&str; 4] = ["--workload", "chat:rate=3.2,duration=60,seed=3", "--set", "num_gpu_blocks=1500"];

fn shipped(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("checkpoints").join(name).join("policy.kvt");
    format!("table:{}", path.display())
}

#[test]
fn a_table_runs_behind_its_guard_unless_told_otherwise() {
    let folder = tempdir().unwrap();
    let table = shipped("chat-24g");
    let run = |more: &[&str]| {
        let first = ["simulate", "--policy", &table, "--json"];
        let arguments = first.iter().chain(&BUSY).chain(more).copied();
        lines(&done(folder.path(), &arguments.collect::<Vec<&str>>()).stdout, "run").remove(0)
    };
    let (guarded, bare) = (run(&[]), run(&["--guard", "off"]));
    let decisions = guarded["guard"]["decisions"].as_u64().unwrap();
    assert!(decisions > 100, "{guarded}");
    assert!(bare["guard"].is_null(), "{bare}");
    let text = done(folder.path(), &["simulate", "--policy", &table, BUSY[0], BUSY[1], BUSY[2], BUSY[3]]).stdout;
    assert!(text.contains(&format!(" of {decisions} decisions fell back")), "{text}");
}

#[test]
fn what_a_host_lacks_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let error = |more: &[&str]| {
        let arguments: Vec<&str> = ["simulate"].iter().chain(&BUSY).chain(more).copied().collect();
        refused(folder.path(), &arguments)
    };
    assert_eq!(
        error(&["--set", "num_cpu_blocks=64"]),
        "error: num_cpu_blocks=64: vllm-0.33 has no host tier; --host kvtide has one"
    );
    assert_eq!(
        error(&["--policy", "fixed:0,mode=swap"]),
        "error: fixed:0,mode=swap: victims are swapped out, and vllm-0.33 has no host tier"
    );
    assert_eq!(
        error(&["--host", "sglang-0.5", "--policy", "fixed:0,victim=most-blocks"]),
        "error: fixed:0,victim=most-blocks: sglang-0.5 lets no policy decide victim"
    );
    assert_eq!(
        error(&["--host", "sglang-0.5", "--policy", "ppas"]),
        "error: ppas: sglang-0.5 lets nobody limit the prompt tokens of a step"
    );
    let v0 = error(&["--host", "kvtide", "--engine", "v0", "--policy", "ppas:2,512"]);
    assert!(v0.starts_with("error: ppas:2,512: engine v0 computes prompts in steps of their own"), "{v0}");
    let whole = ["--set", "enable_chunked_prefill=false", "--set", "max_num_batched_tokens=65536"];
    let whole = error(&[&whole[..], &["--policy", "ppas"]].concat());
    assert!(
        whole.starts_with("error: ppas: it cuts prompts into chunks, and enable_chunked_prefill is off"),
        "{whole}"
    );
    assert!(error(&["--host", "vllm"]).contains("vllm-0.33, sglang-0.5 or kvtide"));
    assert!(error(&["--host", "vllm-0.33", "--engine", "v0"]).contains("kvtide with --engine v0"));
    assert!(error(&["--pool", "0"]).contains("a factor from 0.01 to 100"));
    // What is left of the pool, or becomes of it, is checked as if it had been set.
    let tiny = ["--set", "num_gpu_blocks=40", "--set", "max_model_len=100", "--pool", "0.01"];
    assert!(error(&tiny).contains("num_gpu_blocks is 0"), "{}", error(&tiny));
    let huge = ["--set", "num_gpu_blocks=10000000", "--pool", "100"];
    assert!(error(&huge).contains("num_gpu_blocks is 1000000000"), "{}", error(&huge));
    let tier = shipped("reasoning-tier");
    assert!(error(&["--policy", &tier]).contains("vllm-0.33 has no host tier"), "{}", error(&["--policy", &tier]));
    assert!(
        error(&["--host", "sglang-0.5", "--policy", &shipped("chat-24g")]).contains("sglang-0.5 lets no policy decide")
    );
}

#[test]
fn every_experiment_is_for_a_host_that_can_serve_it() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("experiments");
    let files = [folder.clone(), folder.join("ablations")].into_iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut judged = 0;
    for path in
        files.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "toml"))
    {
        let experiment = Experiment::load(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for world in std::iter::once(&experiment.world).chain(experiment.also.iter().map(|also| &also.world)) {
            // A recorded trace may not be here; what serves it is said all the same.
            let workload = world.workload.clone().or_else(|| Some("chat:rate=1,duration=60".parse().unwrap()));
            let stand_in = WorldSpec { trace: None, jitter: None, lengths: None, cv: None, workload, ..world.clone() };
            let node = stand_in.world().unwrap_or_else(|error| panic!("{}: {error}", path.display())).node;
            assert!(node.host.profile().covers(experiment.profile()), "{}: {}", path.display(), node.host.name);
        }
        judged += 1;
    }
    assert!(judged >= 14);
}

#[test]
fn experiments_of_earlier_runs_are_written_back_as_they_were_read() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("checkpoints");
    let manifests = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().join("manifest.json"));
    let mut read = 0;
    for path in manifests.filter(|path| path.exists()) {
        let manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let text = manifest["experiment"].as_str().unwrap();
        let experiment = Experiment::parse(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(experiment.to_toml(), text, "{}", path.display());
        read += 1;
    }
    assert!(read >= 7);
}

#[test]
fn every_shipped_table_is_for_the_host_it_names() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("checkpoints");
    let mut judged = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if !entry.path().is_dir() {
            continue;
        }
        let name = entry.file_name().into_string().unwrap();
        let path = shipped(&name);
        let bytes = fs::read(path.trim_start_matches("table:")).unwrap();
        let table = kvtide_runtime::Table::parse(&bytes).unwrap();
        let metadata = table.metadata();
        let host = metadata.clone().get("host").unwrap_or_else(|| panic!("{name} names no host"));
        let host = kvtide_runtime::Host::from_name(host).unwrap();
        host.check(&table, true, 0.1).unwrap_or_else(|unfit| panic!("{name}: {unfit}"));
        assert!(table.fallback_watermark().is_some(), "{name} does not say what it falls back to");
        assert!(metadata.get("features").is_some(), "{name} does not say which features it uses");
        judged += 1;
    }
    assert!(judged >= 7);
}
