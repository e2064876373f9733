//! The slow model of V1's rules agrees with every decision log of the real scheduler, field by field: what it says where
//! there is no log can be believed.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::common::record_v1::{Record, usage};
use crate::common::reference_v1::{Ask, Params, Reference};
use flate2::read::GzDecoder;
use kvtide_envs::golden;
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Idle steps after which the driver calls a run stalled.
const IDLE_LIMIT: u32 = 3;

#[derive(Deserialize)]
struct Log {
    params: Settings,
    requests: Vec<Asked>,
    steps: Vec<Map<String, Value>>,
    end: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    block_size: u32,
    num_blocks: u32,
    watermark: f64,
    watermark_blocks: u32,
    prefix_caching: bool,
    max_num_batched_tokens: u32,
    max_num_seqs: u32,
    max_model_len: u32,
    long_prefill_token_threshold: u32,
    scheduler_reserve_full_isl: bool,
    chunked_prefill: bool,
    #[serde(default)]
    async_scheduling: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    id: u32,
    arrival_step: usize,
    prompt_len: u32,
    output_len: u32,
    #[serde(default)]
    prefix: Vec<(u32, u32)>,
}

impl Log {
    fn read(path: &Path) -> Log {
        let mut text = String::new();
        GzDecoder::new(fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn params(&self) -> Params {
        let params = &self.params;
        assert_eq!((params.watermark * f64::from(params.num_blocks)).trunc() as u32, params.watermark_blocks);
        Params {
            block_size: params.block_size,
            num_blocks: params.num_blocks,
            prefix_caching: params.prefix_caching,
            max_num_batched_tokens: params.max_num_batched_tokens,
            max_num_seqs: params.max_num_seqs,
            max_model_len: params.max_model_len,
            long_prefill_token_threshold: params.long_prefill_token_threshold,
            scheduler_reserve_full_isl: params.scheduler_reserve_full_isl,
            chunked_prefill: params.chunked_prefill,
            async_scheduling: params.async_scheduling,
        }
    }
}

/// The reference over the log's requests.
struct Replay<'a> {
    log: &'a Log,
    reference: Reference,
    /// In order of arrival.
    arrivals: Vec<&'a Asked>,
    submitted: usize,
    finished: usize,
    hit_tokens: u64,
    idle: u32,
}

impl Replay<'_> {
    fn new(log: &Log) -> Replay<'_> {
        let mut arrivals: Vec<&Asked> = log.requests.iter().collect();
        arrivals.sort_by_key(|asked| (asked.arrival_step, asked.id));
        let reference = Reference::new(log.params());
        Replay { log, reference, arrivals, submitted: 0, finished: 0, hit_tokens: 0, idle: 0 }
    }

    /// Compares step by step, then the ends.
    fn run(mut self) -> Result<(), String> {
        let mut kind = None;
        for (index, theirs) in self.log.steps.iter().enumerate() {
            self.submit(index);
            if kind.is_some() || self.is_done() {
                return Err(format!("the log goes on at step {index}"));
            }
            let record = self.reference.step(self.log.params.watermark);
            compare(theirs, &record.to_json(index, self.log.params.num_blocks))
                .map_err(|wrong| format!("step {index}: {wrong}\n{record}"))?;
            kind = self.count(&record).then_some("stalled");
        }
        self.submit(self.log.steps.len());
        if self.is_done() {
            kind = Some("done");
        }
        compare(&self.log.end, &self.end(kind.unwrap_or("max_steps"))).map_err(|wrong| format!("end: {wrong}"))
    }

    fn submit(&mut self, step: usize) {
        while let Some(asked) = self.arrivals.get(self.submitted).filter(|asked| asked.arrival_step <= step) {
            let Asked { id, prompt_len: prompt, output_len: output, prefix, .. } = asked;
            self.reference.submit(Ask { id: *id, prompt: *prompt, output: *output, scope: 0, prefix: prefix.clone() });
            self.submitted += 1;
        }
    }

    fn all_arrived(&self) -> bool {
        self.submitted == self.arrivals.len()
    }

    fn is_done(&self) -> bool {
        self.all_arrived() && self.reference.is_empty()
    }

    /// Counts a step; whether the run has stalled.
    fn count(&mut self, record: &Record) -> bool {
        self.finished += record.finished.len();
        self.hit_tokens += record.hits();
        let is_stuck = record.is_idle() && self.all_arrived() && !self.reference.is_empty();
        self.idle = if is_stuck { self.idle + 1 } else { 0 };
        self.idle == IDLE_LIMIT
    }

    fn end(&self, kind: &str) -> Map<String, Value> {
        let free = self.reference.free();
        let mut end = json!({
            "kind": kind,
            "steps": self.log.steps.len(),
            "finished": self.finished,
            "preemptions": self.reference.preemptions(),
            "hit_tokens": self.hit_tokens,
            "free": free,
            "usage": usage(free, self.log.params.num_blocks),
        });
        if kind == "stalled" {
            let [waiting, running] = self.reference.queues();
            end["waiting"] = json!(waiting);
            end["running"] = json!(running);
        }
        end.as_object().unwrap().clone()
    }
}

fn compare(theirs: &Map<String, Value>, ours: &Map<String, Value>) -> Result<(), String> {
    let mut fields: Vec<&String> = theirs.keys().chain(ours.keys()).collect();
    fields.sort();
    match fields.into_iter().find(|&field| theirs.get(field) != ours.get(field)) {
        Some(field) => Err(format!("{field} is {:?}, the log has {:?}", ours.get(field), theirs.get(field))),
        None => Ok(()),
    }
}

/// Every log of a folder, the first of these by name first; the test counts them.
#[track_caller]
fn agrees_with(folder: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden").join(folder);
    if !folder.is_dir() {
        let _ = writeln!(io::stderr(), "skipped: {} is not here", folder.display());
        return;
    }
    let logs = golden::find_logs(&folder).unwrap();
    assert_eq!(logs.len(), 48);
    let replay = |path: &PathBuf| Replay::new(&Log::read(path)).run().map_err(|wrong| (path.clone(), wrong));
    let wrong: Vec<_> = logs.par_iter().filter_map(|path| replay(path).err()).collect();
    for (path, wrong) in &wrong {
        let _ = writeln!(io::stderr(), "{}: {wrong}", path.display());
    }
    assert!(wrong.is_empty(), "{} of {} logs diverge", wrong.len(), logs.len());
}

#[test]
fn every_synchronous_log_agrees() {
    agrees_with("vllm-v1");
}

#[test]
fn every_asynchronous_log_agrees() {
    agrees_with("vllm-v1-async");
}
