//! The golden replay of V1 notices: logs written here by the reference model replay clean; with any one field of any step
//! changed they do not.

use std::collections::BTreeSet;

use crate::common::record_v1::usage;
use crate::common::reference_v1::{Ask, Params, Reference};
use kvtide_envs::golden::{self, Divergence, GoldenError, RunReport};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Shared text: a stream that is nobody's own.
const SYSTEM_PROMPT: u32 = 1_000_000;

/// A run to record.
struct Run {
    params: Params,
    watermark: f64,
    /// `(step of arrival, request)`.
    requests: Vec<(usize, Ask)>,
}

fn engine(block_size: u32, num_blocks: u32) -> Params {
    Params {
        block_size,
        num_blocks,
        prefix_caching: false,
        max_num_batched_tokens: 8,
        max_num_seqs: 4,
        max_model_len: block_size * (num_blocks - 1),
        long_prefill_token_threshold: 0,
        scheduler_reserve_full_isl: true,
        chunked_prefill: true,
        async_scheduling: false,
    }
}

fn ask(id: u32, prompt: u32, output: u32) -> Ask {
    Ask { id, prompt, output, ..Ask::default() }
}

/// Begins as others do.
fn sharing(id: u32, prompt: u32, output: u32) -> Ask {
    Ask { prefix: vec![(SYSTEM_PROMPT, 4)], ..ask(id, prompt, output) }
}

/// Chunks, a shared prompt, growth that preempts, a victim that finds its own blocks again, and a conversation's next
/// turn. Ids do not follow the order of arrival.
fn crowded() -> Run {
    let params = Params { prefix_caching: true, max_model_len: 20, ..engine(2, 12) };
    let turn = Ask { prefix: vec![(SYSTEM_PROMPT, 4), (2, 9)], ..ask(0, 16, 30) };
    let requests = vec![(0, sharing(2, 7, 6)), (1, sharing(1, 6, 6)), (3, ask(3, 3, 8)), (14, turn)];
    Run { params, watermark: 0.1, requests }
}

/// Planned ahead, the last request is preempted with its last token on the way: it finishes while it waits.
fn overtaken() -> Run {
    let params = Params { prefix_caching: true, max_model_len: 20, ..engine(2, 12) };
    let requests = vec![(0, sharing(0, 7, 8)), (1, sharing(1, 6, 8)), (3, ask(2, 2, 3))];
    Run { params, watermark: 0.1, requests }
}

/// A prompt that never fits blocks everybody behind it.
fn stalled() -> Run {
    let params = Params { max_model_len: 40, long_prefill_token_threshold: 3, ..engine(4, 5) };
    Run {
        params,
        watermark: 0.3,
        requests: vec![(0, ask(0, 5, 2)), (0, ask(1, 4, 3)), (2, ask(2, 17, 1)), (3, ask(3, 1, 1))],
    }
}

/// Without the full-prompt test it is admitted once it is alone, chunk by chunk, up to the end of the pool, and preempts
/// itself for ever.
fn endless() -> Run {
    let params = Params { max_model_len: 40, scheduler_reserve_full_isl: false, ..engine(4, 5) };
    Run { params, watermark: 0.5, requests: vec![(0, ask(0, 2, 3)), (0, ask(1, 17, 1))] }
}

fn ahead(run: Run) -> Run {
    Run { params: Params { async_scheduling: true, ..run.params }, ..run }
}

/// Runs that between them have every field and every end.
fn logs() -> Vec<Value> {
    let runs = [crowded, overtaken, stalled, endless];
    runs.iter().flat_map(|run| [record(&run()), record(&ahead(run()))]).collect()
}

/// Longer runs are cut.
const MAX_STEPS: usize = 30;

