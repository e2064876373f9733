//! Files of agentic sessions: what is read, when sessions start, and what is said of files that are broken or hostile.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use kvtide_envs::time::Micros;
use kvtide_envs::trace::{
    self, Compression, Format, HashIds, Request, SessionArrivals, TraceReader, TraceStats, jsonl,
};
use kvtide_envs::workload::Workload;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

const SECOND: Micros = Micros(1_000_000);

fn file(folder: &TempDir, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join("t");
    fs::write(&path, bytes).unwrap();
    path
}

fn session(id: &str, requests: &[Value]) -> Value {
    json!({"id": id, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 9, "requests": requests})
}

fn turn(t: f64, prompt: u64, hash_ids: &[u64]) -> Value {
    json!({"t": t, "type": "s", "in": prompt, "out": 7, "hash_ids": hash_ids, "think_time": 1.0})
}

/// Three turns and, within the second, a sub-agent of two.
fn example() -> Value {
    let agent = json!({"t": 5.5, "type": "subagent", "requests": [turn(0.0, 70, &[9]), turn(20.0, 64, &[9])]});
    session("a", &[turn(2.0, 130, &[1, 2]), turn(5.0, 200, &[1, 2, 3]), agent, turn(12.0, 256, &[1, 2, 3, 4])])
}

fn tar<'a>(files: impl IntoIterator<Item = (&'a str, String)>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_entry_type(if name.ends_with('/') { tar::EntryType::Directory } else { tar::EntryType::Regular });
        builder.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// An archive of `count` sessions of `turns` turns, ten seconds apart.
fn sessions_of(count: usize, turns: usize) -> Vec<u8> {
    let files: Vec<(String, String)> = (0..count)
        .map(|number| {
            let turns: Vec<Value> = (0..turns).map(|turn| self::turn(turn as f64 * 10.0, 64, &[1])).collect();
            (format!("{number}.json"), session(&format!("s{number}"), &turns).to_string())
        })
        .collect();
    tar(files.iter().map(|(name, text)| (name.as_str(), text.clone())))
}

fn read(bytes: impl AsRef<[u8]>) -> Vec<Request> {
    trace::read_all(file(&TempDir::new().unwrap(), bytes)).unwrap()
}

fn read_with(bytes: impl AsRef<[u8]>, arrivals: &SessionArrivals) -> (Vec<Request>, u64) {
    let mut reader = TraceReader::open_with(file(&TempDir::new().unwrap(), bytes), arrivals).unwrap();
    (reader.by_ref().map(Result::unwrap).collect(), reader.left_out_rows())
}

/// The one line said about a file, without its folder.
fn complaint(bytes: impl AsRef<[u8]>) -> String {
    let folder = TempDir::new().unwrap();
    let said = trace::read_all(file(&folder, bytes)).unwrap_err().to_string();
    assert!(!said.contains('\n'), "more than one line: {said}");
    said.strip_prefix(&format!("{}/", folder.path().display())).expect("names the file").to_owned()
}

/// A turn of session number 1, named `a`.
fn expected(arrival_s: f64, prompt_tokens: u32, hash_ids: &[u64]) -> Request {
    Request {
        hash_ids: hash_ids.iter().map(|id| (1 << 32) + id).collect(),
        hash_block_tokens: 64,
        session: Some("a".into()),
        ..Request::new(Micros::from_secs_f64(arrival_s), prompt_tokens, 7)
    }
}

#[test]
fn a_session_alone_is_read_whole_with_its_sub_agents_on_its_own_clock() {
    let turns = [
        expected(0.0, 130, &[1, 2]),
        expected(3.0, 200, &[1, 2, 3]),
        expected(3.5, 70, &[9]),
        expected(10.0, 256, &[1, 2, 3, 4]),
        expected(23.5, 64, &[9]),
    ];
    let text = serde_json::to_string_pretty(&example()).unwrap();
    assert_eq!(read(example().to_string()), turns);
    assert_eq!(read(format!("\u{feff}\r\n{text}\r\n")), turns);
    assert_eq!(read(tar([("a.json", text)])), turns);
    // Whatever the rate, there is nothing to start but one session.
    assert_eq!(read_with(example().to_string(), &SessionArrivals { per_hour: 1.0, limit: Some(1), seed: 9 }).0, turns);
}

