//! Own traffic, whatever form it has, end to end: files, standard input, and what is said of them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{PROGRAM, Run, done, kvtide, lines, refused};
use tempfile::tempdir;

/// Runs `kvtide` with `input` on its standard input.
fn fed(folder: &Path, arguments: &[&str], input: &str) -> Run {
    let mut command = Command::new(PROGRAM);
    let piped = command.args(arguments).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
    // Whoever refuses what it is fed may not read it to the end.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

const BURST_GPT: &str = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
20.5,GPT-4,417,276,693,API log
";

const WRITTEN: &str = "{\"arrival_us\":0,\"prompt_tokens\":472,\"output_tokens\":18}
{\"arrival_us\":15500000,\"prompt_tokens\":417,\"output_tokens\":276}
";

#[test]
fn a_log_is_converted_and_what_was_found_is_said() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("log"), BURST_GPT).unwrap();
    let run = done(path, &["trace", "convert", "log", "out.jsonl"]);
    let said = "log: BurstGPT CSV, plain; times: seconds; 3 rows read; 1 skipped (1 with 0 tokens of prompt or answer)\n\
        2 requests written to out.jsonl\n";
    assert_eq!((run.stderr.as_str(), run.stdout.as_str()), (said, ""));
    assert_eq!(fs::read_to_string(path.join("out.jsonl")).unwrap(), WRITTEN);

    let swapped: Vec<&str> = BURST_GPT.lines().collect();
    fs::write(path.join("swapped"), [swapped[0], swapped[3], swapped[1]].join("\n")).unwrap();
    for more in [&[][..], &["--unsorted"]] {
        let run = done(path, &[&["trace", "convert", "swapped", "out.jsonl"], more].concat());
        assert!(run.stderr.contains("; 1 not in order of arrival, sorted\n"), "{}", run.stderr);
        assert_eq!(fs::read_to_string(path.join("out.jsonl")).unwrap(), WRITTEN);
    }
}

#[test]
fn standard_input_and_output_are_files_like_others() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let run = fed(path, &["trace", "convert", "-", "-"], BURST_GPT);
    assert_eq!((run.code, run.stdout.as_str()), (0, WRITTEN), "{}", run.stderr);
    assert!(
        run.stderr.starts_with("-: BurstGPT CSV, plain; ") && run.stderr.ends_with("written to standard output\n"),
        "{}",
        run.stderr
    );
    let json = "[{\"timestamp\": \"2026-01-05T10:00:00+01:00\", \"prompt_tokens\": 472, \"completion_tokens\": 18},\n\
        {\"timestamp\": \"2026-01-05T09:00:15.5Z\", \"prompt_tokens\": 417, \"completion_tokens\": 276}]";
    assert_eq!(fed(path, &["trace", "convert", "-", "-", "-q"], json).stdout, WRITTEN);
    let stats = fed(path, &["trace", "stats", "-", "--json"], WRITTEN).stdout;
    assert_eq!(lines(&stats, "trace")[0]["requests"], 2);

    fs::write(path.join("out.jsonl"), WRITTEN).unwrap();
    let serve = |trace| ["simulate", "--trace", trace, "--json"];
    let (file, stdin) = (done(path, &serve("out.jsonl")), fed(path, &serve("-"), BURST_GPT));
    let (file, stdin) = (&lines(&file.stdout, "run")[0], &lines(&stdin.stdout, "run")[0]);
    assert_eq!((&file["hash"], &stdin["trace"]), (&stdin["hash"], &"stdin".into()));
    assert!(fed(path, &serve("-"), BURST_GPT).stderr.contains("rows skipped: 1 with 0 tokens"));
    // Targets that are not those of --slo are said.
    let classes = "time,prompt_tokens,output_tokens,slo_class\n1,9,9,chat\n2,9,9,batch\n3,9,9,mine\n4,9,9,\n";
    let said = fed(path, &serve("-"), classes).stderr;
    assert!(
        said.contains("-: requests that name an SLO class have its targets in place of --slo's: batch, chat\n"),
        "{said}"
    );

    let cut = fed(path, &["trace", "convert", "-", "-"], "time,prompt_tokens,output_tokens\n1,1,1\n1,1");
    assert_eq!((cut.code, cut.stderr.as_str()), (2, "error: -:3: 2 columns instead of 3: `1,1`\n"));
    assert_eq!(fed(path, &["trace", "stats", "-"], "").stderr, "error: -: no requests\n");
}

#[test]
fn an_unknown_log_is_told_what_would_work() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("log"), "when,how long\n1,2\n").unwrap();
    for command in [&["trace", "stats", "log"][..], &["simulate", "--trace", "log"], &["trace", "convert", "log", "x"]]
    {
        let said = refused(path, command);
        assert!(said.starts_with("error: log:1: unknown form, starts with `when,how long`: nearest is CSV"), "{said}");
        assert!(
            said.ends_with("`timestamp,prompt_tokens,completion_tokens`, `1767603600.0,374,44`, `1767603602.5,420,9`"),
            "{said}"
        );
    }
    assert!(!path.join("x").exists());
    let help = kvtide(path, &["trace", "convert", "--help"]).stdout;
    for form in ["BurstGPT CSV", "vLLM bench JSON", "proxy log JSON", "ShareGPT JSON", "ServeGen statistics"] {
        assert!(help.contains(form), "{help}");
    }
    fs::write(path.join("text"), "{\"time\": 1, \"prompt\": \"01234567\", \"response\": \"0123\"}").unwrap();
    assert!(refused(path, &["simulate", "--trace", "text"]).contains("kvtide trace convert --chars-per-token 4"));
    let run = done(path, &["trace", "convert", "text", "-", "--chars-per-token", "4", "--time-unit", "ms"]);
    assert_eq!(run.stdout, "{\"arrival_us\":0,\"prompt_tokens\":2,\"output_tokens\":1}\n");
}