/// A decision log of the reference model, as FORMAT.md describes it.
fn record(run: &Run) -> Value {
    let mut reference = Reference::new(run.params);
    let mut arrivals = run.requests.iter().peekable();
    let (mut steps, mut finished, mut hit_tokens, mut idle) = (Vec::new(), 0, 0, 0);
    let kind = loop {
        while let Some((_, ask)) = arrivals.next_if(|(step, _)| *step <= steps.len()) {
            reference.submit(ask.clone());
        }
        let all_arrived = arrivals.peek().is_none();
        if all_arrived && reference.is_empty() {
            break "done";
        }
        if steps.len() == MAX_STEPS {
            break "max_steps";
        }
        let record = reference.step(run.watermark);
        steps.push(record.to_json(steps.len(), run.params.num_blocks));
        finished += record.finished.len();
        hit_tokens += record.hits();
        idle = if record.is_idle() && all_arrived && !reference.is_empty() { idle + 1 } else { 0 };
        if idle == 3 {
            break "stalled";
        }
    };
    let mut end = json!({
        "kind": kind, "steps": steps.len(), "finished": finished, "preemptions": reference.preemptions(),
        "hit_tokens": hit_tokens, "free": reference.free(), "usage": usage(reference.free(), run.params.num_blocks),
    });
    if kind == "stalled" {
        let [waiting, running] = reference.queues();
        end["waiting"] = json!(waiting);
        end["running"] = json!(running);
    }
    json!({
        "name": "small", "seed": 0, "version": "vllm 0.33.0", "params": settings(run),
        "requests": run.requests.iter().map(request).collect::<Value>(), "steps": steps, "end": end,
    })
}

fn settings(run: &Run) -> Value {
    let params = &run.params;
    let mut settings = json!({
        "block_size": params.block_size,
        "num_blocks": params.num_blocks,
        "watermark": run.watermark,
        "watermark_blocks": (run.watermark * f64::from(params.num_blocks)).trunc() as u32,
        "prefix_caching": params.prefix_caching,
        "max_num_batched_tokens": params.max_num_batched_tokens,
        "max_num_seqs": params.max_num_seqs,
        "max_model_len": params.max_model_len,
        "long_prefill_token_threshold": params.long_prefill_token_threshold,
        "scheduler_reserve_full_isl": params.scheduler_reserve_full_isl,
        "chunked_prefill": params.chunked_prefill,
    });
    if params.async_scheduling {
        settings["async_scheduling"] = json!(true);
    }
    settings
}

fn request((step, ask): &(usize, Ask)) -> Value {
    let mut request = json!({"id": ask.id, "arrival_step": step, "prompt_len": ask.prompt, "output_len": ask.output});
    if !ask.prefix.is_empty() {
        request["prefix"] = json!(ask.prefix);
    }
    request
}

/// A folder of files to replay.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn replay(&self, log: &Value) -> Result<RunReport, GoldenError> {
        let path = self.0.path().join("small_0.json");
        std::fs::write(&path, log.to_string()).unwrap();
        golden::replay_log(&path)
    }

    #[track_caller]
    fn divergence(&self, log: &Value) -> Divergence {
        self.replay(log).unwrap().divergence.expect("the change is noticed")
    }
}

#[test]
fn logs_of_our_own_replay_clean() {
    let folder = Folder::new();
    let reports: Vec<RunReport> = logs().iter().map(|log| folder.replay(log).unwrap()).collect();
    for report in &reports {
        assert_eq!(report.divergence, None, "{report:#?}");
    }
    let ends: Vec<&str> = reports.iter().map(|report| report.end.as_str()).collect();
    assert_eq!(ends, ["done", "done", "done", "done", "stalled", "stalled", "max_steps", "max_steps"]);
}

