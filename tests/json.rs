//! docs/schema.json is what `--json`, `evaluate --out` and `train.jsonl` are: every line that is written fits it, every field that
//! it describes is written by something here, and docs/JSON.md is its text.
//!
//! After a change to the schema: `JSON_DOC=write cargo test --test all -- json`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::common::{done, kvtide};
use kvtide::agent::{IterationReport, Losses};
use kvtide::record::{IterationRecord, JsonLines};
use kvtide_envs::env::{Episode, Served};
use serde::Serialize;
use serde_json::{Map, Value};
use tempfile::tempdir;

/// The schema, and which of its fields were met.
struct Schema {
    root: Value,
    met: BTreeSet<String>,
}

impl Schema {
    fn load() -> Schema {
        let text = fs::read_to_string(root().join("docs/schema.json")).unwrap();
        Schema { root: serde_json::from_str(&text).unwrap(), met: BTreeSet::new() }
    }

    fn types(&self) -> &[Value] {
        self.root["oneOf"].as_array().unwrap()
    }

    /// Checks a line; what is wrong with it, if anything.
    fn check_line(&mut self, line: &Value) -> Result<(), String> {
        let kind = line["type"].as_str().ok_or("no type")?.to_owned();
        let types = self.types();
        let found = types.iter().find(|one| one["properties"]["type"]["const"] == kind.as_str());
        let data = found.ok_or(format!("no type {kind:?} in the schema"))?["properties"]["data"].clone();
        if line.as_object().is_none_or(|line| line.len() != 2) {
            return Err("an envelope has type and data".to_owned());
        }
        self.met.insert(kind.clone());
        self.check(&data, &line["data"], &kind)
    }

    /// Checks `value` at `path` against `schema`; the parts of JSON Schema that ours uses, all others are refused.
    fn check(&mut self, schema: &Value, value: &Value, path: &str) -> Result<(), String> {
        let schema = schema.as_object().ok_or("a schema is an object")?;
        for (key, rule) in schema {
            match key.as_str() {
                "description" | "items" | "properties" | "additionalProperties" | "x-seldom" => Ok(()),
                "$ref" => self.check_reference(rule, value, path),
                "anyOf" => self.check_any(rule, value, path),
                "type" => check_type(rule, value, path),
                "enum" if rule.as_array().is_some_and(|all| all.contains(value)) => Ok(()),
                "enum" => Err(format!("{path} is {value}, none of {rule}")),
                "minimum" if value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()) => Ok(()),
                "maximum" if value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()) => Ok(()),
                "minimum" | "maximum" => Err(format!("{path} is {value}: {key} {rule}")),
                "required" => check_required(rule, value, path),
                key => Err(format!("{path}: {key} is not known here")),
            }?;
        }
        match value {
            Value::Object(fields) => self.check_fields(schema, fields, path),
            Value::Array(all) if schema.contains_key("items") => {
                all.iter().try_for_each(|one| self.check(&schema["items"], one, &format!("{path}[]")))
            }
            _ => Ok(()),
        }
    }

    fn check_reference(&mut self, to: &Value, value: &Value, path: &str) -> Result<(), String> {
        let name = to.as_str().and_then(|to| to.strip_prefix("#/$defs/")).ok_or("a reference within the schema")?;
        let schema = self.root["$defs"][name].clone();
        for field in value.as_object().into_iter().flat_map(Map::keys) {
            self.met.insert(format!("{name}.{field}"));
        }
        self.check(&schema, value, path)
    }

    fn check_any(&mut self, rules: &Value, value: &Value, path: &str) -> Result<(), String> {
        let mut reasons = Vec::new();
        for rule in rules.as_array().ok_or("anyOf is a list")? {
            let before = self.met.clone();
            match self.check(rule, value, path) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(reason),
            }
            self.met = before;
        }
        Err(reasons.join("; or "))
    }

    fn check_fields(
        &mut self,
        schema: &Map<String, Value>,
        fields: &Map<String, Value>,
        path: &str,
    ) -> Result<(), String> {
        if !["properties", "additionalProperties"].iter().any(|key| schema.contains_key(*key)) {
            return Ok(());
        }
        for (name, value) in fields {
            let at = format!("{path}.{name}");
            match (schema.get("properties").and_then(|all| all.get(name)), schema.get("additionalProperties")) {
                (Some(rule), _) => self.check(&rule.clone(), value, &at)?,
                (None, Some(Value::Object(rule))) => self.check(&Value::Object(rule.clone()), value, &at)?,
                _ => return Err(format!("{at} is written and not documented")),
            }
        }
        Ok(())
    }

    /// What is described of lines of those types and was not met, but for what says why it is not.
    fn unmet(&self, is_asked: impl Fn(&str) -> bool) -> Vec<String> {
        let kind = |one: &Value| one["properties"]["type"]["const"].as_str().unwrap().to_owned();
        let asked: Vec<&Value> = self.types().iter().filter(|one| is_asked(&kind(one))).collect();
        let mut reached = BTreeSet::new();
        for one in &asked {
            self.reach(one, &mut reached);
        }
        let mut unmet = Vec::new();
        for name in &reached {
            let definition = &self.root["$defs"][name];
            for (field, rule) in definition["properties"].as_object().into_iter().flatten() {
                let key = format!("{name}.{field}");
                if !self.met.contains(&key) && rule.get("x-seldom").is_none() {
                    unmet.push(key);
                }
            }
        }
        unmet.extend(asked.into_iter().map(kind).filter(|kind| !self.met.contains(kind)));
        unmet
    }

    /// The definitions that `schema` refers to, and those that these do.
    fn reach(&self, schema: &Value, reached: &mut BTreeSet<String>) {
        match schema {
            Value::Object(rules) => {
                let to = rules.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
                if let Some(name) = to
                    && reached.insert(name.to_owned())
                {
                    self.reach(&self.root["$defs"][name], reached);
                }
                rules.values().for_each(|rule| self.reach(rule, reached));
            }
            Value::Array(rules) => rules.iter().for_each(|rule| self.reach(rule, reached)),
            _ => {}
        }
    }
}

