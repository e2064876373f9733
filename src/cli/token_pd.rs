//! `kvtide evict token-pd`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineKind};
use kvtide_envs::token_price::{self, Attention, Process};

use super::output::Output;
use super::outputs::Outputs;
use super::{Exit, stop};
use crate::report;
use crate::text::{self, Column, TextTable, printable, wrapped};
use crate::token_pd::{self, Line, Study, TokenPdRegret, TokenPdRow, TokenPdTraining, USUAL_RATE};
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
    /// Another draw.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
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
    let made_on = report::today()?;
    let deployment = Deployment::load(&args.env)?;
    let engine = deployment.engine(EngineKind::V1);
    let (learned_from, attention) = attention(args)?;
    let tokens = u64::from(engine.num_gpu_blocks) * u64::from(engine.block_size);
    let pool = args.capacity.unwrap_or((tokens / u64::from(attention.block_tokens)) as u32);
    let most = streams.last().copied().unwrap_or(1);
    ensure!(
        pool / 2 > most,
        "a pool of {pool} blocks is too small for {most} streams, which need two blocks each at least (--capacity, --streams)"
    );
    let cost = CostModel::new(&deployment, engine.block_size).under(&engine);
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
        seed: args.seed,
    };
    show(args, &study, &made_on)
}

fn show(args: &TokenPdArgs, study: &Study<'_>, made_on: &str) -> anyhow::Result<Exit> {
    let (mut output, mut written, mut lines) = (Output::new(), Ok(()), Vec::new());
    let width = text::width();
    let is_finished = study.run(stop::on_interrupt(), &mut |line| {
        if args.json {
            written = json(&mut output, &line);
        } else {
            let texts = said(&lines, &line, width);
            written = texts.map_or(Ok(()), |text| output.text(&text));
        }
        lines.push(line);
        // A page is wanted whether or not anybody reads the text.
        written.is_ok() || args.report.is_some()
    });
    if let (Some(path), true) = (&args.report, is_finished) {
        report::write_page(path, &token_pd::page(&lines, &super::evaluate::command_line(), made_on))?;
        say!("the report is in {}", path.display());
    }
    written?;
    if !is_finished {
        return Ok(Exit::Interrupted);
    }
    if !args.json {
        output.text(&closing(&lines, width))?;
    }
    Ok(Exit::Done)
}

/// What is learned from, and what is served.
fn attention(args: &TokenPdArgs) -> anyhow::Result<(Attention, Attention)> {
    let Some(path) = &args.attention else {
        // Another seed's for learning: nobody is judged by what it has seen.
        let learned_from = args.process.draw(args.seed.wrapping_add(1 << 32));
        return Ok((learned_from, args.process.draw(args.seed)));
    };
    let all = token_price::read(path).context("--attention")?;
    all.halves().with_context(|| {
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
    }
}

/// What is said to people as a line comes: of a number of streams once its verdict is there.
fn said(before: &[Line], line: &Line, width: usize) -> Option<String> {
    match line {
        Line::Training(training) => Some(wrapped(&learned(training), width, 2) + "\n"),
        Line::Verdict(verdict) => {
            let rows = rows(before, "streams").filter(|row| row.streams == verdict.streams);
            Some(table(rows, width) + &wrapped(&verdict.text(), width, 2) + "\n")
        }
        Line::Row(_) | Line::Price(_) | Line::Regret(_) => None,
    }
}

fn learned(training: &TokenPdTraining) -> String {
    format!(
        "learned from {} for {} steps: explains {:.1} % of the variance of {} returns it has not seen; squared errors are {:.2} times the \
         variance predicted\n",
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

/// What was looked at more closely.
fn closing(lines: &[Line], width: usize) -> String {
    let parts = [
        ("memory", "Blocks of the pool, everybody with the same"),
        ("risk", "Aversion to risk"),
        ("predictor", "The predictor, and the same return of every block"),
    ];
    let mut text = String::new();
    for (part, title) in parts {
        text = text + title + "\n\n" + &table(rows(lines, part), width);
    }
    let regrets: Vec<&TokenPdRegret> =
        lines.iter().filter_map(|line| if let Line::Regret(regret) = line { Some(regret) } else { None }).collect();
    text += "Regret against the best constant price, and blocks above the target\n\n";
    text + &horizons(&regrets, width)
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
        let policy = match row.predictor {
            Some("constant") => format!("{} (constant)", row.policy),
            _ => row.policy.to_owned(),
        };
        table.row(vec![
            row.streams.to_string(),
            policy,
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
