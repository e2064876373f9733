//! Policies as text: `fixed:0.05,victim=most-blocks`, `checkpoint:PATH`, `best-fixed`.

mod lookahead;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kvtide_envs::baseline::{BlockPrice, LookaheadPlan, Prediction};
use kvtide_envs::sched::{PromptLimitError, PromptPressure};
use kvtide_runtime::{Action, ActionProfile, Choices, Controls, Head, HostMismatch, Retention};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::PolicyName;
use crate::checkpoint::CheckpointError;
use crate::export::ExportError;

/// A policy named on the command line.
#[derive(Debug, Clone, PartialEq)]
pub enum PolicySpec {
    /// The engine as it comes.
    Default,
    /// One set of controls.
    Fixed(Controls),
    /// See [`OptFactor`](kvtide_envs::baseline::OptFactor).
    OptFactor(f64),
    /// See [`AverageBlocks`](kvtide_envs::baseline::AverageBlocks).
    AverageBlocks(f64),
    /// See [`PastFuture`](kvtide_envs::baseline::PastFuture): the prediction, and the other heads.
    PastFuture(Prediction, Controls),
    /// See [`PrimalDual`](kvtide_envs::baseline::PrimalDual): how its price moves, and the other heads.
    PrimalDual(BlockPrice, Controls),
    /// See [`Oracle`](kvtide_envs::baseline::Oracle): the other heads.
    Oracle(Controls),
    /// See [`Lookahead`](kvtide_envs::baseline::Lookahead).
    Lookahead(Box<LookaheadPlan>),
    /// See [`PromptPressure`]: the engine as it comes, its prompts limited while they press upon decodes.
    PromptPressure(PromptPressure),
    /// The network of a checkpoint.
    Checkpoint(PathBuf),
    /// An exported table.
    Table(PathBuf),
    /// The best watermark in hindsight, the other heads at the engine's defaults.
    BestFixed,
    /// The best constant choice over every head of a profile, in hindsight.
    BestStatic(ActionProfile),
    /// The same, but one for everything that is evaluated.
    BestStaticOnce(ActionProfile),
    /// The constant that was best on the training traffic of an experiment or a checkpoint; of none, of the one beside the first
    /// table or checkpoint evaluated.
    BestTrain(Option<PathBuf>),
    /// Another policy, with the same retention class for every head and the same for every tail that is given back, in place of
    /// what it would choose.
    Retaining(Box<PolicySpec>, [Retention; 2]),
}

impl PolicySpec {
    /// Whether it is chosen after the fact.
    pub fn is_hindsight(&self) -> bool {
        matches!(self, PolicySpec::BestFixed | PolicySpec::BestStatic(_) | PolicySpec::BestStaticOnce(_))
    }

    /// The constant it is, if it is one.
    pub fn constant(&self) -> Option<Controls> {
        if let PolicySpec::Fixed(controls) = self { Some(*controls) } else { None }
    }

    /// Whether it knows what nobody can know while requests are served.
    pub fn knows_the_future(&self) -> bool {
        match self.of_heads() {
            PolicySpec::Oracle(_) => true,
            PolicySpec::Lookahead(plan) => plan.foresight.knows_the_future(),
            policy => policy.is_hindsight(),
        }
    }

    /// The policy of the heads, whoever chooses retention classes.
    pub fn of_heads(&self) -> &PolicySpec {
        match self {
            PolicySpec::Retaining(policy, _) => policy,
            policy => policy,
        }
    }

    /// The same with a file that was relative to `folder`.
    #[must_use]
    pub fn relative_to(self, folder: &Path) -> PolicySpec {
        match self {
            PolicySpec::Checkpoint(path) => PolicySpec::Checkpoint(folder.join(path)),
            PolicySpec::Table(path) => PolicySpec::Table(folder.join(path)),
            PolicySpec::BestTrain(Some(path)) => PolicySpec::BestTrain(Some(folder.join(path))),
            PolicySpec::Retaining(policy, classes) => {
                PolicySpec::Retaining(Box::new(policy.relative_to(folder)), classes)
            }
            other => other,
        }
    }

