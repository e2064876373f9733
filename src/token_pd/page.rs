//! The page of a study.

use maud::{Markup, html};

use super::seeds::{percent as percent_of, points};
use super::{
    Line, TokenPdFinding, TokenPdMean, TokenPdPrice, TokenPdRegret, TokenPdRow, TokenPdTraining, TokenPdVerdict,
};
use crate::plot::chart::{Chart, ChartAxis, Line as ChartLine, Pen, Unit};
use crate::plot::svg::Words;
use crate::report::{Cell, Sheet, table};

/// Policies in the order of their colours, from the second on.
const POLICIES: [&str; 4] = ["fifo", "lru", "h2o", "token-pd"];
const DASHES: [&str; 4] = ["7 3", "2 3", "9 3 2 3", ""];

/// The page over the lines of a finished study, and of what several seeds say together if there were several. `command` is what made it, on the day `made_on`.
pub fn page(lines: &[Line], command: &str, made_on: &str) -> String {
    let study = Sorted::of(lines);
    let sections = html! {
        (study.what_is_run())
        (study.over_seeds())
        (study.at_once())
        (study.memory())
        (study.risk())
        (study.predictor())
        (study.price())
        (study.horizons())
    };
    let heading = "Token-PD: a price for blocks";
    Sheet { heading, claims: &study.claims(), subcommand: "evict token-pd", command, made_on }.over(&sections)
}

/// Lines by kind.
struct Sorted<'a> {
    training: Vec<&'a TokenPdTraining>,
    rows: Vec<&'a TokenPdRow>,
    prices: Vec<&'a TokenPdPrice>,
    regrets: Vec<&'a TokenPdRegret>,
    verdicts: Vec<&'a TokenPdVerdict>,
    means: Vec<&'a TokenPdMean>,
    findings: Vec<&'a TokenPdFinding>,
}

impl<'a> Sorted<'a> {
    fn of(lines: &'a [Line]) -> Sorted<'a> {
        let mut sorted = Sorted {
            training: Vec::new(),
            rows: Vec::new(),
            prices: Vec::new(),
            regrets: Vec::new(),
            verdicts: Vec::new(),
            means: Vec::new(),
            findings: Vec::new(),
        };
        for line in lines {
            match line {
                Line::Training(data) => sorted.training.push(data),
                Line::Row(data) => sorted.rows.push(data),
                Line::Price(data) => sorted.prices.push(data),
                Line::Regret(data) => sorted.regrets.push(data),
                Line::Verdict(data) => sorted.verdicts.push(data),
                Line::Mean(data) => sorted.means.push(data),
                Line::Finding(data) => sorted.findings.push(data),
            }
        }
        sorted
    }

    /// What is found over all seeds, or of the only one.
    fn claims(&self) -> Vec<String> {
        if self.findings.is_empty() {
            return self.verdicts.iter().map(|verdict| verdict.text() + ".").collect();
        }
        self.findings.iter().map(|finding| finding.text() + ".").collect()
    }

    fn part(&self, part: &str) -> Vec<&'a TokenPdRow> {
        self.rows.iter().copied().filter(|row| row.part == part).collect()
    }

    fn what_is_run(&self) -> Markup {
        html! {
            section id="world" {
                h2 { "What is served" }
                @for row in self.rows.iter().take(1) {
                    p { (Words(&format!(
                        "Streams that answer one conversation after the other on {}, {} scheduler steps, with the attention of {}. What a step \
                         takes is the cost model's: it reads the blocks that are kept, and blocks that are missed are computed again in it. \
                         What is generated does not change because a block was missed, and what deciding takes is not in the clock \
                         (kvtide bench measures it).", row.env, row.steps, row.attention))) }
                }
                @for training in &self.training {
                    p { (Words(&format!(
                        "The predictor has one hidden layer of 256 units. It learned from {} for {} steps, and explains {} of the variance of \
                         {} returns it has not seen; its squared errors are {:.2} times the variance it predicts.",
                        training.attention, training.steps, percent(training.explained), training.examples, training.calibration))) }
                }
            }
        }
    }

