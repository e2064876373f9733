//! The golden replay notices: a log written here, by a second implementation of the format, replays clean; with any one
//! field of any step changed it does not.

use std::path::PathBuf;

use crate::common::line::{Line, decodes};
use crate::common::{chunked, controls, faithful};
use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::golden::{self, Divergence, GoldenError, RunReport};
use kvtide_envs::sched::{BlockCopy, Outcome, Slo, StepPlan, V0};
use kvtide_envs::tier::{Route, Tier};
use kvtide_envs::time::Micros;
use kvtide_runtime::{Controls, Preemption};
use serde_json::{Value, json};
use tempfile::TempDir;

type Requests<'a> = &'a [(usize, u32, u32)];

fn crc(values: impl IntoIterator<Item = u32>) -> u32 {
    let bytes: Vec<u8> = values.into_iter().flat_map(u32::to_le_bytes).collect();
    crc32fast::hash(&bytes)
}

/// A decision log of our own faithful scheduler, as FORMAT.md describes it. `requests` are `(step, prompt, output)`.
fn record(engine: &EngineConfig, watermark: f64, swap: bool, requests: Requests<'_>) -> Value {
    let mut scheduler = V0::new(engine.clone()).unwrap();
    let preemption = if swap { Preemption::Swap } else { Preemption::Recompute };
    let controls = Controls { watermark, preemption, ..controls() };
    let (mut plan, mut outcome) = (StepPlan::default(), Outcome::default());
    let (mut steps, mut submitted, mut finished, mut idle) = (Vec::new(), 0, 0, 0);
    let kind = loop {
        let now = Micros(steps.len() as u64);
        while let Some(&(_, prompt, output)) = requests.get(submitted).filter(|request| request.0 <= steps.len()) {
            scheduler.submit(now, prompt, output, Slo::default());
            submitted += 1;
        }
        if submitted == requests.len() && scheduler.is_empty() {
            break json!({"kind": "done"});
        }
        if scheduler.schedule(now, &controls, &mut plan).is_err() {
            let line = Line::of(&plan, &scheduler);
            let mut preempted: Vec<Value> = line.preempted.iter().map(|victim| json!(victim)).collect();
            // The victim that could not be swapped out is in no queue any more.
            let lost = (0..submitted as u32).find(|id| !line.queues.iter().any(|queue| queue.contains(id)));
            preempted.push(json!([lost, "?"]));
            let (step, out) = (steps.len(), line.swapped_out);
            break json!({"kind": "raised", "type": "RuntimeError", "message": "Aborted", "step": step,
                "preempted_before_raise": preempted, "swapped_out_before_raise": out});
        }
        let line = Line::of(&plan, &scheduler);
        let mut step = describe(steps.len(), &line, &plan, &scheduler);
        scheduler.complete(&plan, now, &mut outcome);
        finished += outcome.finished.len();
        if !outcome.finished.is_empty() {
            step["finished"] = json!(outcome.finished);
            step["free_gpu_end"] = json!(scheduler.pool(Tier::Gpu).num_free());
        }
        steps.push(step);
        idle = if line.is_idle() && submitted == requests.len() { idle + 1 } else { 0 };
        if idle == 3 {
            let [waiting, running, swapped] = line.queues;
            break json!({"kind": "stalled", "waiting": waiting, "running": running, "swapped": swapped});
        }
    };
    let mut end = kind;
    end["steps"] = json!(steps.len());
    end["finished"] = json!(finished);
    end["preemptions"] = json!(scheduler.preemptions());
    end["free_gpu"] = json!(scheduler.pool(Tier::Gpu).num_free());
    end["free_cpu"] = json!(scheduler.pool(Tier::Host).num_free());
    let requests: Vec<Value> = requests
        .iter()
        .enumerate()
        .map(|(id, (step, prompt, output))| {
            json!({"id": id, "arrival_step": step, "prompt_len": prompt, "output_len": output})
        })
        .collect();
    json!({
        "name": "small", "seed": 0, "version": "vllm 0.6.6.post1",
        "params": {
            "block_size": engine.block_size,
            "num_gpu_blocks": engine.num_gpu_blocks,
            "num_cpu_blocks": engine.num_cpu_blocks,
            "watermark": watermark,
            "watermark_blocks": (watermark * f64::from(engine.num_gpu_blocks)).floor() as u32,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_model_len": engine.max_model_len,
            "preemption_mode": if swap { json!("swap") } else { Value::Null },
            "chunked_prefill": engine.enable_chunked_prefill,
        },
        "requests": requests, "steps": steps, "end": end,
    })
}

