//! Streams of declared intent: read, made, imported and replayed.

use std::fs;
use std::io::Write;
use std::path::Path;

use kvtide_envs::files::Packed;
use kvtide_envs::intent::{
    DraftEvent, EventReader, ImportSpec, IntentEvent, Latencies, LogLine, LoggedRequest, Mode, PolicyName, ProfileName,
    ProfileSpec, TierCapacity, TierReplay, TierResult, TierSetup, read_requests,
};
use tempfile::tempdir;

fn setup(policy: PolicyName, mode: Mode, hbm_bytes: u64) -> TierSetup {
    let capacity = TierCapacity { hbm_bytes, dram_bytes: 2 << 20 };
    TierSetup { policy, mode, capacity, latencies: Latencies::default(), explains: false }
}

fn spec(text: &str) -> ProfileSpec {
    text.parse().unwrap()
}

/// The result, and what was explained.
fn replayed(mut events: EventReader, setup: TierSetup, batch: usize) -> (TierResult, Vec<LogLine>) {
    let mut replay = TierReplay::new(setup);
    let mut lines = Vec::new();
    while !events.next_batch(batch).unwrap().events.is_empty() {
        replay.run(events.batch());
        lines.extend(replay.explained());
    }
    let result = replay.finish(events.distinct());
    lines.extend(replay.explained());
    (result, lines)
}

fn text(events: impl Iterator<Item = DraftEvent>) -> String {
    let mut bytes = Vec::new();
    events.for_each(|event| event.write(&mut bytes).unwrap());
    String::from_utf8(bytes).unwrap()
}

#[track_caller]
fn assert_same(ours: &[LogLine], theirs: &[LogLine]) {
    let differs = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs);
    assert!(differs.is_none(), "{:#?}", differs.map(|at| (&ours[at], &theirs[at])));
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn a_stream_is_the_same_made_written_and_read() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    for profile in ProfileName::ALL {
        let spec = spec(&format!("{}:turns=40,seed=3", profile.name()));
        assert_eq!(spec.to_string().parse(), Ok(spec));
        let written = text(spec.events());
        assert_eq!(written, text(spec.events()), "same seed, same bytes");
        assert_ne!(written, text(ProfileSpec { seed: 4, ..spec }.events()));
        fs::write(&path, &written).unwrap();
        let setup = TierSetup { explains: true, ..setup(PolicyName::DeadlineAware, Mode::Faithful, 1 << 20) };
        let made = replayed(EventReader::made(spec.events()), setup, 1_000);
        // However it is cut.
        let read = replayed(EventReader::open(&path).unwrap(), setup, 13);
        assert_eq!(read.0, made.0);
        assert_same(&read.1, &made.1);
        assert_eq!(made.0.total_blocks, spec.block_count());
        let quiet = TierSetup { explains: false, ..setup };
        assert_eq!(replayed(EventReader::made(spec.events()), quiet, 1_000).0, made.0, "explaining changes nothing");
    }
}

#[test]
fn profiles_are_what_they_are_called() {
    let count = |name: &str, part: &str| text(spec(name).events()).matches(part).count();
    assert!(count("speculative_decode", "\"COMMITTED\"") > count("balanced", "\"COMMITTED\""));
    assert!(count("deadline_pressure", "\"deadline_us\":700") > 2 * count("balanced", "\"deadline_us\":700"));
    assert!(spec("long_context_extreme").block_count() > spec("rag_mixed_priority").block_count());
    // A block that was announced is read now and then: that is what announcing it is for.
    assert!(count("rag_mixed_priority", "\"PREFETCHED\"") > 10);
    for (bad, part) in [
        ("idle", "expected one of balanced, deadline_pressure"),
        ("balanced:requests=0", "requests `0` is not a whole number from 1 to 1000000"),
        ("balanced:turns=x", "turns `x`"),
        ("balanced:turns=1,turns=2", "turns is given twice"),
        ("balanced:tokens=1", "unknown tokens"),
        ("balanced:turns", "`turns` is not key=value"),
    ] {
        let error = bad.parse::<ProfileSpec>().unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(bad), "{error}");
    }
}

/// What keeps results where they are: misses, evictions, late steps of each policy.
#[test]
fn results_of_our_own_profiles_are_fixed() {
    let spec = spec("deadline_pressure");
    let of = |policy, mode| {
        let result = replayed(EventReader::made(spec.events()), setup(policy, mode, 2 << 20), 500).0;
        (result.miss_count, result.eviction_count, result.deadline_misses, result.total_latency_us)
    };
    let found: Vec<_> =
        PolicyName::ALL.iter().map(|&policy| (policy.name(), Mode::ALL.map(|mode| of(policy, mode)))).collect();
    assert_eq!(found, FIXED);
}

