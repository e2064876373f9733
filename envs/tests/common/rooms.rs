//! Which rooms of a crate use which: read off its sources, and held against the floors they are said to stand on.
//!
//! A room is a module of the crate's root. Tests within a room may look up: what stands under `#[cfg(test)]` or in a folder
//! `tests` is passed over, and so are comments.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A room, one it uses, and a file in which it does.
pub type Arrow = (String, String, PathBuf);

/// What is wrong with the crate whose sources lie in `folder`: rooms without a floor, and arrows from a room to one on its
/// own floor or above. `floors` are the rooms from the ground up.
pub fn faults(folder: &Path, floors: &[&[&str]]) -> Vec<String> {
    let floor: BTreeMap<&str, usize> =
        floors.iter().enumerate().flat_map(|(floor, rooms)| rooms.iter().map(move |room| (*room, floor))).collect();
    let arrows = arrows(folder);
    let mut faults: Vec<String> = arrows
        .iter()
        .flat_map(|(from, to, _)| [from, to])
        .filter(|room| !floor.contains_key(room.as_str()))
        .map(|room| format!("{room} stands on no floor: write it down where it belongs"))
        .collect();
    for (from, to, file) in &arrows {
        if let (Some(at), Some(above)) = (floor.get(from.as_str()), floor.get(to.as_str()))
            && at <= above
        {
            faults.push(format!("{from} uses {to}, which does not stand below it: {}", file.display()));
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

/// All arrows between rooms, in order of their files.
pub fn arrows(folder: &Path) -> Vec<Arrow> {
    let mut arrows = Vec::new();
    for file in sources(folder) {
        let path = file.strip_prefix(folder).expect("a file of the folder");
        let module = module(path);
        // The crate's roots use what they like.
        let Some(room) = module.first().filter(|room| !["lib", "main", "bin"].contains(&room.as_str())) else {
            continue;
        };
        let code = code(&fs::read_to_string(&file).expect("sources are readable"));
        for used in used(&code, module.len()) {
            let arrow = (room.clone(), used, path.to_owned());
            if arrow.1 != *room && !arrows.contains(&arrow) {
                arrows.push(arrow);
            }
        }
    }
    arrows
}

/// Rust files in a folder and below, in order, but for folders of tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "tests") {
                files.extend(sources(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The module of a file, from its room down.
fn module(path: &Path) -> Vec<String> {
    let mut module: Vec<String> =
        path.with_extension("").components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    module.pop_if(|last| last == "mod");
    module
}

/// A file without comments, up to its tests.
fn code(text: &str) -> String {
    let lines = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    lines.map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The rooms that `code` names, in a module `depth` below the crate: `crate::room`, `crate::{room, …}`, and as many `super::`
/// as lead there.
fn used(code: &str, depth: usize) -> Vec<String> {
    let up = "super::".repeat(depth);
    let mut rooms = Vec::new();
    for root in ["crate::", up.as_str()] {
        for (start, _) in code.match_indices(root) {
            let before = code[..start].chars().next_back();
            // A longer word, or one `super` more, which leads nowhere.
            if before.is_some_and(|letter| letter == '_' || letter == ':' || letter.is_alphanumeric()) {
                continue;
            }
            let rest = &code[start + root.len()..];
            let Some(group) = rest.strip_prefix('{') else {
                rooms.extend(name(rest));
                continue;
            };
            rooms.extend(first_names(group));
        }
    }
    rooms
}

/// The names a group begins its paths with: `a` and `b` of `a::{c, d}, b}`.
fn first_names(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut nested, mut begins) = (0_u32, true);
    for (at, letter) in group.char_indices() {
        match letter {
            '}' if nested == 0 => break,
            '{' => nested += 1,
            '}' => nested -= 1,
            ',' if nested == 0 => begins = true,
            letter if begins && !letter.is_whitespace() => {
                names.extend(name(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

/// The module name a path begins with: not a type's, a macro's or `super`.
fn name(path: &str) -> Option<String> {
    let name: String = path.chars().take_while(|letter| *letter == '_' || letter.is_alphanumeric()).collect();
    let is_module = name.starts_with(|letter: char| letter.is_lowercase()) && !path[name.len()..].starts_with('!');
    (is_module && !["self", "super"].contains(&name.as_str())).then_some(name)
}