/// The runs show what they are for.
#[test]
fn logs_of_our_own_have_the_rare_events() {
    let has = |log: &Value, event: fn(&Value) -> bool| log["steps"].as_array().unwrap().iter().any(event);
    let [crowded, _, overtaken, overtaken_ahead, _, _, endless, _] = logs().try_into().unwrap();
    let hits = |step: &Value| step["resumed"][0][2].as_u64() > Some(0);
    assert!(has(&crowded, hits));
    let finishes_without_running = |step: &Value| {
        let finished = step["finished"][0].as_u64();
        finished.is_some() && finished == step["preempted"][0][0].as_u64()
    };
    assert!(has(&overtaken_ahead, finishes_without_running) && !has(&overtaken, finishes_without_running));
    assert!(has(&endless, |step| step["refused"][0][1] == "A"));
}

/// Another value of the same shape.
fn other(value: &Value) -> Value {
    match value {
        Value::Number(number) => {
            number.as_u64().map_or_else(|| json!(number.as_f64().unwrap() + 0.5), |n| json!(n + 1))
        }
        Value::String(text) => json!(format!("{text}!")),
        Value::Array(list) if list.is_empty() => json!([0]),
        Value::Array(list) => {
            let mut list = list.clone();
            *list.last_mut().unwrap() = other(&list[list.len() - 1]);
            json!(list)
        }
        other => panic!("{other} is not in a log"),
    }
}

#[test]
fn any_changed_field_of_any_step_is_named() {
    let folder = Folder::new();
    let mut seen = BTreeSet::new();
    for log in logs() {
        for (index, step) in log["steps"].as_array().unwrap().iter().enumerate() {
            for (field, ours) in step.as_object().unwrap() {
                let mut changed = log.clone();
                changed["steps"][index][field] = other(ours);
                let theirs = other(ours);
                let expected = Divergence { step: Some(index), field: field.clone(), theirs, ours: ours.clone() };
                assert_eq!(folder.divergence(&changed), expected);
                changed["steps"][index].as_object_mut().unwrap().remove(field);
                assert_eq!(folder.divergence(&changed), Divergence { theirs: Value::Null, ..expected });
                seen.insert(field.clone());
            }
        }
    }
    assert_eq!(seen.len(), 17, "{seen:?}");
}

#[test]
fn any_changed_field_of_the_end_is_named() {
    let folder = Folder::new();
    for log in logs() {
        for (field, ours) in log["end"].as_object().unwrap() {
            let mut changed = log.clone();
            changed["end"][field] = other(ours);
            let divergence = folder.divergence(&changed);
            // Where the cut of an endless run is not announced, ours goes on.
            if (field.as_str(), ours.as_str()) == ("kind", Some("max_steps")) {
                assert_eq!((divergence.field.as_str(), divergence.ours), ("steps", json!("goes on")));
                continue;
            }
            let expected = Divergence { step: None, field: field.clone(), theirs: other(ours), ours: ours.clone() };
            assert_eq!(divergence, expected);
        }
    }
}

#[test]
fn missing_and_added_steps_are_noticed() {
    let folder = Folder::new();
    for log in logs() {
        let steps = log["steps"].as_array().unwrap().len();
        let mut short = log.clone();
        short["steps"].as_array_mut().unwrap().pop();
        let divergence = folder.divergence(&short);
        assert_eq!(divergence.step, None);
        assert!(divergence.field == "steps" || log["end"]["kind"] == "max_steps", "{divergence:?}");
        let mut long = log.clone();
        let last = log["steps"][steps - 1].clone();
        long["steps"].as_array_mut().unwrap().push(last);
        let divergence = folder.divergence(&long);
        let expected = if log["end"]["kind"] == "max_steps" { (Some(steps), "bt_crc") } else { (None, "steps") };
        assert_eq!((divergence.step, divergence.field.as_str()), expected);
    }
}

