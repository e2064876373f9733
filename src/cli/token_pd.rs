//! `kvtide evict token-pd`.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use clap::Args;
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineKind};
use kvtide_envs::token_price::{self, Attention, Process};

use super::args::parse_seeds;
use super::output::Output;
use super::outputs::Outputs;
use super::{Exit, stop};
use crate::report;
use crate::text::{self, Column, TextTable, printable, wrapped};
use crate::token_pd::{self, Line, Study, TokenPdMean, TokenPdRegret, TokenPdRow, TokenPdTraining, USUAL_RATE};
use crate::world::Written;

#[derive(Debug, Args)]
pub(super) struct TokenPdArgs {
    /// Numbers of streams that decode together, comma-separated; the one in the middle is looked at more closely.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "128,256,512",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    streams: Vec<u32>,
    /// Recorded attention, as docs/ATTENTION.md describes it, plain, gzip or zstd: the first half is learned from, the second served.
    #[arg(long, value_name = "FILE", conflicts_with = "process")]
    attention: Option<PathBuf>,
    /// Generated attention: mixed, recency, heavy-hitters, sinks or topics, such as mixed:prompt=1024,answer=512,n=256.
    #[arg(long, value_name = "SPEC", default_value = "mixed")]
    process: Written<Process>,
    /// Model and hardware, which say what a step takes and how large the pool is.
    #[arg(long, value_name = "MODEL@HARDWARE", default_value = "llama-3-8b@h100")]
    env: String,
    /// Blocks of the pool [default: that of --env].
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    capacity: Option<u32>,
    /// Scheduler steps of a run.
    #[arg(long, value_name = "STEPS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(32..=1 << 20))]
    steps: u32,
    /// What the price aims at, as a share of FIFO's peak.
    #[arg(long, value_name = "SHARE", default_value_t = 0.41, value_parser = share)]
    target: f64,
    /// Aversion to risk: percent of attention for each percent squared of variance.
    #[arg(long, value_name = "L", default_value_t = 0.0, value_parser = number)]
    lambda: f64,
    /// How fast the price moves: this over the square root of the steps.
    #[arg(long, value_name = "E", default_value_t = USUAL_RATE, value_parser = number)]
    rate: f64,
    /// Share of attention from which on a block that was let go is computed again.
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = share)]
    demand: f64,
    /// What computing it again takes from the utility, as a share of attention.
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = number)]
    penalty: f64,
    /// Steps the predictor learns for.
    #[arg(long, value_name = "STEPS", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    training_steps: u32,
    /// Seeds: 1..5 (both included) or 1,2,7. Each draws the attention, or the order of what was recorded (1: as it stands), and teaches
    /// a predictor; of several the means are shown, with their intervals.
    #[arg(long, visible_alias = "seed", value_name = "SEEDS", default_value = "1", allow_hyphen_values = true)]
    seeds: String,
    /// Write a page with charts, which needs nothing but a browser.
    #[arg(long, value_name = "PAGE")]
    report: Option<PathBuf>,
    /// One JSON object a line on stdout, as docs/JSON.md describes them.
    #[arg(long)]
    json: bool,
}

fn number(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=1e6).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 1000000".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = number(text).ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "expected a share above 0 and at most 1, such as 0.41".to_owned())
}

pub(super) fn run(args: &TokenPdArgs) -> anyhow::Result<Exit> {
    let mut streams = args.streams.clone();
    streams.sort_unstable();
    if let Some([twice, _]) = streams.windows(2).find(|pair| pair[0] == pair[1]) {
        anyhow::bail!("--streams: {twice} is given twice");
    }
    Outputs::new()
        .reads("--attention", args.attention.as_deref())
        .reads_env(&args.env)
        .file("--report", args.report.as_deref())
        .check()?;
    let seeds = parse_seeds(&args.seeds).with_context(|| format!("--seeds {:?}", args.seeds))?;
    let made_on = report::today()?;
    let deployment = Deployment::load(&args.env)?;
    let engine = deployment.engine(EngineKind::V1);
    let cost = CostModel::new(&deployment, engine.block_size).under(&engine);
    let recorded = args.attention.as_deref().map(|path| token_price::read(path).context("--attention")).transpose()?;
    let (mut show, stop) = (Show::new(args), stop::on_interrupt());
    for &seed in &seeds {
        let (learned_from, attention) = attention(args, recorded.as_ref(), seed)?;
        let tokens = u64::from(engine.num_gpu_blocks) * u64::from(engine.block_size);
        let pool = args.capacity.unwrap_or((tokens / u64::from(attention.block_tokens)) as u32);
        let most = streams.last().copied().unwrap_or(1);
        ensure!(
            pool / 2 > most,
            "a pool of {pool} blocks is too small for {most} streams, which need two blocks each at least (--capacity, --streams)"
        );
        let study = Study {
            learned_from: &learned_from,
            attention: &attention,
            env: &args.env,
            cost: &cost,
            pool,
            step_tokens: engine.max_num_batched_tokens,
            streams: &streams,
            steps: args.steps,
            target: args.target,
            risk_aversion: args.lambda,
            rate: args.rate,
            demand: args.demand as f32,
            penalty: args.penalty,
            training_steps: args.training_steps,
            seed,
        };
        if !show.seed(&study, seeds.len() > 1, stop) {
            show.written?;
            return Ok(Exit::Interrupted);
        }
    }
    show.finish(&made_on)
}

