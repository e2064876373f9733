//! A table's tree as a picture: an SVG that needs nothing else, root on the left, a row for each leaf.

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::TableFile;
use kvtide_runtime::{Head, TreeNode};
use maud::{Markup, PreEscaped, html};

use super::rules::{KnownNames, leaves, short};
use crate::plot::svg::{Anchor, path, text};

/// Height of a row, pixels.
const ROW: usize = 24;
const COLUMN: usize = 220;
const BOX_HEIGHT: usize = 18;
const MARGIN: usize = 16;
const HEADER: usize = 64;
/// Width of a character of the font, about.
const CHARACTER: f64 = 6.3;

/// The tree of `file` down to `max_depth` comparisons; what is below is counted.
pub(super) fn svg(file: &TableFile<'_>, title: &str, max_depth: usize) -> String {
    let nodes: Vec<TreeNode> = file.nodes().collect();
    let (constant, varying) = heads(&nodes, file.profile().heads());
    let mut picture = Picture {
        nodes: &nodes,
        names: KnownNames::of(file),
        varying: &varying,
        max_depth,
        rows: 0,
        width: 0,
        parts: Vec::new(),
    };
    picture.node(0, 0);
    let names = picture.names;
    let always: Vec<String> =
        constant.iter().map(|&(head, choice)| format!("{} {}", head.name(), names.choice(head, choice))).collect();
    let always = if always.is_empty() { String::new() } else { format!(" · always {}", always.join(", ")) };
    let subtitle = format!("{}, at most {} comparisons{always}", leaves(file.leaves()), file.depth());
    let header = (subtitle.chars().count().max(title.chars().count() + 8) as f64 * CHARACTER) as usize;
    let width = picture.width.max(header) + 2 * MARGIN;
    let height = HEADER + picture.rows * ROW + MARGIN;
    let left = MARGIN as f64;
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } {
            style { (PreEscaped(STYLE)) }
            rect class="paper" width=(width) height=(height) {}
            (text("title", (left, 24.0), Anchor::Start, title))
            (text("subtitle", (left, 44.0), Anchor::Start, &subtitle))
            @for part in &picture.parts { "\n" (part) }
            "\n"
        }
    };
    svg.into_string() + "\n"
}

/// What its classes look like.
const STYLE: &str = "text{font:11px sans-serif;fill:#1f1f1f}text.title{font-size:16px}text.subtitle,text.below{fill:#555555}\
    text.word{font-size:9px;fill:#777777}.paper{fill:#ffffff}.node{stroke:#9a9a9a}.edge{fill:none;stroke:#9a9a9a}";

/// Heads on which all leaves agree, with their choice, and the others.
fn heads(nodes: &[TreeNode], profile: &[Head]) -> (Vec<(Head, u8)>, Vec<Head>) {
    let (mut constant, mut varying) = (Vec::new(), Vec::new());
    for &head in profile {
        let choice = |node: &TreeNode| match node {
            TreeNode::Leaf { choices } => Some(choices[head as usize]),
            TreeNode::Split { .. } => None,
        };
        let mut all = nodes.iter().filter_map(choice);
        let first = all.next().unwrap_or(0);
        if all.all(|other| other == first) { constant.push((head, first)) } else { varying.push(head) }
    }
    (constant, varying)
}

struct Picture<'a> {
    nodes: &'a [TreeNode],
    names: KnownNames,
    varying: &'a [Head],
    max_depth: usize,
    /// Rows used so far.
    rows: usize,
    width: usize,
    parts: Vec<Markup>,
}

impl Picture<'_> {
    /// Draws a node and what is below it, and returns the height of its middle. The format bounds the depth.
    fn node(&mut self, node: usize, depth: usize) -> usize {
        match self.nodes[node] {
            TreeNode::Leaf { choices } => {
                let y = self.row();
                self.label(depth, y, &self.action(choices), shade(choices), "leaf");
                y
            }
            TreeNode::Split { .. } if depth >= self.max_depth => {
                let y = self.row();
                let below = leaves(self.count(node));
                self.label(depth, y, &format!("… {below}"), "#f2f2f2", "below");
                y
            }
            TreeNode::Split { feature, left, threshold } => {
                let low = self.node(usize::from(left), depth + 1);
                let high = self.node(usize::from(left) + 1, depth + 1);
                let y = usize::midpoint(low, high);
                for (child, word) in [(low, "yes"), (high, "no")] {
                    self.edge(depth, y, child, word);
                }
                let test = format!("{} ≤ {}", self.names.feature(feature), short(threshold));
                self.label(depth, y, &test, "#ffffff", "split");
                y
            }
        }
    }

    fn row(&mut self) -> usize {
        self.rows += 1;
        HEADER + (self.rows - 1) * ROW + ROW / 2
    }

    fn count(&self, node: usize) -> u16 {
        match self.nodes[node] {
            TreeNode::Leaf { .. } => 1,
            TreeNode::Split { left, .. } => self.count(usize::from(left)) + self.count(usize::from(left) + 1),
        }
    }

    /// What a leaf says in the heads that vary.
    fn action(&self, choices: [u8; NUM_HEADS]) -> String {
        // A rule's name says whose it is, a number does not.
        let choice = |&head: &Head| {
            let name = self.names.choice(head, choices[head as usize]);
            if head.choices().are_levels() { format!("{} {name}", head.name()) } else { name }
        };
        let said: Vec<String> = self.varying.iter().map(choice).collect();
        if said.is_empty() { "always".to_owned() } else { said.join(", ") }
    }

    fn label(&mut self, depth: usize, y: usize, words: &str, fill: &str, class: &str) {
        let x = MARGIN + depth * COLUMN;
        let width = (words.chars().count() as f64 * CHARACTER) as usize + 12;
        self.width = self.width.max(x + width);
        let top = y - BOX_HEIGHT / 2;
        self.parts.push(html! {
            rect class="node" x=(x) y=(top) width=(width) height=(BOX_HEIGHT) rx="4" fill=(fill) {}
            (text(class, ((x + 6) as f64, (y + 4) as f64), Anchor::Start, words))
        });
    }

    fn edge(&mut self, depth: usize, from: usize, to: usize, word: &str) {
        let child = MARGIN + (depth + 1) * COLUMN;
        let turn = child - 28;
        let start = MARGIN + depth * COLUMN + 20;
        self.parts.push(html! {
            (path("edge", &format!("M{start} {from} H{turn} V{to} H{child}")))
            (text("word", ((turn + 4) as f64, to as f64 - 3.0), Anchor::Start, word))
        });
    }
}

/// Leaves that leave more of the pool free are darker.
fn shade(choices: [u8; NUM_HEADS]) -> &'static str {
    const SHADES: [&str; 6] = ["#e8f1fa", "#d3e4f3", "#b9d5ec", "#9cc4e3", "#80b3da", "#66a3d2"];
    SHADES[usize::from(choices[Head::Watermark as usize] / 2).min(SHADES.len() - 1)]
}
