//! What policies are called on a page: short, since paths are long and tables have many columns, and the whole name once.

use maud::{Markup, html};

use crate::evaluate::Comparison;
use crate::plot::svg::Words;
use crate::policy::{PolicyName, PolicySpec};

/// The short names of all policies of a page, no two of them equal.
#[derive(Debug, Clone)]
pub(super) struct ShortNames {
    /// A policy's whole name, and the short one.
    names: Vec<(String, String)>,
}

/// Parts of paths that say nothing: what a run or a checkpoint calls what it leaves.
const USUAL: [&str; 3] = ["policy", "policy.kvt", "checkpoint"];

impl ShortNames {
    pub(super) fn of(comparisons: &[Comparison]) -> ShortNames {
        ShortNames::among(&comparisons.iter().map(|line| &line.policy).collect::<Vec<&PolicyName>>())
    }

    fn among(policies: &[&PolicyName]) -> ShortNames {
        let forms: Vec<Vec<String>> = policies.iter().map(|policy| forms(policy)).collect();
        let taken = |form: &String| forms.iter().filter(|other| other.contains(form)).count() > 1;
        let shortest = |forms: &Vec<String>| forms.iter().find(|form| !taken(form)).or(forms.last()).cloned();
        let short = policies.iter().zip(&forms).map(|(policy, forms)| {
            let whole = policy.as_str().to_owned();
            let short = shortest(forms).unwrap_or_else(|| whole.clone());
            (whole, short)
        });
        ShortNames { names: short.collect() }
    }

    /// What a policy is called.
    pub(super) fn short<'a>(&'a self, policy: &'a PolicyName) -> &'a str {
        let found = self.names.iter().find(|(whole, _)| whole == policy.as_str());
        found.map_or(policy.as_str(), |(_, short)| short)
    }

    /// The short name; whoever points at it is shown the whole.
    pub(super) fn bold(&self, policy: &PolicyName) -> Markup {
        let (short, whole) = (self.short(policy), policy.as_str());
        html! { b title=[(short != whole).then_some(Words(whole))] { (breakable(short)) } }
    }

    /// The whole name, where that is not the short one.
    pub(super) fn whole(&self, policy: &PolicyName) -> Option<Markup> {
        let whole = policy.as_str();
        (self.short(policy) != whole).then(|| breakable(whole))
    }
}

/// A policy's name in every length, the shortest first, the whole of it last.
fn forms(policy: &PolicyName) -> Vec<String> {
    let whole = policy.as_str();
    let mut forms = Vec::new();
    match (policy.spec(), whole.split_once(':')) {
        (PolicySpec::Checkpoint(_) | PolicySpec::Table(_), Some((kind, path))) => {
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
            let told = parts.iter().rposition(|part| !USUAL.contains(part)).map_or(0, |last| last + 1);
            let upwards = (0..told).rev().map(|first| parts[first..told].join("/"));
            forms.extend(upwards.map(|path| format!("{kind}:{}", path.strip_suffix(".kvt").unwrap_or(&path))));
        }
        // That there are further heads is said: their gain is not the first one's.
        (_, Some(_)) => forms.extend(whole.split_once(',').map(|(first, _)| format!("{first},…"))),
        _ => {}
    }
    forms.push(whole.to_owned());
    forms
}

/// A name that may go on in the next line after each part of it.
pub(super) fn breakable(name: &str) -> Markup {
    html! {
        @for (index, part) in name.split_inclusive(['/', ',']).enumerate() {
            @if index > 0 { wbr; }
            (Words(part))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(names: &[&str]) -> Vec<String> {
        let policies: Vec<PolicyName> = names.iter().map(|name| PolicyName::sample(name)).collect();
        let short = ShortNames::among(&policies.iter().collect::<Vec<&PolicyName>>());
        policies.iter().map(|policy| short.short(policy).to_owned()).collect()
    }

    #[test]
    fn a_path_is_called_by_what_tells_it_from_others() {
        assert_eq!(
            short(&["default", "table:checkpoints/chat-24g/policy.kvt", "checkpoint:runs/chat-24g/policy"]),
            ["default", "table:chat-24g", "checkpoint:chat-24g"]
        );
        assert_eq!(
            short(&["table:a/x/policy.kvt", "table:b/x/policy.kvt", "table:c/y.kvt"]),
            ["table:a/x", "table:b/x", "table:y"]
        );
        // One that is another's end, and one with nothing to be called by.
        assert_eq!(short(&["table:x.kvt", "table:a/x.kvt"]), ["table:x.kvt", "table:a/x"]);
        assert_eq!(short(&["table:policy.kvt"]), ["table:policy.kvt"]);
    }

    #[test]
    fn further_heads_are_left_out_while_that_leaves_names_apart() {
        assert_eq!(short(&["fixed:0.05", "fixed:0.1,victim=most-blocks"]), ["fixed:0.05", "fixed:0.1,…"]);
        let names = ["fixed:0.1,victim=most-blocks", "fixed:0.1,victim=fewest-blocks", "fixed:0.1"];
        assert_eq!(short(&names), names);
    }

    #[test]
    fn a_long_name_can_be_broken() {
        assert_eq!(breakable("a/b,<").into_string(), "a/<wbr>b,<wbr>&lt;");
        assert_eq!(breakable("ab").into_string(), "ab");
    }
}
