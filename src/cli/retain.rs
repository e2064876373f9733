//! `kvtide retain`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use kvtide_envs::files::Lock;
use kvtide_runtime::{Host, Retention};
use serde::{Deserialize, Serialize};

use super::output::Output;
use super::outputs::Outputs;
use super::progress::Runs;
use super::{Exit, stop};
use crate::distil::RetentionTree;
use crate::evaluate::Watch;
use crate::experiment::Experiment;
use crate::export::{self, ExportError};
use crate::retention::{
    Candidate, Judged, LeafBelief, LearnRetention, Learned, MOST_LOST, Origin, RetentionConfig, RetentionListener,
    SearchedGeneration,
};
use crate::text::{self, Column, TextTable};
use crate::world::Written;

#[derive(Debug, Args)]
pub(super) struct RetainArgs {
    /// Decision table that is to get the tree; it decides everything else.
    #[arg(long, value_name = "FILE.kvt")]
    table: PathBuf,
    /// Experiment file (TOML): its traffic is learned from, its validation traffic judges.
    #[arg(long, value_name = "FILE")]
    experiment: PathBuf,
    /// Folder for policy.kvt, the table with its tree, if one gains; candidates/, every tree that was judged; search.json.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Leaves of the trees that are grown from labels, comma-separated.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = RetentionConfig::default().leaves)]
    leaves: Vec<u32>,
    /// Leaves of the tree whose classes are searched by what serving attains.
    #[arg(long, value_name = "N", default_value_t = RetentionConfig::default().search.leaves)]
    searched_leaves: u32,
    /// Generations of the search.
    #[arg(long, value_name = "N", default_value_t = RetentionConfig::default().search.generations)]
    generations: u32,
    /// Candidates of a generation.
    #[arg(long, value_name = "N", default_value_t = RetentionConfig::default().search.population)]
    population: u32,
    /// Episodes each candidate is served in.
    #[arg(long, value_name = "N", default_value_t = RetentionConfig::default().search.episodes)]
    episodes: u32,
    /// What keeping a block for a turnover of the pool costs, in blocks found again [default: the price under which most is found
    /// in training].
    #[arg(long, value_name = "PRICE")]
    price: Option<f64>,
    /// Episodes whose releases are labelled.
    #[arg(long, value_name = "N", default_value_t = RetentionConfig::default().releases)]
    releases: u32,
    /// Episodes of the validation traffic candidates are judged in.
    #[arg(long, value_name = "N", default_value_t = RetentionConfig::default().judged)]
    judged: u32,
    /// Seed of every draw.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The host the table is for: vllm-0.33 or kvtide [default: the host of the experiment].
    #[arg(long, value_name = "HOST")]
    host: Option<Written<Host>>,
    /// Go on with the search that was interrupted in this folder.
    #[arg(long)]
    resume: bool,
    /// One JSON object a line on stdout: {"type":"retention","data":{…}}.
    #[arg(long)]
    json: bool,
}

/// What is kept of a search, with what it was a search of.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    table: String,
    config: RetentionConfig,
    progress: LeafBelief,
}

pub(super) fn run(args: &RetainArgs) -> anyhow::Result<Exit> {
    let mut experiment = Experiment::load(&args.experiment)?;
    if let Some(host) = &args.host {
        experiment.also.iter_mut().for_each(|also| also.world.host = Some(host.clone()));
        experiment.world.host = Some(host.clone());
    }
    experiment.validate()?;
    let config = config(args);
    config.validate()?;
    let worlds = experiment.also.iter().map(|also| &also.world).chain([&experiment.world]);
    let outputs =
        Outputs::new().reads("--experiment", args.experiment.as_path()).reads("--table", args.table.as_path());
    worlds.fold(outputs, Outputs::reads_world).folder("--out", args.out.as_path()).check()?;
    let _lock = Lock::of_folder(&args.out)?;
    let table = export::load(&args.table)?;
    export::load_table(&args.table)?;
    let search = args.out.join("search.json");
    let hash = blake3::hash(&table).to_hex().to_string();
    let resumed = resumed(args, &search, &hash, &config)?;
    let of_experiment = || args.experiment.display().to_string();
    let world = experiment.world.world().with_context(of_experiment)?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let listener = Talk { search: &search, table: &hash, config: &config };
    let stop = stop::on_interrupt();
    let learning = LearnRetention {
        experiment: &experiment,
        world: &world,
        table: &table,
        config: &config,
        resumed: resumed.as_ref(),
        listener: &listener,
        stop,
    };
    let Some(learned) = learning.run().with_context(of_experiment)? else {
        if search.exists() {
            say!("interrupted; go on with the same command and --resume");
        }
        return Ok(Exit::Interrupted);
    };
    write(args, &table, &learned)?;
    let mut output = Output::new();
    let told = if args.json { json(&mut output, &learned) } else { output.text(&text(&learned, text::width())) };
    super::judged(told, if learned.chosen.is_some() { Exit::Done } else { Exit::GateFailed })
}

fn config(args: &RetainArgs) -> RetentionConfig {
    let mut config = RetentionConfig {
        seed: args.seed,
        leaves: args.leaves.clone(),
        releases: args.releases,
        judged: args.judged,
        price: args.price,
        ..RetentionConfig::default()
    };
    let search = &mut config.search;
    (search.leaves, search.generations) = (args.searched_leaves, args.generations);
    (search.population, search.episodes) = (args.population, args.episodes);
    config
}

