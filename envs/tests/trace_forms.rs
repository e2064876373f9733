//! Every form a trace may have: recognised by what is in it, and read to the same requests.

use std::fs;
use std::path::{Path, PathBuf};

use kvtide_envs::time::Micros;
use kvtide_envs::trace::forms::FORMS;
use kvtide_envs::trace::{Format, Reading, Request, Skipped, TraceReader, TraceStats, fields, jsonl};
use proptest::prelude::*;
use tempfile::TempDir;

/// What every sample but the conversations says.
const EXPECTED: [(u64, u32, u32); 5] =
    [(0, 374, 44), (250_000, 420, 9), (250_000, 1_088, 100), (1_500_000, 64, 5), (61_000_000, 5_000, 713)];

const SAMPLES: [(&str, Format); 16] = [
    ("azure.csv", Format::Azure),
    ("burstgpt.csv", Format::BurstGpt),
    ("burstgpt-sessions.csv", Format::BurstGpt),
    ("bailian.jsonl", Format::Bailian),
    ("mooncake.jsonl", Format::Mooncake),
    ("kvtide.jsonl", Format::Canonical),
    ("vllm-bench.json", Format::VllmBench),
    ("litellm.jsonl", Format::ProxyLog),
    ("proxy.jsonl", Format::ProxyLog),
    ("objects.jsonl", Format::Objects),
    ("objects.json", Format::Objects),
    ("semicolons.csv", Format::Csv),
    ("pandas.csv", Format::Csv),
    ("tabs.tsv", Format::Csv),
    ("session.json", Format::Sessions),
    ("sharegpt.json", Format::Conversations),
];

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/forms").join(name)
}

fn by_chars() -> Reading {
    Reading { chars_per_token: Some(4.0), ..Reading::default() }
}

fn plain((arrival_us, prompt, output): (u64, u32, u32)) -> Request {
    Request::new(Micros(arrival_us), prompt, output)
}

/// Arrival and lengths.
fn bare(request: &Request) -> (u64, u32, u32) {
    (request.arrival.0, request.prompt_tokens, request.output_tokens)
}

/// Reads text as a file would be.
fn read_with(text: impl AsRef<[u8]>, reading: &Reading) -> Result<(Vec<Request>, TraceReader), String> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t");
    fs::write(&path, text).unwrap();
    let told = |error: kvtide_envs::trace::TraceError| {
        let said = error.to_string();
        assert!(!said.contains('\n'), "more than one line: {said}");
        said.strip_prefix(&format!("{}/", folder.path().display())).expect("names the file").to_owned()
    };
    let mut reader = TraceReader::open_with(&path, reading).map_err(told)?;
    let requests = reader.by_ref().collect::<Result<Vec<_>, _>>().map_err(told)?;
    Ok((requests, reader))
}

fn read(text: impl AsRef<[u8]>) -> (Vec<Request>, TraceReader) {
    read_with(text, &Reading::default()).unwrap()
}

fn complaint(text: impl AsRef<[u8]>) -> String {
    read_with(text, &Reading::default()).map(|(requests, _)| requests).unwrap_err()
}

fn lengths(text: impl AsRef<[u8]>) -> Vec<(u64, u32, u32)> {
    read(text).0.iter().map(bare).collect()
}

#[test]
fn every_sample_is_the_same_trace() {
    for (name, format) in SAMPLES {
        let mut reader = TraceReader::open_with(sample(name), by_chars()).unwrap_or_else(|error| panic!("{error}"));
        let requests: Vec<Request> =
            reader.by_ref().map(|request| request.unwrap_or_else(|error| panic!("{error}"))).collect();
        // So that the text of it stays short.
        let of_conversations = |(at, prompt, output)| (at, prompt % 50 + 1, output % 50 + 1);
        let is_conversations = format == Format::Conversations;
        let expected = EXPECTED.map(|row| if is_conversations { of_conversations(row) } else { row });
        assert_eq!(requests.iter().map(bare).collect::<Vec<_>>(), expected, "{name}");
        assert_eq!((reader.format(), reader.skipped(), reader.late_rows()), (format, Skipped::default(), 0), "{name}");
    }
}