    /// Nothing of a single seed.
    fn over_seeds(&self) -> Markup {
        let Some(first) = self.means.first() else { return html! {} };
        let heads = [
            "part",
            "policy",
            "streams",
            "λ",
            "pool, blocks",
            "peak, blocks",
            "requests/s",
            "p95 latency",
            "attention retained",
            "points ahead of the first",
        ];
        let lines = self.means.iter().map(|mean| {
            let number = |text: String, value: f64| Cell::number(text, Some(value));
            let count = |value: f64| number(format!("{value:.0}"), value);
            let latency = mean.latency_p95_ms.map(|latency| latency.mean);
            let seconds = latency.map_or_else(|| "–".to_owned(), |ms| format!("{:.2} s", ms / 1000.0));
            let risk = mean.risk_aversion;
            vec![
                Cell::text(html! { (mean.part) }),
                named(mean.policy, mean.predictor),
                count(mean.streams.into()),
                Cell::number(risk.map_or_else(|| "–".to_owned(), |risk| risk.to_string()), risk),
                count(mean.capacity_blocks),
                count(mean.peak_blocks.mean),
                number(format!("{:.2}", mean.requests_per_s.mean), mean.requests_per_s.mean),
                Cell::number(seconds, latency),
                number(percent_of(mean.retained), mean.retained.mean),
                number(points(mean.retained_ahead), mean.retained_ahead.mean),
            ]
        });
        html! {
            section id="seeds" {
                h2 { "Over " (first.seeds) " seeds" }
                p { "Means, and 95 % intervals of what is retained: each seed draws the attention, or the order of what was recorded, and \
                     teaches a predictor. Ahead: of the first policy of the part with the same pool, seed by seed. What follows \
                     below is of the first seed." }
                (table("Over seeds", &heads, lines))
            }
        }
    }

    fn at_once(&self) -> Markup {
        let rows = self.part("streams");
        html! {
            section id="streams" {
                h2 { "Streams at once" }
                p { "With all of the pool, then everybody with what Token-PD's price aims at. Token-PD lets go of what is not worth its price \
                     even where there is room; the others only where there is none." }
                (results("Streams at once", &rows))
            }
        }
    }

    fn memory(&self) -> Markup {
        let rows = self.part("memory");
        let blocks = |row: &TokenPdRow| f64::from(row.capacity_blocks);
        let of = |value: fn(&TokenPdRow) -> f64, title: &str, unit: Unit| {
            let lines = POLICIES.iter().enumerate().map(|(index, policy)| {
                let points = rows.iter().filter(|row| row.policy == *policy).map(|row| (blocks(row), value(row)));
                ChartLine::dotted(policy, pen(index), points.collect())
            });
            let y = ChartAxis { unit, ..ChartAxis::above_zero("", rows.iter().map(|row| value(row))) };
            chart(
                title,
                ChartAxis::above_zero("blocks of the pool", rows.iter().map(|row| blocks(row))),
                y,
                lines.collect(),
            )
        };
        html! {
            section id="memory" {
                h2 { "Memory" }
                p { "The same pool for everybody, from a fifth of FIFO's peak to all of it: what less memory costs, and whom." }
                (legend())
                div.figure { (of(|row| row.retained, "Attention retained", Unit::Percent).to_svg()) }
                div.figure { (of(|row| row.requests_per_s, "Requests a second", Unit::Number).to_svg()) }
                (results("Memory", &rows))
            }
        }
    }

    fn risk(&self) -> Markup {
        html! {
            section id="risk" {
                h2 { "Aversion to risk" }
                p { "A block is worth its return less λ times the variance of it. All of the pool; the price aims at the same." }
                (results("Aversion to risk", &self.part("risk")))
            }
        }
    }

    fn predictor(&self) -> Markup {
        html! {
            section id="predictor" {
                h2 { "The predictor" }
                p { "Its place taken by the same return of every block, which leaves the price to say whether everybody goes, and age to say \
                     who goes first." }
                (results("The predictor", &self.part("predictor")))
            }
        }
    }

    fn price(&self) -> Markup {
        let name = |price: &TokenPdPrice| format!("{} streams", price.streams);
        let pens = |index: usize| Pen { colour: 1 + index % 7, dash: DASHES[(index + 3) % 4], width: 2.0 };
        let of = |value: &dyn Fn(&TokenPdPrice) -> Vec<f64>, title: &str, unit: Unit| {
            let across = |price: &TokenPdPrice| price.step.iter().map(|&step| f64::from(step)).collect::<Vec<f64>>();
            let lines = self.prices.iter().enumerate().map(|(index, price)| {
                ChartLine::plain(&name(price), pens(index), across(price).into_iter().zip(value(price)).collect())
            });
            let x = ChartAxis::above_zero("steps", self.prices.iter().flat_map(|price| across(price)));
            let y = ChartAxis { unit, ..ChartAxis::above_zero("", self.prices.iter().flat_map(|price| value(price))) };
            chart(title, x, y, lines.collect())
        };
        let kept = |price: &TokenPdPrice| {
            let target = f64::from(price.target_blocks.max(1));
            price.kept_blocks.iter().map(|&kept| f64::from(kept) / target).collect()
        };
        html! {
            section id="price" {
                h2 { "The price" }
                p { "Percent of a row of attention that a block must be worth to stay, after each step; and the blocks kept, of the target. It \
                     starts low, is late, and comes back." }
                p.legend { @for (index, price) in self.prices.iter().enumerate() { span { (pens(index).sample()) " " (name(price)) } " " } }
                div.figure { (of(&|price| price.price.clone(), "Price", Unit::Number).to_svg()) }
                div.figure { (of(&kept, "Blocks kept, of the target", Unit::Percent).to_svg()) }
            }
        }
    }