fn check_type(rule: &Value, value: &Value, path: &str) -> Result<(), String> {
    let is = |name: &Value| match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    };
    let fits = rule.as_array().map_or_else(|| is(rule), |names| names.iter().any(is));
    if fits { Ok(()) } else { Err(format!("{path} is {value}, not of type {rule}")) }
}

fn check_required(rule: &Value, value: &Value, path: &str) -> Result<(), String> {
    let Some(fields) = value.as_object() else { return Ok(()) };
    let missing = rule.as_array().unwrap().iter().find(|name| !fields.contains_key(name.as_str().unwrap()));
    missing.map_or(Ok(()), |name| Err(format!("{path} has no {name}")))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Something of everything that is written, in a folder for it.
fn written(folder: &Path) -> String {
    let table = root().join("runtime/tests/edition1/chat-24g.kvt");
    fs::copy(&table, folder.join("policy.kvt")).unwrap();
    let mut all = String::new();
    let mut run = |arguments: &[&str]| all.push_str(&done(folder, arguments).stdout);
    done(folder, &["trace", "generate", "chat:rate=3,duration=60,seed=3", "plain.jsonl"]);
    let rows = fs::read_to_string(folder.join("plain.jsonl")).unwrap();
    let named = rows.lines().map(|row| row.replacen('{', "{\"tenant\":\"acme\",\"slo_class\":\"chat\",", 1) + "\n");
    fs::write(folder.join("traffic.jsonl"), named.collect::<String>()).unwrap();
    let mut evaluate = vec!["evaluate", "--trace", "traffic.jsonl", "--set", "num_gpu_blocks=1500", "--pool", "0.9"];
    evaluate.extend(["--loads", "auto", "--seeds", "1..2", "--policy", "default", "--policy", "best-fixed"]);
    evaluate.extend(["--policy", "table:policy.kvt", "--clock-spread", "1", "--json", "--out", "runs.jsonl"]);
    run(&evaluate);
    // Far from what the table was trained on.
    let far = format!("table:{}", root().join("runtime/tests/edition1/reasoning.kvt").display());
    let small = ["--set", "num_gpu_blocks=300", "--json"];
    run(&[&["simulate", "--workload", "chat:rate=3,duration=60", "--policy", &far], &small[..]].concat());
    let closed = ["--engine", "v0", "--memory", "host:64", "--clients", "4", "--json"];
    run(&[&["simulate", "--workload", "chat:rate=3,duration=20"], &closed[..]].concat());
    let tier = ["--set", "host_cache=write-through", "--set", "num_cpu_blocks=500"];
    run(&[&["simulate", "--workload", "chat:rate=3,duration=20"], &tier[..], &["--json"]].concat());
    let tiers = ["evict", "compare", "--profile", "deadline_pressure:turns=60", "--hbm-mb", "1"];
    run(&[&tiers[..], &["--policies", "lru,deadline", "--decisions", "why.jsonl", "--json"]].concat());
    run(&["evict", "explain", "why.jsonl", "--policy", "lru", "--deadlines", "--json"]);
    run(&["evict", "explain", "why.jsonl", "--policy", "deadline", "--steps", "64..80", "--json"]);
    run(&["trace", "stats", "traffic.jsonl", "--json"]);
    fs::create_dir(folder.join("day")).unwrap();
    fs::write(folder.join("day/chunk-0-trace.csv"), "0,2.0,1.5,Gamma,1,1\n600,2.0,1.5,Gamma,1,1\n").unwrap();
    let lengths = "{\"0\": {\"input_tokens\": \"{100: 1.0}\", \"output_tokens\": \"{20: 0.5, 40: 0.5}\"}}";
    fs::write(folder.join("day/chunk-0-dataset.json"), lengths).unwrap();
    run(&["trace", "stats", "day", "--json"]);
    fs::write(folder.join("rates.jsonl"), RATES).unwrap();
    run(&["trace", "stats", "rates.jsonl", "--json"]);
    run(&["inspect", "policy.kvt", "--json"]);
    run(&["inspect", root().join("checkpoints/chat-24g").to_str().unwrap(), "--json"]);
    run(&["explain", "policy.kvt", "oldest_wait=0.5", "late_waiting=0.1", "progress=0.2", "growth_1=1", "--json"]);
    crate::retention::retaining(&folder.join("retaining.kvt"));
    run(&["inspect", "retaining.kvt", "--json"]);
    run(&["explain", "retaining.kvt", "--retention", "part=1", "turn=2", "--json"]);
    done(
        folder,
        &["export", "--table", "retaining.kvt", "--retention", "json", "--turnover", "9", "--out", "rules.json"],
    );
    let sessions =
        ["--workload", "agentic:rate=0.12,duration=60", "--set", "eviction=classes", "--releases", "a.jsonl"];
    run(&[&["simulate"], &sessions[..], &["--json"]].concat());
    run(&["replay", "--golden", root().join("tests/golden/vllm-v1").to_str().unwrap(), "--json"]);
    let prefixes = ["evict", "replay", "--workload", "agentic:rate=0.2,duration=10m", "--policy", "lru", "--json"];
    run(&prefixes);
    let price =
        ["evict", "token-pd", "--process", "mixed:prompt=128,answer=64,n=4", "--streams", "4", "--steps", "256"];
    run(&[&price[..], &["--training-steps", "20", "--seeds", "1,2", "--json"]].concat());
    crate::retain::prepare(folder);
    all.push_str(&kvtide(folder, &crate::retain::retain("kept", "1", &[])).stdout);
    let mut run = |arguments: &[&str]| all.push_str(&done(folder, arguments).stdout);
    fs::write(folder.join("search.toml"), SEARCH).unwrap();
    run(&["train", "--experiment", "search.toml", "--out", "run"]);
    fs::copy(&table, folder.join("run/policy.kvt")).unwrap();
    run(&["inspect", "run", "--json"]);
    fs::write(folder.join("timings.json"), serde_json::to_string(&crate::timings::measured()).unwrap()).unwrap();
    run(&["calibrate", "--timings", "timings.json", "--env", "llama-3-8b@h200", "--json"]);
    let tuned = [
        "--env",
        "qwen2.5-0.5b@rtx-4090",
        "--set",
        "num_gpu_blocks=220",
        "--effort",
        "smoke",
        "--clock-spread",
        "1",
        "--json",
    ];
    let tune = ["tune", "--workload", "uniform:rate=6,duration=90,in=150,out=60,spread=0.5", "--out", "tuned"];
    all.push_str(&kvtide(folder, &[&tune[..], &tuned].concat()).stdout);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let rules: Value = serde_json::from_str(&read("rules.json")).unwrap();
    all + &read("runs.jsonl") + &read("run/train.jsonl") + &read("a.jsonl") + &format!("{rules}\n") + &recorded()
}

/// What takes libtorch, or long: lines of the same data.
fn recorded() -> String {
    let mut bytes = Vec::new();
    let mut lines = JsonLines::new(&mut bytes);
    kvtide::bench::bytes_per_request(&mut |figure| lines.write("bench", &figure).unwrap());
    let served = Served { requests: 4, on_time: 3, ..Served::default() };
    let report = IterationReport {
        iteration: 1,
        decisions: 256,
        learning_rate: 1e-3,
        entropy_coef: 0.01,
        losses: Losses::default(),
        episodes: vec![Episode { env: 0, episode_return: 3.0, decisions: 20, served }],
    };
    lines.write("iteration", &IterationRecord::new(&report, 1000.0)).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// A rate-and-length profile.
const RATES: &str = concat!(
    "{\"kvtide_profile\":1,\"engine\":\"vllm\",\"models\":[\"m\"],\"engines\":1,\"counts\":\"arrivals\",\"lengths\":\"means\",",
    "\"every_s\":10.0,\"began_unix_s\":1700000000,\"lost\":\"much\"}\n",
    "{\"start_s\":0.0,\"seconds\":10.0,\"requests\":20,\"completed\":20,\"prompt\":{\"tokens\":2000},",
    "\"output\":{\"tokens\":400}}\n",
);

/// A search as small as there is one.
const SEARCH: &str = "name = \"small\"\nprofile = \"full\"\nmethod = \"cross-entropy\"\nprior = \"fixed:0.05\"\nfallback = 0.05\n[world]\nworkload = \
    \"chat:rate=3,duration=120\"\n[episodes]\nfit = 0.66\nlength_s = 30.0\nload = [0.4, 0.6]\n[validation]\nepisodes = 2\n\
    every = 9\n[cross_entropy]\ngenerations = 1\npopulation = 4\nepisodes = 1\nseed = 1\n";

#[test]
fn every_line_is_documented_and_every_documented_field_is_written() {
    let folder = tempdir().unwrap();
    let text = written(folder.path());
    let mut schema = Schema::load();
    let mut faults = Vec::new();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        faults.extend(schema.check_line(&value).err());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // A calibration and a bisection take long; where one is made anyway it is held to the schema.
    let unmet = schema.unmet(|kind| !["calibration", "clock_report", "perf_db", "capacity"].contains(&kind));
    assert!(unmet.is_empty(), "documented and never written: {unmet:?}");
    // `--out` has the lines of `--json`, which stand first, and what it needs to be gone on with.
    let out = fs::read_to_string(folder.path().join("runs.jsonl")).unwrap();
    let own = ["evaluation", "tried", "capacity", "finished"].map(|kind| format!("{{\"type\":\"{kind}\""));
    let shared: Vec<&str> = out.lines().filter(|line| !own.iter().any(|own| line.starts_with(own))).collect();
    assert!(shared.len() > 20 && text.starts_with(&(shared.join("\n") + "\n")), "{out:.300}");
}

/// Holds one line to the schema, and all of the schema that is about its type to it.
pub fn documented(kind: &str, data: &impl Serialize) {
    let mut schema = Schema::load();
    schema.check_line(&serde_json::json!({"type": kind, "data": data})).unwrap();
    let unmet = schema.unmet(|other| other == kind);
    assert!(unmet.is_empty(), "documented and not written: {unmet:?}");
}

/// A check that takes everything would be none.
#[test]
fn what_is_not_documented_is_refused() {
    let mut schema = Schema::load();
    let mut fails = |line: Value, part: &str| {
        let reason = schema.check_line(&line).unwrap_err();
        assert!(reason.contains(part), "{reason}");
    };
    let load = serde_json::json!({"target": 0.9, "load": 0.5, "attained": 0.9, "offered_rps": null});
    let with = |key: &str, value: Value| {
        let mut data = load.clone();
        data[key] = value;
        serde_json::json!({"type": "load", "data": data})
    };
    fails(with("more", 1.into()), "load.more is written and not documented");
    fails(with("target", 2.into()), "maximum");
    fails(with("target", "x".into()), "not of type");
    fails(serde_json::json!({"type": "loads", "data": load}), "no type");
    fails(serde_json::json!({"type": "load", "data": {"target": 0.9}}), "has no");
    assert!(schema.check_line(&with("target", 0.5.into())).is_ok());
}

#[test]
fn the_document_is_the_schemas_text() {
    let path = root().join("docs/JSON.md");
    let text = document(&Schema::load());
    if std::env::var("JSON_DOC").is_ok_and(|what| what == "write") {
        fs::write(&path, &text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap();
    assert!(
        kept == text,
        "docs/JSON.md is not the text of docs/schema.json: JSON_DOC=write cargo test --test all -- json"
    );
}

const HEAD: &str = "# Lines of JSON

`--json` writes JSON Lines to stdout, `evaluate --out` the same lines to a file, and a training run leaves `train.jsonl`: one object a line,
each in the envelope `{\"type\": …, \"data\": …}`. A reader takes the types it knows and passes over the rest; new fields may come,
those that are here keep their meaning. Results from before lines had an envelope are bare `run` data; `kvtide` and the scripts of `experiments/` read both.

Units stand last in a name: `_ms`, `_s`, `_rps` (requests a second), `_tok_s` (tokens a second). Times are the simulator's clock. A number
that there is none of is `null`; a field that may be left out says so. [schema.json](schema.json) is the same for programs (JSON Schema
2020-12); this page is made from it, and a test holds both against what is written.

| type | written by |
|---|---|
";

fn document(schema: &Schema) -> String {
    let mut text = HEAD.to_owned();
    for one in schema.types() {
        let kind = one["properties"]["type"]["const"].as_str().unwrap();
        let data = &one["properties"]["data"];
        let _ = writeln!(text, "| `{kind}`: {} | {} |", range(data), one["description"].as_str().unwrap());
    }
    for (name, definition) in schema.root["$defs"].as_object().unwrap() {
        let _ = write!(text, "\n## {name}\n\n{}\n", definition["description"].as_str().unwrap());
        let Some(fields) = definition["properties"].as_object() else {
            let _ = writeln!(text, "\nWritten as {}.", range(definition));
            continue;
        };
        let required = definition["required"].as_array().unwrap();
        text.push_str("\n| field | type | |\n|---|---|---|\n");
        for (field, rule) in fields {
            let optional = if required.iter().any(|one| one == field) { "" } else { " May be left out." };
            let _ = writeln!(
                text,
                "| `{field}` | {} | {}{optional} |",
                range(rule),
                rule["description"].as_str().unwrap().replace('|', "\\|")
            );
        }
    }
    text
}

/// A rule in a few words: `number, 0 to 1`, `list of [Stretch](#stretch)`, `string or null`.
fn range(rule: &Value) -> String {
    if let Some(to) = rule["$ref"].as_str() {
        let name = to.trim_start_matches("#/$defs/");
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(all) = rule["anyOf"].as_array() {
        return all.iter().map(range).collect::<Vec<String>>().join(" or ");
    }
    if let Some(all) = rule["enum"].as_array() {
        let word = |one: &Value| one.as_str().map_or_else(|| one.to_string(), |one| format!("`{one}`"));
        return all.iter().map(word).collect::<Vec<String>>().join(", ");
    }
    let names: Vec<&str> = match &rule["type"] {
        Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
        name => vec![name.as_str().unwrap()],
    };
    let mut text = names.join(" or ");
    if rule["items"].is_object() {
        text = text.replacen("array", &format!("list of {}", range(&rule["items"])), 1);
    }
    if rule["additionalProperties"].is_object() {
        text = text.replacen("object", &format!("object of {} by name", range(&rule["additionalProperties"])), 1);
    }
    match (rule["minimum"].as_f64(), rule["maximum"].as_f64()) {
        (Some(low), Some(high)) => text + &format!(", {low} to {high}"),
        (Some(low), None) => text + &format!(", from {low}"),
        _ => text,
    }
}