#[test]
fn every_sample_is_converted_and_read_back() {
    let folder = TempDir::new().unwrap();
    let expected = fs::read(sample("kvtide.jsonl")).unwrap();
    for (name, format) in SAMPLES {
        let written = folder.path().join("t.jsonl");
        jsonl::convert(&mut TraceReader::open_with(sample(name), by_chars()).unwrap(), &written).unwrap();
        let first = fs::read(&written).unwrap();
        // Sessions have names, and conversations too.
        if !["bailian.jsonl", "burstgpt-sessions.csv", "session.json", "sharegpt.json"].contains(&name) {
            assert_eq!(String::from_utf8_lossy(&first), String::from_utf8_lossy(&expected), "{name}");
        }
        jsonl::convert(&mut TraceReader::open(&written).unwrap(), folder.path().join("again")).unwrap();
        assert_eq!(fs::read(folder.path().join("again")).unwrap(), first, "{format}");
    }
}

#[test]
fn every_form_has_rows_that_work_and_are_its_own() {
    for form in FORMS.iter().filter(|form| !form.sample.is_empty()) {
        let (requests, reader) = read(form.sample.join("\n"));
        assert_eq!(reader.format(), form.format);
        assert_eq!(
            requests.iter().map(bare).collect::<Vec<_>>(),
            [(0, 374, 44), (2_500_000, 420, 9)],
            "{}",
            form.format
        );
    }
}

#[test]
fn what_is_documented_is_what_is_known() {
    let documented = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/TRACES.md")).unwrap();
    for form in &FORMS {
        assert!(documented.contains(&format!("### {}\n", form.format)), "{}", form.format);
        let sample = form.sample.join("\n");
        assert!(documented.contains(&sample), "{sample}");
    }
    for group in &fields::NAMES {
        let names: Vec<String> = group.names.iter().map(|name| format!("`{name}`")).collect();
        let row = format!("| {} | {} |", group.meaning, names.join(", "));
        assert!(documented.contains(&row), "{row}");
    }
}

#[test]
fn rows_that_are_not_in_order_are_sorted() {
    let text = "time,prompt_tokens,output_tokens\n5,1,1\n3,2,1\n4,3,1\n3,4,1\n9,5,1\n";
    let (requests, reader) = read(text);
    let expected = [(0, 2, 1), (0, 4, 1), (1_000_000, 3, 1), (2_000_000, 1, 1), (6_000_000, 5, 1)];
    assert_eq!((requests.iter().map(bare).collect::<Vec<_>>(), reader.late_rows()), (expected.to_vec(), 3));
    let reading = Reading { is_unsorted: true, ..Reading::default() };
    let (once, reader) = read_with(text, &reading).unwrap();
    assert_eq!((once, reader.late_rows()), (requests, 3));
    // The traces that were always read, too, and those in memory.
    let text = r#"{"timestamp": 5, "input_length": 600, "output_length": 5}
        {"timestamp": 0, "input_length": 700, "output_length": 5}"#;
    assert_eq!(lengths(text), [(0, 700, 5), (5_000, 600, 5)]);
    let text = r#"{"input_lens": [1, 2], "output_lens": [3, 4], "start_times": [7.5, 7.25]}"#;
    let (requests, reader) = read(text);
    assert_eq!((requests, reader.late_rows()), (vec![plain((0, 2, 4)), plain((250_000, 1, 3))], 1));
}

#[test]
fn rows_with_nothing_in_them_are_skipped_and_counted() {
    let skipped = |text: &str| {
        let (requests, reader) = read(text);
        assert_eq!(requests.iter().map(bare).collect::<Vec<_>>(), [(0, 7, 8)], "{text}");
        reader.skipped()
    };
    let text = "time,prompt_tokens,completion_tokens,error,status_code\n1,0,5,,200\n1,5,0,,\n2,7,8,,200\n\n2,,5,,200\n2,5,null,,200\n\
        2,5,5,boom,200\n2,5,5,,503\n";
    assert_eq!(skipped(text), Skipped { failed: 2, empty: 2, without_lengths: 2, without_time: 0 });
    let text = r#"{"startTime": 5, "usage": {"prompt_tokens": 7, "completion_tokens": 8}, "status": "success", "error": null}
        {"startTime": 5, "usage": {"prompt_tokens": 7, "completion_tokens": 0}}
        {"startTime": 5, "usage": null}
        {"startTime": 5, "messages": [{"role": "user", "content": "hi"}], "status": "failure", "exception": "timeout"}
        {"startTime": 5, "usage": {"prompt_tokens": null, "completion_tokens": 8}}"#;
    assert_eq!(skipped(text), Skipped { failed: 1, empty: 1, without_lengths: 2, without_time: 0 });
    let text = r#"{"input_lens": [0, 7, 5, 5], "output_lens": [1, 8, 0, 5], "start_times": [1, 2, 3, 4], "errors": ["", "", "", "boom"]}"#;
    assert_eq!(skipped(text), Skipped { failed: 1, empty: 2, without_lengths: 0, without_time: 0 });
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,0,3\n2023-11-16 18:15:47,7,8\n";
    assert_eq!(skipped(text), Skipped { empty: 1, ..Skipped::default() });
    let text = "{\"arrival_us\":0,\"prompt_tokens\":7,\"output_tokens\":0}\n{\"arrival_us\":5,\"prompt_tokens\":7,\"output_tokens\":8}";
    assert_eq!(skipped(text), Skipped { empty: 1, ..Skipped::default() });
    assert_eq!(
        complaint("time,prompt_tokens,completion_tokens\n1,0,5\n2,,5\n"),
        "t: no requests: rows skipped: 1 with 0 tokens of prompt or answer, 1 without lengths"
    );
}

