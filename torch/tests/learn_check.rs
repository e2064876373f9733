//! Whether the agent learns, in full: `make learn-check`. The short forms are in `learning.rs`.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::toys::{Bandit, CartPole, Clock, Delayed, Identity, Serving, Toy, Toys};
use crate::toys::{cartpole, greedy, last, logits, means, quick, train, value};
use kvtide::agent::heads::Heads;
use kvtide::agent::{PpoConfig, Schedule, Trainer, TrainerState, Weights};
use kvtide::checkpoint::{self, RunProvenance};
use kvtide_envs::env::Episode;
use kvtide_runtime::ActionProfile;
use kvtide_torch::Torch;

/// What a problem came to.
struct Verdict {
    decisions: u64,
    measured: f64,
    required: Required,
    /// What else was measured.
    aside: String,
}

#[derive(Clone, Copy)]
enum Required {
    AtLeast(f64),
    AtMost(f64),
}

impl Required {
    fn met_by(self, measured: f64) -> bool {
        match self {
            Required::AtLeast(bound) => measured >= bound,
            Required::AtMost(bound) => measured <= bound,
        }
    }
}

impl Display for Required {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Required::AtLeast(bound) => write!(formatter, "at least {bound}"),
            Required::AtMost(bound) => write!(formatter, "at most {bound}"),
        }
    }
}

/// Writes a row as each problem is done, and counts.
struct Table {
    rows: usize,
    failed: usize,
}

impl Table {
    fn start() -> Table {
        println!();
        Table::line("problem", "seed", "decisions", "result", "required", "seconds", "");
        Table { rows: 0, failed: 0 }
    }

    fn line(problem: &str, seed: &str, decisions: &str, result: &str, required: &str, seconds: &str, aside: &str) {
        let line = format!("{problem:<45} {seed:>4} {decisions:>9} {result:>8}  {required:<13} {seconds:>7}  {aside}");
        println!("{}", line.trim_end());
    }

    fn problem(&mut self, problem: &str, seeds: &[u64], solve: impl Fn(u64) -> Verdict) {
        for &seed in seeds {
            #[expect(clippy::disallowed_methods, reason = "says how long it took; nothing depends on it")]
            let started = std::time::Instant::now();
            // What panics has failed; the others are still asked.
            let verdict = catch_unwind(AssertUnwindSafe(|| solve(seed)));
            let seconds = format!("{:.1}", started.elapsed().as_secs_f64());
            let seed = seed.to_string();
            self.rows += 1;
            if let Ok(Verdict { decisions, measured, required, aside }) = verdict {
                let met = required.met_by(measured);
                self.failed += usize::from(!met);
                let aside = if met { aside } else { format!("FAILED {aside}") };
                let (result, required) = (format!("{measured:.3}"), required.to_string());
                Table::line(problem, &seed, &decisions.to_string(), &result, &required, &seconds, &aside);
            } else {
                self.failed += 1;
                Table::line(problem, &seed, "", "", "", &seconds, "FAILED: it panicked");
            }
        }
    }
}

/// Seeds to learn with: `LEARN_SEEDS=FIRST..LAST`, both counted; 1..5 if not said.
fn seeds() -> Vec<u64> {
    let text = std::env::var("LEARN_SEEDS").unwrap_or_default();
    let text = if text.is_empty() { "1..5" } else { text.as_str() };
    let bounds = text.split_once("..").and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    let seeds: Vec<u64> = bounds.map(|(first, last)| (first..=last).take(101).collect()).unwrap_or_default();
    assert!((1..=100).contains(&seeds.len()), "LEARN_SEEDS={text}: expected FIRST..LAST, 1 to 100 seeds");
    seeds
}