type Figures = (u64, u64, u64, u64);

const FIXED: [(&str, [Figures; 2]); 5] = [
    ("lru", [(59, 327, 25, 410_500), (59, 327, 17, 202_040)]),
    ("hotcold", [(59, 327, 25, 410_500), (59, 327, 17, 202_040)]),
    ("predictive", [(9, 277, 9, 155_700), (9, 277, 0, 35_320)]),
    ("intent", [(9, 277, 9, 156_300), (9, 277, 0, 35_980)]),
    ("deadline", [(6, 280, 6, 142_500), (6, 282, 0, 37_100)]),
];

#[test]
fn corrected_rules_hold_what_they_promise() {
    let request = |index: u64, is_completed| LoggedRequest {
        request_id: format!("r{index}"),
        arrival_ms: index,
        start_ms: None,
        end_ms: None,
        prompt_tokens: 4_000,
        generated_tokens: 900,
        request_priority: 50,
        deadline_ms: Some(4),
        is_completed,
    };
    let import = ImportSpec { bytes_per_token: 1 << 10, block_bytes: 64 << 10, max_blocks: 64 };
    // Requests that never end leak what they pinned.
    let leaking = || EventReader::made(import.events((0..12).map(|index| request(index, false)).collect()));
    for &policy in PolicyName::ALL {
        let faithful = replayed(leaking(), setup(policy, Mode::Faithful, 8 << 20), 100).0;
        let corrected = replayed(leaking(), setup(policy, Mode::Corrected, 8 << 20), 100).0;
        let exceeds = |result: &TierResult| result.actual_peak_hbm_used_bytes > result.hbm_capacity_bytes;
        assert_eq!(exceeds(&faithful), policy.spares_pinned(), "{policy}: pins let HBM exceed its room");
        assert!(!exceeds(&corrected) && corrected.final_dram_used_bytes <= 2 << 20, "{policy}");
        assert!(corrected.total_latency_us < faithful.total_latency_us, "{policy}: marks take no time");
        assert_eq!(corrected.accesses, faithful.accesses);
    }
    for profile in ProfileName::ALL {
        for &policy in PolicyName::ALL {
            for hbm in [16 << 10, 100_000, 1 << 20, 3 << 20] {
                let spec = spec(profile.name());
                let result = replayed(EventReader::made(spec.events()), setup(policy, Mode::Corrected, hbm), 1_000).0;
                assert!(result.actual_peak_hbm_used_bytes <= hbm, "{policy} {hbm}");
                assert_eq!(result.hits + result.miss_count, result.accesses);
                assert!(result.dram_hits <= result.miss_count && result.deadline_misses <= result.deadline_steps);
                assert_eq!((result.decode_steps, result.capacity_exhaustion_events), (180, 0), "{policy} {hbm}");
            }
        }
    }
}

#[test]
fn memory_is_that_of_blocks_known_at_one_time() {
    let request = |index: u64| LoggedRequest {
        request_id: format!("r{index}"),
        arrival_ms: index,
        start_ms: None,
        end_ms: None,
        prompt_tokens: 1_000,
        generated_tokens: 100,
        request_priority: 50,
        deadline_ms: None,
        is_completed: true,
    };
    let import = ImportSpec { bytes_per_token: 1 << 10, block_bytes: 16 << 10, max_blocks: 64 };
    let folder = tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let bytes = |requests: u64| {
        fs::write(&path, text(import.events((0..requests).map(request).collect()))).unwrap();
        let mut events = EventReader::open(&path).unwrap();
        let mut replay = TierReplay::new(setup(PolicyName::DeadlineAware, Mode::Corrected, 1 << 19));
        while !events.next_batch(128).unwrap().events.is_empty() {
            replay.run(events.batch());
        }
        assert_eq!(replay.finish(events.distinct()).total_blocks, 64 * requests);
        (replay.bytes(), events.bytes())
    };
    let (few, many) = (bytes(10), bytes(400));
    assert_eq!(few.0, many.0, "what is freed takes nothing");
    // But for names that are a digit longer.
    assert!(many.1 < few.1 + few.1 / 5, "{} bytes, {} bytes", few.1, many.1);
}

/// A right line.
const LINE: &str = "{\"step\":1,\"event_type\":\"ACCESSED\",\"intent\":{\"object_id\":\"a\",\"request_id\":\"r\",\
    \"phase\":\"DECODE\",\"priority\":\"HOT\",\"current_tier\":\"HBM\",\"allowed_tiers\":[\"HBM\"],\"size_bytes\":16}}";