#[test]
fn what_is_wrong_is_said_with_line_and_value() {
    let csv = |row: &str| complaint(format!("\u{feff}time,prompt_tokens,completion_tokens\r\n1,1,1\r\n\r\n{row}\r\n"));
    for (row, said) in [
        ("1,x,1", "prompt_tokens `x` is not a whole number"),
        ("1,NaN,1", "prompt_tokens `NaN` is not a whole number"),
        ("1,1.5,1", "prompt_tokens `1.5` is not a whole number"),
        ("1,-3,1", "prompt_tokens `-3` is negative"),
        ("1,1,99999999999999999999999", "completion_tokens `99999999999999999999999` is above the limit of 1048576"),
        ("1,1,1048577", "completion_tokens `1048577` is above the limit of 1048576"),
        ("noon,1,1", "time `noon` is not a time: expected 2023-11-16T18:15:46.68+01:00 or a number"),
        ("-1,1,1", "time `-1` is negative"),
        ("1,1", "2 columns instead of 3: `1,1`"),
        ("1,1,1,1", "4 columns instead of 3: `1,1,1,1`"),
        ("1,1,\"1", "cut off: `1,1,1`"),
        ("99999999999,1,1", "arrival, µs after the first, `99999999998000000` is above the limit of 315619200000000"),
    ] {
        assert_eq!(csv(row), format!("t:4: {said}"), "{row}");
    }
    assert_eq!(
        lengths("time,prompt_tokens,completion_tokens\n1,2,3,\n"),
        [(0, 2, 3)],
        "a delimiter at the end of rows"
    );
    let json =
        |row: &str| complaint(format!("[{{\"time\": 1, \"prompt_tokens\": 1, \"completion_tokens\": 1}},\n {row}"));
    for (row, said) in [
        (
            "{\"time\": 1, \"prompt_tokens\": true, \"completion_tokens\": 1}]",
            "prompt_tokens `true` is not a whole number",
        ),
        ("{\"time\": 1, \"prompt_tokens\": -1, \"completion_tokens\": 1}]", "prompt_tokens `-1` is negative"),
        ("{\"prompt_tokens\": 1, \"completion_tokens\": 1}]", "no time of arrival ("),
        ("{\"time\": 1, \"prompt_tokens\": 1, \"com", "cut off: `{\"time\": 1, \"prompt_tokens\": 1, \"com`"),
        ("{\"time\": 1, \"prompt_tokens\": 1, \"completion_tokens\": 1}", "cut off: "),
        ("5]", "not a JSON object, at column 1: `5`"),
        ("{} {}]", "`{` where an array goes on with a comma or ends"),
        ("{}]]", "`]` where an array goes on with a comma or ends"),
        ("{\"a\": 1e999}]", "not a JSON object, at column "),
    ] {
        let found = json(row);
        assert!(found.starts_with(&format!("t:2: {said}")), "{row}: {found}");
    }
    let deep =
        format!("{{\"time\": 1, \"prompt_tokens\": 1, \"completion_tokens\": 1, \"x\": {}}}", "[".repeat(100_000));
    assert!(complaint(deep).starts_with("t:1: "));
    let said = complaint("time,prompt_tokens,completion_tokens\n1,1,1\n1,\"é\",1\n");
    assert_eq!(said, "t:3: prompt_tokens `é` is not a whole number");
    assert_eq!(complaint(b"time,prompt_tokens,completion_tokens\n1,\xff,1\n"), "t:2: not UTF-8: `1,�,1`");
    let endless = format!("time,prompt_tokens,completion_tokens,note\n1,1,1,\"{}", "x\n".repeat(3 << 20));
    assert_eq!(complaint(endless), "t:2: longer than 4194304 bytes");
}

