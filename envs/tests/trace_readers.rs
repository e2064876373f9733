//! Every trace format, compression and rejection, told by what is read and what is said.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use kvtide_envs::time::Micros;
use kvtide_envs::trace::{self, Compression, Format, Request, TraceReader, TraceStats, jsonl};
use proptest::prelude::*;
use tempfile::TempDir;

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
    2024-05-10 00:00:00.009930+00:00,100,10\n\
    2024-05-10 00:00:00.010000+00:00,200,20\n\
    2024-05-10 00:00:01+00:00,300,30\n";

const MOONCAKE: &str = r#"{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 4000, "input_length": 1024, "output_length": 6, "hash_ids": [0, 3]}
{"timestamp": 4000.5, "input_length": 40, "output_length": 0, "hash_ids": [4]}
"#;

const CANONICAL: &str = include_str!("data/canonical.jsonl");

fn file(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    zstd::encode_all(text.as_bytes(), 1).unwrap()
}

/// As `zstd --long=27` writes it.
fn zstd_long(text: &str) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.long_distance_matching(true).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn request(arrival_us: u64, prompt_tokens: u32, output_tokens: u32) -> Request {
    Request::new(Micros(arrival_us), prompt_tokens, output_tokens)
}

fn hashed(request: Request, hash_ids: &[u64], hash_block_tokens: u32) -> Request {
    Request { hash_ids: hash_ids.to_vec().into(), hash_block_tokens, ..request }
}

/// The one line said about a file, without its folder.
fn complaint(bytes: impl AsRef<[u8]>) -> String {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "t", bytes);
    let said = trace::read_all(&path).unwrap_err().to_string();
    assert!(!said.contains('\n'), "more than one line: {said}");
    said.strip_prefix(&format!("{}/", folder.path().display())).expect("names the file").to_owned()
}

fn azure_complaint(row: &str) -> String {
    complaint(format!("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n{row}\r\n"))
}

#[test]
fn azure_rows_are_rebased_to_the_first_arrival() {
    let folder = TempDir::new().unwrap();
    let read = trace::read_all(file(&folder, "t", AZURE)).unwrap();
    assert_eq!(read, [request(0, 100, 10), request(70, 200, 20), request(990_070, 300, 30)]);
}

#[test]
fn azure_columns_are_found_by_name() {
    let folder = TempDir::new().unwrap();
    let text = "NumImages, GeneratedTokens ,TIMESTAMP,ContextTokens\n0,0,2024-10-15T00:00:00Z,7\n";
    let mut reader = TraceReader::open(file(&folder, "t", text)).unwrap();
    assert_eq!(reader.next().unwrap().unwrap(), request(0, 7, 1));
    assert!(reader.next().is_none());
    assert_eq!((reader.format(), reader.requests(), reader.zero_output_rows()), (Format::Azure, 1, 1));
}

#[test]
fn mooncake_keeps_the_hashes_of_full_blocks() {
    let folder = TempDir::new().unwrap();
    let mut reader = TraceReader::open(file(&folder, "t", MOONCAKE)).unwrap();
    let read: Vec<Request> = reader.by_ref().map(Result::unwrap).collect();
    let expected = [
        hashed(request(0, 1_100, 5), &[0, 1], 512),
        hashed(request(3_000_000, 1_024, 6), &[0, 3], 512),
        request(3_000_500, 40, 1),
    ];
    assert_eq!(read, expected);
    assert_eq!((reader.format(), reader.zero_output_rows()), (Format::Mooncake, 1));
}

