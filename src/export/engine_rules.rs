//! What a table says of retention, leaf by leaf, in the terms of other engines. Nothing of it has run on them.
//!
//! | class | TensorRT-LLM: priority of a token range, duration | SGLang: priority of the request |
//! |---|---|---|
//! | evict-first | 5 | -1 |
//! | normal | 35, its default | 0 |
//! | keep | 65, as long as `keep` lasts | 1 |
//! | keep-long | 90, as long as `keep-long` lasts | 2 |
//!
//! Both evict the lowest priority first and the least recently used of equals, as a pool with classes does. TensorRT-LLM's
//! durations are milliseconds and kvtide's are turnovers of the pool, as many evicted blocks as it has: how long one takes
//! ([`Turnover`]) is the node's, not the table's.
//!
//! Sources: for TensorRT-LLM <https://nvidia.github.io/TensorRT-LLM/examples/kvcacheretentionconfig.html> and its reference of
//! `KvCacheRetentionConfig`; for SGLang <https://docs.sglang.io/docs/advanced_features/radix_eviction_policy>.

use std::str::FromStr;

use kvtide_rules::retention::{KEEP_LONG_TURNOVERS, KEEP_TURNOVERS};
use kvtide_runtime::{RELEASE_FEATURES, ReleaseFeature, Retention, RetentionTable, TreeNode};
use serde::Serialize;
use serde_json::Value;

use super::inspect::exact;
use super::retention::RetentionText;

/// How long the pool of a node takes to turn over, in seconds: its blocks / cached blocks evicted a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Turnover(f64);

/// Why it is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected seconds, above 0 and at most {MAX_TURNOVER_S}")]
pub struct TurnoverError(String);

/// A year: longer than any cache lives.
const MAX_TURNOVER_S: f64 = 31_536_000.0;

impl FromStr for Turnover {
    type Err = TurnoverError;

    fn from_str(text: &str) -> Result<Turnover, TurnoverError> {
        let seconds = text.trim().parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= MAX_TURNOVER_S);
        seconds.map(Turnover).ok_or_else(|| TurnoverError(text.to_owned()))
    }
}

/// The rules of a retention tree for engines that have no tree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetentionRules {
    /// The table's file.
    table: String,
    /// Version that wrote it.
    kvtide: &'static str,
    /// Whether it has run on these engines.
    has_run: bool,
    /// What to know before it is used.
    beware: [&'static str; 3],
    /// How long a turnover takes.
    turnover_s: Option<Turnover>,
    /// What it was trained on.
    features: Vec<Value>,
    rules: Vec<Rule>,
    tensorrt_llm: EngineTerms,
    sglang: EngineTerms,
}

/// How an engine takes the rules.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct EngineTerms {
    /// What it calls them.
    name: &'static str,
    options: &'static [&'static str],
    how: &'static [&'static str],
    /// What cannot be said to it.
    unsaid: &'static [&'static str],
    sources: &'static [&'static str],
}

/// A leaf.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Rule {
    leaf: usize,
    part: PartOf,
    conditions: Vec<Condition>,
    /// When the last of its conditions is known.
    known_at: Known,
    retention: &'static str,
    /// How long that is in force; `None` for good.
    turnovers: Option<u64>,
    tensorrt_llm: TensorRtLlm,
    sglang: SgLang,
}

/// Which of a request's blocks a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum PartOf {
    Head,
    Tail,
    Both,
}

/// From when on a value is known to who serves a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Known {
    Submission,
    Admission,
    Release,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Condition {
    feature: &'static str,
    unit: &'static str,
    comparison: &'static str,
    threshold: Value,
    known_at: Known,
}