#[test]
fn an_archive_is_told_by_content_and_other_files_in_it_are_passed_over() {
    let other = example().to_string().replace("\"id\":\"a\"", "\"id\":\"b\"");
    let archive = tar([
        ("sessions/", String::new()),
        ("sessions/README.md", "# {Sessions}".into()),
        ("sessions/empty", String::new()),
        ("sessions/1", example().to_string()),
        ("sessions/2", other),
    ]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&archive).unwrap();
    let zstd = zstd::encode_all(archive.as_slice(), 1).unwrap();
    let plain = read(&archive);
    assert!(plain.len() >= 6, "the first session and the first turn of the second");
    for (bytes, compression) in
        [(archive, Compression::Plain), (gzip.finish().unwrap(), Compression::Gzip), (zstd, Compression::Zstd)]
    {
        let mut reader = TraceReader::open(file(&TempDir::new().unwrap(), bytes)).unwrap();
        assert_eq!((reader.format(), reader.compression()), (Format::Sessions, compression));
        assert_eq!(reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap(), plain);
    }
}

#[test]
fn only_full_blocks_are_kept_and_an_answer_of_nothing_is_one_token() {
    let mut turns = [turn(0.0, 127, &[1, 2]), turn(1.0, 63, &[1]), turn(2.0, 640, &[])];
    turns[0]["out"] = json!(0);
    let mut reader = TraceReader::open(file(&TempDir::new().unwrap(), session("a", &turns).to_string())).unwrap();
    let read: Vec<Request> = reader.by_ref().map(Result::unwrap).collect();
    let hashes: Vec<(usize, u32)> =
        read.iter().map(|request| (request.hash_ids.len(), request.hash_block_tokens)).collect();
    assert_eq!(hashes, [(1, 64), (0, 0), (0, 0)]);
    assert_eq!((read[0].output_tokens, reader.zero_output_rows(), reader.left_out_rows()), (1, 1, 0));
}

#[test]
fn turns_that_continue_each_other_share_one_list() {
    let read = read(example().to_string());
    let at = |index: usize| read[index].hash_ids.as_ptr();
    assert_eq!([at(0), at(1)], [at(3), at(3)]);
    assert_eq!(at(2), at(4));
    assert_ne!(at(2), at(3));
    assert_eq!(read[0].hash_ids, HashIds::from(vec![(1 << 32) + 1, (1 << 32) + 2]));
}

#[test]
fn ids_are_of_their_session_unless_they_are_global() {
    let named = |id: &str, scope: Value| {
        let mut session = session(id, &[turn(0.0, 64, &[1])]);
        session["hash_id_scope"] = scope;
        session.to_string()
    };
    let ids = |scope: &Value| -> Vec<u64> {
        let archive = tar([("1", named("a", scope.clone())), ("2", named("b", scope.clone()))]);
        read(archive).iter().map(|request| request.hash_ids[0]).collect()
    };
    assert_eq!(ids(&json!("global")), [1, 1]);
    assert_eq!(ids(&json!("local")), [(1 << 32) + 1, (2 << 32) + 1]);
    assert_eq!(ids(&Value::Null), ids(&json!("local")), "before there were scopes, all were local");
}

