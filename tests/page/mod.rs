//! The page and the pictures as a browser lays them out: on a screen, on a phone, on paper, by day and by night, with and without
//! scripts. Skipped where there is no Chromium.
//!
//! `KVTIDE_PICTURES=FOLDER` keeps what was seen, to be looked at.

mod browser;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::calibrate::made_up::{files, simulated_run, write_run};
use crate::common::done;
use browser::{Browser, Medium};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

const CHECK: &str = include_str!("check.js");
const SCREEN: Medium = Medium::Screen(1280);
const PHONE: Medium = Medium::Phone(390);
/// A4 between margins of 12 mm, at 96 pixels an inch.
const PAPER: Medium = Medium::Paper(703);

/// The browser, if this machine has one; where it has none, that is said, past the harness of tests.
fn browser(test: &str) -> Option<Browser> {
    let browser = Browser::start();
    if browser.is_none() {
        let _ = writeln!(io::stderr(), "skipped: {test}: there is no chromium here");
    }
    browser
}

/// Everything that is wrong.
fn faults(browser: &mut Browser, medium: Medium) -> Vec<String> {
    let (Medium::Screen(width) | Medium::Phone(width) | Medium::Paper(width)) = medium;
    let found = browser.value(&format!("({CHECK})({width})"));
    found.as_array().unwrap().iter().map(|fault| fault.as_str().unwrap().to_owned()).collect()
}

fn keep(name: &str, bytes: &[u8]) {
    if let Some(folder) = env::var_os("KVTIDE_PICTURES") {
        fs::write(PathBuf::from(folder).join(name), bytes).unwrap();
    }
}

/// Shows `file` on `medium`, keeps what is seen, and finds nothing wrong with it.
fn is_sound(browser: &mut Browser, file: &Path, medium: Medium, is_dark: bool, name: &str) {
    browser.show(file, medium, is_dark);
    if env::var_os("KVTIDE_PICTURES").is_some() {
        let picture = browser.picture();
        keep(&format!("{name}.png"), &picture);
    }
    let faults = faults(browser, medium);
    assert!(faults.is_empty(), "{name}, {medium:?}:\n{}", faults.join("\n"));
}

/// A folder with the page of a small evaluation that has everything: long names, a table, tenants, classes, gains.
fn evaluated() -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path();
    let deep = "runs/of-last-week/checkpoints/chat-24g-with-a-long-name/policy.kvt";
    fs::create_dir_all(path.join(deep).parent().unwrap()).unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints/chat-24g/policy.kvt");
    fs::copy(shipped, path.join(deep)).unwrap();
    done(path, &["trace", "generate", "chat:rate=3,duration=150,seed=3", "plain.jsonl"]);
    let rows = fs::read_to_string(path.join("plain.jsonl")).unwrap();
    let mut named = String::new();
    for (index, row) in rows.lines().enumerate() {
        let (tenant, class) =
            (["acme", "contoso-research-and-development"][index % 2], ["chat", "document"][index % 3 / 2]);
        let names = format!("{{\"tenant\":\"{tenant}\",\"slo_class\":\"{class}\",");
        writeln!(named, "{}", row.replacen('{', &names, 1)).unwrap();
    }
    fs::write(path.join("a-trace-of-some-production-service-2026-11-22.jsonl"), named).unwrap();
    let table = format!("table:{deep}");
    let mut arguments = vec!["evaluate", "--trace", "a-trace-of-some-production-service-2026-11-22.jsonl"];
    arguments.extend(["--set", "num_gpu_blocks=1000", "--loads", "0.3,0.45,0.6,0.75", "--seeds", "1..2"]);
    arguments.extend(["--policy", "default", "--policy", "best-fixed", "--policy", "best-static", "--policy", &table]);
    arguments.extend(["--policy", "fixed:0.1,victim=most-blocks,admission=shortest-on-time-first"]);
    arguments.extend(["--versus", "best-fixed", "--report", "report.html"]);
    done(path, &arguments);
    let page = path.join("report.html");
    (folder, page)
}

