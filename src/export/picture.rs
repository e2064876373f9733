//! A table's tree as a picture: an SVG that needs nothing else, root on the left, a row for each leaf. Of what is below the
//! depth that is drawn it says how many leaves there are, and what they choose.

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::TableFile;
use kvtide_runtime::{Head, TreeNode};
use maud::{Markup, PreEscaped, html};

use super::rules::{KnownNames, leaves, short};
use crate::plot::svg::{Anchor, path, text};

/// Height of a row, pixels; four levels and what is below them are as wide as a screen.
const ROW: usize = 46;
const COLUMN: usize = 240;
const BOX_HEIGHT: usize = 38;
const MARGIN: usize = 16;
const HEADER: usize = 84;
/// Width of a letter of a box's second line, of its first, and of the title, about.
const LETTER: f64 = 6.9;
const BOLD_LETTER: f64 = 8.2;
const TITLE_LETTER: f64 = 10.0;

/// Of what is said of the leaves below, so that four levels are no wider than a screen.
const MOST_LETTERS: usize = 38;

/// The tree of `file` down to `max_depth` comparisons; what is below is counted.
pub(super) fn svg(file: &TableFile<'_>, title: &str, max_depth: usize) -> String {
    let nodes: Vec<TreeNode> = file.nodes().collect();
    let (constant, varying) = heads(&nodes, KnownNames::heads(file));
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
    let always = if always.is_empty() { String::new() } else { format!("always {}", always.join(", ")) };
    let depth = usize::from(file.depth());
    let drawn = if depth > max_depth { format!(", {max_depth} of them drawn") } else { String::new() };
    let subtitle = format!("{}, at most {depth} comparisons{drawn}", leaves(file.leaves()));
    let letters = |text: &str, width: f64| (text.chars().count() as f64 * width) as usize;
    let header = letters(title, TITLE_LETTER).max(letters(&subtitle, LETTER)).max(letters(&always, LETTER));
    let width = picture.width.max(header + MARGIN) + MARGIN;
    let height = HEADER + picture.rows * ROW + MARGIN;
    let left = MARGIN as f64;
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } role="img" {
            title { (title) }
            style { (PreEscaped(STYLE)) }
            rect class="paper" width=(width) height=(height) {}
            (text("title", (left, 28.0), Anchor::Start, title))
            (text("subtitle", (left, 50.0), Anchor::Start, &subtitle))
            @if !always.is_empty() { (text("subtitle", (left, 68.0), Anchor::Start, &always)) }
            @for part in &picture.parts { "\n" (part) }
            "\n"
        }
    };
    svg.into_string() + "\n"
}

/// What its classes look like.
const STYLE: &str = "text{font:12px sans-serif;fill:#1f1f1f}text.title{font-size:17px}text.subtitle,text.below{fill:#4d4d4d}\
    text.name{font-weight:600}text.word{font-size:11px;fill:#5c5c5c}.paper{fill:#ffffff}.node{stroke:#8a8a8a}\
    .edge{fill:none;stroke:#8a8a8a}";

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

/// What stands in a box: two lines, on what ground.
struct Label<'a> {
    first: &'a str,
    second: &'a str,
    fill: &'static str,
    class: &'static str,
}