#[test]
fn two_columns_that_could_be_the_same_are_named() {
    assert_eq!(
        complaint("time,prompt_tokens,input_tokens,output_tokens\n1,1,1,1\n"),
        "t:1: `prompt_tokens` and `input_tokens` could both be the prompt length in tokens: take one of them out"
    );
    assert_eq!(
        complaint("{\"time\": 1, \"ts\": 2, \"prompt_tokens\": 1, \"output_tokens\": 1}"),
        "t:1: `time` and `ts` could both be the time of arrival: take one of them out"
    );
    // Equal ones do no harm, and one that says when a request came is preferred to the stamp of the row.
    let text = "{\"arrival\": 3, \"time\": 1, \"prompt_tokens\": 1, \"input_tokens\": 1, \"output_tokens\": 1}";
    assert_eq!(
        lengths(format!("{text}\n{}", text.replace("\"arrival\": 3", "\"arrival\": 4"))),
        [(0, 1, 1), (1_000_000, 1, 1)]
    );
}

#[test]
fn names_of_who_sent_it_are_kept() {
    let text = "time,prompt_tokens,output_tokens,session_id,user,end_user,priority\n1,1,1,s,u,e,2\n1,1,1,,u,,\n";
    let (requests, _) = read(text);
    let told = |request: &Request| (request.session.clone(), request.tenant.clone(), request.priority);
    assert_eq!(told(&requests[0]), (Some("s".into()), Some("e".into()), Some(2)));
    assert_eq!(told(&requests[1]), (None, None, None));
    let text = r#"{"created": 1767603600, "usage": {"input_tokens": 5, "cache_read_input_tokens": 30, "output_tokens": 2},
        "metadata": {"session_id": "s"}, "user": {"id": 1}, "request": {"user": "a"}}"#;
    let (requests, reader) = read(text);
    assert_eq!((bare(&requests[0]), requests[0].session.as_deref()), ((0, 35, 2), Some("s")));
    assert_eq!(reader.clock().as_deref(), Some("seconds since 1970, by size (--time-unit says otherwise)"));
    let long = format!("time,prompt_tokens,output_tokens,user\n1,1,1,{}\n", "n".repeat(257));
    assert_eq!(complaint(long), format!("t:2: bytes of user `{}…` is above the limit of 256", "n".repeat(80)));
}

#[test]
fn text_counts_only_where_a_user_says_so() {
    let text = r#"{"timestamp": 1000000000000000, "input": "0123456789", "output": "é", "session_id": "s"}"#;
    let said = "t:1: text, but no counts of tokens: kvtide trace convert --chars-per-token 4 would take four characters for a token";
    assert_eq!(complaint(text), said);
    assert_eq!(complaint(fs::read(sample("sharegpt.json")).unwrap()), said.replace("t:1", "t:2"));
    let (requests, reader) = read_with(text, &by_chars()).unwrap();
    assert_eq!((bare(&requests[0]), reader.clock().unwrap().starts_with("microseconds")), ((0, 3, 1), true));
    for chars in [0.0, -1.0, f64::NAN, 1e9] {
        let reading = Reading { chars_per_token: Some(chars), ..Reading::default() };
        assert!(
            read_with(text, &reading)
                .is_err_and(|said| said.contains("characters per token: must be from 0.25 to 100"))
        );
    }
}

