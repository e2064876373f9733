//! `kvtide record` against a server that shows counters as vLLM does.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;
use tempfile::tempdir;

use crate::common::{PROGRAM, Run, done, kvtide, lines, refused};

/// What a server answers to one look.
#[derive(Clone)]
enum Answer {
    /// So many requests ended since it started, and so many are here.
    Counters { ended: u64, here: u64 },
    /// Another status.
    Busy,
    /// Half of an answer.
    CutOff,
    /// Packed although nobody asked for it.
    Compressed,
    /// None, for as long as anybody waits.
    Never,
    /// As it is.
    Text(String),
}

/// vLLM's text, with what a scheduler of two engines has; prompts of 80 tokens in one bucket, answers of 300.
fn text(ended: u64, here: u64) -> String {
    let mut text =
        "# HELP vllm:request_success_total Count of requests.\n# TYPE vllm:request_success_total counter\n".to_owned();
    for (engine, ended, here) in [(0, ended / 2, here), (1, ended - ended / 2, 0)] {
        let labels = format!("engine=\"{engine}\",model_name=\"meta-llama/Meta-Llama-3-8B\"");
        let _ = write!(
            text,
            "vllm:num_requests_running{{{labels}}} {here}.0\nvllm:num_requests_waiting{{{labels}}} 0.0\n\
             vllm:request_success_total{{{labels},finished_reason=\"stop\"}} {ended}.0\n\
             vllm:request_success_total{{{labels},finished_reason=\"abort\"}} 0.0\n\
             vllm:time_to_first_token_seconds_sum{{{labels}}} NaN\n"
        );
        for (name, tokens, le) in [("prompt", 80, 100), ("generation", 300, 500)] {
            let _ = write!(
                text,
                "vllm:request_{name}_tokens_bucket{{{labels},le=\"50.0\"}} 0.0\n\
                 vllm:request_{name}_tokens_bucket{{{labels},le=\"{le}.0\"}} {ended}.0\n\
                 vllm:request_{name}_tokens_bucket{{{labels},le=\"+Inf\"}} {ended}.0\n\
                 vllm:request_{name}_tokens_sum{{{labels}}} {}.0\nvllm:request_{name}_tokens_count{{{labels}}} {ended}.0\n",
                ended * tokens
            );
        }
    }
    text
}

/// A server that gives one answer after the other, and the last for ever. Its address, and how often it was asked.
fn server(answers: Vec<Answer>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let number = count.fetch_add(1, Ordering::Relaxed);
            answer(stream, &answers[number.min(answers.len() - 1)]);
        }
    });
    (address, asked)
}

fn answer(mut stream: TcpStream, answer: &Answer) {
    let mut request = [0; 4_096];
    let _ = stream.read(&mut request);
    let body = match answer {
        Answer::Counters { ended, here } => text(*ended, *here),
        Answer::CutOff => text(1_000_000, 0)[..300].to_owned(),
        Answer::Busy | Answer::Compressed => String::new(),
        Answer::Never => {
            let _ = stream.read_to_end(&mut Vec::new());
            return;
        }
        Answer::Text(text) => text.clone(),
    };
    let status = if matches!(answer, Answer::Busy) { "503 Busy" } else { "200 OK" };
    let packed = if matches!(answer, Answer::Compressed) { "Content-Encoding: gzip\r\n" } else { "" };
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 {status}\r\n{packed}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
}

fn counters(ended: u64, here: u64) -> Answer {
    Answer::Counters { ended, here }
}

fn rows(path: &Path) -> (Value, Vec<Value>) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.next().unwrap(), lines.collect())
}

fn record(folder: &Path, address: &str, more: &[&str]) -> Run {
    let mut arguments = vec!["record", address, "--every", "150ms", "--for", "900ms"];
    arguments.extend(more);
    kvtide(folder, &arguments)
}

fn sum(rows: &[Value], field: &str) -> u64 {
    rows.iter().map(|row| row[field].as_u64().unwrap_or_default()).sum()
}