#[test]
fn bailian_blocks_are_chained_and_chats_belong_to_sessions() {
    let folder = TempDir::new().unwrap();
    let row = |chat: u32, parent: i32, at: f64, prompt: u32, hashes: &str| {
        format!(
            r#"{{"chat_id": {chat}, "parent_chat_id": {parent}, "timestamp": {at}, "input_length": {prompt}, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [{hashes}]}}"#
        )
    };
    let text = [
        row(7, -1, 0.0, 40, "1, 2, 3"),
        row(8, 7, 61.114, 64, "1, 2, 2, 2"),
        row(9, 8, 62.0, 16, "2"),
        row(11, 10, 63.0, 15, ""),
    ];
    let mut reader = TraceReader::open(file(&folder, "t", text.join("\n"))).unwrap();
    let read: Vec<Request> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(reader.format(), Format::Bailian);
    let sessions: Vec<&str> = read.iter().map(|request| request.session.as_deref().unwrap()).collect();
    assert_eq!(sessions, ["7", "7", "7", "10"]);
    assert_eq!(read[1].arrival, Micros(61_114_000));
    assert!(read.iter().all(|request| request.tenant.as_deref() == Some("text")));
    // Full blocks alone; the same block elsewhere is another one.
    let hashes: Vec<&[u64]> = read.iter().map(|request| &*request.hash_ids).collect();
    assert_eq!(hashes.iter().map(|hashes| hashes.len()).collect::<Vec<_>>(), [2, 4, 1, 0]);
    assert_eq!(hashes[0], &hashes[1][..2]);
    assert!(hashes[1][1] != hashes[1][2] && hashes[1][2] != hashes[1][3] && hashes[2][0] != hashes[1][1]);
    assert_eq!((read[0].hash_block_tokens, read[3].hash_block_tokens), (16, 0));
}