fn describe(index: usize, line: &Line, plan: &StepPlan, scheduler: &V0) -> Value {
    let copies: Vec<&BlockCopy> = plan.copies[Route::HostToGpu].iter().chain(&plan.copies[Route::GpuToHost]).collect();
    let statuses = |refused: &[(u32, u32, u32, &'static str)]| {
        refused.iter().map(|(id, need, free, status)| json!([id, need, free, status.to_uppercase()])).collect::<Value>()
    };
    let scheduled = plan.prefills.iter().map(|prefill| prefill.id).chain(decodes(plan, scheduler));
    let tables = scheduled.flat_map(|id| scheduler.table(id));
    let mut step = json!({
        "step": index,
        "prefill": line.prefills,
        "decode": line.decodes,
        "preempted": line.preempted,
        "swapped_out": line.swapped_out,
        "swapped_in": line.swapped_in,
        "ignored": line.rejected,
        "alloc_refused": statuses(&line.admissions_refused),
        "swapin_refused": statuses(&line.swap_ins_refused),
        "free_gpu": line.free[0],
        "free_cpu": line.free[1],
        "q": line.queues.each_ref().map(Vec::len),
        "q_crc": line.queues.each_ref().map(|queue| crc(queue.iter().copied())),
        "tokens": line.prefills.iter().map(|prefill| prefill.1).sum::<u32>() + line.decodes.len() as u32,
        "bt_crc": crc(tables.map(|block| block.0)),
    });
    let map = step.as_object_mut().unwrap();
    let optional =
        ["prefill", "decode", "preempted", "swapped_out", "swapped_in", "ignored", "alloc_refused", "swapin_refused"];
    map.retain(|key, value| !optional.contains(&key.as_str()) || value != &json!([]));
    for (key, copies) in [("n_swap_in", &plan.copies[Route::HostToGpu]), ("n_swap_out", &plan.copies[Route::GpuToHost])]
    {
        if !copies.is_empty() {
            map.insert(key.to_owned(), json!(copies.len()));
        }
    }
    if !copies.is_empty() {
        map.insert("swap_crc".to_owned(), json!(crc(copies.iter().flat_map(|copy| [copy.src.0, copy.dst.0]))));
    }
    step
}

/// Runs that between them have every field and every end.
fn logs() -> [Value; 5] {
    let swap_engine = faithful(2, 6, 6);
    let long = EngineConfig { max_model_len: 99, max_num_batched_tokens: 99, ..faithful(2, 5, 9) };
    [
        record(&swap_engine, 0.0, true, &[(0, 4, 5), (0, 4, 5), (0, 4, 3), (2, 2, 1)]),
        record(&chunked(faithful(4, 6, 0), 5), 0.2, false, &[(0, 9, 4), (0, 3, 6), (1, 40, 1), (3, 7, 2)]),
        record(&long, 0.0, true, &[(0, 9, 9), (1, 1, 1)]),
        record(&swap_engine, 0.34, true, &[(0, 6, 8), (6, 2, 1)]),
        record(&faithful(1, 4, 2), 0.0, true, &[(0, 1, 3), (0, 1, 3), (0, 1, 2), (0, 1, 2)]),
    ]
}

/// A folder of files to replay.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn write(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join("small_0.json");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn replay(&self, log: &Value) -> Result<RunReport, GoldenError> {
        golden::replay_log(&self.write(log.to_string().as_bytes()))
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
    assert_eq!(ends, ["done", "done", "done", "stalled", "raised"]);
}

#[test]
fn a_packed_log_is_read_as_well() {
    let [log, ..] = logs();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packer, log.to_string().as_bytes()).unwrap();
    let packed = packer.finish().unwrap();
    let folder = Folder::new();
    assert_eq!(golden::replay_log(&folder.write(&packed)).unwrap().divergence, None);
    let cut = golden::replay_log(&folder.write(&packed[..packed.len() / 2])).unwrap_err();
    assert!(matches!(cut, GoldenError::Io { .. }), "{cut}");
}

/// Another value of the same shape.
fn other(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_u64().unwrap() + 1),
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
    let mut seen = std::collections::BTreeSet::new();
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
    assert_eq!(seen.len(), 20, "{seen:?}");
}

