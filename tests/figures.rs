//! Figures in the documents are those of the results that are committed, and what commands are said to print is what they printed.
//!
//! Before a block of code in a document, `<!-- as printed: PATH -->` names a file, from the repository's root: the block is that
//! file, letter for letter. `KVTIDE_UPDATE_DOCUMENTS=1 cargo test --test all -- figures` takes changed files over into the documents.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::process::Command;

use crate::documents::{documents, root};

const MARKER: &str = "<!-- as printed: ";

/// What a Python program of `experiments/` prints; `None` without Python, which is said past the harness of tests.
fn printed(test: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new("python3").arg("-B").args(arguments).current_dir(root()).output() else {
        let _ = writeln!(io::stderr(), "skipped: {test}: there is no python3 here");
        return None;
    };
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_table_of_results_is_what_the_results_say() {
    let Some(table) = printed("tables of results", &["experiments/table.py"]) else { return };
    let document = read("experiments/README.md");
    let missing: Vec<&str> = table.lines().filter(|line| !line.is_empty() && !document.contains(line)).collect();
    assert!(missing.is_empty(), "not in experiments/README.md (experiments/run.sh table):\n{}", missing.join("\n"));
}

#[test]
fn the_picture_is_that_of_the_results() {
    let Some(picture) = printed("the picture of the results", &["experiments/picture.py", "-"]) else { return };
    assert!(picture == read("docs/attainment.svg"), "python3 experiments/picture.py draws another docs/attainment.svg");
}

/// Rows of a Markdown table, their cells, where the first is one of `names`.
fn rows<'a>(document: &'a str, names: &[&str]) -> Vec<Vec<&'a str>> {
    let cells = |line: &'a str| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<&str>>();
    let named = document.lines().filter(|line| line.starts_with('|')).map(cells);
    named.filter(|cells| names.contains(&cells[0])).collect()
}

/// The results a row of the README is of, by what stands in front of it.
const SHOWN: [(&str, &str); 9] = [
    ("chat-24g, Azure conversations", "chat-24g"),
    ("chat-24g, generated conversations", "chat-24g-generated"),
    ("chat-80g, Mooncake conversations", "chat-80g"),
    ("reasoning, closed loop", "reasoning"),
    ("reasoning, open loop", "reasoning-open"),
    ("reasoning-core, closed loop (no reordering)", "reasoning-core"),
    ("reasoning-watermark, closed loop (watermark only)", "reasoning-watermark"),
    ("reasoning-sglang, for SGLang", "reasoning-sglang"),
    ("agentic, generated sessions", "agentic"),
];

#[test]
fn the_readme_shows_the_figures_of_the_results() {
    let (readme, results) = (read("README.md"), read("experiments/README.md"));
    for (label, scenario) in SHOWN {
        let [shown] = &rows(&readme, &[label])[..] else { panic!("README.md: no row, or more than one, of {label:?}") };
        let judged = rows(&results, &[scenario]).into_iter().find(|cells| cells.len() == 20);
        let Some(judged) = judged else { panic!("experiments/README.md: no row of {scenario:?}") };
        // default, past-future, primal-dual, best-fixed, best-train, best-static once, best-static, table, its checkpoint; fewer than
        // default, best-fixed, best-train, best-static once, best-static; TTFT; longest wait.
        let [best_fixed, table, than_fixed, than_static, wait] = [5, 9, 12, 15, 17].map(|column| judged[column]);
        let attained = format!("{} → {}", best_fixed.trim_end_matches(" %"), table.trim_matches('*'));
        assert_eq!(shown[1..], [&attained, than_fixed, than_static, &format!("{wait} ×")], "README.md: {label}");
    }
}

/// A document with its marked blocks as the files have them, and what was not so.
fn as_printed(document: &str, file: impl Fn(&str) -> Result<String, String>) -> (String, Vec<String>) {
    let (mut written, mut faults) = (String::new(), Vec::new());
    let mut rest = document;
    while let Some((before, after)) = rest.split_once(MARKER) {
        written += before;
        written += MARKER;
        rest = after;
        let block = after.split_once(" -->\n```").and_then(|(path, after)| {
            let (language, after) = after.split_once('\n')?;
            let (block, after) = after.split_once("```\n")?;
            Some((path, language, block, after))
        });
        let Some((path, language, block, after)) = block else {
            faults.push(format!("no block of code follows {MARKER}{}", after.lines().next().unwrap_or_default()));
            continue;
        };
        match file(path) {
            Ok(text) => {
                if text.trim_end() != block.trim_end() {
                    faults.push(format!("the block is not {path}"));
                }
                written.extend([path, " -->\n```", language, "\n", text.trim_end(), "\n```\n"]);
            }
            Err(error) => {
                faults.push(format!("{path}: {error}"));
                written.extend([path, " -->\n```", language, "\n", block, "```\n"]);
            }
        }
        rest = after;
    }
    written += rest;
    (written, faults)
}

#[test]
fn what_commands_print_is_what_they_printed() {
    let mut all = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let file = |path: &str| fs::read_to_string(root().join(path)).map_err(|error| error.to_string());
        let (written, faults) = as_printed(&text, file);
        if env::var_os("KVTIDE_UPDATE_DOCUMENTS").is_some() && written != text {
            fs::write(&document, written).unwrap();
        } else {
            all.extend(faults.iter().map(|fault| format!("{}: {fault}", document.display())));
        }
    }
    assert!(all.is_empty(), "{}\nKVTIDE_UPDATE_DOCUMENTS=1 takes the files over", all.join("\n"));
}

#[test]
fn a_block_that_was_not_printed_is_found() {
    let file = |path: &str| if path == "a.txt" { Ok("1 2\n".to_owned()) } else { Err("not there".to_owned()) };
    let marked = |path: &str, block: &str| format!("x\n{MARKER}{path} -->\n```text\n{block}\n```\ny\n");
    assert_eq!(as_printed(&marked("a.txt", "1 2"), file), (marked("a.txt", "1 2"), vec![]));
    assert_eq!(
        as_printed(&marked("a.txt", "1 3"), file),
        (marked("a.txt", "1 2"), vec!["the block is not a.txt".to_owned()])
    );
    let (written, faults) = as_printed(&marked("b.txt", "1"), file);
    assert_eq!((written, &faults[..]), (marked("b.txt", "1"), &["b.txt: not there".to_owned()][..]));
    assert_eq!(as_printed(&format!("{MARKER}a.txt -->\nno block"), file).1.len(), 1);
}