/// What is shown as it comes, and kept for the page.
struct Show<'a> {
    args: &'a TokenPdArgs,
    width: usize,
    output: Output,
    written: anyhow::Result<()>,
    /// Of each seed.
    lines: Vec<Vec<Line>>,
}

impl<'a> Show<'a> {
    fn new(args: &'a TokenPdArgs) -> Show<'a> {
        Show { args, width: text::width(), output: Output::new(), written: Ok(()), lines: Vec::new() }
    }

    /// Runs what is studied with one seed, of `several` if so; whether it came to its end.
    fn seed(&mut self, study: &Study<'_>, several: bool, stop: &AtomicBool) -> bool {
        let mut lines = Vec::new();
        let is_finished = study.run(stop, &mut |line| {
            if self.args.json {
                self.written = json(&mut self.output, &line);
            } else if let Some(text) = said(&lines, &line, several, self.width) {
                self.written = self.output.text(&text);
            }
            lines.push(line);
            // A page is wanted whether or not anybody reads the text.
            self.written.is_ok() || self.args.report.is_some()
        });
        self.lines.push(lines);
        is_finished
    }

    /// What all seeds say, and the page.
    fn finish(mut self, made_on: &str) -> anyhow::Result<Exit> {
        let together = token_pd::over_seeds(&self.lines);
        let mut lines = self.lines.swap_remove(0);
        if let Some(path) = &self.args.report {
            lines.extend(together.iter().cloned());
            report::write_page(path, &token_pd::page(&lines, &super::evaluate::command_line(), made_on))?;
            say!("the report is in {}", path.display());
        }
        self.written?;
        if self.args.json {
            together.iter().try_for_each(|line| json(&mut self.output, line))?;
        } else {
            let text =
                if together.is_empty() { closing(&lines, self.width) } else { over_seeds(&together, self.width) };
            self.output.text(&text)?;
        }
        Ok(Exit::Done)
    }
}

/// What is learned from, and what is served.
fn attention(args: &TokenPdArgs, recorded: Option<&Attention>, seed: u64) -> anyhow::Result<(Attention, Attention)> {
    let Some(all) = recorded else {
        // Another seed's for learning: nobody is judged by what it has seen.
        let learned_from = args.process.draw(seed.wrapping_add(1 << 32));
        return Ok((learned_from, args.process.draw(seed)));
    };
    all.clone().shuffled(seed).halves().with_context(|| {
        let path = args.attention.as_deref().unwrap_or(Path::new("-"));
        format!("--attention: {}: one conversation; it takes two, to learn from and to be judged on", path.display())
    })
}

fn json(output: &mut Output, line: &Line) -> anyhow::Result<()> {
    match line {
        Line::Training(data) => output.json("token_pd_training", data),
        Line::Row(data) => output.json("token_pd", data),
        Line::Price(data) => output.json("token_pd_price", data),
        Line::Regret(data) => output.json("token_pd_regret", data),
        Line::Verdict(data) => output.json("token_pd_verdict", data),
        Line::Mean(data) => output.json("token_pd_mean", data),
        Line::Finding(data) => output.json("token_pd_finding", data),
    }
}

/// What is said to people as a line comes: of a number of streams once its verdict is there; of several seeds how each learned.
fn said(before: &[Line], line: &Line, several: bool, width: usize) -> Option<String> {
    match line {
        Line::Training(training) => Some(wrapped(&learned(training, several), width, 2) + "\n"),
        Line::Verdict(verdict) if !several => {
            let rows = rows(before, "streams").filter(|row| row.streams == verdict.streams);
            Some(table(rows, width) + &wrapped(&verdict.text(), width, 2) + "\n")
        }
        _ => None,
    }
}

fn learned(training: &TokenPdTraining, several: bool) -> String {
    format!(
        "{}learned from {} for {} steps: explains {:.1} % of the variance of {} returns it has not seen; squared errors are {:.2} times the \
         variance predicted\n",
        if several { format!("seed {}: ", training.seed) } else { String::new() },
        printable(&training.attention),
        training.steps,
        training.explained * 100.0,
        training.examples,
        training.calibration
    )
}

fn rows<'a>(lines: &'a [Line], part: &'a str) -> impl Iterator<Item = &'a TokenPdRow> {
    lines.iter().filter_map(move |line| match line {
        Line::Row(row) if row.part == part => Some(row),
        _ => None,
    })
}

/// The questions that are looked at more closely.
const CLOSELY: [(&str, &str); 3] = [
    ("memory", "Blocks of the pool, everybody with the same"),
    ("risk", "Aversion to risk"),
    ("predictor", "The predictor, and the same return of every block"),
];

/// What was looked at more closely.
fn closing(lines: &[Line], width: usize) -> String {
    let mut text = String::new();
    for (part, title) in CLOSELY {
        text = text + title + "\n\n" + &table(rows(lines, part), width);
    }
    let regrets: Vec<&TokenPdRegret> =
        lines.iter().filter_map(|line| if let Line::Regret(regret) = line { Some(regret) } else { None }).collect();
    text += "Regret against the best constant price, and blocks above the target\n\n";
    text + &horizons(&regrets, width)
}

/// What all seeds say.
fn over_seeds(lines: &[Line], width: usize) -> String {
    let mut text = String::new();
    for (part, title) in [("streams", "Streams at once: means and 95 % intervals")].into_iter().chain(CLOSELY) {
        let means = lines.iter().filter_map(|line| match line {
            Line::Mean(mean) if mean.part == part => Some(mean),
            _ => None,
        });
        text = text + title + "\n\n" + &mean_table(means, width);
    }
    for line in lines {
        if let Line::Finding(finding) = line {
            text += &(wrapped(&finding.text(), width, 2) + "\n");
        }
    }
    text
}

fn mean_table<'a>(means: impl Iterator<Item = &'a TokenPdMean>, width: usize) -> String {
    let heads = [
        ("", "streams"),
        ("", "policy"),
        ("", "lambda"),
        ("peak,", "blocks"),
        ("", "req/s"),
        ("p95,", "s"),
        ("attention", "kept"),
        ("ahead of the first,", "points"),
    ];
    let mut table = TextTable::new(heads.map(|(top, bottom)| Column::new(top, bottom)).into());
    for mean in means {
        table.row(vec![
            mean.streams.to_string(),
            policy(mean.policy, mean.predictor),
            mean.risk_aversion.map_or_else(|| "-".to_owned(), |risk| format!("{risk}")),
            format!("{:.0}", mean.peak_blocks.mean),
            format!("{:.2}", mean.requests_per_s.mean),
            mean.latency_p95_ms.map_or_else(|| "-".to_owned(), |latency| format!("{:.2}", latency.mean / 1000.0)),
            format!("{:.1} %", mean.retained.mean * 100.0),
            token_pd::points(mean.retained_ahead),
        ]);
    }
    table.render(width) + "\n"
}