#[test]
fn any_changed_field_of_the_end_is_named() {
    let folder = Folder::new();
    for log in logs() {
        for (field, ours) in log["end"].as_object().unwrap() {
            let mut changed = log.clone();
            changed["end"][field] = other(ours);
            let report = folder.replay(&changed).unwrap();
            // What an exception says is Python's own.
            if ["type", "message"].contains(&field.as_str()) {
                assert_eq!(report.divergence, None);
                continue;
            }
            let expected = Divergence { step: None, field: field.clone(), theirs: other(ours), ours: ours.clone() };
            assert_eq!(report.divergence, Some(expected));
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
        assert_eq!((divergence.step, divergence.field.as_str()), (None, "steps"));
        let mut long = log.clone();
        let last = log["steps"][steps - 1].clone();
        long["steps"].as_array_mut().unwrap().push(last);
        let divergence = folder.divergence(&long);
        assert_eq!((divergence.field.as_str(), divergence.theirs), ("steps", json!(steps + 1)));
    }
}

#[test]
fn another_watermark_is_noticed_before_the_first_step() {
    let [mut log, ..] = logs();
    log["params"]["watermark_blocks"] = json!(1);
    let expected = Divergence { step: None, field: "watermark_blocks".to_owned(), theirs: json!(1), ours: json!(0) };
    assert_eq!(Folder::new().divergence(&log), expected);
}

#[test]
fn malformed_logs_are_errors_with_a_reason() {
    let folder = Folder::new();
    let [log, ..] = logs();
    let reason = |error: GoldenError| match error {
        GoldenError::Malformed { path, reason } => {
            assert!(path.ends_with("small_0.json"));
            reason
        }
        other => panic!("{other}"),
    };
    let text = |text: &str| reason(golden::replay_log(&folder.write(text.as_bytes())).unwrap_err());
    let changed = |pointer: &str, value: Value| {
        let mut log = log.clone();
        *log.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}")) = value;
        reason(folder.replay(&log).unwrap_err())
    };
    let has = |said: String, expected: &str| assert!(said.contains(expected), "{said:?} has no {expected:?}");
    has(text(""), "EOF");
    has(text("{"), "EOF");
    has(text("[]"), "invalid");
    has(text("{}"), "missing field `version`");
    has(text(r#"{"version": "vllm 0.6.6"}"#), "missing field `params`");
    has(changed("/version", json!("vllm 0.7.3")), "logs of \"vllm 0.7.3\" are not supported");
    has(changed("/params/preemption_mode", json!("both")), "unknown variant `both`");
    has(changed("/params/chunked_prefill", json!(1)), "expected a boolean");
    has(changed("/params/block_size", json!(0)), "block_size is 0");
    has(changed("/params/block_size", json!(-1)), "-1");
    has(changed("/params/num_gpu_blocks", json!(4_000_000_000_u32)), "num_gpu_blocks is 4000000000");
    has(changed("/params", json!({"lookahead": 1})), "unknown field `lookahead`");
    has(changed("/requests/1/id", json!(0)), "not numbered from 0");
    has(changed("/requests/0/arrival_step", json!(7)), "in order of arrival");
    has(changed("/requests/2/prompt_len", json!(0)), "an empty prompt or answer");
    has(changed("/requests/2/output_len", json!(0)), "an empty prompt or answer");
    has(changed("/requests/2/prompt_len", json!(1_u64 << 40)), "1099511627776");
    has(changed("/steps/3", json!([])), "expected a map");
    has(changed("/end", json!("done")), "expected a map");
}

#[test]
fn folders_without_logs_are_errors() {
    let folder = Folder::new();
    assert!(matches!(golden::find_logs(folder.0.path()), Err(GoldenError::NoLogs(_))));
    std::fs::write(folder.0.path().join("INDEX.json"), "{}").unwrap();
    assert!(matches!(golden::find_logs(folder.0.path()), Err(GoldenError::NoLogs(_))));
    let path = folder.write(b"{}");
    assert_eq!(golden::find_logs(folder.0.path()).unwrap(), [path]);
    let missing = folder.0.path().join("missing");
    assert!(matches!(golden::find_logs(&missing), Err(GoldenError::Io { .. })));
    assert!(matches!(golden::replay_log(&missing), Err(GoldenError::Io { .. })));
}

/// Numbers a scheduler cannot count with must not bring the replay down.
#[test]
fn absurd_numbers_do_not_panic() {
    let folder = Folder::new();
    let [log, chunked_log, ..] = logs();
    for (mut log, pointer) in [(log.clone(), "/requests/0"), (log, "/requests/2"), (chunked_log, "/requests/1")] {
        for field in ["prompt_len", "output_len"] {
            let mut changed = log.clone();
            changed.pointer_mut(pointer).unwrap()[field] = json!(u32::MAX);
            let _ = folder.replay(&changed);
        }
        log["params"]["watermark"] = json!(1e300);
        assert_eq!(folder.divergence(&log).field, "watermark_blocks");
    }
}