#[test]
fn the_page_fits_screen_phone_and_paper() {
    let Some(mut browser) = browser("the page in a browser") else { return };
    let (folder, page) = evaluated();
    for (medium, is_dark, name) in [
        (SCREEN, false, "page-1280"),
        (SCREEN, true, "page-1280-dark"),
        (PHONE, false, "page-390"),
        (PHONE, true, "page-390-dark"),
        (Medium::Phone(320), false, "page-320"),
        (PAPER, false, "page-print"),
    ] {
        is_sound(&mut browser, &page, medium, is_dark, name);
    }
    sorts(&mut browser, &page);
    printed_whole(&mut browser, &page);
    browser.let_scripts_run(false);
    for (medium, name) in [(SCREEN, "page-1280-without-scripts"), (PHONE, "page-390-without-scripts")] {
        is_sound(&mut browser, &page, medium, false, name);
        assert_eq!(browser.value("document.querySelectorAll('th button').length"), 0);
    }
    drop(folder);
}

/// A head sorts by its column when Enter is pressed on it: down, up, and as it was.
fn sorts(browser: &mut Browser, page: &Path) {
    const NAMES: &str = "[...document.querySelector('table').tBodies[0].rows].map(row => row.cells[0].innerText)";
    const WAITS: &str =
        "[...document.querySelector('table').tBodies[0].rows].map(row => Number(row.cells[8].dataset.key))";
    browser.show(page, SCREEN, false);
    let before = browser.value(NAMES);
    browser.value("document.querySelectorAll('table th button')[8].focus()");
    let pressed = |browser: &mut Browser| {
        browser.press("Enter", "\r", 13);
        let sort = browser.value("document.querySelectorAll('table th')[8].ariaSort");
        let waits: Vec<f64> = browser.value(WAITS).as_array().unwrap().iter().filter_map(Value::as_f64).collect();
        (sort, waits)
    };
    let (sort, waits) = pressed(browser);
    assert!(sort == "descending" && waits.len() == 5 && waits.is_sorted_by(|a, b| a >= b), "{sort} {waits:?}");
    assert_ne!(browser.value(NAMES), before, "the order of the policies would prove nothing");
    let (sort, waits) = pressed(browser);
    assert!(sort == "ascending" && waits.is_sorted(), "{sort} {waits:?}");
    assert_eq!(pressed(browser).0, "none");
    assert_eq!(browser.value(NAMES), before);
}

/// Every heading is in the PDF, whose list of contents has them in their order.
fn printed_whole(browser: &mut Browser, page: &Path) {
    browser.show(page, SCREEN, true);
    let headings = browser.value("[...document.querySelectorAll('h1, h2, h3')].map(heading => heading.textContent)");
    let pdf = browser.pdf();
    keep("page.pdf", &pdf);
    let text = String::from_utf8_lossy(&pdf);
    let pages = text.matches("/Type /Page\n").count();
    assert!((2..20).contains(&pages), "{pages} pages");
    // A heading that goes on in another line has lost the space there.
    let packed = |text: &str| text.split_whitespace().collect::<String>();
    let listed: Vec<String> =
        text.split("/Title (").skip(1).filter_map(|rest| Some(packed(rest.split_once(')')?.0))).collect();
    for heading in headings.as_array().unwrap() {
        let heading = packed(heading.as_str().unwrap());
        assert!(listed.contains(&heading), "{heading} is not in the PDF: {listed:?}");
    }
}

#[test]
fn pictures_can_be_read() {
    let Some(mut browser) = browser("pictures in a browser") else { return };
    let folder = tempdir().unwrap();
    let path = folder.path();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["chat-24g", "reasoning-watermark", "agentic"] {
        let table = root.join(format!("checkpoints/{name}/policy.kvt")).to_string_lossy().into_owned();
        done(path, &["inspect", &table, "--svg", "summary.svg"]);
        is_sound(&mut browser, &path.join("summary.svg"), SCREEN, false, &format!("tree-{name}"));
        done(path, &["inspect", &table, "--svg", "whole.svg", "--depth", "99"]);
        browser.show(&path.join("whole.svg"), SCREEN, false);
        let faults = faults(&mut browser, SCREEN);
        // The whole of it may be wider than a screen.
        assert!(faults.iter().all(|fault| fault.starts_with("overflow: the page")), "{name}: {faults:?}");
        if env::var_os("KVTIDE_PICTURES").is_some() {
            let picture = browser.picture();
            keep(&format!("tree-{name}-whole.png"), &picture);
        }
    }
    is_sound(&mut browser, &root.join("docs/attainment.svg"), SCREEN, false, "attainment");
    is_sound(&mut browser, &frontier(path), SCREEN, false, "frontier");
    is_sound(&mut browser, &calibration(path), SCREEN, false, "calibration");
}