impl Picture<'_> {
    /// Draws a node and what is below it, and returns the height of its middle. The format bounds the depth.
    fn node(&mut self, node: usize, depth: usize) -> usize {
        match self.nodes[node] {
            TreeNode::Leaf { choices } => {
                let y = self.row();
                let (first, second) = self.action(choices);
                let fill = shade(&self.names.choice(Head::Watermark, choices[Head::Watermark as usize]));
                self.label(depth, y, &Label { first: &first, second: &second, fill, class: "name" });
                y
            }
            TreeNode::Split { .. } if depth >= self.max_depth => {
                let y = self.row();
                let mut below = Vec::new();
                self.gather(node, &mut below);
                let (first, second) = self.summary(&below);
                let first = format!("… {}{first}", leaves(below.len() as u16));
                self.label(depth, y, &Label { first: &first, second: &second, fill: "#f2f2f2", class: "below" });
                y
            }
            TreeNode::Split { feature, left, threshold } => {
                let low = self.node(usize::from(left), depth + 1);
                let high = self.node(usize::from(left) + 1, depth + 1);
                let y = usize::midpoint(low, high);
                for (child, word) in [(low, "yes"), (high, "no")] {
                    self.edge(depth, y, child, word);
                }
                let spec = self.names.spec(feature);
                let first = self.names.feature(feature).replace('_', " ");
                let second =
                    format!("≤ {}", spec.map_or_else(|| short(threshold), |spec| in_units(threshold, spec.unit)));
                self.label(depth, y, &Label { first: &first, second: &second, fill: "#ffffff", class: "name" });
                y
            }
        }
    }

    fn row(&mut self) -> usize {
        self.rows += 1;
        HEADER + (self.rows - 1) * ROW + ROW / 2
    }

    /// The leaves below a node.
    fn gather(&self, node: usize, found: &mut Vec<[u8; NUM_HEADS]>) {
        match self.nodes[node] {
            TreeNode::Leaf { choices } => found.push(choices),
            TreeNode::Split { left, .. } => {
                self.gather(usize::from(left), found);
                self.gather(usize::from(left) + 1, found);
            }
        }
    }

    /// What a leaf says in the heads that vary: levels, which have numbers, and rules; rules alone where no level varies.
    fn action(&self, choices: [u8; NUM_HEADS]) -> (String, String) {
        // A rule's name says whose it is, a number does not.
        let choice = |&head: &Head| {
            let name = self.names.choice(head, choices[head as usize]);
            if head.choices().are_levels() { format!("{} {name}", head.name()) } else { name }
        };
        let (levels, rules): (Vec<&Head>, Vec<&Head>) =
            self.varying.iter().partition(|head| head.choices().are_levels());
        let said = |heads: Vec<&Head>| heads.into_iter().map(choice).collect::<Vec<String>>().join(", ");
        match (said(levels), said(rules)) {
            (levels, rules) if levels.is_empty() && rules.is_empty() => ("always the same".to_owned(), String::new()),
            (levels, rules) if levels.is_empty() => (rules, String::new()),
            said => said,
        }
    }

    /// What many leaves choose: from where to where levels go, and of rules which one most of them name. The first head, and of
    /// the others as many as there is room for.
    fn summary(&self, all: &[[u8; NUM_HEADS]]) -> (String, String) {
        let of_head = |&head: &Head| {
            let chosen = || all.iter().map(|choices| choices[head as usize]);
            let (least, most) = (chosen().min().unwrap_or(0), chosen().max().unwrap_or(0));
            let name = |choice: u8| self.names.choice(head, choice);
            let range = if least == most { name(least) } else { format!("{} to {}", name(least), name(most)) };
            if head.choices().are_levels() {
                return format!("{} {range}", head.name());
            }
            if least == most {
                return name(least);
            }
            // Of equals the first.
            let count = |choice: u8| chosen().filter(|other| *other == choice).count();
            let usual = (least..=most).rev().max_by_key(|&choice| count(choice)).unwrap_or(least);
            format!("mostly {}", name(usual))
        };
        let mut said = self.varying.iter().map(of_head);
        let first = said.next().map_or_else(String::new, |first| format!(", {first}"));
        let mut second = String::new();
        for other in said {
            let longer = if second.is_empty() { other } else { format!("{second}, {other}") };
            if longer.chars().count() > MOST_LETTERS {
                break;
            }
            second = longer;
        }
        (first, second)
    }

    fn label(&mut self, depth: usize, y: usize, label: &Label<'_>) {
        let x = MARGIN + depth * COLUMN;
        // A screen is so wide; the whole is told where one points.
        let is_long = label.second.chars().count() > MOST_LETTERS;
        let cut = || label.second.chars().take(MOST_LETTERS - 1).chain(['…']).collect::<String>();
        let second = if is_long { cut() } else { label.second.to_owned() };
        let letter = if label.class == "name" { BOLD_LETTER } else { LETTER };
        let letters = |text: &str, width: f64| text.chars().count() as f64 * width;
        let width = letters(label.first, letter).max(letters(&second, LETTER)) as usize + 14;
        self.width = self.width.max(x + width);
        let (top, left) = (y - BOX_HEIGHT / 2, (x + 7) as f64);
        // One line stands in the middle.
        let first = if second.is_empty() { y as f64 + 4.0 } else { y as f64 - 3.0 };
        self.parts.push(html! {
            g {
                @if is_long { title { (label.second) } }
                rect class="node" x=(x) y=(top) width=(width) height=(BOX_HEIGHT) rx="4" fill=(label.fill) {}
                (text(label.class, (left, first), Anchor::Start, label.first))
                @if !second.is_empty() { (text("detail", (left, y as f64 + 13.0), Anchor::Start, &second)) }
            }
        });
    }

    fn edge(&mut self, depth: usize, from: usize, to: usize, word: &str) {
        let child = MARGIN + (depth + 1) * COLUMN;
        let turn = child - 28;
        let start = MARGIN + depth * COLUMN + 20;
        self.parts.push(html! {
            (path("edge", &format!("M{start} {from} H{turn} V{to} H{child}")))
            (text("word", ((turn + 3) as f64, to as f64 - 4.0), Anchor::Start, word))
        });
    }
}