#[test]
fn what_is_wrong_is_named_by_file_line_and_field() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let error = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let mut reader = EventReader::open(&path).unwrap();
        loop {
            match reader.next_batch(2) {
                Ok(batch) if batch.events.is_empty() => return String::new(),
                Ok(_) => {}
                Err(error) => return error.to_string(),
            }
        }
    };
    assert_eq!(error(LINE.as_bytes()), "");
    let at_three = |line: &str| error(format!("{LINE}\n\n{line}\n{LINE}\n").as_bytes());
    for (from, to, part) in [
        ("\"step\":1", "\"step\":-1", "step `-1` is not a whole number, not negative"),
        ("\"step\":1,", "", "no field `step`"),
        ("\"step\":1", "\"step\":99999999999999999", "step `99999999999999999` is not a whole number up to 2^53"),
        ("ACCESSED", "READ", "event_type `READ` is not a type of event, such as ACCESSED"),
        ("\"a\"", "7", "intent.object_id `7` is not a name"),
        ("\"a\"", "\"\"", "intent.object_id `` is not a name"),
        ("DECODE", "SLEEP", "intent.phase `SLEEP` is not PREFILL, DECODE"),
        ("\"HOT\"", "null", "intent.priority `null` is not DECODE_CRITICAL"),
        ("[\"HBM\"]", "[\"HBM\",\"TAPE\"]", "intent.allowed_tiers"),
        ("16}", "0}", "intent.size_bytes `0` is not a number of bytes from 1"),
        ("16}", "16,\"recency_score\":1.5}", "intent.recency_score `1.5` is not a number from 0 to 1"),
        ("16}", "16,\"request_priority\":101}", "intent.request_priority `101` is not a whole number from 0 to 100"),
        ("16}", "16,\"deadline_us\":-5}", "intent.deadline_us `-5` is not a whole number"),
        ("16}", "16,\"slack_us\":\"soon\"}", "intent.slack_us `soon` is not a whole number"),
        ("16}", "16,\"pin_requested\":1}", "intent.pin_requested `1` is not true or false"),
        ("16}", "16,\"size_bytes\":3}", "duplicate field `size_bytes`"),
        ("16}}", "16}", "not a JSON object"),
        (LINE, "[1,2]", "not a JSON object: it is `[1,2]`"),
    ] {
        let bad = LINE.replacen(from, to, 1);
        assert_ne!(bad, LINE);
        let said = at_three(&bad);
        assert!(said.starts_with(&format!("{}:3: ", path.display())) && said.contains(part), "{bad}: {said}");
        assert!(!said.contains('\n'));
    }
    assert!(error(b"").contains("no events"));
    assert!(error(b"\xff\xfe\n").ends_with(":1: not UTF-8"));
    assert!(error(&vec![b'x'; 2 << 20]).contains("a line longer than"));
    let whole = folder.path().join("events.jsonl.gz");
    let mut packed = Packed::create(&whole).unwrap();
    packed.write_all(format!("{LINE}\n").repeat(300).as_bytes()).unwrap();
    packed.finish().unwrap();
    let whole = fs::read(&whole).unwrap();
    assert_eq!(error(&whole), "");
    assert!(error(&whole[..whole.len() - 9]).contains("the gzip stream ends early"));
    assert!(
        EventReader::open(Path::new("nowhere.jsonl")).unwrap_err().to_string().contains("nowhere.jsonl: cannot open")
    );
}

#[test]
fn a_log_of_requests_is_refused_by_file_line_and_field() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("requests.jsonl");
    let right = "{\"request_id\":\"a\",\"arrival_ms\":3,\"prompt_tokens\":10,\"generated_tokens\":1}";
    let other = right.replace("\"a\"", "\"b\"");
    let error = |text: &str| {
        fs::write(&path, text).unwrap();
        read_requests(&path).map(drop).map_or_else(|error| error.to_string(), |()| String::new())
    };
    assert_eq!(error(&format!("{right}\n{other}\n")), "");
    for (from, to, part) in [
        ("\"arrival_ms\":3", "\"arrival_ms\":3.5", "arrival_ms `3.5` is not a whole number"),
        ("\"arrival_ms\":3,", "", "no field `arrival_ms`"),
        ("\"prompt_tokens\":10", "\"prompt_tokens\":-1", "prompt_tokens `-1`"),
        ("\"b\"", "\"a\"", "request_id `a` is there a second time"),
        ("1}", "1,\"request_priority\":500}", "request_priority `500` is not a whole number from 0 to 100"),
        ("1}", "1,\"status\":3}", "status `3` is not a word"),
        ("{", "", "not a JSON object"),
    ] {
        let said = error(&format!("{right}\n{}\n", other.replacen(from, to, 1)));
        assert!(said.starts_with(&format!("{}:2: ", path.display())) && said.contains(part), "{said}");
    }
    assert!(error("\n").contains("no requests"));
}

