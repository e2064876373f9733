//! A clock judged on summaries as a picture: latencies against load, a panel for each budget.

use super::judge::{CellReport, ChoiceReport};
use super::report::{ClockReport, ModelReport};
use super::rows::SummaryPolicy;
use crate::calibrate::served::Pair;
use crate::plot::{Axis, Figure, LineStyle, Panel, Series};

/// Most panels beside each other.
const PANELS: usize = 3;

/// The figure of one card: of each model and lengths mean E2E against load for each choice of a step's tokens, then TTFT and TPOT
/// of the smallest and the largest budget.
pub(super) fn picture(report: &ClockReport) -> Figure {
    let mut rows = Vec::new();
    for model in &report.models {
        for lengths in lengths(model) {
            let cells: Vec<&CellReport> =
                model.cells.iter().filter(|cell| (cell.prompt_tokens, cell.output_tokens) == lengths).collect();
            let panels: Vec<Panel> = choices(&cells).into_iter().map(|choice| e2e(model, &cells, choice)).collect();
            rows.extend(panels.chunks(PANELS).map(<[Panel]>::to_vec));
        }
    }
    let fitted = match report.fitted_runs {
        0 => "nothing fitted".to_owned(),
        runs => format!("fitted to {runs} runs"),
    };
    Figure {
        title: format!("{} and its simulation", report.gpu),
        subtitle: format!("mean time to the end of an answer by load and token budget; {fitted}"),
        rows,
    }
}

/// Prompt and answer lengths, each pair once.
fn lengths(model: &ModelReport) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, u32)> = model.cells.iter().map(|cell| (cell.prompt_tokens, cell.output_tokens)).collect();
    all.dedup();
    all
}

fn choices(cells: &[&CellReport]) -> Vec<(SummaryPolicy, u32)> {
    let key = |choice: &ChoiceReport| (choice.policy, choice.max_num_batched_tokens);
    let mut all: Vec<(SummaryPolicy, u32)> = cells.iter().flat_map(|cell| cell.choices.iter().map(key)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn e2e(model: &ModelReport, cells: &[&CellReport], (policy, budget): (SummaryPolicy, u32)) -> Panel {
    let pairs = || {
        cells.iter().filter_map(|cell| {
            let is_it = |choice: &&ChoiceReport| (choice.policy, choice.max_num_batched_tokens) == (policy, budget);
            Some((cell.peak_rps, cell.choices.iter().find(is_it)?.e2e_mean))
        })
    };
    let line = |name, look, of: fn(Pair) -> f64| Series {
        name,
        look,
        points: pairs().map(|(rate, pair)| (rate, of(pair))).collect(),
        bars: Vec::new(),
    };
    let name = model.model.rsplit('/').next().unwrap_or_default();
    let choice = match policy {
        SummaryPolicy::Fixed => format!("{budget} tokens"),
        SummaryPolicy::Ppas => "ppas".to_owned(),
    };
    Panel {
        title: format!("{name}, {choice}"),
        x: Axis::new("peak load (requests/s)"),
        y: Axis::new("mean E2E (s)"),
        series: vec![
            line("measured", LineStyle::Reference, |pair| pair.measured),
            line("simulated", LineStyle::First, |pair| pair.simulated),
        ],
        rules: Vec::new(),
        band: None,
    }
}