fn policy(name: &str, predictor: Option<&str>) -> String {
    match predictor {
        Some("constant") => format!("{name} (constant)"),
        _ => name.to_owned(),
    }
}

fn table<'a>(rows: impl Iterator<Item = &'a TokenPdRow>, width: usize) -> String {
    let heads = [
        ("", "streams"),
        ("", "policy"),
        ("", "lambda"),
        ("pool,", "blocks"),
        ("peak,", "blocks"),
        ("", "req/s"),
        ("p95,", "s"),
        ("attention", "kept"),
        ("computed", "again"),
    ];
    let mut table = TextTable::new(heads.map(|(top, bottom)| Column::new(top, bottom)).into());
    for row in rows {
        table.row(vec![
            row.streams.to_string(),
            policy(row.policy, row.predictor),
            row.risk_aversion.map_or_else(|| "-".to_owned(), |risk| format!("{risk}")),
            row.capacity_blocks.to_string(),
            row.peak_blocks.to_string(),
            format!("{:.2}", row.requests_per_s),
            row.latency_p95_ms.map_or_else(|| "-".to_owned(), |latency| format!("{:.2}", latency / 1000.0)),
            format!("{:.1} %", row.retained * 100.0),
            row.recomputed_blocks.to_string(),
        ]);
    }
    table.render(width) + "\n"
}

fn horizons(regrets: &[&TokenPdRegret], width: usize) -> String {
    let heads = [
        ("steps", "T"),
        ("", "rate"),
        ("best constant", "price"),
        ("", "regret"),
        ("over", "sqrt T"),
        ("", "violation"),
        ("over", "sqrt T"),
    ];
    let mut table = TextTable::new(heads.map(|(top, bottom)| Column::new(top, bottom)).into());
    for regret in regrets {
        table.row(vec![
            regret.steps.to_string(),
            format!("{:.4}", regret.rate),
            format!("{:.3}", regret.best_price),
            format!("{:.1}", regret.regret),
            format!("{:.3}", regret.regret_over_sqrt_steps),
            format!("{:.2}", regret.violation),
            format!("{:.4}", regret.violation_over_sqrt_steps),
        ]);
    }
    table.render(width) + "\n"
}