#[test]
fn what_is_said_of_a_bailian_row() {
    let first = r#"{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 60, "output_length": 5}"#;
    let with = |chat: &str, at: &str, prompt: &str, more: &str| {
        format!(
            r#"{{"chat_id": {chat}, "parent_chat_id": 1, "timestamp": {at}, "input_length": {prompt}, "output_length": 5{more}}}"#
        )
    };
    let long = format!(", \"type\": \"{}\"", "x".repeat(257));
    for (row, said) in [
        (r#"{"chat_id": 2, "parent_"#.to_owned(), r#"cut off: `{"chat_id": 2, "parent_`"#),
        (with("2", "-1", "9", ""), "timestamp `-1` is negative"),
        (with("2", "1e12", "9", ""), "timestamp `1000000000000` is above the limit of 8589934592"),
        (with("2", "\"1\"", "9", ""), "timestamp: invalid type: string \"1\", expected f64"),
        (with("\"a\"", "1", "9", ""), "chat_id: invalid type: string \"a\", expected i64"),
        (with("2", "1", "-9", ""), "input_length `-9` is negative"),
        (with("2", "1", "1e30", ""), "input_length `1e+30` is above the limit of 16777216"),
        (with("2", "1", "9", ", \"hash_ids\": [1, 2]"), "2 hash_ids of 16 tokens do not fit a prompt of 9 tokens"),
        (with("2", "1", "9", ", \"hash_ids\": [-1]"), "hash_ids: invalid value: integer `-1`, expected u64"),
        (with("2", "1", "9", ", \"type\": 3"), "type: invalid type: integer `3`, expected a string"),
        (
            r#"{"chat_id": 2, "parent_chat_id": 1, "timestamp": 1, "input_length": 3}"#.to_owned(),
            "missing field `output_length`",
        ),
    ] {
        assert_eq!(complaint(format!("{first}\n{row}\n")), format!("t:2: {said}"));
    }
    let said = complaint(format!("{first}\n{}\n", with("2", "1", "9", &long)));
    assert!(said.starts_with("t:2: bytes of type `xxx") && said.ends_with("is above the limit of 256"), "{said}");
}

#[test]
fn derived_traces_have_blocks_of_64_tokens_and_sessions() {
    let folder = TempDir::new().unwrap();
    let text = r#"{"timestamp": 0, "input_length": 130, "output_length": 3, "input_chars": 700, "session_id": "s", "hash_ids": [1, 2, 3]}"#;
    let read = trace::read_all(file(&folder, "t", text)).unwrap();
    assert_eq!(read, [Request { session: Some("s".into()), ..hashed(request(0, 130, 3), &[1, 2], 64) }]);
}

#[test]
fn the_canonical_form_is_written_as_it_is_read() {
    let folder = TempDir::new().unwrap();
    let read = trace::read_all(file(&folder, "t", CANONICAL)).unwrap();
    let mut written = Vec::new();
    jsonl::write(&mut written, &read).unwrap();
    assert_eq!(String::from_utf8(written).unwrap(), CANONICAL);
}

#[test]
fn compression_is_told_by_content_whatever_the_name() {
    let folder = TempDir::new().unwrap();
    for (text, format) in [(AZURE, Format::Azure), (MOONCAKE, Format::Mooncake), (CANONICAL, Format::Canonical)] {
        let plain = trace::read_all(file(&folder, "plain.zst", text)).unwrap();
        let skippable: &[u8] = &[0x53, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9];
        for (bytes, compression) in [
            (text.as_bytes().to_vec(), Compression::Plain),
            (gzip(text), Compression::Gzip),
            (zstd(text), Compression::Zstd),
            (zstd_long(text), Compression::Zstd),
            ([skippable, &zstd(text)].concat(), Compression::Zstd),
        ] {
            let mut reader = TraceReader::open(file(&folder, "t.csv", bytes)).unwrap();
            assert_eq!((reader.format(), reader.compression()), (format, compression));
            assert_eq!(reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap(), plain);
        }
    }
}

#[test]
fn members_and_frames_are_read_on() {
    let folder = TempDir::new().unwrap();
    // Cut within a line: a member need not end where a line does.
    let (start, end) = AZURE.split_at(70);
    for bytes in [[gzip(start), gzip(end)].concat(), [zstd(start), zstd(end)].concat()] {
        assert_eq!(trace::read_all(file(&folder, "t", bytes)).unwrap().len(), 3);
    }
}

#[test]
fn a_bom_crlf_blank_lines_and_a_missing_last_newline_are_accepted() {
    let folder = TempDir::new().unwrap();
    for text in [AZURE, MOONCAKE, CANONICAL] {
        let expected = trace::read_all(file(&folder, "t", text)).unwrap();
        let odd = format!("\u{feff}\r\n{}", text.replace('\n', "\r\n\r\n"));
        assert_eq!(trace::read_all(file(&folder, "odd", odd.trim_end())).unwrap(), expected);
    }
}

#[test]
fn rows_before_an_error_are_read_and_none_after_it() {
    let folder = TempDir::new().unwrap();
    let mut reader =
        TraceReader::open(file(&folder, "t", format!("{AZURE}2024-05-10 00:00:02,5\n2024-05-10 00:00:03,5,5\n")))
            .unwrap();
    assert_eq!(reader.by_ref().take(3).map(Result::unwrap).count(), 3);
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none(), "reading ends after an error");
}

#[test]
fn what_is_said_of_a_file_that_cannot_be_read() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    let said = trace::read_all(&missing).unwrap_err().to_string();
    assert_eq!(said, format!("{}: cannot open: No such file or directory (os error 2)", missing.display()));
    let said = trace::read_all(folder.path()).unwrap_err().to_string();
    assert!(
        said.ends_with(": give one file, or put several together on standard input (-)")
            && said.contains(": a folder without"),
        "{said}"
    );
    std::fs::write(folder.path().join("chunk-0-dataset.json"), "{}").unwrap();
    let said = trace::read_all(folder.path()).unwrap_err().to_string();
    assert!(!said.contains(": a folder without"), "{said}");
}

#[test]
fn what_is_said_of_a_file_without_requests() {
    assert_eq!(complaint(""), "t: no requests");
    assert_eq!(complaint("\u{feff}\r\n \n"), "t: no requests");
    assert_eq!(complaint(gzip("")), "t: no requests");
    assert_eq!(complaint(zstd("\n")), "t: no requests");
    assert_eq!(complaint("TIMESTAMP,ContextTokens,GeneratedTokens\n"), "t: no requests");
}

