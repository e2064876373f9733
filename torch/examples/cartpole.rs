//! Our PPO on the cart-pole of the tests, for the referee in `experiments/referee`, where others learn it as well.
//!
//! `cartpole NUM_ENVS < settings.json`: the settings are those of `[ppo]` in an experiment. A line of JSON for each iteration, and at
//! the end one with the mean return of the likeliest choices over 100 episodes that training never saw.

#[path = "../tests/toys/mod.rs"]
mod toys;

use std::error::Error;
use std::io::{self, Write};
use std::sync::atomic::AtomicBool;

use kvtide::agent::{PpoConfig, Trainer};
use kvtide_torch::Torch;
use serde_json::json;
use toys::{CartPole, Toys, greedy};

fn main() -> Result<(), Box<dyn Error>> {
    let num_envs = std::env::args().nth(1).ok_or("cartpole NUM_ENVS < settings.json")?.parse()?;
    let config: PpoConfig = serde_json::from_reader(io::stdin().lock())?;
    let mut trainer = Trainer::new(config, Toys::<CartPole>::boxed(num_envs), &Torch)?;
    #[expect(clippy::disallowed_methods, reason = "says how long it took; nothing depends on it")]
    let started = std::time::Instant::now();
    trainer.run(&AtomicBool::new(false), |_, report| {
        let returns: Vec<f64> = report.episodes.iter().map(|episode| episode.episode_return).collect();
        let seconds = started.elapsed().as_secs_f64();
        writeln!(io::stdout(), "{}", json!({ "decisions": report.decisions, "seconds": seconds, "returns": returns }))?;
        Ok::<(), Box<dyn Error>>(())
    })?;
    let (_, measured) = greedy::<CartPole>(&trainer.state(), 100);
    writeln!(io::stdout(), "{}", json!({ "greedy": measured }))?;
    Ok(())
}
