//! `kvtide evaluate --clock-spread`: the same judgement by drawn clocks.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::tempdir;

use crate::common::{PROGRAM, done, lines, refused};

/// Two loads and two seeds on a small pool, hindsight and a table among the policies.
fn evaluate<'a>(table: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["evaluate", "--workload", "chat:rate=3,duration=60", "--set", "num_gpu_blocks=1500"];
    all.extend(["--load", "0.8,1", "--seeds", "1..2", "--policy", "default", "--policy", "best-fixed"]);
    all.extend(["--policy", table]);
    all.extend(more);
    all
}

fn table() -> String {
    format!("table:{}/checkpoints/chat-24g/policy.kvt", env!("CARGO_MANIFEST_DIR"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn draws_come_after_the_judgement_and_change_nothing_in_it() {
    let (folder, table) = (tempdir().unwrap(), table());
    let plain = done(folder.path(), &evaluate(&table, &["--json"])).stdout;
    let drawn = done(folder.path(), &evaluate(&table, &["--json", "--clock-spread", "3"])).stdout;
    let kept = drawn.lines().filter(|line| !line.contains("\"clock_draw\"") && !line.contains("\"clock_gain\""));
    assert_eq!(kept.collect::<Vec<&str>>(), plain.lines().collect::<Vec<&str>>());

    // Text begins with what it was.
    let plain = done(folder.path(), &evaluate(&table, &[])).stdout;
    let text = done(folder.path(), &evaluate(&table, &["--clock-spread", "3"])).stdout;
    assert!(text.starts_with(&plain));
    let more = &text[plain.len()..];
    assert!(more.contains("gain over default by 3 drawn clocks") && more.contains("gain over best-fixed by"), "{more}");
    assert!(more.contains(" of 3") && more.contains("worst: draw ") && more.contains("products ×"), "{more}");
    assert!(!more.contains("link ×"), "one accelerator reduces over no link: {more}");
}

#[test]
fn every_policy_serves_the_same_requests_by_the_same_clocks() {
    let (folder, table) = (tempdir().unwrap(), table());
    let output = done(folder.path(), &evaluate(&table, &["--json", "--clock-spread", "3"])).stdout;
    let rows = lines(&output, "run");
    assert_eq!(rows.len(), 4 * 3 * 4);
    let of = |draw: Option<u64>, policy: &str| -> Vec<&Value> {
        rows.iter().filter(|row| row["clock_draw"].as_u64() == draw && row["policy"] == policy).collect()
    };
    let field = |rows: &[&Value], name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<Value>>();
    for draw in [Some(1), Some(2), Some(3)] {
        for policy in ["default", "best-fixed", &table] {
            let (drawn, own) = (of(draw, policy), of(None, policy));
            for same in ["load", "seed", "requests", "offered_rps", "slo", "env", "engine", "host", "window"] {
                assert_eq!(field(&drawn, same), field(&own, same), "{same}");
            }
            assert_ne!(field(&drawn, "hash"), field(&own, "hash"));
            if *policy == *table {
                assert!(drawn.iter().all(|row| row["guard"].is_object()), "a table is judged behind its guard");
            }
        }
    }

    // What is said of the draws, from the rows again.
    let gains = lines(&output, "clock_gain");
    assert_eq!(gains.len(), 4, "the default and hindsight are compared with each other, the table with both");
    for said in &gains {
        let gain = |draw: Option<u64>| {
            let (mine, theirs) = (of(draw, said["policy"].as_str().unwrap()), of(draw, said["than"].as_str().unwrap()));
            let attained = |row: &Value| number(&row["slo_attainment"]);
            mine.iter().zip(&theirs).map(|(mine, theirs)| attained(mine) - attained(theirs)).sum::<f64>() / 4.0
        };
        assert!((number(&said["gain"]) - gain(None)).abs() < 1e-12, "{said}");
        let mut drawn: Vec<f64> = (1..=3).map(|draw| gain(Some(draw))).collect();
        for (by, gain) in said["draws"].as_array().unwrap().iter().zip(&drawn) {
            assert!((number(&by["gain"]) - gain).abs() < 1e-12, "{said}");
        }
        assert_eq!(number(&said["gaining"]), drawn.iter().filter(|gain| **gain > 0.0).count() as f64 / 3.0);
        drawn.sort_by(f64::total_cmp);
        assert!((number(&said["median"]) - drawn[1]).abs() < 1e-12);
        assert!((number(&said["worst"]["gain"]) - drawn[0]).abs() < 1e-12);
        // A tenth of the way from the first to the second of three, and from the third back.
        assert!((number(&said["low"]) - (0.9 * drawn[0] + 0.1 * drawn[1])).abs() < 1e-12);
        assert!((number(&said["high"]) - (0.9 * drawn[2] + 0.1 * drawn[1])).abs() < 1e-12);
    }
    // Everybody's clocks are the same.
    let factors = |said: &Value| said["draws"].as_array().unwrap().iter().map(|by| by["factors"].clone()).collect();
    let all: Vec<Vec<Value>> = gains.iter().map(factors).collect();
    assert!(all.iter().all(|factors| *factors == all[0]) && all[0][0] != all[0][1]);
}

#[test]
fn the_draws_are_the_same_at_any_thread_count_and_the_first_of_more() {
    let (folder, table) = (tempdir().unwrap(), table());
    let arguments = evaluate(&table, &["--json", "--clock-spread", "2"]);
    let run = |threads: &str| {
        let mut run = Command::new(PROGRAM);
        run.args(&arguments).env("RAYON_NUM_THREADS", threads).current_dir(folder.path());
        String::from_utf8(run.output().unwrap().stdout).unwrap()
    };
    let one = run("1");
    assert_eq!(one, run("3"));
    let more = done(folder.path(), &evaluate(&table, &["--json", "--clock-spread", "4"])).stdout;
    let runs = |text: &str| lines(text, "run");
    assert_eq!(runs(&more)[..runs(&one).len()], runs(&one));
}

#[test]
fn a_spread_of_nothing_is_the_profile_again_and_a_wide_one_is_not() {
    let folder = tempdir().unwrap();
    let profile = |spread: &str| {
        let text = "[hardware]\nname = \"mine\"\npeak_flops = 1.652e14\npeak_bandwidth = 1.008e12\nmemory_bytes = 25769803776.0\n\
                    pcie_bandwidth = 2.5e10\nlink_bandwidth = 1.2e10\ncompute_efficiency = 0.7\nbandwidth_efficiency = 0.8\n\
                    step_overhead = 0.003\nsequence_overhead = 1.5e-5\nswap_overhead = 1e-4\n";
        fs::write(folder.path().join("mine.toml"), format!("{text}[hardware.spread]\n{spread}")).unwrap();
        let arguments = ["evaluate", "--workload", "chat:rate=3,duration=60", "--env", "llama-3-8b@mine.toml"];
        let more = ["--policy", "default", "--policy", "fixed:0.05", "--clock-spread", "2", "--json"];
        lines(&done(folder.path(), &[&arguments[..], &more].concat()).stdout, "run")
    };
    let hashes = |rows: Vec<Value>| rows.iter().map(|row| row["hash"].clone()).collect::<Vec<Value>>();
    let none = hashes(profile(""));
    assert_eq!((&none[2..4], &none[4..]), (&none[..2], &none[..2]));
    // A group that nothing here depends on changes nothing either.
    assert_eq!(hashes(profile("link = 1.0\ndecode = 1.0\nprefill = 1.0\n")), none);
    let wide = hashes(profile("host = 0.5\n"));
    assert!(wide[..2] == none[..2] && wide[2] != none[2] && wide[4] != wide[2], "{wide:?}");
}

#[test]
fn draws_are_kept_and_gone_on_with() {
    let (folder, table) = (tempdir().unwrap(), table());
    let arguments = evaluate(&table, &["--clock-spread", "3", "--out", "runs.jsonl"]);
    let expected = done(folder.path(), &arguments).stdout;
    let file = folder.path().join("runs.jsonl");
    let whole = fs::read_to_string(&file).unwrap();
    let count = whole.lines().count();
    let draws = whole.lines().position(|line| line.contains("\"clock_draw\":1")).unwrap();
    // Before the draws, between two runs of one, after the last.
    for kept in [draws, draws + 3, usize::midpoint(draws, count), count - 2, count] {
        let text: String = whole.split_inclusive('\n').take(kept).collect();
        fs::write(&file, &text).unwrap();
        let again = done(folder.path(), &[&arguments[..], &["--resume"]].concat());
        assert_eq!(again.stdout, expected, "{kept} lines");
        assert!(fs::read_to_string(&file).unwrap() == whole, "{kept} lines");
    }
    let other = |more: &[&str]| {
        refused(folder.path(), &[&evaluate(&table, more)[..], &["--out", "runs.jsonl", "--resume"]].concat())
    };
    assert!(other(&["--clock-spread", "4"]).contains("clock draws 3, and asked for is 4"));
    assert!(other(&[]).contains("clock draws 3, and asked for is none"));
}

/// A deployment whose kernels were measured by shape, on several accelerators and with everything that is drawn.
#[test]
fn clocks_of_measured_kernels_are_drawn_from_end_to_end() {
    let (folder, table) = (tempdir().unwrap(), table().replace("chat-24g", "reasoning"));
    let evaluate = |env: &str, threads: &str| {
        let mut run = Command::new(PROGRAM);
        run.args(["evaluate", "--workload", "chat:rate=30,duration=20,seed=2", "--env", env, "--load", "0.8,1"]);
        run.args(["--set", "num_gpu_blocks=3000", "--seeds", "1..2", "--clock-spread", "3", "--json"]);
        run.args(["--policy", "default", "--policy", "fixed:0.05", "--policy", &table]);
        let run = run.env("RAYON_NUM_THREADS", threads).current_dir(folder.path()).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    for (env, has_link) in [("llama-3-8b@h100", false), ("llama-3-8b@2xh100", true)] {
        let output = evaluate(env, "1");
        assert!(output == evaluate(env, "3"), "{env}: another number of threads, another outcome");
        let rows = lines(&output, "run");
        assert_eq!(rows.len(), 4 * 2 * 2 * 3);
        assert!(rows.iter().all(|row| row["env"] == env && row["completed"] == row["requests"]));
        // Each draw is another clock, and no row is of the profile's own but those that say so.
        let hashes = |draw: Option<u64>| {
            let of = rows.iter().filter(|row| row["clock_draw"].as_u64() == draw && row["policy"] == "default");
            of.map(|row| row["hash"].to_string()).collect::<Vec<String>>()
        };
        let all: Vec<Vec<String>> = [None, Some(1), Some(2), Some(3)].map(hashes).into();
        for (index, one) in all.iter().enumerate() {
            assert!(one.len() == 4 && all[..index].iter().all(|other| other[0] != one[0]), "{all:?}");
        }
        // The measured clock is not the data sheet's, and neither is its spread.
        let sheet = evaluate(&format!("{env}-datasheet"), "3");
        assert_ne!(lines(&sheet, "run")[0]["hash"], rows[0]["hash"]);
        let factors = |output: &str| lines(output, "clock_gain")[0]["draws"][0]["factors"].clone();
        let (measured, sheet) = (factors(&output), factors(&sheet));
        assert_eq!((measured["link"].is_number(), sheet["link"].is_number()), (true, true));
        let distance = |factors: &Value| number(&factors["products"]).ln().abs();
        assert!(distance(&measured) > 0.0 && distance(&measured) < distance(&sheet), "{measured} {sheet}");
        let mut line = vec!["evaluate", "--workload", "chat:rate=30,duration=20", "--env", env, "--clock-spread", "2"];
        line.extend(["--set", "num_gpu_blocks=3000", "--policy", "default", "--policy", "fixed:0.05"]);
        let text = done(folder.path(), &line).stdout.split_whitespace().collect::<Vec<&str>>().join(" ");
        assert!(text.contains("products ×") && text.contains("link ×") == has_link, "{text}");
        // Tables have no share of the bandwidth.
        assert!(!text.contains("memory ×"), "{text}");
    }
}

/// A small search; what episodes are drawn by stands last.
const SEARCH: &str = "name = \"small\"\nprofile = \"watermark\"\nmethod = \"cross-entropy\"\nfallback = 0.02\n[world]\n\
    workload = \"chat:rate=3,duration=120,seed=2\"\n[cross_entropy]\ngenerations = 3\npopulation = 6\nepisodes = 3\n[episodes]\n\
    fit = 0.7\nlength_s = 30.0\nload = [0.8, 1.2]\n";

#[test]
fn training_by_drawn_clocks_is_the_same_at_any_thread_count_and_says_so() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("plain.toml"), SEARCH).unwrap();
    fs::write(folder.path().join("drawn.toml"), format!("{SEARCH}clock_spread = 4\n")).unwrap();
    let train = |experiment: &str, out: &str, threads: &str| {
        let mut run = Command::new(PROGRAM);
        run.args(["train", "--experiment", experiment, "--out", out]).env("RAYON_NUM_THREADS", threads);
        let run = run.current_dir(folder.path()).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        fs::read(folder.path().join(out).join("policy/search.json"))
            .ok()
            .or_else(|| fs::read(folder.path().join(out).join("policy/weights.safetensors")).ok())
            .unwrap()
    };
    let drawn = train("drawn.toml", "one", "1");
    assert!(drawn == train("drawn.toml", "three", "3"));
    assert!(drawn != train("plain.toml", "plain", "3"), "the clock is no matter");
    let metadata = |out: &str| {
        let policy = format!("{out}/policy");
        let mut manifest = lines(&done(folder.path(), &["inspect", &policy, "--json"]).stdout, "checkpoint").remove(0);
        manifest["metadata"].take()
    };
    let clocks = metadata("one")["clocks"].clone();
    let said = clocks.as_str().unwrap();
    assert!(said.starts_with("4 clocks of rtx-4090, drawn with standard deviations of products 15 %, "), "{said}");
    assert!(metadata("plain")["clocks"].is_null());
}

#[test]
fn how_many_draws_there_can_be() {
    let folder = tempdir().unwrap();
    let error = |number: &str| {
        let arguments = ["evaluate", "--workload", "chat:rate=1,n=9", "--policy", "default", "--clock-spread", number];
        refused(folder.path(), &arguments)
    };
    for wrong in ["0", "1001", "many"] {
        let said = error(wrong);
        assert!(said.contains("--clock-spread") && said.contains(wrong), "{said}");
    }
    assert!(error("0").contains("1..=1000"), "{}", error("0"));
}

#[test]
fn one_policy_is_served_and_told_that_it_gains_over_nobody() {
    let folder = tempdir().unwrap();
    let arguments = ["evaluate", "--workload", "chat:rate=1,n=9", "--policy", "default", "--clock-spread", "2"];
    let said = done(folder.path(), &arguments).stderr;
    assert!(said.contains("--clock-spread with one policy: there is no gain to state"), "{said}");
}