#[test]
fn turns_with_times_are_requests_and_turns_without_are_counted() {
    let text = r#"[{"id": "a", "messages": [
        {"role": "system", "tokens": 10, "timestamp": 5}, {"role": "user", "tokens": 3, "timestamp": 6},
        {"role": "assistant", "tokens": 4, "timestamp": 8}, {"role": "user", "tokens": 5, "timestamp": 20},
        {"role": "assistant", "tokens": 6, "timestamp": 21}]}]"#;
    let (requests, _) = read(text);
    assert_eq!(requests.iter().map(bare).collect::<Vec<_>>(), [(0, 13, 4), (14_000_000, 22, 6)]);
    assert_eq!(requests[1].session.as_deref(), Some("a"));
    let untimed =
        text.replace(", \"timestamp\": 5", "").replace(", \"timestamp\": 6", "").replace(", \"timestamp\": 8", "");
    let untimed = untimed
        .replace(", \"timestamp\": 20", "")
        .replace(", \"timestamp\": 21", "")
        .replace("\"id\"", "\"time\": 5, \"id\"");
    let (requests, reader) = read(untimed);
    assert_eq!((requests.iter().map(bare).collect::<Vec<_>>(), reader.skipped().without_time), (vec![(0, 13, 4)], 1));
}

#[test]
fn times_that_are_not_there_are_drawn_where_a_user_says_so() {
    let (lens, result) = (
        "num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n",
        r#"{"input_lens": [5, 7], "output_lens": [6, 8], "request_rate": 4.0}"#,
    );
    assert!(complaint(lens).ends_with("kvtide trace convert --arrival-rate 2 would draw arrivals, two a second"));
    assert!(
        complaint(result).contains("--arrival-rate 4 would draw arrivals, as many a second as its request_rate says"),
        "{}",
        complaint(result)
    );
    let served = result.replace("4.0", "\"inf\", \"completed\": 3, \"duration\": 2.0");
    assert!(complaint(served).contains("--arrival-rate 1.500 would draw arrivals, as many a second as it completed"));
    let reading = Reading { arrival_rate: Some(4.0), ..Reading::default() };
    let (a, b) = (read_with(lens, &reading).unwrap(), read_with(result, &reading).unwrap());
    assert_eq!(a.0, b.0);
    assert!(a.0[1].arrival > Micros(0) && a.1.clock().unwrap().starts_with("drawn, by a Poisson process of 4"));
    let said = read_with(fs::read(sample("pandas.csv")).unwrap(), &reading).map(drop).unwrap_err();
    assert_eq!(said, "t:2: timestamp says when requests arrive: --arrival-rate is for files that do not");
    for rate in [0.0, f64::NAN, -1.0, 1e9] {
        assert!(read_with(lens, &Reading { arrival_rate: Some(rate), ..Reading::default() }).is_err());
    }
}