#[test]
fn sessions_start_at_random_at_the_rate_asked_for_and_keep_their_pace() {
    let archive = sessions_of(2_000, 3);
    let arrivals = SessionArrivals { per_hour: 36.0, limit: None, seed: 1 };
    let (read, left_out) = read_with(&archive, &arrivals);
    assert_eq!(read.len() as u64 + left_out, 6_000);
    assert!(read.is_sorted_by_key(|request| request.arrival));

    let mut turns: BTreeMap<&str, Vec<Micros>> = BTreeMap::new();
    for request in &read {
        turns.entry(request.session.as_deref().unwrap()).or_default().push(request.arrival);
    }
    let starts: Vec<Micros> = (0..2_000).map(|number| turns[&*format!("s{number}")][0]).collect();
    assert!(starts.is_sorted() && starts[0] == Micros::ZERO, "in the order of the file");
    for arrivals in turns.values() {
        assert!(arrivals.windows(2).all(|pair| pair[1] - pair[0] == SECOND.times(10)));
    }
    let end = starts[1_999];
    assert_eq!(read.last().unwrap().arrival, end, "the trace ends when the last session starts");
    assert!(turns.values().all(|arrivals| arrivals.len() == 3 || arrivals[0] + SECOND.times(20) > end));
    assert!((2..=4).contains(&left_out), "two turns of the last session, and of those just before it: {left_out}");

    // A hundred seconds between starts, exponentially distributed: mean and deviation are equal.
    let gaps: Vec<f64> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
    assert!((mean - 100.0).abs() < 8.0 && (deviation - 100.0).abs() < 8.0, "{mean} {deviation}");

    assert_eq!(read_with(&archive, &arrivals).0, read);
    assert_ne!(read_with(&archive, &SessionArrivals { seed: 2, ..arrivals }).0, read);
    // Another rate is the same process on another clock.
    let (faster, _) = read_with(&archive, &SessionArrivals { per_hour: 360.0, ..arrivals });
    assert!(faster.last().unwrap().arrival.0.abs_diff(end.0 / 10) <= 2_000);
}

#[test]
fn the_first_sessions_of_a_file() {
    let archive = sessions_of(50, 4);
    let names = |limit: usize| {
        let (read, left_out) =
            read_with(&archive, &SessionArrivals { limit: Some(limit), ..SessionArrivals::default() });
        let mut names: Vec<String> = read.iter().filter_map(|request| request.session.clone()).collect();
        names.sort();
        names.dedup();
        (names.len(), read.len() as u64 + left_out)
    };
    assert_eq!((names(1), names(7), names(50), names(9_999)), ((1, 4), (7, 28), (50, 200), (50, 200)));
    // What is behind them is not even looked at.
    let broken = [tar([("1", example().to_string())]), b"rubbish".to_vec()].concat();
    let only_first = SessionArrivals { limit: Some(1), ..SessionArrivals::default() };
    assert_eq!(read_with(broken, &only_first).0.len(), 5);
}

#[test]
fn a_file_of_sessions_is_a_trace_like_any_other() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, sessions_of(30, 5));
    let (converted, requests) = (folder.path().join("c.jsonl.zst"), trace::read_all(&path).unwrap());
    let count = jsonl::convert(&mut TraceReader::open(&path).unwrap(), &converted).unwrap();
    assert_eq!((count, trace::read_all(&converted).unwrap()), (requests.len() as u64, requests.clone()));
    assert_eq!(Workload::from_trace(&path).unwrap().requests(), requests);

    let stats = TraceStats::read(&path).unwrap();
    assert_eq!((stats.sessions, stats.tenants, stats.left_out_rows), (30, 0, 150 - requests.len() as u64));
    // A block each, which all turns of a session but the first find.
    assert_eq!(stats.prefix_tokens, Some(30 * 64));
    assert_eq!(stats.prefix_reuse, Some((requests.len() - 30) as f64 / requests.len() as f64));
    assert_eq!(
        stats.warnings[..],
        [
            "when sessions start is not recorded: a Poisson process starts them".to_owned(),
            format!("requests after the last session has started, left out: {}", stats.left_out_rows),
        ]
    );
}