#[test]
fn what_is_said_of_an_unknown_form() {
    let said = complaint("num_prefill,num_decode_tokens\n1,2\n");
    assert_eq!(
        said,
        "t:1: unknown form, starts with `num_prefill,num_decode_tokens`: nearest is CSV, for which it lacks time of arrival \
         (arrival, start_time, timestamp, created_at, …) and prompt length in tokens (prompt_tokens, input_tokens, context_tokens, \
         …); this would work: `timestamp,prompt_tokens,completion_tokens`, `1767603600.0,374,44`, `1767603602.5,420,9`"
    );
    let said = complaint("\n{\"timestamp\": 5, \"input_toks\": 1}\n");
    assert_eq!(
        said,
        "t:2: unknown form, starts with `{\"timestamp\": 5, \"input_toks\": 1}`: nearest is JSON objects, for which it lacks output \
         length in tokens (completion_tokens, output_tokens, generated_tokens, …); this would work: \
         `{\"timestamp\": 1767603600.0, \"prompt_tokens\": 374, \"completion_tokens\": 44}`, \
         `{\"timestamp\": 1767603602.5, \"prompt_tokens\": 420, \"completion_tokens\": 9}`"
    );
    for (text, start, nearest) in [
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:50,1\n",
            "t:1: ",
            "nearest is Azure CSV, for which it lacks GeneratedTokens;",
        ),
        (
            "Timestamp,Model,Request tokens\n5,a,1\n",
            "t:1: ",
            "nearest is BurstGPT CSV, for which it lacks Response tokens;",
        ),
        ("[{\"arrival_us\": 5}]", "t:1: ", "missing field"),
        (
            "PK\u{3}\u{4}\0\u{1b}[31m",
            "t:1: unknown form, starts with `PK\\u{3}\\u{4}\\0\\u{1b}[31m`: ",
            "nearest is CSV",
        ),
        (&"x".repeat(100_000), &format!("t:1: unknown form, starts with `{}…`: ", "x".repeat(80)), "nearest is CSV"),
        (
            "{\"startTime\": 1, \"usage\": {}}",
            "t:1: ",
            "nearest is proxy log JSON, for which it lacks lengths that can be read;",
        ),
        ("[]", "t: ", "no requests"),
        ("[1, 2]", "t:1: unknown form, starts with `[1, 2]`: ", "nearest is JSON objects"),
    ] {
        let said = complaint(text);
        assert!(said.starts_with(start) && said.contains(nearest), "{said}");
    }
    assert_eq!(complaint([b'\x89', b'P', b'N', b'G']), "t:1: not UTF-8: `�PNG`");
}

#[test]
fn a_tar_archive_of_anything_but_sessions_is_refused() {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(AZURE.len() as u64);
    builder.append_data(&mut header, "a.csv", AZURE.as_bytes()).unwrap();
    let mut tar = builder.into_inner().unwrap();
    let expected =
        "t: a tar archive without agentic sessions or ServeGen statistics: unpack it and give one of the files inside";
    assert_eq!(complaint(&tar), expected);
    assert_eq!(complaint(zstd::encode_all(tar.as_slice(), 1).unwrap()), expected);
    tar[0] = b'b';
    assert_eq!(complaint(&tar), "t: cannot read: archive header checksum mismatch");
}