#[test]
fn what_is_said_of_a_result_of_a_benchmark() {
    for (text, said) in [
        (
            r#"{"input_lens": [1], "output_lens": [1, 2], "start_times": [1]}"#,
            "t: output_lens has 2 entries and input_lens 1",
        ),
        (
            r#"{"input_lens": [1], "output_lens": [1], "start_times": [1], "errors": []}"#,
            "t: errors has 0 entries and input_lens 1",
        ),
        (r#"{"input_lens": [-1], "output_lens": [1], "start_times": [1]}"#, "t: input_lens[0] `-1` is negative"),
        (
            r#"{"input_lens": [1], "output_lens": [1], "start_times": [-1]}"#,
            "t: start_times `-1` is not a time in seconds",
        ),
        (
            r#"{"duration": 1, "request_throughput": 3}"#,
            "t: a result without input_lens: vllm bench serve writes it with --save-result --save-detailed",
        ),
        (r#"{"input_lens": [1], "output_lens": [1"#, "t:1: cut off, at column 37"),
        (
            "{\"input_lens\": [1], \"output_lens\": [1], \"start_times\": [1]}\n{\"input_lens\": []}",
            "t: a second result after the first: give one run at a time",
        ),
    ] {
        assert_eq!(complaint(text), said);
    }
    assert!(complaint("{\"input_lens\": [1, \"x\"]}").starts_with("t:1: invalid type: string \"x\", expected i64"));
}

#[test]
fn statistics_say_what_was_skipped_and_sorted() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t");
    fs::write(&path, "timestamp_ms,prompt_tokens,output_tokens\n1000,5,5\n0,5,5\n7,0,1\n").unwrap();
    let stats = TraceStats::read(&path).unwrap();
    assert_eq!(
        stats.warnings,
        ["rows skipped: 1 with 0 tokens of prompt or answer", "rows that were not in order of arrival, sorted: 1"]
    );
    assert!(
        stats
            .to_string()
            .contains("\nformat         CSV, plain\ntimes          milliseconds, by its name\nrequests       2\n")
    );
    fs::write(&path, "{\"arrival_us\":0,\"prompt_tokens\":1,\"output_tokens\":1}").unwrap();
    let json = serde_json::to_string(&TraceStats::read(&path).unwrap()).unwrap();
    assert!(!json.contains("skipped") && !json.contains("late_rows") && !json.contains("clock"), "{json}");
}

proptest! {
    #[test]
    fn no_damage_makes_a_reader_panic(
        which in 0..SAMPLES.len(), at in 0_usize..4_000, bytes in proptest::collection::vec(any::<u8>(), 0..40), keep in any::<bool>(),
    ) {
        let whole = fs::read(sample(SAMPLES[which].0)).unwrap();
        let at = at % whole.len();
        let rest: &[u8] = if keep { &whole[(at + bytes.len()).min(whole.len())..] } else { &[] };
        let _ = read_with([&whole[..at], &bytes, rest].concat(), &by_chars());
    }

    #[test]
    fn any_order_of_columns_and_any_delimiter_is_read(
        order in Just([0_usize, 1, 2, 3]).prop_shuffle(), delimiter in "[,;\t|]", quoted in any::<bool>(),
        rows in proptest::collection::vec((0_u64..1_000_000, 1_u32..100_000, 1_u32..10_000), 1..40),
    ) {
        let cell = |text: String| if quoted { format!("\"{text}\"") } else { text };
        let line = |cells: [String; 4]| order.map(|column| cell(cells[column].clone())).join(&delimiter) + "\n";
        let mut text = line(["timestamp_us", "Prompt Tokens", "note", "outputTokens"].map(str::to_owned));
        for (at, prompt, output) in &rows {
            text += &line([at.to_string(), prompt.to_string(), "é".to_owned(), output.to_string()]);
        }
        let mut expected = rows.clone();
        expected.sort_by_key(|row| row.0);
        let first = expected[0].0;
        let expected: Vec<_> = expected.into_iter().map(|(at, prompt, output)| (at - first, prompt, output)).collect();
        prop_assert_eq!(lengths(text), expected);
    }
}

#[test]
fn files_that_were_put_together_repeat_their_header() {
    let rows = |text: &str| lengths(format!("{text}1,374,44\n{text}\u{feff}{text}3.5,420,9\n"));
    let expected = [(0, 374, 44), (2_500_000, 420, 9)];
    assert_eq!(rows("timestamp,prompt_tokens,completion_tokens\n"), expected);
    assert_eq!(rows("timestamp,\"prompt_tokens\", completion_tokens\r\n"), expected);
    let other = "timestamp,prompt_tokens,completion_tokens\n1,2,3\ntime,prompt_tokens,completion_tokens\n2,3,4\n";
    assert_eq!(complaint(other), "t:3: prompt_tokens `prompt_tokens` is not a whole number");
}

#[test]
fn a_log_may_start_with_lines_that_are_no_requests() {
    let request = r#"{"ts": 5, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}"#;
    let started = r#"{"level": "info", "ts": 1, "msg": "listening on [::]:8080 {"}"#;
    let (requests, reader) = read(format!("{started}\n\n{started}\n{request}\n{started}\n"));
    assert_eq!(requests.iter().map(bare).collect::<Vec<_>>(), [(0, 3, 4)]);
    assert_eq!((reader.format(), reader.skipped().without_lengths), (Format::ProxyLog, 3));
    // What is below a start that says nothing is looked at as far as the start is, and no further.
    let late = format!("{}{request}\n", format!("{started}\n").repeat(1_000));
    assert!(complaint(late).starts_with("t:1: unknown form"));
    // Forms that skip no rows are told by their first.
    let canonical = format!("{started}\n{{\"arrival_us\": 0, \"prompt_tokens\": 1, \"output_tokens\": 1}}\n");
    assert!(complaint(canonical).starts_with("t:1: unknown form"));
}

#[test]
fn utf_16_is_named() {
    let text = "timestamp,prompt_tokens,completion_tokens\n1,2,3\n";
    let little = |mark: &[u8]| [mark, &text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()].concat();
    let big = |mark: &[u8]| [mark, &text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>()].concat();
    for bytes in [little(b"\xff\xfe"), little(b""), big(b"\xfe\xff"), big(b"")] {
        assert!(complaint(&bytes).starts_with("t: UTF-16, and UTF-8 is read: iconv -f UTF-16"));
    }
    assert!(complaint([0; 64]).starts_with("t:1: unknown form"));
}