    /// Whether everybody is compared with it unasked.
    pub fn is_yardstick(&self) -> bool {
        self.is_hindsight() || matches!(self, PolicySpec::Default | PolicySpec::BestTrain(_))
    }
}

/// Written and read as text.
impl Serialize for PolicySpec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PolicySpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<PolicySpec, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// No such kind.
    #[error(
        "unknown policy {0:?}; known: default, fixed:W[,{keys}], opt-factor:A, avg-blocks:T, \
         past-future[:QUANTILE][,…], primal-dual[:RISK,RATE][,…], oracle[,…], lookahead:KNOWS[,…], ppas[:N,CAP], \
         checkpoint:PATH, table:PATH, best-fixed, best-static[:watermark|core|full|cache], best-static-once[:…], \
         best-train[:PATH]; with retention=CLASS[/CLASS] behind it, any but the best",
        keys = keys().join(",")
    )]
    Unknown(String),
    /// A value that does not fit.
    #[error("policy {text:?}: {part:?} is not {expected}")]
    Value {
        /// The whole policy.
        text: String,
        /// The part that is wrong.
        part: String,
        /// What would do.
        expected: String,
    },
    /// A part given twice.
    #[error("policy {text:?} names {key} twice")]
    Twice {
        /// The whole policy.
        text: String,
        /// Which part.
        key: String,
    },
    /// The checkpoint cannot be loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The table cannot be loaded.
    #[error(transparent)]
    Table(#[from] ExportError),
    /// Its engine cannot limit prompts.
    #[error("{policy}: {source}")]
    PromptLimit {
        /// Which policy.
        policy: PolicyName,
        /// Why not.
        source: PromptLimitError,
    },
    /// There is nothing to keep anything in.
    #[error(
        "{policy}: its retention classes need a host that chooses them, engine v1, a prefix cache and eviction=lru or classes"
    )]
    NoClasses {
        /// Which policy.
        policy: PolicyName,
    },
    /// It sets a head that the world's engine keeps to itself.
    #[error("{policy}: {head} has no effect here: {why}")]
    NoEffect {
        /// Which policy.
        policy: PolicyName,
        /// The head's name.
        head: &'static str,
        /// What the engine lacks.
        why: &'static str,
    },
    /// Nothing can be tried there.
    #[error("{policy}: what may come is tried on copies of the node, which only engine v1 makes (set engine=v1)")]
    NoCopies {
        /// Which policy.
        policy: PolicyName,
    },
    /// Its host would refuse it.
    #[error("{policy}: {source}")]
    Unfit {
        /// Which policy.
        policy: PolicyName,
        /// What the host lacks for it.
        source: HostMismatch,
    },
}