#[test]
fn what_is_said_of_a_stream_that_is_cut_off() {
    let text = AZURE.to_owned() + &"2024-05-10 00:00:02+00:00,5,5\n".repeat(5_000);
    let (zstd, gzip) = (zstd(&text), gzip(&text));
    for (bytes, name) in [(&zstd, "zstd"), (&gzip, "gzip")] {
        let said = complaint(&bytes[..bytes.len() - 1]);
        assert!(said.ends_with(&format!(": the {name} stream ends early: the file is cut off")), "{said}");
        let said = complaint(&bytes[..9]);
        assert_eq!(said, format!("t: the {name} stream ends early: the file is cut off"));
    }
    assert_eq!(complaint([0x28, 0xb5, 0x2f, 0xfd]), "t: the zstd stream ends early: the file is cut off");
}

#[test]
fn a_zstd_window_above_the_limit_is_refused() {
    // A frame header that asks for a window of 2^28 bytes, and a block of one byte.
    let said = complaint([0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x90, 0x09, 0x00, 0x00, b'x']);
    assert_eq!(said, "t: cannot read: Frame requires too much memory for decoding");
}

#[test]
fn rubbish_after_a_compressed_stream_is_not_ignored() {
    let text = AZURE.to_owned() + &"2024-05-10 00:00:02+00:00,5,5\n".repeat(4_000);
    let said = complaint([zstd(&text), b"rubbish".to_vec()].concat());
    assert_eq!(said, "t:4005: cannot read: Unknown frame descriptor");
    let said = complaint([gzip(&text), b"rubbish rubbish".to_vec()].concat());
    assert_eq!(said, "t:4005: cannot read: invalid gzip header");
}

#[test]
fn what_is_said_of_an_azure_row() {
    let row = "2023-11-16 18:15:46.6805900,374";
    assert_eq!(azure_complaint(row), format!("t:3: 2 columns instead of 3: `{row}`"));
    let row = "2023-11-16 18:15:46.6805900,1,2,3";
    assert_eq!(azure_complaint(row), format!("t:3: 4 columns instead of 3: `{row}`"));
    for (row, said) in [
        ("2023-11-16 18:15:50,abc,4", "ContextTokens `abc` is not a whole number"),
        ("2023-11-16 18:15:50,,4", "ContextTokens `` is not a whole number"),
        ("2023-11-16 18:15:50,7.5,4", "ContextTokens `7.5` is not a whole number"),
        ("2023-11-16 18:15:50,\"7\",4", "ContextTokens `\"7\"` is not a whole number"),
        ("2023-11-16 18:15:50,-7,4", "ContextTokens `-7` is negative"),
        ("2023-11-16 18:15:50,16777217,4", "ContextTokens `16777217` is above the limit of 16777216"),
        (
            "2023-11-16 18:15:50,7,99999999999999999999999",
            "GeneratedTokens `99999999999999999999999` is above the limit of 1048576",
        ),
        ("18:15:50,7,4", "TIMESTAMP `18:15:50` is not a time: expected 2023-11-16 18:15:46.6805900"),
        (
            "2035-11-16 18:15:46,7,4",
            "arrival, µs after the first, `378691199319410` is above the limit of 315619200000000",
        ),
    ] {
        assert_eq!(azure_complaint(row), format!("t:3: {said}"));
    }
}