/// Where the search in the folder had come to, if it is to go on.
fn resumed(
    args: &RetainArgs,
    search: &Path,
    table: &str,
    config: &RetentionConfig,
) -> anyhow::Result<Option<LeafBelief>> {
    if !args.resume {
        if search.exists() {
            bail!("{} exists; go on with --resume, or take another --out", search.display());
        }
        return Ok(None);
    }
    let of_search = || search.display().to_string();
    let text = fs::read_to_string(search).with_context(of_search)?;
    let kept: Kept = serde_json::from_str(&text).with_context(of_search)?;
    let of_other = |what: &str| format!("{}: it was a search for {what}; take another --out", search.display());
    if kept.table != table {
        bail!(of_other("another table"));
    }
    let generations = config.search.generations;
    let mut planned = kept.config;
    planned.search.generations = generations;
    if planned != *config {
        bail!(of_other("the same table with other settings"));
    }
    Ok(Some(kept.progress))
}

/// Every candidate's table, and the one that ships.
fn write(args: &RetainArgs, table: &[u8], learned: &Learned) -> anyhow::Result<()> {
    let folder = args.out.join("candidates");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (place, (candidate, _)) in learned.judged.iter().enumerate() {
        let Some(tree) = &candidate.tree else { continue };
        let bytes = export::add_retention(table, tree)?;
        export::save(&folder.join(format!("{}.kvt", candidate.name.replace([' ', '/'], "-"))), &bytes)?;
        if learned.chosen == Some(place) {
            let path = args.out.join("policy.kvt");
            export::save(&path, &bytes)?;
            say!("written: {}, with the tree of {}", path.display(), candidate.name);
        }
    }
    if learned.chosen.is_none() {
        say!(
            "no tree gains over LRU beyond chance without losing {MOST_LOST} points of hits anywhere: none is shipped"
        );
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    candidate: &'a str,
    origin: Origin,
    leaves: usize,
    chosen: bool,
    #[serde(flatten)]
    judged: &'a Judged,
}

fn lines(learned: &Learned) -> impl Iterator<Item = Line<'_>> {
    learned.judged.iter().enumerate().map(|(place, (Candidate { origin, name, tree }, judged))| Line {
        candidate: name,
        origin: *origin,
        leaves: tree.as_ref().map_or(0, RetentionTree::leaves),
        chosen: learned.chosen == Some(place),
        judged,
    })
}

fn json(output: &mut Output, learned: &Learned) -> anyhow::Result<()> {
    lines(learned).try_for_each(|line| output.json("retention", &line))
}

/// For people: what was labelled, then a line a candidate.
fn text(learned: &Learned, width: usize) -> String {
    let (releases, by_class) = learned.labels;
    let share = |count: usize| 100.0 * count as f64 / releases.max(1) as f64;
    let classes: Vec<String> = Retention::ALL
        .into_iter()
        .zip(by_class)
        .map(|(class, count)| format!("{class} {:.0} %", share(count)))
        .collect();
    let mut table = TextTable::new(vec![
        Column::new("", "candidate"),
        Column::new("", "leaves"),
        Column::new("attained", "%"),
        Column::new("points", "more"),
        Column::new("tokens", "hit %"),
        Column::new("most hits", "lost"),
        Column::new("taken", "back %"),
    ]);
    for line in lines(learned) {
        let is_lru = line.origin == Origin::Lru;
        let more = line.judged.gain.text();
        let more = if is_lru { "-".to_owned() } else { more.replace(" points", "") };
        table.row(vec![
            format!("{}{}", line.candidate, if line.chosen { " *" } else { "" }),
            if is_lru { "-".to_owned() } else { line.leaves.to_string() },
            format!("{:.1}", 100.0 * line.judged.attained),
            more,
            format!("{:.1}", 100.0 * line.judged.hits),
            if is_lru { "-".to_owned() } else { format!("{:.1}", line.judged.most_lost()) },
            if is_lru { "-".to_owned() } else { format!("{:.1}", 100.0 * line.judged.taken_back) },
        ]);
    }
    format!(
        "{releases} releases labelled: {}; price of room {}\n\n{}",
        classes.join(", "),
        learned.price,
        table.render(width)
    )
}

/// Tells stderr, and keeps what a search has come to.
struct Talk<'a> {
    search: &'a Path,
    table: &'a str,
    config: &'a RetentionConfig,
}

impl RetentionListener for Talk<'_> {
    fn watch(&self, doing: &'static str) -> Box<dyn Watch + '_> {
        let runs = Runs::new();
        runs.phase(doing);
        Box::new(runs)
    }

    fn priced(&self, price: f64, attained: f64, hits: f64) {
        say!(
            "   at a price of room of {price}: {:.1} % of prompt tokens found, {:.1} % attained",
            100.0 * hits,
            100.0 * attained
        );
    }

    fn searched(&self, progress: &LeafBelief, generation: &SearchedGeneration) -> Result<(), ExportError> {
        let SearchedGeneration { generation, lru, likeliest, elite, best } = *generation;
        say!(
            "   generation {generation} of {}: attained {:.4} by the likeliest classes, {:.4} by LRU, {:.4} by the elite, {:.4} by the best",
            self.config.search.generations,
            likeliest,
            lru,
            elite,
            best
        );
        let kept = Kept { table: self.table.to_owned(), config: self.config.clone(), progress: progress.clone() };
        let text = serde_json::to_string_pretty(&kept).unwrap_or_default();
        export::save(self.search, text.as_bytes())
    }
}