/// A threshold as people say it, three digits of it: shares of a pool in percent, times as multiples of their targets.
fn in_units(value: f32, unit: &str) -> String {
    let value = f64::from(value);
    match unit {
        "fraction" => format!("{} %", few(value * 100.0)),
        "pool" | "host pool" | "slots" => format!("{} % of the {unit}", few(value * 100.0)),
        "TTFT targets" => format!("{} × the TTFT target", few(value)),
        "TPOT targets" => format!("{} × the TPOT target", few(value)),
        "TPOT targets per 1,024 tokens" => format!("{} × TPOT/1,024 tokens", few(value)),
        "budget" => format!("{} × the token budget", few(value)),
        "outputs" => format!("{} × a recent answer", few(value)),
        _ => format!("{} {}", few(value), unit.replace(" per ", "/")),
    }
}

/// Three significant digits; what is next to nothing with an exponent.
fn few(value: f64) -> String {
    if value != 0.0 && value.abs() < 1e-4 {
        return format!("{value:.1e}");
    }
    format!("{value:.2e}").parse::<f64>().map_or_else(|_| value.to_string(), |value| value.to_string())
}

/// Leaves that leave more of the pool free are darker.
fn shade(watermark: &str) -> &'static str {
    const SHADES: [(f64, &str); 5] =
        [(0.02, "#e8f1fa"), (0.05, "#d3e4f3"), (0.12, "#b9d5ec"), (0.25, "#9cc4e3"), (0.5, "#80b3da")];
    // What is not known has the first.
    let level = watermark.parse().unwrap_or(0.0);
    SHADES.iter().find(|(below, _)| level < *below).map_or("#66a3d2", |(_, shade)| shade)
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::FEATURES;

    use super::{COLUMN, LETTER, in_units};

    #[test]
    fn thresholds_are_said_in_units() {
        let said = [(0.125, "pool"), (0.2, "fraction"), (0.5, "TTFT targets"), (3.0, "requests per TTFT target")];
        assert_eq!(
            said.map(|(value, unit)| in_units(value, unit)),
            ["12.5 % of the pool", "20 %", "0.5 × the TTFT target", "3 requests/TTFT target"]
        );
        assert_eq!([in_units(1.96e-14, "fraction"), in_units(0.0, "pool")], ["2.0e-12 %", "0 % of the pool"]);
        // Every unit there is leaves room in a column.
        for spec in &FEATURES {
            let said = format!("≤ {}", in_units(0.1234, spec.unit));
            assert!(said.chars().count() as f64 * LETTER + 14.0 < (COLUMN - 30) as f64, "{said}");
        }
    }
}