#[test]
fn what_is_said_of_a_session_that_is_not_right() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut example = example();
        change(&mut example);
        example.to_string()
    };
    let agent = |change: &dyn Fn(&mut Value)| with(&|session| change(&mut session["requests"][2]["requests"][1]));
    let second = |change: &dyn Fn(&mut Value)| with(&|session| change(&mut session["requests"][1]));
    for (text, said) in [
        (second(&|turn| turn["t"] = json!(-1)), "request 2: t `-1` is negative"),
        (
            second(&|turn| turn["t"] = json!(1.5)),
            "request 2: arrives 500 ms before the row above: rows must be in arrival order",
        ),
        (second(&|turn| turn["t"] = json!(1e12)), "request 2: t `1000000000000` is above the limit of 315619200"),
        (second(&|turn| turn["t"] = json!("2")), "request 2: t: invalid type: string \"2\", expected f64"),
        (second(&|turn| drop(turn.as_object_mut().unwrap().remove("t"))), "request 2: missing field `t`"),
        (second(&|turn| drop(turn.as_object_mut().unwrap().remove("in"))), "request 2: missing field `in`"),
        (second(&|turn| turn["in"] = json!(0)), "request 2: in is 0"),
        (second(&|turn| turn["in"] = json!(-3)), "request 2: in: invalid value: integer `-3`, expected u64"),
        (
            second(&|turn| turn["in"] = json!(1_u64 << 40)),
            "request 2: in `1099511627776` is above the limit of 16777216",
        ),
        (second(&|turn| turn["out"] = json!(2.5)), "request 2: out: invalid type: floating point `2.5`, expected u64"),
        (
            second(&|turn| turn["hash_ids"] = json!([1, -2])),
            "request 2: hash_ids: invalid value: integer `-2`, expected u64",
        ),
        (
            second(&|turn| turn["hash_ids"] = json!([1, 2, 3, 4, 5])),
            "request 2: 5 hash_ids of 64 tokens do not fit a prompt of 200 tokens",
        ),
        (
            second(&|turn| turn["hash_ids"] = json!([1_u64 << 32])),
            "request 2: local hash id `4294967296` is above the limit of 4294967295",
        ),
        (second(&|turn| *turn = json!(7)), "request 2: invalid type: integer `7`, expected struct Entry"),
        (agent(&|turn| turn["in"] = json!(0)), "request 3: request 2: in is 0"),
        (agent(&|turn| turn["out"] = json!([])), "request 3: request 2: out: invalid type: sequence, expected u64"),
        (with(&|session| session["block_size"] = json!(0)), "block_size is 0"),
        (
            with(&|session| session["hash_id_scope"] = json!("\u{1b}[1m")),
            "hash_id_scope `\\u{1b}[1m` is not local or global",
        ),
        (with(&|session| session["requests"] = json!({})), "invalid type: map, expected a list of requests"),
        (
            with(&|session| session["id"] = json!("x".repeat(257))),
            "bytes of session name `257` is above the limit of 256",
        ),
    ] {
        assert_eq!(complaint(&text), format!("t: {said}"));
        assert_eq!(complaint(tar([("d/1.json", text)])), format!("t: d/1.json: {said}"));
    }
    assert_eq!(complaint(session("a", &[]).to_string()), "t: no requests");
    let text = example().to_string();
    let said = complaint(&text[..text.len() / 2]);
    assert!(said.starts_with("t: cut off: `…"), "{said}");
    assert!(complaint(text.replace("}]", "]")).starts_with("t: "), "not JSON");
}

#[test]
fn what_is_said_of_an_archive_that_is_not_of_sessions() {
    let expected =
        "t: a tar archive without agentic sessions or ServeGen statistics: unpack it and give one of the files inside";
    assert_eq!(complaint(tar([("a.csv", "TIMESTAMP,ContextTokens".into())])), expected);
    let twice = tar([("1", example().to_string()), ("2", example().to_string())]);
    assert_eq!(complaint(twice), "t: 2: a second session named `a`");
    let said = complaint(tar([("1", example().to_string()), ("package.json", "{\"name\": 1}".into())]));
    assert_eq!(said, "t: package.json: not an agentic session of kv-cache-tester, starts with `{\"name\": 1}`");
    let said = complaint(tar([("1", session("a", &[]).to_string())]));
    assert_eq!(said, "t: no requests");
    for per_hour in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let arrivals = SessionArrivals { per_hour, ..SessionArrivals::default() };
        let folder = TempDir::new().unwrap();
        let opened = TraceReader::open_with(file(&folder, example().to_string()), arrivals);
        let said = opened.err().expect("no rate").to_string();
        assert!(
            said.ends_with(&format!(": {per_hour} sessions per hour: must be above 0 and at most 1000000")),
            "{said}"
        );
    }
}