/// The sizes of a table that was learned in a moment.
fn frontier(folder: &Path) -> PathBuf {
    let experiment = r#"
name = "small"
profile = "core"
num_envs = 4
method = "cross-entropy"
[world]
workload = "chat:rate=3,duration=300,seed=2"
set = ["num_gpu_blocks=1000"]
[episodes]
fit = 0.7
length_s = 60.0
load = [0.8, 1.2]
[cross_entropy]
generations = 3
population = 8
elite = 0.25
episodes = 2
"#;
    fs::write(folder.join("small.toml"), experiment).unwrap();
    done(folder, &["train", "--experiment", "small.toml", "--out", "run"]);
    let mut arguments = vec!["export", "--checkpoint", "run/checkpoint", "--out", "policy.kvt", "--leaves", "64"];
    arguments.extend(["--episodes", "8", "--max-loss", "100", "--frontier", "frontier.svg"]);
    done(folder, &arguments);
    folder.join("frontier.svg")
}

/// A made-up server beside its simulation.
fn calibration(folder: &Path) -> PathBuf {
    write_run(&folder.join("measured"), &files(&simulated_run()));
    done(folder, &["calibrate", "--measured", "measured", "--fit-fraction", "0.4", "--plot", "calibration.svg"]);
    folder.join("calibration.svg")
}

#[test]
fn faults_are_found() {
    let Some(mut browser) = browser("faults in a browser") else { return };
    let folder = tempdir().unwrap();
    let file = folder.path().join("broken.html");
    let sound = "<!DOCTYPE html><html lang=en><head><meta name=viewport content='width=device-width'><title>x</title></head>\
        <body><h1>x</h1><svg viewBox='0 0 300 100'><title>y</title><text x=10 y=20>a</text><text x=10 y=60>b</text></svg>";
    let mut found = |body: &str| {
        fs::write(&file, format!("{sound}{body}</body></html>")).unwrap();
        browser.show(&file, PHONE, false);
        faults(&mut browser, PHONE)
    };
    assert_eq!(found(""), Vec::<String>::new());
    let picture = |inner: &str| format!("<svg viewBox='0 0 300 100'><title>y</title>{inner}</svg>");
    for (kind, body) in [
        ("overflow", "<p style='width:600px'>wide</p>".to_owned()),
        ("scrolls", "<div class=scroll style='overflow-x:auto'><p style='width:600px'>wide</p></div>".to_owned()),
        ("clipped", picture("<text x=280 y=50>cut off</text>")),
        ("overlapping", picture("<text x=10 y=50>one</text><text x=20 y=52>other</text>")),
        ("small", picture("<text x=10 y=50 font-size=4>tiny</text>")),
        (
            "out of its box",
            picture("<g><rect class=node x=10 y=10 width=20 height=20 /><text x=12 y=22>too long</text></g>"),
        ),
        ("unnamed", "<svg viewBox='0 0 9 9'></svg>".to_owned()),
        ("headings", "<h3>y</h3>".to_owned()),
        ("link", "<a href='#nowhere'>y</a>".to_owned()),
        ("ids", "<p id=a></p><p id=a></p>".to_owned()),
        ("table", "<table><thead><tr><th>a<th>b<tbody><tr><td>1</table>".to_owned()),
    ] {
        let faults = found(&body);
        assert!(faults.iter().any(|fault| fault.starts_with(kind)), "{kind}: {faults:?}");
    }
}
