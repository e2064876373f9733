//! `lookahead:everything,over=watermark+budget,horizon=40,watermark=0.05,admission=on-time-first`.

use std::fmt;

use kvtide_envs::baseline::{Foresight, LookaheadPlan};
use kvtide_envs::time::Micros;
use kvtide_runtime::{ActionProfile, Controls, Head};

use super::{PolicySpec, SpecError, either, expected, heads, heads_name, no_heads, value};

/// What is known, and then in any order the heads that are moved, how long a choice is held, and where it starts.
pub(super) fn read(text: &str, rest: &str) -> Result<PolicySpec, SpecError> {
    let mut parts = rest.split(',');
    let first = parts.next().unwrap_or_default();
    let rungs: Vec<String> = Foresight::RUNGS.iter().map(|rung| rung.0.to_owned()).collect();
    let foresight = Foresight::from_name(first).ok_or_else(|| value(text, first, &either(&rungs)))?;
    let mut plan = LookaheadPlan::of(foresight);
    let (mut watermark, mut others, mut seen) = (None, Vec::new(), Vec::new());
    for part in parts {
        let (key, choice) = part.split_once('=').unwrap_or((part, ""));
        if ["over", "horizon", "watermark"].contains(&key) {
            if seen.contains(&key) {
                return Err(SpecError::Twice { text: text.to_owned(), key: key.to_owned() });
            }
            seen.push(key);
        }
        match key {
            "over" => plan.heads = over(text, choice)?,
            "horizon" => {
                let seconds = choice.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
                let seconds = seconds.ok_or_else(|| value(text, part, "a number of seconds from 0.1 to 3600"))?;
                plan.horizon = Micros((seconds * 1e6).round() as u64);
            }
            "watermark" => {
                let read = no_heads().read(Head::Watermark, choice);
                watermark = Some(read.ok_or_else(|| value(text, part, &expected(Head::Watermark)))?.watermark);
            }
            _ => others.push(part),
        }
    }
    let start = heads(text, others.into_iter())?;
    plan.start = Some(Controls { watermark: watermark.unwrap_or(start.watermark), ..start });
    Ok(PolicySpec::Lookahead(Box::new(plan)))
}

/// `watermark+budget`: heads of a scheduler, each once.
fn over(text: &str, names: &str) -> Result<Vec<Head>, SpecError> {
    let known = ActionProfile::Full.heads();
    let mut chosen = Vec::new();
    for name in names.split('+') {
        let head = known.iter().copied().find(|head| head.key() == name);
        let keys: Vec<String> = known.iter().map(|head| head.key().to_owned()).collect();
        let head =
            head.ok_or_else(|| value(text, name, &format!("{}, or some of them with + between", either(&keys))))?;
        if chosen.contains(&head) {
            return Err(SpecError::Twice { text: text.to_owned(), key: head.key().to_owned() });
        }
        chosen.push(head);
    }
    Ok(chosen)
}

/// What was read, without what goes without saying.
pub(super) fn write(plan: &LookaheadPlan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "lookahead:{}", plan.foresight)?;
    if plan.heads != ActionProfile::Full.heads() {
        let keys: Vec<&str> = plan.heads.iter().map(|head| head.key()).collect();
        write!(f, ",over={}", keys.join("+"))?;
    }
    if plan.horizon != LookaheadPlan::HORIZON {
        write!(f, ",horizon={}", plan.horizon.as_secs_f64())?;
    }
    let start = plan.start.unwrap_or_else(no_heads);
    if start.watermark > 0.0 {
        write!(f, ",watermark={}", start.watermark)?;
    }
    f.write_str(&heads_name(&start))
}
