//! A table in ten lines of plain language.

use std::path::Path;

use kvtide_runtime::format::TableFile;
use kvtide_runtime::{Head, TreeNode};

use super::rules::{KnownNames, leaves};
use super::words;
use crate::text::{labelled, printable};

/// Where what labels stand beside begins.
const AT: usize = 12;
/// Most ways through a tree that are told one by one.
const MOST_TOLD: u16 = 4;
/// Most features that are named.
const MOST_FEATURES: usize = 5;

/// A table as far as its summary is concerned.
pub(super) struct TableText<'a> {
    pub(super) file: TableFile<'a>,
    pub(super) names: KnownNames,
    pub(super) bytes: usize,
}

impl TableText<'_> {
    /// What it is, made of what, what it does, how good it was, and what to do next with the file at `path`; a usable one's.
    pub(super) fn text(&self, path: &Path, width: usize) -> String {
        let mut out = String::new();
        let mut say = |label: &str, text: &str| out.push_str(&labelled(label, text, AT, width));
        say("what", &self.what());
        self.made().into_iter().for_each(|(label, text)| say(label, &text));
        say("decides by", &self.decides_by());
        say("does", &self.does());
        say("in doubt", &self.in_doubt());
        say("how good", &self.how_good());
        self.next(path).into_iter().for_each(|(label, text)| say(label, &text));
        out
    }

    fn says(&self, key: &str) -> Option<String> {
        self.file.metadata().find(|(known, _)| *known == key).map(|(_, value)| printable(value))
    }

    fn what(&self) -> String {
        let name = self.says("experiment").unwrap_or_else(|| "a table".to_owned());
        let heads: Vec<&str> = KnownNames::heads(&self.file).iter().map(|head| head.name()).collect();
        let (leaves, bytes) = (leaves(self.file.leaves()), self.bytes);
        let host = self.says("host").map_or_else(String::new, |host| format!(" for {host}"));
        format!("{name}, a decision table{host} of {leaves}, {bytes} bytes; it decides {}", heads.join(", "))
    }

    /// What it is made of, by label.
    fn made(&self) -> Vec<(&'static str, String)> {
        let mut made = Vec::new();
        if let Some(trace) = self.says("trace") {
            let range = self.says("fit_range").map_or_else(String::new, |range| format!(", {range} of it"));
            let env = self.says("env").map_or_else(String::new, |env| format!(", on {}", env.replace("; ", ", ")));
            made.push(("made of", format!("{trace}{range}{env}")));
        }
        if let Some(teacher) = self.says("teacher") {
            let seed = self.says("seed").map_or_else(String::new, |seed| format!(", seed {seed}"));
            made.push(("made by", format!("{teacher}{seed}")));
        }
        made.extend(self.says("slo").map(|slo| ("targets", slo)));
        made
    }

    /// The features that matter most, in words, with their shares.
    fn decides_by(&self) -> String {
        let Some(importance) = self.says("importance").filter(|text| !text.is_empty()) else {
            return if self.file.leaves() == 1 { "nothing: it always does the same".to_owned() } else { self.asked() };
        };
        let told = importance.split(", ").map(|one| match one.split_once(' ') {
            Some((name, share)) => {
                let share =
                    share.parse::<f64>().map_or_else(|_| share.to_owned(), |share| format!("{:.0} %", share * 100.0));
                format!("{} ({name}, {share})", words::feature_named(name).unwrap_or(name))
            }
            None => one.to_owned(),
        });
        let told: Vec<String> = told.collect();
        let others = told.len().saturating_sub(MOST_FEATURES);
        let more = if others == 0 { String::new() } else { format!("; and {others} more") };
        format!("{}{more}", told[..told.len() - others].join("; "))
    }

    /// The features some node asks for, where the file does not say which matter.
    fn asked(&self) -> String {
        let mut asked: Vec<String> = Vec::new();
        for node in self.file.nodes() {
            if let TreeNode::Split { feature, .. } = node
                && !asked.contains(&self.feature(feature))
            {
                asked.push(self.feature(feature));
            }
        }
        asked.join(", ")
    }

    fn feature(&self, feature: u8) -> String {
        let known = words::feature(feature).filter(|_| self.names.schema);
        known.map_or_else(|| self.names.feature(feature), str::to_owned)
    }

    /// Every way through a small tree; of a large one how often what is done.
    fn does(&self) -> String {
        let nodes: Vec<TreeNode> = self.file.nodes().collect();
        let mut ways = Vec::new();
        self.walk(&nodes, 0, &mut Vec::new(), &mut ways);
        let heads = KnownNames::heads(&self.file);
        let choice = |head: Head, way: &Way| self.names.choice(head, way.choices[head as usize]);
        let agreed = |head: &&Head| ways.iter().all(|way| choice(**head, way) == choice(**head, &ways[0]));
        let always: Vec<String> =
            heads.iter().filter(agreed).map(|&head| words::choice(head, &choice(head, &ways[0]))).collect();
        let varied: Vec<Head> = heads.iter().copied().filter(|head| !agreed(&head)).collect();
        let mut sentences = Vec::new();
        if !always.is_empty() {
            sentences.push(format!("always {}", always.join(", ")));
        }
        if self.file.leaves() <= MOST_TOLD {
            sentences.extend(ways.iter().filter(|_| !varied.is_empty()).map(|way| {
                let done: Vec<String> = varied.iter().map(|&head| words::choice(head, &choice(head, way))).collect();
                format!("if {}: {}", way.conditions.join(" and "), done.join(", "))
            }));
        } else {
            sentences.extend(
                varied.iter().map(|&head| counted(ways.iter().map(|way| words::choice(head, &choice(head, way))))),
            );
        }
        sentences.join("\n")
    }

    fn walk(&self, nodes: &[TreeNode], node: usize, conditions: &mut Vec<Condition>, ways: &mut Vec<Way>) {
        match nodes[node] {
            TreeNode::Leaf { choices } => {
                ways.push(Way { choices, conditions: conditions.iter().map(|one| self.condition(one)).collect() });
            }
            TreeNode::Split { feature, left, threshold } => {
                for (side, greater) in [(usize::from(left), false), (usize::from(left) + 1, true)] {
                    conditions.push(Condition { feature, threshold, greater });
                    self.walk(nodes, side, conditions, ways);
                    conditions.pop();
                }
            }
        }
    }

    /// `the oldest wait > 0.2489 TTFT targets`.
    fn condition(&self, Condition { feature, threshold, greater }: &Condition) -> String {
        let unit = self.names.spec(*feature).map_or("", |spec| spec.unit);
        let side = if *greater { ">" } else { "≤" };
        format!("{} {side} {}", self.feature(*feature), words::amount(*threshold, unit))
    }

    fn in_doubt(&self) -> String {
        let constant = self.says("fallback").map_or_else(
            || "the engine's own watermark".to_owned(),
            |fallback| format!("watermark {fallback}, the best constant one where it was trained"),
        );
        format!("the guard of a node falls back to {constant}")
    }

    fn how_good(&self) -> String {
        let mut told = Vec::new();
        if let Some(share) = self.says("validation_attainment").and_then(|text| text.parse::<f64>().ok()) {
            told.push(format!("met all targets for {:.1} % of requests on validation traffic", share * 100.0));
        }
        if let Some(points) = self.says("loss.points") {
            let traffic = self.says("loss.traffic").unwrap_or_else(|| "unseen".to_owned());
            told.push(format!("lost {points} points against its teacher on {traffic} traffic"));
        }
        if told.is_empty() { "the file does not say; judge it".to_owned() } else { told.join("; ") }
    }

    /// Commands to go on with.
    fn next(&self, path: &Path) -> Vec<(&'static str, String)> {
        if self.names.edition.is_none() {
            return vec![("next", "export it again: this build cannot decide with it".to_owned())];
        }
        let path = printable(&path.display().to_string());
        vec![
            (
                "judge it",
                format!(
                    "kvtide evaluate --trace TRACE --loads auto --policy default --policy best-fixed --policy table:{path}"
                ),
            ),
            ("ask it", format!("kvtide explain {path} FEATURE=VALUE …, or --from observation.json")),
        ]
    }
}

/// A leaf, and what must hold for it to be reached.
struct Way {
    choices: [u8; kvtide_runtime::action::NUM_HEADS],
    conditions: Vec<String>,
}

struct Condition {
    feature: u8,
    threshold: f32,
    greater: bool,
}

/// `leaves 5 % free in 20 of 32 leaves, 8 % … in 12`, the most frequent first.
fn counted(choices: impl Iterator<Item = String>) -> String {
    let mut counts: Vec<(usize, String)> = Vec::new();
    let mut all = 0;
    for choice in choices {
        all += 1;
        match counts.iter_mut().find(|(_, known)| *known == choice) {
            Some((count, _)) => *count += 1,
            None => counts.push((1, choice)),
        }
    }
    counts.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let told: Vec<String> = counts.iter().map(|(count, choice)| format!("{choice} ({count})")).collect();
    format!("of {all} leaves: {}", told.join(", "))
}
