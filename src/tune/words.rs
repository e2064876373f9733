//! A verdict in five lines, each of which can be checked in what the run leaves.

use std::fmt::Write;
use std::path::Path;

use super::effort::Effort;
use super::loads::AtOne;
use super::table::ShippedKind;
use super::verdict::{Clock, Late, Reason, Role, Verdict};
use crate::evaluate::{ClockGain, Interval};
use crate::policy::PolicyName;

/// Where a run lies and what it is for, as the last line needs it.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// The run's folder.
    pub out: &'a Path,
    /// The table, as a node is told of it.
    pub table: &'a Path,
    /// The host it is for.
    pub host: &'static str,
    /// How long the traffic lasts, seconds.
    pub span_s: f64,
    /// How much of it was judged on, seconds.
    pub judged_s: f64,
    /// The targets.
    pub targets: String,
    /// What was spent.
    pub effort: Effort,
}

/// The five lines: the answer, what is attained, what it costs those who are late anyway, what that rests on, what to do next.
pub(super) fn lines(verdict: &Verdict, place: &Place<'_>) -> Vec<String> {
    vec![
        format!("worth deploying: {}", answer(verdict)),
        format!("attained: {}", attained(verdict, &place.targets)),
        format!("late requests: {}", verdict.late.as_ref().map_or_else(nobody, late)),
        format!("rests on: {}", rests_on(verdict)),
        format!("next: {}", next(verdict, place)),
    ]
}

fn answer(verdict: &Verdict) -> String {
    let margin = verdict.margin * 100.0;
    let over = &verdict.versus;
    let change = verdict.gain.as_ref().map_or_else(|| format!("gains nothing over {over}"), |gain| change(gain, over));
    let as_recorded = verdict.as_recorded.map_or_else(String::new, |gain| {
        format!("; {} at load 1, the traffic as it was recorded", signed_points(gain))
    });
    let worst = verdict
        .worst_load
        .map_or_else(String::new, |worst| format!("{} at load {}", signed_points(worst.gain), worst.load));
    match verdict.reason {
        Reason::Gains => {
            format!(
                "YES. It {change}, all loads together{as_recorded}; least at one load: {worst}, where -{margin:.0} is allowed"
            )
        }
        Reason::NoGain => {
            let but = match verdict.gain.and_then(|gain| gain.high) {
                Some(high) if high < 0.0 => "beyond chance",
                _ => "not beyond chance",
            };
            format!("NO. It {change}, all loads together, {but}{as_recorded}")
        }
        Reason::LosesAtALoad => {
            format!(
                "NO. It {change}, all loads together, but loses more than {margin:.0} point at one: {worst}{as_recorded}"
            )
        }
        Reason::TooLittle => {
            format!(
                "NO. It {change}, all loads together, and there is too little unseen traffic to tell that from chance"
            )
        }
        Reason::Idle => {
            let from = match verdict.range.at_one {
                AtOne::Idle { fails_at: Some(load), .. } => format!(
                    ": one node serves it with ease, even at its peak, and begins to fail at {load} times the traffic"
                ),
                _ => ": one node serves it with ease, even at its peak".to_owned(),
            };
            format!("NO. At the recorded load there is nothing to gain{from} (it {change}, all loads together)")
        }
    }
}

/// What becomes of attainment: `gains +1.2 points [+0.3, +2.0] over default`.
fn change(gain: &Interval, versus: &PolicyName) -> String {
    let bounds = gain.low.zip(gain.high);
    let bounds = bounds.map_or_else(String::new, |(low, high)| format!(" [{:+.1}, {:+.1}]", low * 100.0, high * 100.0));
    let (verb, than) = if gain.mean < 0.0 { ("loses", "against") } else { ("gains", "over") };
    format!("{verb} {}{bounds} {than} {versus}", signed_points(gain.mean))
}

/// A difference of attainment.
fn signed_points(difference: f64) -> String {
    // What is nothing at this precision has no sign.
    let points = difference * 100.0;
    if points.abs() < 0.05 { "0.0 points".to_owned() } else { format!("{points:+.1} points") }
}

fn attained(verdict: &Verdict, targets: &str) -> String {
    let share = |role| verdict.attained_by(role).map(|by| format!("{:.1} %", by.attained * 100.0));
    let unknown = || "–".to_owned();
    let kind = match verdict.shipped.kind {
        ShippedKind::Learned => format!("the table, learned, {} leaves", verdict.shipped.leaves),
        ShippedKind::Constant => format!("the table, which is the constant {}", verdict.heads.constant),
    };
    let mut text = format!(
        "{} ({} today) → {} ({kind}) of requests meet {targets}; in hindsight the best fixed watermark {}, the best constant of \
         its heads {}",
        share(Role::Today).unwrap_or_else(unknown),
        verdict.versus,
        share(Role::Table).unwrap_or_else(unknown),
        share(Role::BestFixed).unwrap_or_else(unknown),
        share(Role::BestStatic).unwrap_or_else(unknown),
    );
    if verdict.shipped.kind == ShippedKind::Learned
        && let Some(constant) = share(Role::Constant)
    {
        let _ = write!(text, "; chosen beforehand ({}) {constant}", verdict.heads.constant);
    }
    text
}