#[test]
fn what_is_said_of_a_mooncake_row() {
    let first = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#;
    for (row, said) in [
        (r#"{"timestamp": 1, "input_length": 600, "outp"#, r#"cut off: `{"timestamp": 1, "input_length": 600, "outp`"#),
        (r#"{"timestamp": 1, "input_length": 600}"#, "missing field `output_length`"),
        (r#"{"timestamp": 1, "timestamp": 2}"#, "duplicate field `timestamp`"),
        (r#"{"timestamp": 1 "input"#, r#"not a JSON object, at column 17: `{"timestamp": 1 "input`"#),
        (r#"{"timestamp": 1, "input_length": "x", "output_length": 5}"#, "input_length `\"x\"` is not a whole number"),
        (r#"{"timestamp": 1, "input_length": 1.5, "output_length": 5}"#, "input_length `1.5` is not a whole number"),
        (r#"{"timestamp": 1, "input_length": -6, "output_length": 5}"#, "input_length `-6` is negative"),
        (
            r#"{"timestamp": 1, "input_length": 1e30, "output_length": 5}"#,
            "input_length `1e+30` is above the limit of 16777216",
        ),
        (
            r#"{"timestamp": 1, "input_length": 1, "output_length": 2000000}"#,
            "output_length `2000000` is above the limit of 1048576",
        ),
        (
            r#"{"timestamp": "1", "input_length": 1, "output_length": 1}"#,
            "timestamp: invalid type: string \"1\", expected f64",
        ),
        (r#"{"timestamp": -1, "input_length": 1, "output_length": 1}"#, "timestamp `-1` is negative"),
        (
            r#"{"timestamp": 1e99, "input_length": 1, "output_length": 1}"#,
            &format!("timestamp `{}` is above the limit of 4503599627370496", 1e99),
        ),
        (
            r#"{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1, -1]}"#,
            "hash_ids: invalid value: integer `-1`, expected u64",
        ),
        (
            r#"{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1, 2]}"#,
            "2 hash_ids of 512 tokens do not fit a prompt of 1 tokens",
        ),
    ] {
        assert_eq!(complaint(format!("{first}\n{row}\n")), format!("t:2: {said}"));
    }
    let said = complaint(format!("{first}\n[1]\n"));
    assert_eq!(said, "t:2: not a JSON object, at column 1: `[1]`");
}

#[test]
fn what_is_said_of_a_canonical_row() {
    for (row, said) in [
        (r#"{"arrival_us":-1,"prompt_tokens":1,"output_tokens":1}"#, "arrival_us `-1` is negative"),
        (r#"{"arrival_us":1.5,"prompt_tokens":1,"output_tokens":1}"#, "arrival_us `1.5` is not a whole number"),
        (r#"{"arrival_us":1,"prompt_tokens":1}"#, "missing field `output_tokens`"),
        (
            r#"{"arrival_us":1,"prompt_tokens":9999999999,"output_tokens":1}"#,
            "prompt_tokens `9999999999` is above the limit of 16777216",
        ),
        (
            r#"{"arrival_us":1,"prompt_tokens":64,"output_tokens":1,"hash_ids":[1]}"#,
            "1 hash_ids of 0 tokens do not fit a prompt of 64 tokens",
        ),
        (
            r#"{"arrival_us":1,"prompt_tokens":63,"output_tokens":1,"hash_ids":[1],"hash_block_tokens":64}"#,
            "1 hash_ids of 64 tokens do not fit a prompt of 63 tokens",
        ),
        (r#"{"arrival_us":1,"prompt_tokens":63,"output_tokens":1,"colour":1}"#, "unknown field `colour`"),
    ] {
        assert_eq!(
            complaint(format!("{}{row}\n", &CANONICAL[..=CANONICAL.find('\n').unwrap()])),
            format!("t:2: {said}")
        );
    }
    let name = "n".repeat(257);
    for field in ["session", "tenant", "slo_class", "cache_salt"] {
        let row = format!(r#"{{"arrival_us":1,"prompt_tokens":1,"output_tokens":1,"{field}":"{name}"}}"#);
        let said = format!("t:1: bytes of {field} `{}…` is above the limit of 256", "n".repeat(80));
        assert_eq!(complaint(row), said);
    }
}

#[test]
fn a_line_without_end_and_a_request_with_endless_hashes_are_refused() {
    let endless = vec![b'{'; trace::MAX_LINE_BYTES + 1];
    assert_eq!(complaint(zstd::encode_all(endless.as_slice(), 1).unwrap()), "t:1: longer than 4194304 bytes");
    let hashes = vec!["1"; trace::MAX_HASH_IDS + 1].join(",");
    let row = format!(r#"{{"timestamp":1,"input_length":16777216,"output_length":1,"hash_ids":[{hashes}]}}"#);
    assert_eq!(complaint(row), "t:1: number of hash_ids `65537` is above the limit of 65536");
}

#[test]
fn saved_traces_are_compressed_as_they_are_named_and_never_half_there() {
    let folder = TempDir::new().unwrap();
    let requests = trace::read_all(file(&folder, "t", CANONICAL)).unwrap();
    for (name, compression) in
        [("a.jsonl", Compression::Plain), ("a.jsonl.gz", Compression::Gzip), ("a.jsonl.zst", Compression::Zstd)]
    {
        let path = folder.path().join(name);
        jsonl::save(&path, &requests).unwrap();
        let mut reader = TraceReader::open(&path).unwrap();
        assert_eq!((reader.format(), reader.compression()), (Format::Canonical, compression));
        assert_eq!(reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap(), requests);
    }

    let kept = fs::read(folder.path().join("a.jsonl")).unwrap();
    let backwards = [request(5, 1, 1), request(4, 1, 1)];
    let said = jsonl::save(folder.path().join("a.jsonl"), &backwards).unwrap_err().to_string();
    assert!(
        said.ends_with("a.jsonl:2: arrives 0.001 ms before the row above: rows must be in arrival order"),
        "{said}"
    );
    let said = jsonl::save(folder.path().join("a.jsonl"), &[]).unwrap_err().to_string();
    assert!(said.ends_with("a.jsonl: no requests"), "{said}");
    assert_eq!(fs::read(folder.path().join("a.jsonl")).unwrap(), kept, "what was there stays");
    assert_eq!(names(folder.path()), ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "t"], "nothing is left over");
}

#[test]
fn convert_writes_any_format_in_the_canonical_form() {
    let folder = TempDir::new().unwrap();
    let (input, output) = (file(&folder, "in", gzip(MOONCAKE)), folder.path().join("out.jsonl.zst"));
    let mut reader = TraceReader::open(&input).unwrap();
    assert_eq!((jsonl::convert(&mut reader, &output).unwrap(), reader.zero_output_rows()), (3, 1));
    assert_eq!(trace::read_all(&output).unwrap(), trace::read_all(&input).unwrap());

    let broken = file(&folder, "broken", format!("{MOONCAKE}{{"));
    let said =
        jsonl::convert(&mut TraceReader::open(&broken).unwrap(), folder.path().join("never")).unwrap_err().to_string();
    assert!(said.ends_with("broken:4: cut off: `{`"), "{said}");
    let said = jsonl::convert(&mut TraceReader::open(&input).unwrap(), folder.path().join("no/such/folder"))
        .unwrap_err()
        .to_string();
    assert!(said.ends_with("folder: cannot write: No such file or directory (os error 2)"), "{said}");
    assert_eq!(names(folder.path()), ["broken", "in", "out.jsonl.zst"]);
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn statistics_of_a_trace_counted_by_hand() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "t", MOONCAKE);
    let stats = TraceStats::read(&path).unwrap();
    assert_eq!((stats.requests, stats.duration_s, stats.sessions, stats.zero_output_rows), (3, 3.0005, 0, 1));
    assert_eq!((stats.rate_rps, stats.inter_arrival_mean_s), (Some(3.0 / 3.0005), Some(1.50025)));
    // Gaps of 3 s and 0.5 ms: mean 1.50025, standard deviation 1.49975.
    assert!((stats.inter_arrival_cv.unwrap() - 1.49975 / 1.50025).abs() < 1e-12);
    assert_eq!((stats.prompt_tokens.total, stats.prompt_tokens.p50, stats.prompt_tokens.max), (2_164, 1_024.0, 1_100));
    assert_eq!((stats.output_tokens.mean, stats.total_tokens), (4.0, 2_176));
    // One block of 512 tokens comes back.
    assert_eq!(stats.prefix_reuse, Some(512.0 / 2_164.0));
    assert_eq!((stats.arrivals_per_minute, stats.quantum_s), (vec![3], None));
    let table = TraceStats::read(&path).unwrap().to_string();
    let expected = "\
format         Mooncake JSONL, plain
requests       3
duration       3.0 s
rate           1.000 req/s
inter-arrival  mean 1.5003 s, CV 1.00
tokens               mean      p50      p90      p95      p99      max
  prompt            721.3     1024     1085     1092     1098     1100
  output              4.0        5        6        6        6        6
total tokens   2176
prefix reuse   23.7 % of prompt tokens, a cache of 1536 tokens
sessions       0
tenants        0
arrivals       █
               1 min a bar, at most 3 a minute
warning: requests that generated 0 tokens, read as 1: 1";
    assert_eq!(table.split_once('\n').unwrap().1, expected);
}

#[test]
fn statistics_of_one_request_leave_out_what_it_does_not_have() {
    let folder = TempDir::new().unwrap();
    let text = r#"{"arrival_us":77,"prompt_tokens":5,"output_tokens":2}"#;
    let stats = TraceStats::read(file(&folder, "t", text)).unwrap();
    let json = serde_json::to_value(&stats).unwrap();
    for figure in ["rate_rps", "inter_arrival_mean_s", "inter_arrival_cv", "quantum_s", "prefix_reuse"] {
        assert_eq!(json[figure], serde_json::Value::Null, "{figure}");
    }
    assert!(stats.to_string().contains("rate           -\n"));
}

#[test]
fn quantised_arrivals_are_warned_of() {
    let folder = TempDir::new().unwrap();
    let requests: Vec<Request> = (0..90).map(|index| request(index / 3 * 500_000, 10, 10)).collect();
    let path = folder.path().join("t");
    jsonl::save(&path, &requests).unwrap();
    let stats = TraceStats::read(&path).unwrap();
    assert_eq!(stats.warnings, ["arrivals are quantised to 0.5s: use --jitter 0.5s"]);
}

prop_compose! {
    fn any_request()(
        gap_us in 0_u64..5_000_000,
        prompt_tokens in 1..=trace::MAX_PROMPT_TOKENS,
        output_tokens in 1..=trace::MAX_OUTPUT_TOKENS,
        hashes in proptest::collection::vec(any::<u64>(), 0..20),
        session in proptest::option::of(".{0,40}"),
        tenant in proptest::option::of("[a-z]{1,8}"),
        priority in any::<Option<i32>>(),
        cache_salt in proptest::option::of("[a-z]{0,8}"),
    ) -> Request {
        let mut request = request(gap_us, prompt_tokens, output_tokens);
        let blocks = hashes.len().min(prompt_tokens as usize);
        if blocks > 0 {
            request = hashed(request, &hashes[..blocks], prompt_tokens / blocks as u32);
        }
        Request { session, tenant, priority, cache_salt, ..request }
    }
}

fn any_trace() -> impl Strategy<Value = Vec<Request>> {
    proptest::collection::vec(any_request(), 1..40).prop_map(|mut requests| {
        let mut now = Micros::ZERO;
        requests[0].arrival = now;
        for request in &mut requests {
            now += request.arrival;
            request.arrival = now;
        }
        requests
    })
}

proptest! {
    #[test]
    fn what_is_saved_is_read_back(requests in any_trace(), extension in "jsonl|gz|zst") {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join(format!("t.{extension}"));
        jsonl::save(&path, &requests).unwrap();
        prop_assert_eq!(trace::read_all(&path).unwrap(), requests);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..400, which in 0..3) {
        let folder = TempDir::new().unwrap();
        let text = [AZURE, MOONCAKE, CANONICAL][which as usize].as_bytes();
        let cut = cut % text.len();
        for mangled in [bytes.clone(), [&text[..cut], &bytes].concat(), [&text[..cut], &text[cut + 1..]].concat()] {
            if let Err(error) = trace::read_all(file(&folder, "t", mangled)) {
                prop_assert!(!error.to_string().contains('\n'));
            }
        }
    }
}