    fn horizons(&self) -> Markup {
        let heads = [
            "steps",
            "rate",
            "best constant price",
            "its utility",
            "utility",
            "regret",
            "regret / √T",
            "violation",
            "violation / √T",
        ];
        let rows = self.regrets.iter().map(|one| {
            let number = |value: f64, digits: usize| Cell::number(format!("{value:.digits$}"), Some(value));
            vec![
                Cell::text(html! { b { (one.steps) } }),
                number(one.rate, 4),
                number(one.best_price, 3),
                number(one.best_utility, 1),
                number(one.utility, 1),
                number(one.regret, 1),
                number(one.regret_over_sqrt_steps, 3),
                number(one.violation, 2),
                number(one.violation_over_sqrt_steps, 4),
            ]
        });
        html! {
            section id="regret" {
                h2 { "Regret and violation" }
                p { "No limit but the price, which moves by η₀ / √T a step. Regret: how far its utility, attention that was there less the \
                     penalty of what was computed again, is behind that of the best constant price that keeps to the target on average; below zero where it \
                     is ahead, which it may be by holding more than the target at first. \
                     Violation: blocks above the target, over the target, summed over steps. A bound of √T would keep the columns over √T from \
                     growing." }
                (table("Regret and violation", &heads, rows))
            }
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn pen(index: usize) -> Pen {
    Pen { colour: 1 + index, dash: DASHES[index], width: 2.0 }
}

fn legend() -> Markup {
    html! { p.legend { @for (index, policy) in POLICIES.iter().enumerate() { span { (pen(index).sample()) " " (policy) } " " } } }
}

fn chart(title: &str, x: ChartAxis, y: ChartAxis, lines: Vec<ChartLine>) -> Chart {
    Chart { title: title.to_owned(), width: 860.0, height: 320.0, x, y, lines, rules: Vec::new(), band: None }
}

fn results(caption: &str, rows: &[&TokenPdRow]) -> Markup {
    let heads = [
        "policy",
        "streams",
        "λ",
        "pool, blocks",
        "price aims at",
        "peak, blocks",
        "mean, blocks",
        "requests/s",
        "p50 latency",
        "p95 latency",
        "attention retained",
        "let go",
        "computed again",
    ];
    let lines = rows.iter().map(|row| {
        let count = |count: f64| Cell::number(format!("{count:.0}"), Some(count));
        let seconds =
            |ms: Option<f64>| Cell::number(ms.map_or_else(|| "–".to_owned(), |ms| format!("{:.2} s", ms / 1000.0)), ms);
        let perhaps =
            |value: Option<f64>| Cell::number(value.map_or_else(|| "–".to_owned(), |value| value.to_string()), value);
        vec![
            named(row.policy, row.predictor),
            count(row.streams.into()),
            perhaps(row.risk_aversion),
            count(row.capacity_blocks.into()),
            perhaps(row.target_blocks.map(f64::from)),
            count(row.peak_blocks.into()),
            count(row.mean_blocks),
            Cell::number(format!("{:.2}", row.requests_per_s), Some(row.requests_per_s)),
            seconds(row.latency_p50_ms),
            seconds(row.latency_p95_ms),
            Cell::number(percent(row.retained), Some(row.retained)),
            count(row.evicted_blocks as f64),
            count(row.recomputed_blocks as f64),
        ]
    });
    table(caption, &heads, lines)
}

/// A policy, and what stands in for its predictor if something does.
fn named(policy: &str, predictor: Option<&str>) -> Cell {
    let note = predictor.filter(|predictor| *predictor == "constant");
    Cell::text(html! { b { (policy) } @if let Some(note) = note { br; small { (note) } } })
}