impl FromStr for PolicySpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<PolicySpec, SpecError> {
        if let Some((policy, classes)) = text.rsplit_once(",retention=") {
            return retaining(text, policy, classes);
        }
        let (kind, rest) = match text.split_once([':', ',']) {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        // `past-future,mode=swap` has heads but no quantile.
        let is_bare = text[kind.len()..].starts_with(',');
        let number = |rest: &str, expected: &str| {
            let valid = rest.parse::<f64>().ok().filter(|value| (0.0..=1e6).contains(value));
            valid.ok_or_else(|| value(text, rest, expected))
        };
        let path = |rest: &str| {
            if rest.is_empty() { Err(value(text, rest, "a path")) } else { Ok(PathBuf::from(rest)) }
        };
        match (kind, rest) {
            ("past-future", None) => Ok(PolicySpec::PastFuture(Prediction::Drawn, no_heads())),
            ("past-future", Some(rest)) if is_bare => {
                Ok(PolicySpec::PastFuture(Prediction::Drawn, heads(text, rest.split(','))?))
            }
            ("past-future", Some(rest)) => {
                let (first, rest) = rest.split_once(',').map_or((rest, None), |(first, rest)| (first, Some(rest)));
                let quantile = first.parse().ok().filter(|value| (0.0..=1.0).contains(value));
                let quantile = quantile.ok_or_else(|| value(text, first, "a quantile from 0 to 1"))?;
                let heads = heads(text, rest.into_iter().flat_map(|rest| rest.split(',')))?;
                Ok(PolicySpec::PastFuture(Prediction::Quantile(quantile), heads))
            }
            ("primal-dual", None) => Ok(PolicySpec::PrimalDual(BlockPrice::USUAL, no_heads())),
            ("primal-dual", Some(rest)) if is_bare => {
                Ok(PolicySpec::PrimalDual(BlockPrice::USUAL, heads(text, rest.split(','))?))
            }
            ("primal-dual", Some(rest)) => priced(text, rest),
            ("oracle", None) => Ok(PolicySpec::Oracle(no_heads())),
            ("oracle", Some(rest)) if is_bare => Ok(PolicySpec::Oracle(heads(text, rest.split(','))?)),
            ("lookahead", Some(rest)) if !is_bare => lookahead::read(text, rest),
            ("ppas", None) => Ok(PolicySpec::PromptPressure(PromptPressure::PUBLISHED)),
            _ if is_bare => Err(SpecError::Unknown(text.to_owned())),
            ("default", None) => Ok(PolicySpec::Default),
            ("fixed", Some(rest)) => fixed(text, rest).map(PolicySpec::Fixed),
            ("opt-factor", Some(rest)) => number(rest, "a number of steps from 0").map(PolicySpec::OptFactor),
            ("avg-blocks", Some(rest)) => number(rest, "a number of blocks from 0").map(PolicySpec::AverageBlocks),
            ("ppas", Some(rest)) => pressure(text, rest).map(PolicySpec::PromptPressure),
            ("checkpoint", Some(rest)) => path(rest).map(PolicySpec::Checkpoint),
            ("table", Some(rest)) => path(rest).map(PolicySpec::Table),
            ("best-fixed", None) => Ok(PolicySpec::BestFixed),
            ("best-static", None) => Ok(PolicySpec::BestStatic(ActionProfile::Full)),
            ("best-static", Some(rest)) => ActionProfile::from_name(rest)
                .map(PolicySpec::BestStatic)
                .ok_or_else(|| value(text, rest, "watermark, core, full or cache")),
            ("best-static-once", None) => Ok(PolicySpec::BestStaticOnce(ActionProfile::Full)),
            ("best-static-once", Some(rest)) => ActionProfile::from_name(rest)
                .map(PolicySpec::BestStaticOnce)
                .ok_or_else(|| value(text, rest, "watermark, core, full or cache")),
            ("best-train", None) => Ok(PolicySpec::BestTrain(None)),
            ("best-train", Some(rest)) => Ok(PolicySpec::BestTrain(Some(path(rest)?))),
            _ => Err(SpecError::Unknown(text.to_owned())),
        }
    }
}

/// A policy and `keep` or `keep/normal`: the class of every head, and of every tail where that is another.
fn retaining(text: &str, policy: &str, classes: &str) -> Result<PolicySpec, SpecError> {
    let policy: PolicySpec = policy.parse()?;
    if matches!(policy, PolicySpec::Retaining(..)) {
        return Err(SpecError::Twice { text: text.to_owned(), key: "retention".to_owned() });
    }
    if policy.is_hindsight() || matches!(policy, PolicySpec::BestTrain(_)) {
        return Err(value(text, "retention", "for a policy that is chosen of all constants, which have their own"));
    }
    let class = |name| {
        let expected = || format!("one of {}, or two of them as in keep/normal", Retention::NAMES.join(", "));
        Retention::from_name(name).ok_or_else(|| value(text, name, &expected()))
    };
    let (head, tail) = classes.split_once('/').unwrap_or((classes, classes));
    Ok(PolicySpec::Retaining(Box::new(policy), [class(head)?, class(tail)?]))
}

fn value(text: &str, part: &str, expected: &str) -> SpecError {
    SpecError::Value { text: text.to_owned(), part: part.to_owned(), expected: expected.to_owned() }
}