fn nobody() -> String {
    "nobody waited for a first token".to_owned()
}

fn late(late: &Late) -> String {
    let seconds = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), |ms| format!("{:.1} s", ms / 1e3));
    let (today, table) = late.ttft_p99_ms;
    format!(
        "at load {}, where it is worst, the longest wait for a first token is {:.1} × today's, {}; TTFT p99 there {} → {}",
        late.load,
        late.times,
        seconds(late.longest_wait_ms),
        seconds(today),
        seconds(table)
    )
}

fn rests_on(verdict: &Verdict) -> String {
    let evidence = verdict.evidence().map_or_else(|| "no draw".to_owned(), |evidence| evidence.to_string());
    let loads = verdict.loads.iter().map(f64::to_string).collect::<Vec<String>>().join(", ");
    let stretches = if evidence.ends_with("stretch") || evidence.ends_with("stretches") { " of 2 min" } else { "" };
    let judged = verdict.windows.join(", ");
    let mut text = format!("{evidence}{stretches}, of {judged}, which nothing was chosen on; loads {loads}");
    let _ = match verdict.range.at_one {
        AtOne::Drowned { nodes, .. } => {
            write!(text, " (not 1, in which one node drowns: the traffic takes {nodes} such nodes)")
        }
        AtOne::Idle { .. } if verdict.reason != Reason::Idle => {
            write!(text, " (1 is easy for one node in what was trained on, not in what is judged: the traffic changes)")
        }
        _ => Ok(()),
    };
    if let Some(guard) = &verdict.guard {
        let _ = write!(text, "; the guard fell back in {} of {} decisions", guard.fallen_back(), guard.decisions);
        if guard.share() > OFTEN {
            text += ", because what is judged is unlike what was trained on";
        }
    }
    let clock = match &verdict.clock {
        Clock::DataSheet { hardware } => {
            format!("; simulated time from a data sheet ({hardware}), not measured: see kvtide calibrate")
        }
        Clock::Calibrated { hardware } => format!("; simulated time of a profile that was measured ({hardware})"),
    };
    text + &clock + &verdict.clock_gain.as_ref().map_or_else(String::new, by_clocks)
}

/// What becomes of the gain where the clock is wrong.
fn by_clocks(gain: &ClockGain) -> String {
    let points = |gain: f64| format!("{:+.1}", gain * 100.0);
    format!(
        "; by {} clocks drawn within its spread it gains {} points [{}, {}], by {} of them more than nothing",
        gain.draws.len(),
        points(gain.median),
        points(gain.low),
        points(gain.high),
        gain.gaining_draws()
    )
}

fn next(verdict: &Verdict, place: &Place<'_>) -> String {
    let table = quoted(place.table);
    let experiment = quoted(&place.out.join("experiment.toml"));
    match verdict.reason {
        Reason::Gains => match place.host {
            "sglang-0.5" => {
                format!(
                    "KVTIDE_TABLE={table} KVTIDE_METRICS_PORT=9400 python -m sglang.launch_server … (shadow: it only counts)"
                )
            }
            "vllm-0.33" => {
                format!(
                    "KVTIDE_TABLE={table} KVTIDE_METRICS_PORT=9400 vllm serve MODEL … (shadow: it decides, counts, and changes nothing)"
                )
            }
            _ => format!("kvtide inspect {table}, and the table in a node of your own: docs/SERVING.md"),
        },
        Reason::NoGain => format!(
            "leave {} as it is; {}what is tried can be changed in {experiment}, for kvtide train --experiment",
            verdict.versus,
            harder(place.effort)
        ),
        Reason::LosesAtALoad => format!(
            "leave {} as it is; {}the load that loses can be trained on by [[also]] in {experiment}, for kvtide train --experiment",
            verdict.versus,
            harder(place.effort)
        ),
        Reason::TooLittle if place.span_s.round() < ENOUGH_S => format!(
            "record at least {:.0} min of traffic ({:.0} s were given), and run this again",
            ENOUGH_S / 60.0,
            place.span_s
        ),
        Reason::TooLittle => format!(
            "record longer, and run this again: {:.0} s of {:.0} s could be judged on, and an interval takes 8 min",
            place.judged_s, place.span_s
        ),
        Reason::Idle => match verdict.range.at_one {
            AtOne::Idle { fails_at: Some(load), .. } => format!(
                "nothing at this load; run this again when the traffic has grown, or is put on fewer nodes, towards {load} times"
            ),
            _ => "nothing at this load".to_owned(),
        },
    }
}

/// What more could be spent.
fn harder(effort: Effort) -> &'static str {
    if effort == Effort::Thorough { "" } else { "--effort thorough looks harder; " }
}

/// A share of fallbacks that is worth a word.
const OFTEN: f64 = 0.05;
/// Traffic of which the part that is judged has stretches enough for an interval, seconds.
const ENOUGH_S: f64 = 1_800.0;

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@+%".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