#[test]
#[ignore = "minutes: make learn-check"]
fn every_problem_is_solved_on_every_seed() {
    let seeds = seeds();
    let mut table = Table::start();
    table.problem("identity, two heads", &seeds, identity::<false>);
    table.problem("identity under masks", &seeds, identity::<true>);
    table.problem("bandit, best arm forbidden", &seeds, |seed| best_arm::<1, 0>(quick(seed)));
    table.problem("bandit for thousandths", &seeds, |seed| best_arm::<1000, 0>(quick(seed)));
    table.problem("bandit around 100, no critic", &seeds, |seed| {
        best_arm::<1, 100>(PpoConfig { gamma: 0.0, value_coef: 0.0, ..quick(seed) })
    });
    table.problem("entropy, one arm of four forbidden: error", &seeds, entropy);
    table.problem("forbidden arm: parameters that moved", &seeds, forbidden);
    table.problem("reward 15 masked ticks after the choice", &seeds, delayed);
    table.problem("error of values, episodes cut", &seeds, |seed| values::<false>(seed, 32));
    table.problem("error of values, episodes cut, rollouts of 4", &seeds, |seed| values::<false>(seed, 4));
    table.problem("error of values, episodes that end", &seeds, |seed| values::<true>(seed, 32));
    table.problem("trained twice: numbers that differ", &seeds, |seed| trained_twice(seed, 8));
    table.problem("trained twice, large batches: the same", &seeds, |seed| trained_twice(seed, 64));
    table.problem("resumed, CartPole: bytes that differ", &seeds, resumed::<CartPole>);
    table.problem("resumed, four heads: bytes that differ", &seeds, resumed::<Serving>);
    table.problem("CartPole-v1", &seeds, solved);
    let Table { rows, failed } = table;
    println!("{} of {rows} requirements met", rows - failed);
    assert!(failed == 0, "{failed} of {rows} requirements not met");
}

/// Share of the symbols named by the likeliest choices.
fn identity<const MASKED: bool>(seed: u64) -> Verdict {
    let (state, reports) = train(quick(seed), Toys::<Identity<MASKED>>::boxed(8));
    let (measured, _) = greedy::<Identity<MASKED>>(&state, 100);
    let (drawn, _) = last(&reports, 5);
    Verdict { aside: format!("{drawn:.3} as drawn in training"), ..at_least(0.99, measured, &state) }
}

/// Probability of the best arm that is allowed.
fn best_arm<const SHARE: u16, const OFFSET: u16>(config: PpoConfig) -> Verdict {
    let (state, _) = train(config, Toys::<Bandit<SHARE, OFFSET>>::boxed(8));
    let mut row = logits(&state, vec![1.0]);
    Heads::new(&[4]).log_probs(&mut row, &[true, true, false, true]);
    at_least(0.95, f64::from(row[1]).exp(), &state)
}

/// A bonus that outweighs every reward leaves the three allowed arms alike: ln 3, where four would be ln 4.
fn entropy(seed: u64) -> Verdict {
    let entropy_coef = Schedule { start: 5.0, end: 5.0 };
    let (state, reports) = train(PpoConfig { entropy_coef, ..quick(seed) }, Toys::<Bandit>::boxed(8));
    let entropy = reports.last().unwrap().losses.entropy;
    at_most(0.05, (entropy - 3.0_f64.ln()).abs(), &state)
}

/// A choice that is never allowed has no gradient: of its logit's weights and bias not a bit changes.
fn forbidden(seed: u64) -> Verdict {
    let before = Trainer::new(quick(seed), Toys::<Bandit>::boxed(8), &Torch).unwrap().weights();
    let (state, _) = train(quick(seed), Toys::<Bandit>::boxed(8));
    let of_arm = |weights: &Weights, arm: usize| -> Vec<u32> {
        let (weight, bias) = weights.actor().last().unwrap();
        weight[arm * 32..][..32].iter().chain(&bias[arm..=arm]).map(|value| value.to_bits()).collect()
    };
    let moved = |arm| differing(&of_arm(&before, arm), &of_arm(&state.weights, arm));
    Verdict { aside: format!("{} of an allowed one", moved(1)), ..at_most(0.0, moved(2) as f64, &state) }
}

/// Mean return of the likeliest choices, where the one choice that counts is long past when it is paid.
fn delayed(seed: u64) -> Verdict {
    let config = PpoConfig { gamma: 0.99, total_decisions: 8 * 128 * 100, num_steps: 128, ..quick(seed) };
    let (state, reports) = train(config, Toys::<Delayed>::boxed(8));
    let (_, measured) = greedy::<Delayed>(&state, 100);
    let (_, drawn) = last(&reports, 5);
    Verdict { aside: format!("{drawn:.3} as drawn in training"), ..at_least(0.99, measured, &state) }
}