/// `0.05,victim=most-blocks,mode=swap,admission=fcfs`; what is left out is the engine's default.
fn fixed(text: &str, rest: &str) -> Result<Controls, SpecError> {
    let mut parts = rest.split(',');
    let first = parts.next().unwrap_or_default();
    let watermark = no_heads().read(Head::Watermark, first);
    let Controls { watermark, .. } = watermark.ok_or_else(|| value(text, first, &expected(Head::Watermark)))?;
    Ok(Controls { watermark, ..heads(text, parts)? })
}

/// `0.5,1` and heads: the aversion to risk and the rate of a price.
fn priced(text: &str, rest: &str) -> Result<PolicySpec, SpecError> {
    let mut parts = rest.split(',');
    let mut number = |expected: &str| {
        let part = parts.next().unwrap_or_default();
        let number = part.parse().ok().filter(|value| (0.0..=1e6).contains(value));
        number.ok_or_else(|| value(text, part, expected))
    };
    let risk_aversion = number("a RISK from 0, as in primal-dual:0.5,1")?;
    let rate = number("a RATE from 0, as in primal-dual:0.5,1")?;
    Ok(PolicySpec::PrimalDual(BlockPrice { risk_aversion, rate }, heads(text, parts)?))
}

/// `2,2048`: prompts from which on they are limited, and to how many tokens of a step.
fn pressure(text: &str, rest: &str) -> Result<PromptPressure, SpecError> {
    let whole = "N,CAP, a number of prompts and one of tokens, as in ppas:2,2048";
    let (prompts, tokens) = rest.split_once(',').ok_or_else(|| value(text, rest, whole))?;
    let number = |part: &str, expected: &str| part.parse().map_err(|_| value(text, part, expected));
    Ok(PromptPressure {
        prompts: number(prompts, "a number of prompts from 1")?,
        tokens: number(tokens, "a number of tokens from 1")?,
    })
}

/// What every engine does with the heads beside the watermark, which is left to whoever asks.
fn no_heads() -> Controls {
    Controls { watermark: 0.0, ..Action::ENGINE_DEFAULT.controls() }
}

/// The heads named by their keys: all but the watermark, which stands first in `fixed:` and is computed by the others.
fn keyed() -> impl Iterator<Item = Head> {
    Head::ALL.into_iter().filter(|&head| head != Head::Watermark)
}

/// `victim=…`, `mode=…`, and so on.
fn keys() -> Vec<String> {
    keyed().map(|head| format!("{}=…", head.key())).collect()
}

/// `victim=most-blocks`, `mode=swap`, `admission=fcfs`, each at most once.
fn heads<'a>(text: &str, parts: impl Iterator<Item = &'a str>) -> Result<Controls, SpecError> {
    let mut controls = no_heads();
    let mut seen = Vec::new();
    for part in parts {
        let (key, choice) = part.split_once('=').ok_or_else(|| value(text, part, "KEY=VALUE"))?;
        if seen.contains(&key) {
            return Err(SpecError::Twice { text: text.to_owned(), key: key.to_owned() });
        }
        seen.push(key);
        let head = keyed().find(|head| head.key() == key).ok_or_else(|| value(text, part, &either(&keys())))?;
        controls = controls.read(head, choice).ok_or_else(|| value(text, part, &expected(head)))?;
    }
    Ok(controls)
}

/// `a, b or c`.
fn either(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        names => names.concat(),
    }
}

/// What a head can be set to.
fn expected(head: Head) -> String {
    match head.choices() {
        Choices::Levels(levels) => {
            format!("a {} from {} to {}", head.name(), levels[0], levels[levels.len() - 1])
        }
        Choices::Named(names) => format!("one of {}", names.join(", ")),
    }
}

/// Controls as a `fixed:` policy; only what differs from the engine's default is named.
fn fixed_name(controls: &Controls) -> String {
    format!("fixed:{}{}", controls.watermark, heads_name(controls))
}

