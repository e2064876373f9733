//! A table's tree as nested rules.

use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::edition::{EDITIONS, Edition};
use kvtide_runtime::format::TableFile;
use kvtide_runtime::{FEATURES, FeatureSpec, Head, TreeNode};

/// What the numbers in a file are called, as far as this build knows.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownNames {
    pub(super) schema: bool,
    pub(super) actions: bool,
    /// What it was made for, if this build knows that.
    pub(super) edition: Option<&'static Edition>,
    /// Whose choices it numbers.
    choices: Option<&'static Edition>,
}

impl KnownNames {
    pub(super) fn of(file: &TableFile<'_>) -> KnownNames {
        let (schema, actions) = (file.schema_hash(), file.action_set_hash());
        KnownNames {
            schema: EDITIONS.iter().any(|edition| edition.schema_hash == schema),
            actions: EDITIONS.iter().any(|edition| edition.action_set_hash == actions),
            edition: Edition::of(schema, actions),
            choices: EDITIONS.iter().find(|edition| edition.action_set_hash == actions),
        }
    }

    /// The heads a file decides: those of its profile that it has choices for.
    pub(super) fn heads(file: &TableFile<'_>) -> &'static [Head] {
        let heads = file.profile().heads();
        let known = heads.partition_point(|&head| (head as u8) < file.heads());
        heads.split_at(known).0
    }

    /// What a feature means, if its schema is this build's.
    pub(super) fn spec(self, feature: u8) -> Option<&'static FeatureSpec> {
        FEATURES.get(usize::from(feature)).filter(|_| self.schema)
    }

    /// A feature's name, or its number.
    pub(super) fn feature(self, feature: u8) -> String {
        self.spec(feature).map_or_else(|| format!("feature_{feature}"), |spec| spec.name.to_owned())
    }

    /// The name of a choice as the file numbers it, or its number.
    pub(super) fn choice(self, head: Head, choice: u8) -> String {
        let mut choices = [0; NUM_HEADS];
        choices[head as usize] = choice;
        let known = self.choices.filter(|edition| usize::from(choice) < edition.size(head));
        let today = known.map(|edition| edition.translate(choices)[head as usize]);
        let setting = today.and_then(|choice| head.choices().get(choice));
        setting.map_or_else(|| format!("#{choice}"), |setting| setting.to_string())
    }
}

/// The tree of `file` as indented text, its first `limit` lines, and the number of lines there are.
///
/// ```text
/// if growth_32 <= 0.183
///   if waiting <= 0.02: watermark 0.05, victim newest
///   else: watermark 0.01, victim newest
/// else: watermark 0.25, victim most-blocks
/// ```
pub(super) fn render(file: &TableFile<'_>, limit: usize) -> (Vec<String>, usize) {
    let nodes: Vec<TreeNode> = file.nodes().collect();
    let (heads, names) = (KnownNames::heads(file), KnownNames::of(file));
    let mut rules = Rules { nodes: &nodes, heads, names, lines: Vec::new(), total: 0, limit };
    rules.walk(0, 0, "always");
    (rules.lines, rules.total)
}

struct Rules<'a> {
    nodes: &'a [TreeNode],
    heads: &'a [Head],
    names: KnownNames,
    lines: Vec<String>,
    total: usize,
    limit: usize,
}

impl Rules<'_> {
    /// A node and what is below it. The format bounds the depth.
    fn walk(&mut self, node: usize, depth: usize, condition: &str) {
        match self.nodes[node] {
            TreeNode::Leaf { choices } => self.line(depth, &format!("{condition}: {}", self.action(choices))),
            TreeNode::Split { feature, left, threshold } => {
                let mut below = 0;
                // The root has no condition.
                if node != 0 {
                    self.line(depth, condition);
                    below = depth + 1;
                }
                let test = format!("if {} <= {}", self.names.feature(feature), short(threshold));
                self.walk(usize::from(left), below, &test);
                self.walk(usize::from(left) + 1, below, "else");
            }
        }
    }

    fn line(&mut self, depth: usize, text: &str) {
        self.total += 1;
        if self.lines.len() < self.limit {
            self.lines.push(format!("{}{text}", "  ".repeat(depth)));
        }
    }

    /// The choices of the heads the table decides.
    fn action(&self, choices: [u8; NUM_HEADS]) -> String {
        let choice = |&head: &Head| format!("{} {}", head.name(), self.names.choice(head, choices[head as usize]));
        self.heads.iter().map(choice).collect::<Vec<String>>().join(", ")
    }
}

/// `1 leaf`, `2 leaves`.
pub(super) fn leaves(count: u16) -> String {
    format!("{count} {}", if count == 1 { "leaf" } else { "leaves" })
}

/// Four significant digits; below a ten-thousandth with an exponent.
pub(super) fn short(value: f32) -> String {
    if value != 0.0 && value.abs() < 1e-4 {
        return format!("{value:.3e}");
    }
    format!("{value:.3e}").parse::<f64>().map_or_else(|_| value.to_string(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn four_digits_are_shown() {
        let shown = [0.021_484_375, 8.0, -1.369_226_9, 123_456.0, 0.0, 0.1].map(short);
        assert_eq!(shown, ["0.02148", "8", "-1.369", "123500", "0", "0.1"]);
        assert_eq!([2.785_6e-31, -0.000_05].map(short), ["2.786e-31", "-5.000e-5"]);
    }
}
