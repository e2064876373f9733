//! The public traces as they were recorded, where they are at hand: `../shared/traces` beside the checkout.
//!
//! They are never part of the project, so without them these tests say `skipped` and pass no judgement.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kvtide_envs::time::Micros;
use kvtide_envs::trace::{self, Compression, Format, TraceStats};
use kvtide_envs::workload::{Replay, Workload};

/// A recorded trace, or `None` and a word on stderr.
fn recorded(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces").join(name);
    if !path.exists() {
        let _ = writeln!(io::stderr(), "skipped: no ../shared/traces/{name}");
        return None;
    }
    Some(path)
}

fn near(found: f64, expected: f64, share: f64) -> bool {
    (found - expected).abs() <= share * expected
}

#[test]
fn azure_conversation_2023() {
    let Some(path) = recorded("azure2023_conv_first40min.csv.zst") else { return };
    let stats = TraceStats::read(path).unwrap();
    assert_eq!((stats.format, stats.compression, stats.requests), (Format::Azure, Compression::Zstd, 14_171));
    assert_eq!((stats.duration_s, stats.zero_output_rows, stats.quantum_s), (2_399.316_670, 0, None));
    assert_eq!((stats.prefix_reuse, stats.sessions, stats.arrivals_per_minute.len()), (None, 0, 40));
    // Figures of the whole hour; this slice is its first 40 minutes.
    assert!(near(stats.rate_rps.unwrap(), 5.5, 0.08), "{:?}", stats.rate_rps);
    assert!(near(stats.inter_arrival_cv.unwrap(), 1.09, 0.02), "{:?}", stats.inter_arrival_cv);
    let (prompt, output) = (stats.prompt_tokens, stats.output_tokens);
    for (found, expected) in [(prompt.p50, 1_020.0), (prompt.p95, 4_083.0), (prompt.p99, 4_142.0)] {
        assert!(near(found, expected, 0.01), "{found} for {expected}");
    }
    // The slice has shorter outputs than the hour: a median of 115 for 129.
    for (found, expected) in [(output.p50, 129.0), (output.p95, 451.0), (output.p99, 601.0)] {
        assert!(near(found, expected, 0.12), "{found} for {expected}");
    }
}

#[test]
fn mooncake_conversation() {
    let Some(path) = recorded("mooncake_conversation_0-2358s.jsonl.zst") else { return };
    let stats = TraceStats::read(path).unwrap();
    assert_eq!((stats.format, stats.compression, stats.requests), (Format::Mooncake, Compression::Zstd, 7_689));
    assert_eq!((stats.duration_s, stats.quantum_s), (2_357.999, Some(3.0)));
    assert_eq!(stats.warnings, ["arrivals are quantised to 3s: use --jitter 3s"]);
    assert!(near(stats.rate_rps.unwrap(), 3.26, 0.01), "{:?}", stats.rate_rps);
    // 37.4 % over the whole trace; 35.7 % counted over this slice with a set, block by block.
    assert!(near(stats.prefix_reuse.unwrap(), 0.356_935, 1e-5), "{:?}", stats.prefix_reuse);
    let (prompt, output) = (stats.prompt_tokens, stats.output_tokens);
    for (found, expected) in [(prompt.p50, 6_909.0), (prompt.p95, 39_550.0), (prompt.p99, 85_400.0)] {
        assert!(near(found, expected, 0.10), "{found} for {expected}");
    }
    for (found, expected) in [(output.p50, 350.0), (output.p95, 698.0), (output.p99, 1_118.0)] {
        assert!(near(found, expected, 0.12), "{found} for {expected}");
    }
}

#[test]
fn derived_session_traces() {
    for (name, requests, sessions, zero_output_rows, reuse) in [
        ("exgentic_tau2", 171, 10, 0, 0.833_06),
        ("lmcache_agent_miniswe", 402, 20, 0, 0.931_77),
        ("lmcache_agent_taubench", 471, 24, 283, 0.689_63),
    ] {
        let Some(path) = recorded(&format!("{name}.derived.jsonl.zst")) else { return };
        let stats = TraceStats::read(path).unwrap();
        assert_eq!((stats.requests, stats.sessions), (requests, sessions), "{name}");
        assert_eq!(stats.zero_output_rows, zero_output_rows, "{name}");
        assert!(near(stats.prefix_reuse.unwrap(), reuse, 1e-4), "{name}: {:?}", stats.prefix_reuse);
    }
}

#[test]
fn agentic_sessions() {
    let Some(path) = recorded("kvct_agentic_sessions_0001-0559.tar.zst") else { return };
    let stats = TraceStats::read(&path).unwrap();
    assert_eq!((stats.format, stats.compression, stats.sessions), (Format::Sessions, Compression::Zstd, 512));
    assert_eq!((stats.requests + stats.left_out_rows, stats.quantum_s), (30_174, None));
    assert!(near(stats.left_out_rows as f64, 0.08 * 30_174.0, 0.1), "{}", stats.left_out_rows);
    // 512 sessions at 20 an hour take 25.6 hours, give or take 1.1.
    assert!(near(stats.duration_s, 25.6 * 3_600.0, 0.1), "{}", stats.duration_s);
    assert!(near(stats.prefix_reuse.unwrap(), 0.96, 0.01), "{:?}", stats.prefix_reuse);
    let (prompt, output) = (stats.prompt_tokens, stats.output_tokens);
    for (found, expected) in
        [(prompt.p50, 108_350.0), (prompt.p95, 357_833.0), (output.p50, 236.0), (output.p95, 1_591.0)]
    {
        assert!(near(found, expected, 0.03), "{found} for {expected}");
    }

    // Of 57 million hashes a tenth is kept: turns share.
    let trace = Workload::from_trace(path).unwrap();
    let lists: BTreeSet<*const u64> = trace.requests().iter().map(|request| request.hash_ids.as_ptr()).collect();
    assert!(lists.len() < trace.requests().len() / 8, "{} lists", lists.len());
}

#[test]
fn what_is_not_a_trace_is_refused() {
    for (name, said) in [
        (
            "lmcache_agent_miniswe.tar.zst",
            ": 063925220f0d2954505eb37612b11ab3.jsonl: not an agentic session of kv-cache-tester, starts with `{",
        ),
        (
            "measured_vllm_RTX4090_llama3.1-8b.tar.zst",
            ": measured_vllm_RTX4090_llama3.1-8b/requests.jsonl: not an agentic session of kv-cache-tester",
        ),
        ("sarathi_sharegpt8k_lengths.csv.zst", ":1: no time of arrival ("),
        ("burstgpt1_rateprofile_day0-4_per_minute.json.zst", ":1: unknown form, starts with `{`"),
    ] {
        let Some(path) = recorded(name) else { return };
        let error = trace::read_all(path).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn jitter_takes_the_steps_out_of_mooncake() {
    let Some(path) = recorded("mooncake_conversation_0-2358s.jsonl.zst") else { return };
    let trace = Workload::from_trace(path).unwrap();
    assert_eq!(trace.name(), "mooncake_conversation_0-2358s");
    let jittered =
        Replay { jitter: Some(Micros::from_millis(3_000)), seed: 1, ..Replay::default() }.apply(&trace).unwrap();
    let together =
        |workload: &Workload| workload.requests().windows(2).filter(|pair| pair[0].arrival == pair[1].arrival).count();
    assert!(together(&trace) > 6_000 && together(&jittered) < 50);
}
