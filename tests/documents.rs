//! The documents: what they link to is there, they stay short, and no command is forgotten.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::done;

/// The folder all of it is in.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Markdown below `folder`, but for what is fetched or built.
fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !["target", "third_party", "runs"].contains(&name.as_str()) {
            markdown(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Every document of ours.
pub fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    markdown(root(), &mut found);
    found.sort();
    found
}

/// Where links go, blocks of code left out.
fn links(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2).collect::<String>();
    let ends = |rest: &str| rest.find(')').map(|end| rest[..end].to_owned());
    prose.split("](").skip(1).filter_map(ends).collect()
}

/// Headings as links name them: lower case, words joined by hyphens, the rest of the signs dropped.
fn anchors(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2).collect::<String>();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let kept = |c: char| c.is_alphanumeric() || c == ' ' || c == '-' || c == '_';
    let name = |line: &str| {
        line.trim_start_matches('#').trim().to_lowercase().chars().filter(|c| kept(*c)).collect::<String>()
    };
    headings.map(|line| name(line).replace(' ', "-")).collect()
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut faults = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in links(&text).iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            let here = to.exists();
            if !here
                || (!anchor.is_empty()
                    && !anchors(&fs::read_to_string(&to).unwrap()).iter().any(|known| known == anchor))
            {
                faults.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(faults.is_empty(), "links that lead nowhere:\n{}", faults.join("\n"));
}

#[test]
fn what_is_read_first_is_short() {
    for (name, most) in [("README.md", 100), ("ARCHITECTURE.md", 120)] {
        let lines = fs::read_to_string(root().join(name)).unwrap().lines().count();
        assert!(lines <= most, "{name} has {lines} lines, at most {most} are read");
    }
}

#[test]
fn the_guide_mentions_every_command() {
    let guide = fs::read_to_string(root().join("docs/GUIDE.md")).unwrap();
    let help = done(root(), &["--help"]).stdout;
    let commands =
        help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1).take_while(|line| !line.is_empty());
    // A command stands two columns in; what it does may go on below it, further in.
    let names: Vec<&str> = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() >= 10, "{help}");
    let missing: Vec<&&str> = names.iter().filter(|name| !guide.contains(&format!("kvtide {name}"))).collect();
    assert!(missing.is_empty(), "docs/GUIDE.md says nothing of {missing:?}");
}