/// The worst error of the values of a clock's four phases, which earns 1 every fourth tick: `v = γ^(ticks until then) v₀`
/// with `v₀ = 1 + γ⁴ v₀` as long as a cut is no end; where a round is all there is, `v₀ = 1` and the others are 0.
fn values<const ENDS: bool>(seed: u64, num_steps: usize) -> Verdict {
    let gamma = 0.9_f64;
    let total_decisions = 8 * num_steps as u64 * 400;
    let config = PpoConfig { gamma, learning_rate: 0.01, total_decisions, num_steps, ..quick(seed) };
    let (state, _) = train(config, Toys::<Clock<ENDS>>::boxed(8));
    let error = |phase: usize| {
        let ticks = (4 - phase as i32) % 4;
        let expected = match (ENDS, phase) {
            (true, 0) => 1.0,
            (true, _) => 0.0,
            (false, _) => gamma.powi(ticks) / (1.0 - gamma.powi(4)),
        };
        let mut row = vec![0.0; 4];
        row[phase] = 1.0;
        (f64::from(value(&state, row)) - expected).abs()
    };
    at_most(0.02, (0..4).map(error).fold(0.0, f64::max), &state)
}

/// Of all weights and all that the optimiser remembers, and of the reports; trained on one thread and on three.
fn trained_twice(seed: u64, num_envs: usize) -> Verdict {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| train(cartpole(seed, num_envs as u64 * 128 * 16), Toys::<CartPole>::boxed(num_envs)))
    };
    let ((first, reports), (second, again)) = (run(1), run(3));
    let bits = |TrainerState { weights, optimiser, .. }: &TrainerState| -> Vec<u32> {
        let all = weights.values().iter().chain(&optimiser.first).chain(&optimiser.second);
        all.flatten().map(|value| value.to_bits()).collect()
    };
    let of = bits(&first).len() + reports.len();
    let measured = differing(&bits(&first), &bits(&second)) + differing(&reports, &again);
    Verdict { aside: format!("of {of}"), ..at_most(0.0, measured as f64, &second) }
}

/// Of the checkpoints of two runs, one of which was put to disk and taken up again after 5, 6 and 30 of 48 iterations.
fn resumed<T: Toy + 'static>(seed: u64) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let [whole, cut] = ["whole", "cut"].map(|name| folder.path().join(name));
    let provenance = RunProvenance {
        profile: ActionProfile::Core,
        commit: None,
        experiment: String::new(),
        metadata: BTreeMap::new(),
    };
    let config = || cartpole(seed, 48 * 8 * 128);
    let (state, _) = train(config(), Toys::<T>::boxed(8));
    checkpoint::save(&whole, &state, &provenance).unwrap();

    let mut trainer = Trainer::new(config(), Toys::<T>::boxed(8), &Torch).unwrap();
    while !trainer.is_finished() {
        trainer.iterate().unwrap();
        if [5, 6, 30, 48].contains(&trainer.iteration()) {
            checkpoint::save(&cut, &trainer.state(), &provenance).unwrap();
            (trainer, _) = checkpoint::load_trainer(&cut, Toys::<T>::boxed(8), &Torch).unwrap();
        }
    }
    let mut names: Vec<_> = fs::read_dir(&whole).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let files = |path: &Path| -> Vec<u8> { names.iter().flat_map(|name| fs::read(path.join(name)).unwrap()).collect() };
    let (whole, cut) = (files(&whole), files(&cut));
    Verdict {
        aside: format!("of {} in {} files", whole.len(), names.len()),
        ..at_most(0.0, differing(&whole, &cut) as f64, &state)
    }
}

/// Gymnasium calls `CartPole-v1` solved at a mean return of 475 over 100 episodes: here of the likeliest choices, from
/// starts that training never saw, after at most 500,000 decisions.
fn solved(seed: u64) -> Verdict {
    let (state, reports) = train(cartpole(seed, 500_000), Toys::<CartPole>::boxed(8));
    let (_, measured) = greedy::<CartPole>(&state, 100);
    let trained: Vec<&Episode> = reports.iter().flat_map(|report| &report.episodes).collect();
    let (_, drawn) = means(trained[trained.len() - 100..].iter().copied());
    Verdict { aside: format!("{drawn:.1} over the last 100 in training"), ..at_least(475.0, measured, &state) }
}

fn at_least(bound: f64, measured: f64, state: &TrainerState) -> Verdict {
    Verdict { decisions: state.decisions, measured, required: Required::AtLeast(bound), aside: String::new() }
}

fn at_most(bound: f64, measured: f64, state: &TrainerState) -> Verdict {
    Verdict { required: Required::AtMost(bound), ..at_least(bound, measured, state) }
}

/// How many differ, counting what only one has.
fn differing<T: PartialEq>(first: &[T], second: &[T]) -> usize {
    first.iter().zip(second).filter(|(first, second)| first != second).count() + first.len().abs_diff(second.len())
}