#[test]
fn what_a_server_counts_becomes_traffic() {
    let folder = tempdir().unwrap();
    // Busy through all tries of one look, cut off in one of the next, then begun again.
    let (address, _) = server(vec![
        counters(100, 4),
        counters(300, 10),
        Answer::Busy,
        Answer::Busy,
        Answer::Busy,
        Answer::CutOff,
        counters(700, 0),
        counters(40, 2),
        counters(340, 2),
    ]);
    let run = kvtide(folder.path(), &["record", &address, "--every", "200ms", "--for", "4s"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let path = folder.path().join("profile.jsonl");
    let (header, rows) = rows(&path);
    assert_eq!((header["engine"].as_str(), header["engines"].as_u64()), (Some("vllm"), Some(2)));
    assert_eq!((header["counts"].as_str(), header["lengths"].as_str()), (Some("arrivals"), Some("histograms")));
    assert!(header["lost"].as_str().unwrap().contains("common prefixes"));
    // 200 + 400 before the restart, 40 + 300 after it; 6 more here, 10 fewer, 2 more.
    assert_eq!((sum(&rows, "completed"), sum(&rows, "requests")), (940, 938));
    assert_eq!((sum(&rows, "missed"), sum(&rows, "resets")), (1, 1));
    assert!(
        run.stderr.contains("looks that failed: 1") && run.stderr.contains("counters that began again: 1"),
        "{}",
        run.stderr
    );
    let stats = done(folder.path(), &["trace", "stats", "--json", "profile.jsonl"]);
    let stats = &lines(&stats.stdout, "profile")[0];
    assert_eq!((stats["requests"].as_u64(), stats["prompt_tokens"]["mean"].as_f64()), (Some(938), Some(80.0)));
    assert_eq!(stats["output_tokens"]["mean"].as_f64(), Some(300.0));
    let shown = done(folder.path(), &["trace", "stats", "profile.jsonl"]).stdout;
    assert!(shown.contains("requests of 2 engines: one of them is --load 0.5"), "{shown}");
    let arguments = ["simulate", "--trace", "profile.jsonl", "--json", "--seeds", "1..2"];
    let first = done(folder.path(), &arguments);
    assert_eq!(first.stdout, done(folder.path(), &arguments).stdout);
    let runs = lines(&first.stdout, "run");
    assert!(runs.iter().all(|run| run["requests"].as_u64() == Some(938)) && runs[0]["hash"] != runs[1]["hash"]);
    let said = refused(folder.path(), &["trace", "convert", "profile.jsonl", "out.jsonl"]);
    assert!(said.contains("holds rates and lengths over time, not requests"), "{said}");
}

#[test]
fn a_file_is_never_overwritten_and_can_be_gone_on_with() {
    let folder = tempdir().unwrap();
    let (address, _) = server(vec![counters(10, 0), counters(30, 0)]);
    assert_eq!(record(folder.path(), &address, &["--out", "p.jsonl"]).code, 0);
    let path = folder.path().join("p.jsonl");
    let before = fs::read_to_string(&path).unwrap();
    let said = refused(folder.path(), &["record", &address, "--out", "p.jsonl"]);
    assert!(said.contains("p.jsonl: is there already: name another --out, or go on in it with --resume"), "{said}");
    // What a killed process left of a row is cut off.
    fs::write(&path, format!("{before}{{\"start_s\":9")).unwrap();
    assert_eq!(record(folder.path(), &address, &["--out", "p.jsonl", "--resume"]).code, 1, "nothing more ended");
    let after = fs::read_to_string(&path).unwrap();
    assert!(after.starts_with(&before) && after.lines().count() > before.lines().count(), "{after}");
    done(folder.path(), &["trace", "stats", "p.jsonl"]);
    let other = Answer::Text(text(5, 0).replace("meta-llama/Meta-Llama-3-8B", "opt"));
    let said = refused(folder.path(), &["record", &server(vec![other]).0, "--out", "p.jsonl", "--resume"]);
    assert!(said.contains("is a recording of vllm meta-llama/Meta-Llama-3-8B, and this is vllm opt"), "{said}");
    fs::write(&path, "not a profile").unwrap();
    let said = refused(folder.path(), &["record", &address, "--out", "p.jsonl", "--resume"]);
    assert!(said.contains("cannot be gone on with"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a profile");
}

#[test]
fn rows_are_kept_when_it_is_killed_and_the_file_is_locked_while_it_runs() {
    let folder = tempdir().unwrap();
    let (address, asked) = server((0..1_000).map(|index| counters(10 * index, 0)).collect());
    let mut child = Command::new(PROGRAM)
        .args(["record", &address, "--every", "100ms", "--out", "p.jsonl"])
        .current_dir(folder.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while asked.load(Ordering::Relaxed) < 8 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::yield_now();
    }
    let said = refused(folder.path(), &["record", &address, "--out", "p.jsonl", "--resume"]);
    assert!(said.contains("another kvtide record is writing it"), "{said}");
    child.kill().unwrap();
    child.wait().unwrap();
    let (_, rows) = rows(&folder.path().join("p.jsonl"));
    assert!(
        rows.len() >= 5 && rows.iter().all(|row| row["completed"].as_u64().is_some_and(|count| count >= 10)),
        "{rows:?}"
    );
    done(folder.path(), &["simulate", "--trace", "p.jsonl", "--json"]);
}

#[test]
fn who_cannot_be_recorded_is_told_why() {
    let folder = tempdir().unwrap();
    let said = |arguments: &[&str]| refused(folder.path(), &[&["record"], arguments].concat());
    assert!(said(&["https://node-1/metrics"]).contains("https is not spoken here"));
    assert!(said(&["localhost:1"]).contains("http://localhost:1/metrics: "));
    assert!(said(&["x:1", "--every", "1ms"]).contains("--every 1ms: expected at least 100 ms"));
    assert!(said(&["x:1", "--every", "2h", "--for", "1h"]).contains("--every 2h is longer than --for 1h"));
    assert!(said(&["x:1", "--label", "engine"]).contains("--label \"engine\": expected KEY=VALUE"));
    assert!(said(&["localhost:65536"]).contains("\"localhost:65536\": is no address of a server"));
    assert!(said(&[&server(vec![Answer::Text(String::new())]).0]).contains("the answer is empty"));
    assert!(said(&[&server(vec![Answer::Compressed]).0]).contains("the answer is compressed (gzip)"));
    let mistyped = server(vec![counters(10, 0)]).0;
    assert!(said(&[&mistyped, "--label", "modelname=opt"]).contains("no counter has a label \"modelname\""));
    assert!(said(&[&mistyped, "--label", "model_name=opt"]).contains("or none with the labels asked for"));
    let html = server(vec![Answer::Text("<html>404</html>\n".to_owned())]).0;
    assert!(said(&[&html]).contains("no counters of vLLM (vllm:request_success_total) or SGLang"));
    let two = text(5, 0) + &text(7, 0).replace("meta-llama/Meta-Llama-3-8B", "opt");
    let several = server(vec![Answer::Text(two)]).0;
    assert!(
        said(&[&several]).contains("counters of meta-llama/Meta-Llama-3-8B, opt: one must be chosen, with --label")
    );
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is written before the first good look");
    let chosen =
        kvtide(folder.path(), &["record", &several, "--label", "model_name=opt", "--every", "100ms", "--for", "300ms"]);
    assert_eq!(chosen.code, 1, "{}", chosen.stderr);
}

#[test]
fn counters_of_another_model_are_not_mixed_in() {
    let folder = tempdir().unwrap();
    let other = Answer::Text(text(10_000, 0).replace("meta-llama/Meta-Llama-3-8B", "opt"));
    let (address, _) =
        server(vec![counters(10, 0), counters(30, 0), other.clone(), other.clone(), other, counters(60, 0)]);
    let run = record(folder.path(), &address, &["--out", "p.jsonl"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(
        run.stderr.contains("counters of vllm opt, and this is a recording of vllm meta-llama/Meta-Llama-3-8B"),
        "{}",
        run.stderr
    );
    let (_, rows) = rows(&folder.path().join("p.jsonl"));
    assert_eq!((sum(&rows, "completed"), sum(&rows, "missed")), (50, 3));
}

#[test]
fn who_waits_for_the_first_answer_can_stop_waiting() {
    let folder = tempdir().unwrap();
    let (address, asked) = server(vec![Answer::Never]);
    let mut child = Command::new(PROGRAM)
        .args(["record", &address])
        .current_dir(folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while asked.load(Ordering::Relaxed) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::yield_now();
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(143), "{said}");
    assert!(said.contains("interrupted before the first row: nothing is recorded"), "{said}");
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[test]
fn what_makes_no_sense_breaks_nothing() {
    let folder = tempdir().unwrap();
    let hostile = text(20, 0)
        + "vllm:request_success_total{engine=\"0\"} NaN\nvllm:request_success_total{engine=\"0\"} -5\n\
           vllm:request_prompt_tokens_bucket{le=\"ten\"} 1\nvllm:request_success_total{\n";
    let huge = text(30, 0) + "vllm:request_success_total 1e300\n";
    let endless = "vllm:x 1\n".repeat(3 << 20);
    let (address, _) = server(vec![
        counters(10, 0),
        Answer::Text(hostile),
        Answer::Text(huge),
        Answer::Text(endless),
        Answer::Text("\u{0}\u{1}\u{2}\n".to_owned()),
        counters(50, 0),
    ]);
    let run = record(folder.path(), &address, &["--out", "p.jsonl"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("lines that made no sense, and were skipped: 4"), "{}", run.stderr);
    done(folder.path(), &["simulate", "--trace", "p.jsonl", "--json"]);
}
