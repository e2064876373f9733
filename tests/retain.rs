//! `kvtide retain`: a second tree for a table, what it refuses, and that what it writes is used where it is judged.

use std::fs;
use std::path::Path;

use kvtide::export;
use kvtide_runtime::Table;
use tempfile::tempdir;

use crate::common::{done, kvtide, lines, refused};

/// Sessions on a pool that holds some of them, as briefly as anything can be learned.
const EXPERIMENT: &str = r#"
name = "sessions"
profile = "watermark"

[world]
workload = "agentic:rate=0.1,duration=240"
env = "llama-3-8b@h100"
slo = "ttft:2000,tpot:50,stall:2000"
set = ["num_gpu_blocks=9000"]

[episodes]
fit = 1.0
length_s = 60.0
load = [0.8, 1.2]

[validation]
episodes = 4
every = 1
"#;

const BRIEF: [&str; 14] = [
    "--leaves",
    "2,4",
    "--searched-leaves",
    "4",
    "--population",
    "3",
    "--episodes",
    "2",
    "--releases",
    "6",
    "--judged",
    "6",
    "--json",
    "-q",
];

/// Puts an experiment and a table into `folder`.
pub fn prepare(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::write(folder.join("sessions.toml"), EXPERIMENT).unwrap();
    fs::copy(root.join("checkpoints/chat-80g/policy.kvt"), folder.join("table.kvt")).unwrap();
}

fn prepared() -> tempfile::TempDir {
    let folder = tempdir().unwrap();
    prepare(folder.path());
    folder
}

/// What teaches that table, briefly.
pub fn retain<'a>(out: &'a str, generations: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let what =
        ["retain", "--table", "table.kvt", "--experiment", "sessions.toml", "--out", out, "--generations", generations];
    [&what[..], &BRIEF, more].concat()
}

#[test]
fn a_tree_is_learned_both_ways_and_goes_on_where_it_was_interrupted() {
    let folder = prepared();
    let path = folder.path();
    let run = kvtide(path, &retain("whole", "2", &[]));
    // 1 says that no tree gains: of so little that is an answer too.
    assert!(matches!(run.code, 0 | 1), "{}", run.stderr);
    let rows = lines(&run.stdout, "retention");
    let of = |origin: &str| rows.iter().filter(|row| row["origin"] == origin).count();
    assert_eq!((of("lru"), of("constant"), of("attainment")), (1, 1, 1), "{rows:?}");
    assert!(of("reuse") >= 1, "{rows:?}");
    assert_eq!(rows.iter().filter(|row| row["chosen"] == true).count(), usize::from(run.code == 0));
    assert_eq!(path.join("whole/policy.kvt").exists(), run.code == 0);
    let lru = &rows[0];
    assert_eq!((&lru["gain"]["points"], &lru["leaves"]), (&0.0.into(), &0.into()));
    assert!(lru["hits"].as_f64().unwrap() > 0.1, "sessions share: {lru}");

    // Each candidate is the table with a tree: its heads decide as they did.
    let table = fs::read(path.join("table.kvt")).unwrap();
    let heads = Table::parse(&table).unwrap();
    for entry in fs::read_dir(path.join("whole/candidates")).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let with = Table::parse(&bytes).unwrap();
        assert!(with.retention().is_some() && with.heads() == heads.heads());
    }

    // Interrupted after one generation, and gone on with: the same bytes.
    kvtide(path, &retain("halves", "1", &[]));
    let rest = kvtide(path, &retain("halves", "2", &["--resume"]));
    assert_eq!((rest.code, &rest.stdout), (run.code, &run.stdout), "{}", rest.stderr);
    assert_eq!(fs::read(path.join("whole/search.json")).unwrap(), fs::read(path.join("halves/search.json")).unwrap());
    assert!(refused(path, &retain("halves", "2", &["--resume", "--seed", "2"])).contains("other settings"));
    assert!(refused(path, &retain("halves", "2", &[])).contains("go on with --resume"));
}

#[test]
fn what_cannot_be_learned_is_refused() {
    let folder = prepared();
    let path = folder.path();
    let with = |name: &str, from: &str, to: &str| {
        fs::write(path.join("other.toml"), EXPERIMENT.replace(from, to)).unwrap();
        let mut what = retain(name, "1", &[]);
        what[4] = "other.toml";
        refused(path, &what)
    };
    assert!(with("a", "[validation]\nepisodes = 4\nevery = 1\n", "").contains("no [validation]"));
    assert!(with("b", "slo =", "host = \"sglang-0.5\"\nslo =").contains("sglang-0.5 lets no policy choose"));
    assert!(with("c", "slo =", "prefix_cache = \"off\"\nslo =").contains("nothing to keep"));
    assert!(refused(path, &retain("d", "1", &["--price", "-1"])).contains("price = -1: expected 0 to 1000"));
    assert!(refused(path, &retain("e", "0", &[])).contains("search.generations = 0"));
    fs::write(path.join("table.kvt"), b"KVTP no table").unwrap();
    assert!(refused(path, &retain("f", "1", &[])).contains("table.kvt"));
    assert!(!path.join("f/policy.kvt").exists());
}

#[test]
fn a_table_with_a_tree_is_judged_with_it_and_one_that_keeps_nothing_is_lru() {
    let folder = prepared();
    let path = folder.path();
    let simulate = |policy: &str, more: &[&str]| {
        let what = ["simulate", "--workload", "agentic:rate=0.1,duration=120", "--env", "llama-3-8b@h100"];
        let set = [
            "--set",
            "num_gpu_blocks=9000",
            "--slo",
            "ttft:2000,tpot:50,stall:2000",
            "--json",
            "-q",
            "--policy",
            policy,
        ];
        let stdout = done(path, &[&what[..], &set, more].concat()).stdout;
        lines(&stdout, "run")[0].clone()
    };
    let bytes = fs::read(path.join("table.kvt")).unwrap();
    let tree = |class| {
        let nodes = kvtide::distil::RetentionTree::grow(&[], &kvtide::distil::DistilConfig::default());
        export::add_retention(&bytes, &nodes.with_classes(&[class])).unwrap()
    };
    fs::write(path.join("normal.kvt"), tree(kvtide_runtime::Retention::Normal)).unwrap();
    let (plain, normal) = (simulate("table:table.kvt", &[]), simulate("table:normal.kvt", &[]));
    assert_eq!(plain["hash"], normal["hash"]);
    assert!(plain["retention"].is_null() && !normal["retention"].is_null(), "{normal}");
    // What a policy's name says needs no setting either, but a host that can.
    let kept = simulate("fixed:0.01,retention=evict-first/keep", &[]);
    assert!(!kept["retention"].is_null());
    let what = ["simulate", "--workload", "chat:rate=1,duration=20", "--policy", "fixed:0.01,retention=keep"];
    assert!(refused(path, &[&what[..], &["--host", "sglang-0.5"]].concat()).contains("retention classes need"));
    assert!(refused(path, &[&what[..], &["--set", "eviction=arc"]].concat()).contains("eviction=lru or classes"));
}
