//! Policies where they do not belong, and traffic nobody can serve: said, not passed over.

use std::fs;

use tempfile::tempdir;

use crate::common::{done, kvtide, lines, refused};

fn table(name: &str) -> String {
    format!("table:{}/checkpoints/{name}/policy.kvt", env!("CARGO_MANIFEST_DIR"))
}

const TRAFFIC: &str = "--workload chat:rate=1,n=9";

#[test]
fn a_table_of_another_engine_is_refused_and_of_another_card_or_targets_told() {
    let folder = tempdir().unwrap();
    // One that stays as it is, whatever ships.
    let chat = format!("table:{}/runtime/tests/edition1/chat-24g.kvt", env!("CARGO_MANIFEST_DIR"));
    for command in ["simulate", "evaluate"] {
        let line = |more: &str| format!("{command} {TRAFFIC} --policy {chat} {more}");
        let run = |more: &str| done(folder.path(), &line(more).split_whitespace().collect::<Vec<_>>());
        assert_eq!(run("").stderr, "", "its own world");
        assert_eq!(
            run("--env llama-3-8b@a10 --slo ttft:1000,tpot:80,stall:2000").stderr,
            "",
            "another of its own worlds"
        );
        let other = run("--env llama-3-8b@h100 --slo chat").stderr;
        assert_eq!(other.lines().count(), 1, "{other}");
        for part in [
            "with env llama-3-8b@rtx-4090; llama-3-8b@a10 and is judged with llama-3-8b@h100",
            "is judged with ttft:400",
        ] {
            assert!(other.starts_with("warning: table:") && other.contains(part), "{other}");
        }
        let host = table("reasoning-tier");
        for (policy, more, part) in [
            (&chat, "--engine v0", "made for engine v1, and this is v0; its own is --engine v1"),
            (&host, "--engine v0 --set num_cpu_blocks=100", "made for engine v1"),
        ] {
            let line = format!("{command} {TRAFFIC} --policy default --policy {policy} {more}");
            let error = refused(folder.path(), &line.split_whitespace().collect::<Vec<_>>());
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn a_card_is_no_other_for_being_known_by_another_clock() {
    let folder = tempdir().unwrap();
    // One that was made by the data sheet, whatever ships.
    let reasoning = format!("table:{}/runtime/tests/edition1/reasoning.kvt", env!("CARGO_MANIFEST_DIR"));
    let targets = "--slo ttft:20000,tpot:50,stall:2000";
    for command in ["simulate", "evaluate"] {
        let run = |more: &str| {
            let line = format!("{command} {TRAFFIC} {targets} --policy {reasoning} {more}");
            done(folder.path(), &line.split_whitespace().collect::<Vec<_>>()).stderr
        };
        for env in ["h100", "h100-datasheet", "rtx-4090", "rtx-4090-measured", "rtx-4090-estimated", "h200-datasheet"] {
            assert_eq!(run(&format!("--env llama-3-8b@{env}")), "", "{env}");
        }
        for other in ["2xh100-datasheet", "h100-pcie", "a100-80g-datasheet"] {
            let said = run(&format!("--env llama-3-8b@{other}"));
            assert!(said.contains(&format!("and is judged with llama-3-8b@{other}")), "{said}");
        }
        // It was sealed when the plain name was that of the data sheet.
        for (env, by) in
            [("h100", "kernels measured by shape"), ("rtx-4090-estimated", "kernels measured on a relative")]
        {
            let said = run(&format!("--env llama-3-8b@{env} --verbose"));
            let expected =
                format!("was trained on this card by the data sheet and engineering defaults and is judged by {by}\n");
            assert!(said.contains(&expected), "{said}");
        }
        let own = run("--env llama-3-8b@h100-datasheet --verbose");
        assert!(!own.contains("was trained") && own.contains("TFLOP/s at 70 %"), "{own}");
    }
}

#[test]
fn a_limit_of_prompts_that_limits_nothing_is_told() {
    let folder = tempdir().unwrap();
    for command in ["simulate", "evaluate"] {
        let run = |more: &str| {
            let line = format!("{command} --workload chat:rate=6,n=400 --json --policy default --policy {more}");
            done(folder.path(), &line.split_whitespace().collect::<Vec<_>>())
        };
        let idle = run("ppas");
        assert_eq!(
            idle.stderr,
            "warning: ppas decides as default does where a step has 2048 tokens in all; it is made for more: --set \
             max_num_batched_tokens=16384\n"
        );
        let rows = lines(&idle.stdout, "run");
        assert_eq!((&rows[1]["policy"], &rows[1]["hash"]), (&"ppas".into(), &rows[0]["hash"]));
        let limited = run("ppas:2,256 --set max_num_batched_tokens=16384");
        assert_eq!(limited.stderr, "");
        let rows = lines(&limited.stdout, "run");
        assert_ne!(rows[1]["hash"], rows[0]["hash"]);
        assert_eq!(rows[1]["completed"], rows[0]["completed"]);
    }
}

#[test]
fn to_serve_nobody_is_no_result() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let request =
        |prompt: u32, at: u32| format!("{{\"arrival_us\":{at},\"prompt_tokens\":{prompt},\"output_tokens\":10}}\n");
    fs::write(path.join("long.jsonl"), request(5000, 0) + &request(6000, 1_000_000)).unwrap();
    fs::write(path.join("mixed.jsonl"), request(5000, 0) + &request(60, 1_000_000)).unwrap();
    for command in ["simulate", "evaluate"] {
        for (settings, part) in [
            (
                "--set max_model_len=2000",
                "the smallest has 5010 tokens, max_model_len is 2000; a larger --set max_model_len",
            ),
            ("--set num_gpu_blocks=100", "the pool holds 1600 and max_model_len is 1584; it takes a larger --pool"),
            ("--pool 0.05", "the pool holds 2144 and max_model_len is 2128; it takes a larger --pool"),
        ] {
            let line = format!("{command} --trace long.jsonl --policy default --policy fixed:0.05 --json {settings}");
            let run = kvtide(path, &line.split_whitespace().collect::<Vec<_>>());
            assert_eq!((run.code, lines(&run.stdout, "run").len()), (1, 2), "{line}: {}", run.stderr);
            for policy in ["default", "fixed:0.05"] {
                let said = format!("error: {policy} completed none of 2 requests (2 rejected): ");
                assert!(run.stderr.contains(&said) && run.stderr.contains(part), "{}", run.stderr);
            }
            let some = line.replace("long", "mixed");
            let run = done(path, &some.split_whitespace().collect::<Vec<_>>());
            assert_eq!(lines(&run.stdout, "run")[0]["rejected"], 1);
        }
    }
}
