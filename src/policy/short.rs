//! Policies' names where there is little room.

use std::path::{Component, Path};

use super::{PolicyName, PolicySpec};
use crate::text;

/// Most columns of a short name.
const MOST_COLUMNS: usize = 24;

/// A name for each of `names` that is short and no other's: of a path what tells it from the others, of anything else its
/// beginning. Where that is the whole name it is the name itself.
pub fn short_names(names: &[&PolicyName]) -> Vec<String> {
    let mut taken: Vec<String> = Vec::new();
    for name in names {
        // Of equals, more of the path; where that is too long, a number.
        let mut tried = (1..=MOST_PARTS).map(|parts| candidate(name, parts));
        let fitting = tried.find(|short| text::columns(short) <= MOST_COLUMNS && !taken.contains(short));
        let short = fitting.unwrap_or_else(|| numbered(&candidate(name, 1), &taken));
        taken.push(short);
    }
    taken
}

/// Most parts of a path that are tried.
const MOST_PARTS: usize = 4;

/// The name with the last `parts` of its path that say something.
fn candidate(name: &PolicyName, parts: usize) -> String {
    let (kind, path) = match name.spec() {
        PolicySpec::Table(path) => ("table", path),
        PolicySpec::Checkpoint(path) => ("checkpoint", path),
        _ => return text::printable(name.as_str()),
    };
    if !name.as_str().starts_with(kind) || name.as_str() == kind {
        return text::printable(name.as_str());
    }
    text::printable(&format!("{kind}:{}", telling(path, parts)))
}

/// `chat-24g` of `checkpoints/chat-24g/policy.kvt`, `runs/chat/policy` and `chat-24g.kvt`.
fn telling(path: &Path, parts: usize) -> String {
    let names: Vec<String> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    let names: Vec<&str> = names.iter().map(|name| name.strip_suffix(".kvt").unwrap_or(name)).collect();
    let told = match names.as_slice() {
        [before @ .., "policy" | "checkpoint"] if !before.is_empty() => before,
        all => all,
    };
    if told.is_empty() {
        return path.display().to_string();
    }
    told[told.len().saturating_sub(parts)..].join("/")
}

/// `name`, cut so that a number has room where it is too long or another's.
fn numbered(name: &str, taken: &[String]) -> String {
    let cut = text::shortened(name, MOST_COLUMNS);
    if !taken.contains(&cut) {
        return cut;
    }
    let with = |number: usize| format!("{}#{number}", text::shortened(name, MOST_COLUMNS - 3));
    // One of so many is free.
    (2..taken.len() + 3).map(with).find(|short| !taken.contains(short)).unwrap_or(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(names: &[&str]) -> Vec<String> {
        let names: Vec<PolicyName> = names.iter().map(|text| text.parse::<PolicySpec>().unwrap().into()).collect();
        short_names(&names.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_path_is_named_by_what_tells_it_from_others() {
        assert_eq!(
            short(&["default", "table:checkpoints/chat-24g/policy.kvt", "checkpoint:/home/me/runs/chat-24g/policy"]),
            ["default", "table:chat-24g", "checkpoint:chat-24g"]
        );
        assert_eq!(short(&["table:a/x/policy.kvt", "table:b/x/policy.kvt"]), ["table:x", "table:b/x"]);
        assert_eq!(short(&["table:policy.kvt", "table:mine.kvt"]), ["table:policy", "table:mine"]);
        assert_eq!(short(&["checkpoint:.."]), ["checkpoint:.."]);
    }

    #[test]
    fn what_is_too_long_is_cut_and_stays_apart() {
        let long = short(&[
            "fixed:0.01,victim=most-blocks",
            "fixed:0.01,victim=most-slack,admission=shortest-on-time-first",
            "fixed:0.01,victim=most-slack,admission=on-time-first",
        ]);
        assert_eq!(long[0], "fixed:0.01,victim=most-…");
        assert!(long.iter().all(|name| text::columns(name) <= MOST_COLUMNS), "{long:?}");
        assert!(long[1] != long[0] && long[2] != long[1] && long[2] != long[0], "{long:?}");
        let wide = short(&["table:策略/很长很长很长很长很长很长很长/policy.kvt"]);
        assert!(text::columns(&wide[0]) <= MOST_COLUMNS, "{wide:?}");
        assert_eq!(short(&["table:a\u{1b}b.kvt"]), ["table:a\\u{1b}b"]);
    }
}
