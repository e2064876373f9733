//! `kvtide evict token-pd`: what it says, what it refuses, and its page.

use std::fs;

use tempfile::tempdir;

use crate::common::{done, lines, refused};

/// As small as it may be.
const SMALL: [&str; 10] = [
    "evict",
    "token-pd",
    "--process",
    "mixed:prompt=256,answer=128,n=16",
    "--streams",
    "8",
    "--steps",
    "512",
    "--training-steps",
    "200",
];

#[test]
fn less_memory_costs_attention_and_the_price_keeps_most_of_it() {
    let folder = tempdir().unwrap();
    let text = done(folder.path(), &[&SMALL[..], &["--json"]].concat()).stdout;
    assert_eq!(done(folder.path(), &[&SMALL[..], &["--json"]].concat()).stdout, text, "the same seed, the same bytes");
    let rows = lines(&text, "token_pd");
    let retained = |part: &str, policy: &str| -> Vec<f64> {
        let of = rows.iter().filter(|row| row["part"] == part && row["policy"] == policy);
        of.map(|row| row["retained"].as_f64().unwrap()).collect()
    };
    for policy in ["fifo", "lru", "h2o", "token-pd"] {
        let all = retained("memory", policy);
        assert!(all.len() == 7 && all[0] < all[6], "more memory keeps more: {policy} {all:?}");
    }
    // The second half of the rows has as little as the price aims at.
    let [fifo, lru, priced] = ["fifo", "lru", "token-pd"].map(|policy| retained("streams", policy)[1]);
    assert!(priced > lru && lru > fifo, "{priced} {lru} {fifo}");
    for row in &rows {
        let [peak, capacity] = ["peak_blocks", "capacity_blocks"].map(|key| row[key].as_u64().unwrap());
        assert!(peak <= capacity, "{row}");
    }
    let verdict = &lines(&text, "token_pd_verdict")[0];
    assert!((verdict["memory_saved"].as_f64().unwrap() - 0.59).abs() < 0.03, "{verdict}");
    assert_eq!(lines(&text, "token_pd_regret").len(), 6);
}

#[test]
fn several_seeds_have_means_and_intervals() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let run = |arguments: &[&str]| done(path, &[&SMALL[..], arguments].concat()).stdout;
    let text = run(&["--seeds", "1..3", "--json"]);
    let (rows, means) = (lines(&text, "token_pd"), lines(&text, "token_pd_mean"));
    assert_eq!(rows.len(), 3 * means.len());
    assert_eq!(lines(&text, "token_pd_finding").len(), 1);
    // Each seed is what it is alone.
    let alone = lines(&run(&["--seed", "2", "--json"]), "token_pd");
    assert_eq!(rows[means.len()..2 * means.len()], alone[..]);
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    for (index, mean) in means.iter().enumerate() {
        let retained = (0..3).map(|seed| number(&rows[seed * means.len() + index]["retained"]));
        let of = |key: &str| number(&mean["retained"][key]);
        assert!((of("mean") - retained.clone().sum::<f64>() / 3.0).abs() < 1e-12, "{mean}");
        assert!(of("low") <= of("mean") && of("mean") <= of("high"), "{mean}");
        assert_eq!((&mean["seeds"], &mean["policy"]), (&3.into(), &rows[index]["policy"]));
        if mean["policy"] == "fifo" {
            assert_eq!(number(&mean["retained_ahead"]["mean"]), 0.0, "{mean}");
        }
    }
    let said = run(&["--seeds", "1..3", "--report", "pd.html"]);
    assert!(said.contains("seed 3: learned from") && said.contains("8 streams, 3 seeds: "), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    let page = fs::read_to_string(path.join("pd.html")).unwrap();
    assert!(page.contains("Over 3 seeds") && page.contains("8 streams, 3 seeds") && !page.contains("NaN"));
}

#[test]
fn recorded_attention_is_served_and_shown() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let mut text = "{\"kvtide_attention\":1,\"block_tokens\":16,\"model\":\"<b>\"}\n".to_owned();
    for seed in 1..9_u32 {
        let row = |blocks: u32| {
            let shares: Vec<u32> = (0..blocks).map(|index| 1 + (index * seed) % 7).collect();
            let sum: u32 = shares.iter().sum();
            shares.iter().map(|share| f64::from(*share) / f64::from(sum)).collect::<Vec<f64>>()
        };
        let rows: Vec<Vec<f64>> = (6..14).map(row).collect();
        text += &(serde_json::json!({"prompt_blocks": 6, "rows": rows}).to_string() + "\n");
    }
    fs::write(path.join("a.jsonl"), text).unwrap();
    let recorded = ["evict", "token-pd", "--attention", "a.jsonl", "--streams", "4", "--steps", "256"];
    let said = done(path, &[&recorded[..], &["--training-steps", "20", "--report", "pd.html"]].concat()).stdout;
    assert!(said.contains("4 streams: ") && said.contains("Aversion to risk"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    let page = fs::read_to_string(path.join("pd.html")).unwrap();
    for part in ["&lt;b&gt;", "Regret and violation", "<path", "attention retained"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<b></b>") && !page.contains("NaN"));
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let header = "{\"kvtide_attention\":1,\"block_tokens\":16}\n";
    let one = "{\"prompt_blocks\":1,\"rows\":[[1.0],[0.5,0.5]]}\n";
    fs::write(path.join("one.jsonl"), [header, one].concat()).unwrap();
    fs::write(path.join("bad.jsonl"), [header, one, &one.replace("0.5,0.5", "0.5")].concat()).unwrap();
    fs::write(path.join("trace.jsonl"), "{\"timestamp\":0}\n").unwrap();
    for (arguments, part) in [
        (&["--attention", "one.jsonl"][..], "one.jsonl: one conversation"),
        (&["--attention", "bad.jsonl"], "bad.jsonl:3: rows[1] has 1 shares, must have 2"),
        (&["--attention", "trace.jsonl"], "trace.jsonl:1: the first line"),
        (&["--attention", "nowhere.jsonl"], "nowhere.jsonl"),
        (&["--process", "mixed:prompt=0"], "\"prompt=0\" is not in range"),
        (&["--streams", "0"], "--streams"),
        (&["--streams", "8,8"], "--streams: 8 is given twice"),
        (&["--capacity", "10", "--streams", "8"], "a pool of 10 blocks is too small for 8 streams"),
        (&["--target", "0"], "expected a share above 0"),
        (&["--target", "1.5"], "expected a share above 0"),
        (&["--lambda", "nan"], "expected a number from 0"),
        (&["--rate", "-1"], "--rate"),
        (&["--seeds", "3..1"], "--seeds \"3..1\""),
        (&["--seeds", "1,1"], "--seeds \"1,1\""),
        (&["--steps", "1"], "--steps"),
        (&["--env", "llama-3-8b"], "is not MODEL@HARDWARE"),
        (&["--report", "nowhere/page.html"], "nowhere"),
        (&["--attention", "one.jsonl", "--report", "one.jsonl"], "one.jsonl"),
    ] {
        let error = refused(path, &[&["evict", "token-pd"][..], arguments].concat());
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}