/// What the settings say is what is replayed.
#[test]
fn other_settings_are_noticed() {
    let folder = Folder::new();
    let (synchronous, planned_ahead) = (record(&crowded()), record(&ahead(crowded())));
    for (log, setting, value) in [
        (&synchronous, "async_scheduling", json!(true)),
        (&planned_ahead, "async_scheduling", json!(false)),
        (&synchronous, "prefix_caching", json!(false)),
        (&synchronous, "max_num_batched_tokens", json!(5)),
        (&synchronous, "max_num_seqs", json!(1)),
        (&synchronous, "max_model_len", json!(19)),
        (&synchronous, "block_size", json!(3)),
        (&synchronous, "num_blocks", json!(10)),
        (&synchronous, "chunked_prefill", json!(false)),
        (&synchronous, "long_prefill_token_threshold", json!(2)),
    ] {
        let mut changed = log.clone();
        changed["params"][setting] = value;
        let divergence = folder.divergence(&changed);
        assert!(divergence.step.is_some() || divergence.field == "watermark_blocks", "{setting}: {divergence:?}");
    }
    let mut unshared = synchronous.clone();
    unshared["requests"][1].as_object_mut().unwrap().remove("prefix");
    let divergence = folder.divergence(&unshared);
    assert_eq!((divergence.step, divergence.field.as_str()), (Some(1), "bt_crc"));
}

#[test]
fn malformed_logs_are_errors_with_a_reason() {
    let folder = Folder::new();
    let log = record(&crowded());
    let changed = |pointer: &str, value: Value| {
        let mut log = log.clone();
        *log.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        match folder.replay(&log).unwrap_err() {
            GoldenError::Malformed { reason, .. } => reason,
            other => panic!("{other}"),
        }
    };
    let has = |said: String, expected: &str| assert!(said.contains(expected), "{said:?} has no {expected:?}");
    has(changed("/version", json!("vllm 0.34.0")), "logs of \"vllm 0.34.0\" are not supported");
    has(changed("/params/chunked_prefill", json!(1)), "expected a boolean");
    has(changed("/params/block_size", json!(0)), "block_size is 0");
    has(changed("/params/max_num_seqs", json!(1 << 20)), "max_num_seqs is 1048576");
    has(changed("/params", json!({"lookahead": 1})), "unknown field `lookahead`");
    has(changed("/requests/1/id", json!(2)), "not numbered from 0");
    has(changed("/requests/2/prompt_len", json!(0)), "an empty prompt or answer");
    has(changed("/requests/2/output_len", json!(0)), "an empty prompt or answer");
    has(changed("/requests/2/prompt_len", json!(20)), "max_model_len is 20");
    has(changed("/requests/2/prompt_len", json!(1_u64 << 40)), "1099511627776");
    has(changed("/requests/3/prefix/0/1", json!(0)), "does not rise");
    has(changed("/requests/3/prefix/1/1", json!(4)), "does not rise");
    has(changed("/requests/3/prefix/1/1", json!(17)), "within its prompt");
    has(changed("/steps/3", json!([])), "expected a map");
    has(changed("/end", json!("done")), "expected a map");
}

/// Numbers a scheduler cannot count with must not bring the replay down.
#[test]
fn absurd_numbers_do_not_panic() {
    let folder = Folder::new();
    for log in logs() {
        for index in 0..log["requests"].as_array().unwrap().len() {
            for field in ["prompt_len", "output_len", "arrival_step"] {
                let mut changed = log.clone();
                changed["requests"][index][field] = json!(u32::MAX);
                let _ = folder.replay(&changed);
            }
        }
        for (setting, value) in
            [("num_blocks", 1), ("num_blocks", 2), ("max_num_batched_tokens", 1), ("block_size", 4096)]
        {
            let mut changed = log.clone();
            changed["params"][setting] = json!(value);
            changed["params"]["watermark"] = json!(0.0);
            changed["params"]["watermark_blocks"] = json!(0);
            let _ = folder.replay(&changed);
        }
        let mut changed = log;
        changed["params"]["watermark"] = json!(1e300);
        assert_eq!(folder.divergence(&changed).field, "watermark_blocks");
        changed["params"]["watermark_blocks"] = json!(u32::MAX);
        let _ = folder.replay(&changed);
    }
}