#[test]
fn a_session_longer_than_any_and_one_that_claims_to_be_are_refused() {
    let mut text = example().to_string();
    text.insert_str(1, &" ".repeat(trace::MAX_SESSION_BYTES as usize));
    // The start is that of a session.
    let spaced = text.replacen('{', "{\"id\":\"b\",\"block_size\":64,\"requests\":[],", 1);
    let said = complaint(zstd::encode_all(spaced.as_bytes(), 1).unwrap());
    assert_eq!(said, "t: a session longer than 33554432 bytes");
    let said = complaint(zstd::encode_all(tar([("1", spaced)]).as_slice(), 1).unwrap());
    assert_eq!(said, "t: 1: a session longer than 33554432 bytes");

    let claims = |size: u64| {
        let mut archive = tar([("1", example().to_string())]);
        let mut header = tar::Header::from_byte_slice(&archive[..512]).clone();
        header.set_size(size);
        header.set_cksum();
        archive[..512].copy_from_slice(header.as_bytes());
        complaint(archive)
    };
    assert_eq!(claims(1 << 50), "t: bytes of archive `1125899906843136` is above the limit of 68719476736");
    assert_eq!(claims(u64::MAX), "t: cannot read: size overflow");
    let said = claims(100_000);
    assert!(said.starts_with("t: 1: cut off: `"), "{said}");
}

#[test]
fn an_archive_cut_anywhere_is_refused() {
    let other = example().to_string().replace("\"id\":\"a\"", "\"id\":\"b\"");
    let archive = tar([("1", example().to_string()), ("2", other)]);
    let end = archive.len() - 1_024;
    assert!(archive[end..].iter().all(|byte| *byte == 0));
    for cut in 0..=end {
        complaint(&archive[..cut]);
    }
    assert_eq!(complaint(&archive[..end]), "t: the tar archive ends early: it is cut off");
    assert_eq!(read(&archive[..end + 512]), read(&archive), "one block of zeros is end enough");
    let gzip = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&archive).unwrap();
        encoder.finish().unwrap()
    };
    let said = complaint(&gzip[..gzip.len() - 10]);
    assert_eq!(said.split(": ").last(), Some("the file is cut off"), "{said}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(at in 0_usize..6_000, bytes in proptest::collection::vec(any::<u8>(), 1..40), in_tar: bool) {
        let text = example().to_string();
        let mut whole = if in_tar { tar([("1", text)]) } else { text.into_bytes() };
        let at = at % whole.len();
        let end = (at + bytes.len()).min(whole.len());
        whole[at..end].copy_from_slice(&bytes[..end - at]);
        let folder = TempDir::new().unwrap();
        if let Err(error) = trace::read_all(file(&folder, &whole)) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn every_turn_is_read_with_its_own_hashes(sessions in proptest::collection::vec(proptest::collection::vec((0_u64..100, proptest::collection::vec(0_u64..5, 0..6)), 1..12), 1..6)) {
        // Hashes at random, so that every way of sharing lists comes up.
        let mut files = Vec::new();
        for (number, turns) in sessions.iter().enumerate() {
            let mut now = 0;
            let turns: Vec<Value> = turns.iter().map(|(gap, ids)| {
                now += gap;
                turn(now as f64, 64 * ids.len().max(1) as u64, ids)
            }).collect();
            files.push((number.to_string(), session(&format!("s{number}"), &turns).to_string()));
        }
        let archive = tar(files.iter().map(|(name, text)| (name.as_str(), text.clone())));
        // So slow that none overlap, and nothing but the last session's end is cut.
        let (read, left_out) = read_with(archive, &SessionArrivals { per_hour: 1e-4, ..SessionArrivals::default() });
        let base = |session: usize| (session as u64 + 1) << 32;
        let mut all: Vec<Vec<u64>> = Vec::new();
        for (number, turns) in sessions.iter().enumerate() {
            all.extend(turns.iter().map(|(_, ids)| ids.iter().map(|id| base(number) + id).collect()));
        }
        prop_assert_eq!(read.len() as u64 + left_out, all.len() as u64);
        for (request, ids) in read.iter().zip(all) {
            prop_assert_eq!(&*request.hash_ids, &ids[..]);
        }
    }
}
