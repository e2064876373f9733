//! A clock judged on summaries as text: constants, errors by load and budget, and the best budget.

use std::fmt::Write;

use super::judge::{AdaptiveGain, CellReport, ChoiceReport, ErrorSpread, Naming, PartReport};
use super::report::{ClockReport, ModelReport};
use super::rows::SummaryPolicy;
use crate::calibrate::constants::FitScope;
use crate::calibrate::served::{FittedConstant, Pair};
use crate::text::{Column, TextTable, width};

/// A card's report for people.
pub(super) fn render(report: &ClockReport) -> String {
    let mut text = String::new();
    let ClockReport { data, gpu, hardware, fitted_runs, simulations, objective, .. } = report;
    let _ = writeln!(text, "{data}: {gpu}, simulated as {hardware}");
    match report.scope {
        FitScope::None => text.push_str("nothing fitted: the profile as it stands\n"),
        scope => {
            let what = if scope == FitScope::Host { "the host's constants" } else { "all constants" };
            let _ = writeln!(
                text,
                "{what} fitted to {fitted_runs} runs in {simulations} simulations, off by {objective:.3} (sum of mean \
                 absolute log ratios)"
            );
        }
    }
    if !report.constants.is_empty() {
        let _ = writeln!(text, "\n{:22}{:>10}{:>10}", "constant", "fitted", "before");
    }
    for constant in &report.constants {
        let FittedConstant { name, value, default, meaning, .. } = constant;
        let (value, default) = (seconds_or_share(constant, *value), seconds_or_share(constant, *default));
        let _ = writeln!(text, "{name:22}{value:>10}{default:>10}  {meaning}");
    }
    for model in &report.models {
        text.push_str(&render_model(model));
    }
    text
}

fn seconds_or_share(constant: &FittedConstant, value: f64) -> String {
    match constant.unit {
        "s" if value > 0.0 && value < 1e-3 => format!("{:.1} us", value * 1e6),
        "s" => format!("{:.2} ms", value * 1e3),
        _ => format!("{value:.3}"),
    }
}

fn render_model(model: &ModelReport) -> String {
    let mut text = format!("\n{}, simulated as {}\n", model.model, model.env);
    let is_alone = model.cells.iter().all(|cell| same_lengths(cell, &model.cells[0]));
    let mut table = TextTable::new(columns());
    for cell in &model.cells {
        for choice in &cell.choices {
            table.row(row(cell, choice, is_alone));
        }
        let notes = [cell.best.map(|best| (best, "best")), cell.better.map(|better| (better, "better of two"))];
        for (best, name) in notes.into_iter().flatten() {
            let said = if best.measured == best.simulated {
                "named".to_owned()
            } else {
                format!("not named: {}", best.simulated)
            };
            table.note(format!("  {name}: {}, {said} (+{:.1} %)", best.measured, best.excess * 100.0));
        }
        if let Some(AdaptiveGain { measured, simulated }) = cell.adaptive {
            let percent = |share: f64| format!("{:+.1} %", share * 100.0);
            table.note(format!("  ppas against the best: {}, {} simulated", percent(measured), percent(simulated)));
        }
    }
    text.push_str(&table.render(width()));
    for (part, name) in [(&model.judged, "not fitted"), (&model.fitted, "fitted")] {
        if let Some(part) = part {
            text.push_str(&render_part(part, name));
        }
    }
    text
}

fn columns() -> Vec<Column> {
    let column = Column::new;
    vec![
        column("load", "requests/s"),
        column("", "tokens"),
        column("E2E mean", "s"),
        column("", "simulated"),
        column("", "error"),
        column("E2E p95", "error"),
        column("TTFT mean", "error"),
        column("TTFT p95", "error"),
        column("TPOT mean", "error"),
        column("TPOT p95", "error"),
    ]
}

fn same_lengths(cell: &CellReport, other: &CellReport) -> bool {
    (cell.prompt_tokens, cell.output_tokens) == (other.prompt_tokens, other.output_tokens)
}

fn row(cell: &CellReport, choice: &ChoiceReport, is_alone: bool) -> Vec<String> {
    let error = |pair: Pair| format!("{:+.1} %", pair.error * 100.0);
    let maybe = |pair: Option<Pair>| pair.map_or_else(|| "–".to_owned(), error);
    let load = if is_alone {
        format!("{}", cell.peak_rps)
    } else {
        format!("{} of {}+{}", cell.peak_rps, cell.prompt_tokens, cell.output_tokens)
    };
    let budget = match choice.policy {
        SummaryPolicy::Fixed => choice.max_num_batched_tokens.to_string(),
        SummaryPolicy::Ppas => "ppas".to_owned(),
    };
    vec![
        format!("{load}{}", if cell.is_fitted { " *" } else { "" }),
        budget,
        format!("{:.3}", choice.e2e_mean.measured),
        format!("{:.3}", choice.e2e_mean.simulated),
        error(choice.e2e_mean),
        error(choice.e2e_p95),
        error(choice.ttft_mean),
        error(choice.ttft_p95),
        maybe(choice.tpot_mean),
        maybe(choice.tpot_p95),
    ]
}

fn render_part(part: &PartReport, name: &str) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n{name}: {} runs of {} loads\n{:12}{:>10}{:>10}{:>10}{:>10}",
        part.runs, part.cells, "", "median", "p90", "worst", "bias"
    );
    let rows = [
        ("E2E mean", Some(part.e2e_mean)),
        ("E2E p95", Some(part.e2e_p95)),
        ("TTFT mean", Some(part.ttft_mean)),
        ("TTFT p95", Some(part.ttft_p95)),
        ("TPOT mean", part.tpot_mean),
        ("TPOT p95", part.tpot_p95),
        ("makespan", Some(part.makespan)),
    ];
    for (name, ErrorSpread { median, p90, worst, bias }) in
        rows.into_iter().filter_map(|(name, spread)| Some((name, spread?)))
    {
        let sizes = [median, p90, worst].map(|share| format!("{:>10}", format!("{:.1} %", share * 100.0))).concat();
        let _ = writeln!(text, "{name:12}{sizes}{:>10}", format!("{:+.1} %", bias * 100.0));
    }
    let named = |naming: Naming| {
        format!(
            "named in {} of {} loads, the choice at most {:.1} % above the best, {:.1} % on average",
            naming.named,
            naming.cells,
            naming.worst_excess * 100.0,
            naming.mean_excess * 100.0
        )
    };
    if let Some(best) = part.best {
        let _ = writeln!(text, "best budget: {}", named(best));
    }
    if let Some((better, [least, most])) = part.better.zip(part.better_of) {
        let _ = writeln!(text, "better of {least} and {most}: {}", named(better));
    }
    text
}