/// `,victim=most-blocks,mode=swap`: heads that differ from what every engine does.
fn heads_name(controls: &Controls) -> String {
    let default = no_heads();
    let moved = keyed().filter(|&head| controls.get(head) != default.get(head));
    moved.fold(String::new(), |text, head| text + "," + head.key() + "=" + &controls.get(head).to_string())
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicySpec::Default => f.write_str("default"),
            PolicySpec::Fixed(controls) => f.write_str(&fixed_name(controls)),
            PolicySpec::OptFactor(factor) => write!(f, "opt-factor:{factor}"),
            PolicySpec::AverageBlocks(blocks) => write!(f, "avg-blocks:{blocks}"),
            PolicySpec::PastFuture(Prediction::Drawn, heads) => write!(f, "past-future{}", heads_name(heads)),
            PolicySpec::PastFuture(Prediction::Quantile(quantile), heads) => {
                write!(f, "past-future:{quantile}{}", heads_name(heads))
            }
            PolicySpec::PrimalDual(BlockPrice::USUAL, heads) => write!(f, "primal-dual{}", heads_name(heads)),
            PolicySpec::PrimalDual(BlockPrice { risk_aversion, rate }, heads) => {
                write!(f, "primal-dual:{risk_aversion},{rate}{}", heads_name(heads))
            }
            PolicySpec::Oracle(heads) => write!(f, "oracle{}", heads_name(heads)),
            PolicySpec::Lookahead(plan) => lookahead::write(plan, f),
            PolicySpec::PromptPressure(PromptPressure::PUBLISHED) => f.write_str("ppas"),
            PolicySpec::PromptPressure(PromptPressure { prompts, tokens }) => write!(f, "ppas:{prompts},{tokens}"),
            PolicySpec::Checkpoint(path) => write!(f, "checkpoint:{}", path.display()),
            PolicySpec::Table(path) => write!(f, "table:{}", path.display()),
            PolicySpec::BestFixed => f.write_str("best-fixed"),
            PolicySpec::BestStatic(profile) => write!(f, "best-static:{}", profile.name()),
            PolicySpec::BestStaticOnce(profile) => write!(f, "best-static-once:{}", profile.name()),
            PolicySpec::BestTrain(None) => f.write_str("best-train"),
            PolicySpec::BestTrain(Some(path)) => write!(f, "best-train:{}", path.display()),
            PolicySpec::Retaining(policy, [head, tail]) if head == tail => write!(f, "{policy},retention={head}"),
            PolicySpec::Retaining(policy, [head, tail]) => write!(f, "{policy},retention={head}/{tail}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_and_written_back() {
        for text in [
            "default",
            "fixed:0.05",
            "fixed:0.05,victim=most-blocks,mode=swap",
            "fixed:1,admission=on-time-first",
            "opt-factor:6",
            "avg-blocks:7.5",
            "past-future",
            "past-future:0.9",
            "past-future,victim=most-blocks",
            "past-future:0.5,mode=swap,admission=on-time-first",
            "primal-dual",
            "primal-dual:0.25,4",
            "primal-dual,victim=most-blocks",
            "primal-dual:0,0.5,mode=swap",
            "oracle",
            "oracle,admission=shortest-on-time-first",
            "lookahead:nothing",
            "lookahead:everything,over=budget",
            "lookahead:hints,over=watermark+admission,horizon=40",
            "lookahead:lengths,watermark=0.05,admission=on-time-first",
            "lookahead:arrivals,horizon=2.5,victim=most-blocks",
            "ppas",
            "ppas:1,1",
            "ppas:3,512",
            "checkpoint:a/b",
            "checkpoint:a,b:c",
            "table:policy.kvt",
            "best-fixed",
            "best-static:core",
            "best-static-once:watermark",
            "best-train",
            "best-train:a/b.toml",
            "default,retention=keep",
            "fixed:0.05,retention=keep/evict-first",
            "table:a/b.kvt,retention=normal",
            "oracle,retention=keep-long/keep",
        ] {
            assert_eq!(text.parse::<PolicySpec>().unwrap().to_string(), text);
        }
        assert_eq!("best-static".parse::<PolicySpec>().unwrap(), PolicySpec::BestStatic(ActionProfile::Full));
        // One policy has one name.
        assert_eq!("ppas:2,2048".parse::<PolicySpec>().unwrap().to_string(), "ppas");
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<PolicySpec>().unwrap_err().to_string();
        assert!(error("lru").starts_with("unknown policy \"lru\"; known: default"));
        assert_eq!(error("fixed:1.5"), "policy \"fixed:1.5\": \"1.5\" is not a watermark from 0 to 1");
        assert_eq!(error("fixed:nan"), "policy \"fixed:nan\": \"nan\" is not a watermark from 0 to 1");
        assert!(
            error("fixed:0,victim=me")
                .ends_with("one of newest, fewest-blocks, most-blocks, least-progress, most-slack")
        );
        assert_eq!(error("fixed:0,mode=swap,mode=swap"), "policy \"fixed:0,mode=swap,mode=swap\" names mode twice");
        assert!(error("opt-factor:-1").contains("\"-1\" is not a number of steps"));
        assert!(error("best-static:all").contains("watermark, core, full or cache"));
        assert!(error("best-static-once:all").contains("watermark, core, full or cache"));
        assert!(error("table:").contains("a path") && error("best-train:").contains("a path"));
        assert!(error("best-train,retention=keep").contains("of all constants"));
        assert!(error("past-future:2").contains("\"2\" is not a quantile from 0 to 1"));
        assert!(error("past-future:0.5,victim=me").contains("one of newest"));
        assert!(error("past-future,mode=swap,mode=swap").contains("names mode twice"));
        assert!(error("primal-dual:-1,1").contains("\"-1\" is not a RISK from 0"));
        assert!(error("primal-dual:nan,1").contains("\"nan\"") && error("primal-dual:0,inf").contains("\"inf\""));
        assert!(error("primal-dual:1").contains("\"\" is not a RATE from 0"), "{}", error("primal-dual:1"));
        assert!(
            error("primal-dual:").contains("\"\" is not a RISK") && error("primal-dual:0,1,").contains("KEY=VALUE")
        );
        assert!(error("primal-dual:0,1,mode=swap,mode=swap").contains("names mode twice"));
        assert_eq!(error("ppas:0,2048"), "policy \"ppas:0,2048\": \"0\" is not a number of prompts from 1");
        assert_eq!(error("ppas:2,0"), "policy \"ppas:2,0\": \"0\" is not a number of tokens from 1");
        assert!(
            error("ppas:2").contains("\"2\" is not N,CAP, a number of prompts and one of tokens, as in ppas:2,2048")
        );
        assert!(error("ppas:").contains("\"\" is not N,CAP") && error("ppas:2,2048,1").contains("\"2048,1\" is not"));
        assert!(error("ppas:two,1").contains("\"two\"") && error("ppas:2,4294967296").contains("\"4294967296\""));
        assert!(
            error("default,retention=long")
                .ends_with("is not one of evict-first, normal, keep, keep-long, or two of them as in keep/normal")
        );
        assert!(error("default,retention=keep/").contains("\"\" is not one of evict-first"));
        assert!(error("default,retention=keep,retention=keep").contains("names retention twice"));
        assert!(error("best-fixed,retention=keep").contains("chosen of all constants"));
        assert!(error("lru,retention=keep").starts_with("unknown policy \"lru\""));
        assert!(error("ppas:2,-1").contains("\"-1\"") && error("ppas:2,1.5").contains("\"1.5\""));
        for unknown in [
            "ppas,2",
            "ppas2",
            "oracle:1",
            "default,mode=swap",
            "fixed,0.1",
            "past-future2",
            ",",
            ":",
            "best-fixed,mode=swap",
        ] {
            assert!(error(unknown).starts_with("unknown policy"), "{unknown}");
        }
        assert!(error("past-future,").contains("KEY=VALUE") && error("oracle,").contains("KEY=VALUE"));
    }
}