/// Arguments of `KvCacheRetentionConfig`.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct TensorRtLlm {
    token_range_retention_configs: Vec<TokenRange>,
    decode_retention_priority: Option<u8>,
    decode_duration_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct TokenRange {
    token_start: Value,
    token_end: Value,
    priority: u8,
    duration_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct SgLang {
    priority: i8,
}

const BEWARE: [&str; 3] = [
    "not run on these engines: what the rules are worth there is not known",
    "kvtide's guard is not part of it: that everything is normal outside the trained ranges, and while the pool hits less than LRU would",
    "a condition that is known only at admission or at release cannot be asked when a request is submitted",
];

const TENSORRT_LLM: EngineTerms = EngineTerms {
    name: "KvCacheRetentionConfig",
    options: &["KvCacheConfig(enable_block_reuse=True)", "LLM.generate(…, kv_cache_retention_config=…)"],
    how: &[
        "a config a request, given with it: the token range of the rule that its head meets, and that of its tail with the decode priority",
        "\"found\" stands for the number of prompt tokens that are cached when the request is admitted",
        "a duration is turnovers of the pool × how long one takes: its blocks / cached blocks evicted a second",
        "null as duration_ms: for good, or, where a rule has turnovers, to be filled in",
    ],
    unsaid: &[
        "that keep-long is keep for a while when it is over: after its duration a block has the default priority, 35",
        "that a block which other text continues keeps what is in force for it",
    ],
    sources: &[
        "https://nvidia.github.io/TensorRT-LLM/examples/kvcacheretentionconfig.html",
        "https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheRetentionConfig.html",
        "https://nvidia.github.io/TensorRT-LLM/features/kvcache.html",
    ],
};

const SGLANG: EngineTerms = EngineTerms {
    name: "radix eviction policy",
    options: &["--radix-eviction-policy priority", "--enable-priority-scheduling"],
    how: &[
        "a priority a request: the higher of those of the rules that its head and its tail meet",
        "where every rule is normal: --radix-eviction-policy lru, or lfu where the table's eviction head says lfu",
    ],
    unsaid: &[
        "classes by part: a request has one priority",
        "how long: a priority is for good, and a prefix that several requests reach keeps the highest",
        "classes alone: priority scheduling orders admission by the same number",
    ],
    sources: &["https://docs.sglang.io/docs/advanced_features/radix_eviction_policy"],
};

impl RetentionRules {
    /// The rules of `tree`, of the table in the file called `table`.
    pub fn of(table: &str, tree: &RetentionTable<'_>, turnover: Option<Turnover>) -> RetentionRules {
        RetentionRules {
            table: table.to_owned(),
            kvtide: env!("CARGO_PKG_VERSION"),
            has_run: false,
            beware: BEWARE,
            turnover_s: turnover,
            features: RetentionText(tree.section()).features_json(),
            rules: rules(tree, turnover),
            tensorrt_llm: TENSORRT_LLM,
            sglang: SGLANG,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are none, which no tree has.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How many of them can be told when a request is submitted.
    pub fn told_at_submission(&self) -> usize {
        self.rules.iter().filter(|rule| rule.known_at == Known::Submission).count()
    }
}

/// What a feature may be on the way to a node: above the first, and at most the second.
type Bounds = Vec<(usize, f32, f32)>;

/// The leaves that some release leads to, from the left.
fn rules(tree: &RetentionTable<'_>, turnover: Option<Turnover>) -> Vec<Rule> {
    let nodes: Vec<TreeNode> = tree.nodes().collect();
    let mut rules = Vec::new();
    let mut open: Vec<(usize, Bounds)> = vec![(0, Bounds::new())];
    while let Some((node, bounds)) = open.pop() {
        match nodes[node] {
            TreeNode::Leaf { choices } => {
                let class = Retention::from_index(choices[0]).unwrap_or_default();
                rules.extend(rule(node, &bounds, class, turnover));
            }
            TreeNode::Split { feature, left, threshold } => {
                let (feature, left) = (usize::from(feature), usize::from(left));
                open.push((left + 1, within(&bounds, feature, threshold, f32::INFINITY)));
                open.push((left, within(&bounds, feature, f32::NEG_INFINITY, threshold)));
            }
        }
    }
    rules
}

/// `bounds`, and that a feature is above `low` and at most `high`.
fn within(bounds: &Bounds, feature: usize, low: f32, high: f32) -> Bounds {
    let mut bounds = bounds.clone();
    match bounds.iter_mut().find(|(known, ..)| *known == feature) {
        Some((_, below, above)) => (*below, *above) = (below.max(low), above.min(high)),
        None => bounds.push((feature, low, high)),
    }
    bounds
}

/// The rule of a leaf; `None` if nothing leads there.
fn rule(leaf: usize, bounds: &Bounds, class: Retention, turnover: Option<Turnover>) -> Option<Rule> {
    let (mut is_head, mut is_tail) = (true, true);
    let mut conditions = Vec::new();
    for &(feature, low, high) in bounds {
        let spec = &RELEASE_FEATURES[feature];
        if low >= high || low >= spec.max || high < spec.min {
            return None;
        }
        if feature == ReleaseFeature::Part.index() {
            is_head &= low < 0.0 && high >= 0.0;
            is_tail &= low < 1.0 && high >= 1.0;
            continue;
        }
        let known_at = known_at(feature);
        let condition = |comparison, threshold| Condition {
            feature: spec.name,
            unit: spec.unit,
            comparison,
            threshold: exact(threshold),
            known_at,
        };
        conditions.extend(low.is_finite().then(|| condition(">", low)));
        conditions.extend(high.is_finite().then(|| condition("<=", high)));
    }
    let part = match (is_head, is_tail) {
        (true, true) => PartOf::Both,
        (true, false) => PartOf::Head,
        (false, true) => PartOf::Tail,
        (false, false) => return None,
    };
    let known_at = conditions.iter().map(|condition| condition.known_at).max().unwrap_or(Known::Submission);
    let (priority, request_priority, turnovers) = match class {
        Retention::EvictFirst => (5, -1, None),
        Retention::Normal => (35, 0, None),
        Retention::Keep => (65, 1, Some(KEEP_TURNOVERS)),
        Retention::KeepLong => (90, 2, Some(KEEP_LONG_TURNOVERS)),
    };
    let duration_ms =
        turnovers.zip(turnover).map(|(turnovers, Turnover(s))| (turnovers as f64 * s * 1e3).round() as u64);
    Some(Rule {
        leaf,
        part,
        conditions,
        known_at,
        retention: class.name(),
        turnovers,
        tensorrt_llm: tensorrt_llm(part, priority, duration_ms),
        sglang: SgLang { priority: request_priority },
    })
}

fn tensorrt_llm(part: PartOf, priority: u8, duration_ms: Option<u64>) -> TensorRtLlm {
    let found = || Value::from("found");
    let (token_start, token_end) = match part {
        PartOf::Head => (0.into(), found()),
        PartOf::Tail => (found(), Value::Null),
        PartOf::Both => (0.into(), Value::Null),
    };
    let decodes = part != PartOf::Head;
    TensorRtLlm {
        token_range_retention_configs: vec![TokenRange { token_start, token_end, priority, duration_ms }],
        decode_retention_priority: decodes.then_some(priority),
        decode_duration_ms: duration_ms.filter(|_| decodes),
    }
}

/// When a feature is known: the node's, and what depends on how an answer ends, only when blocks are given back; what depends on
/// what is found, at admission.
fn known_at(feature: usize) -> Known {
    use ReleaseFeature as F;
    let Some(feature) = F::ALL.into_iter().find(|known| known.index() == feature) else { return Known::Release };
    match feature {
        F::Part | F::Turn | F::LastReturn | F::Prompt => Known::Submission,
        F::HitShare | F::Asked | F::AskedAge | F::Depth => Known::Admission,
        F::KindReuse
        | F::KindReturn
        | F::Stop
        | F::Output
        | F::PartBlocks
        | F::Shared
        | F::Held
        | F::TurnoverRate
        | F::Kept => Known::Release,
    }
}