/// Steps that go back, blocks nobody knows, blocks larger than everything: no panic, and the same at any cut.
#[test]
fn streams_that_no_engine_writes_are_replayed() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let kinds = [
        "ALLOCATED",
        "ACCESSED",
        "MARKED_DECODE_CRITICAL",
        "MARKED_COLD",
        "COMMITTED",
        "SPILLED",
        "PREFETCHED",
        "EVICTED",
        "FREED",
        "MISS",
    ];
    let mut lines = String::new();
    let mut state = 1_u64;
    for _ in 0..4_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = |from: u32, count: u64| (state >> from) % count;
        let line = LINE
            .replace("\"step\":1", &format!("\"step\":{}", draw(5, 60)))
            .replace("ACCESSED", kinds[draw(12, 10) as usize])
            .replace("\"a\"", &format!("\"b{}\"", draw(20, 30)))
            .replace("\"r\"", &format!("\"r{}\"", draw(27, 4)))
            .replace("\"HOT\"", ["\"HOT\"", "\"DECODE_CRITICAL\"", "\"COLD\""][draw(33, 3) as usize])
            .replace("[\"HBM\"]", ["[]", "[\"HBM\",\"DRAM\"]", "[\"NVME\"]"][draw(36, 3) as usize])
            .replace(
                "\"current_tier\":\"HBM\"",
                ["\"current_tier\":\"HBM\"", "\"current_tier\":\"DRAM\"", "\"current_tier\":\"CXL\""]
                    [draw(40, 3) as usize],
            )
            .replace("16}", &format!("{},\"deadline_us\":{}}}", 1 + draw(44, 900), draw(50, 3_000)));
        lines += &line;
        lines.push('\n');
    }
    fs::write(&path, lines).unwrap();
    for &policy in PolicyName::ALL {
        for mode in Mode::ALL {
            let setup = TierSetup {
                capacity: TierCapacity { hbm_bytes: 2_000, dram_bytes: 1_500 },
                explains: true,
                ..setup(policy, mode, 1)
            };
            let read = |batch| replayed(EventReader::open(&path).unwrap(), setup, batch);
            let (result, lines) = read(100_000);
            assert!(result.eviction_count > 100 && lines.len() > 100, "{policy} {mode}");
            let (again, cut) = read(7);
            assert_eq!(again, result, "{policy} {mode}");
            assert_same(&cut, &lines);
            if mode == Mode::Corrected {
                assert!(result.actual_peak_hbm_used_bytes <= 2_000 && result.final_dram_used_bytes <= 1_500);
            }
        }
    }
}

/// What is explained is what happened: the victim of every decision is nowhere above a runner-up, and a missed deadline names the
/// decision by which its block had left.
#[test]
fn explanations_agree_with_what_happened() {
    let setup = TierSetup { explains: true, ..setup(PolicyName::Lru, Mode::Faithful, 1 << 20) };
    let (result, lines) = replayed(EventReader::made(spec("deadline_pressure").events()), setup, 64);
    let mut left = std::collections::BTreeMap::new();
    let (mut decisions, mut missed) = (0, 0);
    for line in lines {
        match line {
            LogLine::TierDecision(decision) => {
                assert_eq!(decision.number, decisions);
                decisions += 1;
                assert!(decision.runners_up.iter().all(|other| other.score <= decision.score));
                assert!(decision.candidates >= decision.runners_up.len() as u64 && !decision.reason.is_empty());
                left.insert(decision.object_id.clone(), (decision.number, decision.step));
            }
            LogLine::TierDeadlineMiss(miss) => {
                missed += 1;
                assert!(miss.latency_us > miss.deadline_us && !miss.waited_for.is_empty());
                for waited in &miss.waited_for {
                    let decision = waited.decision.zip(waited.left_at_step);
                    assert_eq!(decision, left.get(&waited.object_id).copied(), "{waited:?}");
                }
            }
        }
    }
    assert_eq!((decisions, missed), (result.eviction_count, result.deadline_misses));
    assert!(missed > 0);
}

/// Events of a file, with the names of their blocks.
pub fn named_events(path: &Path) -> Vec<(String, IntentEvent)> {
    let mut reader = EventReader::open(path).unwrap();
    let mut all = Vec::new();
    loop {
        let batch = reader.next_batch(1_000).unwrap();
        if batch.events.is_empty() {
            return all;
        }
        let named =
            |event: &IntentEvent| (batch.names[event.block as usize].to_string(), IntentEvent { block: 0, ..*event });
        all.extend(batch.events.iter().map(named));
    }
}
