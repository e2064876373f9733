//! Cached blocks as assets: who goes under which rule, in conversations small enough to know what is right, and what must hold in all.

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::Deployment;
use kvtide_envs::token_price::{
    Attention, Conversation, FEATURES, KeepRule, PriceRule, Process, Return, ReturnPredictor, ServeConfig, Served,
    serve,
};

/// What a block had last is what it will have.
struct Persistent;

impl ReturnPredictor for Persistent {
    fn predict(&self, features: &[f32; FEATURES]) -> Return {
        Return { mean: features[0].exp_m1(), variance: 1.0 }
    }
}

fn cost() -> CostModel {
    CostModel::new(&Deployment::load("llama-3-8b@h100").unwrap(), 16)
}

fn config<'a>(
    attention: &'a Attention,
    cost: &'a CostModel,
    streams: u32,
    capacity: Option<u32>,
    rule: KeepRule<'a>,
) -> ServeConfig<'a> {
    // Nothing has all of a row, so nothing comes back.
    ServeConfig { attention, streams, steps: 400, capacity, rule, cost, step_tokens: 2048, demand: 1.0, penalty: 0.02 }
}

fn price(rate: f64, first_price: f64, target: u32) -> PriceRule<'static> {
    PriceRule { risk_aversion: 0.0, rate, first_price, target, predictor: &Persistent }
}

/// A prompt of four blocks, of which the first has half of every row for ever; the rest goes to the others alike. Eight blocks of answer.
fn sink() -> Attention {
    let row = |blocks: usize| {
        let mut row = vec![0.5 / (blocks - 1) as f32; blocks];
        row[0] = 0.5;
        row
    };
    let one = Conversation::new(4, (4..=12).map(row)).unwrap();
    Attention { name: "sink".to_owned(), block_tokens: 16, conversations: vec![one] }
}

/// Attention retained by one stream with room for six blocks.
fn retained(rule: KeepRule<'_>) -> f64 {
    serve(&config(&sink(), &cost(), 1, Some(6), rule)).retained
}

#[test]
fn with_room_for_all_nothing_is_lost_and_every_row_counts() {
    let (attention, cost) = (sink(), cost());
    let served = serve(&config(&attention, &cost, 1, None, KeepRule::Fifo));
    assert!((served.retained - 1.0).abs() < 1e-5 && served.evicted == 0 && served.recomputed == 0);
    assert_eq!(served.peak_blocks, 12);
    // A step for the prompt and its first token, then 127 for the rest of the answer.
    assert_eq!((served.latencies.len(), served.rows), (400 / 128, 400 / 16));
    assert!((served.utility - 25.0).abs() < 1e-3, "{}", served.utility);
}

#[test]
fn each_rule_lets_go_of_its_own() {
    // FIFO loses the sink with the first block that goes, and has half of what it had; the others keep it.
    let [fifo, lru, h2o] = [KeepRule::Fifo, KeepRule::Lru, KeepRule::H2o].map(retained);
    let priced = retained(KeepRule::TokenPd(price(0.0, 1e-3, 6)));
    assert!(fifo < 0.6, "{fifo}");
    for kept in [lru, h2o, priced] {
        assert!(kept > 0.75, "{lru} {h2o} {priced}");
    }
}

#[test]
fn the_price_is_the_formula_and_lets_go_of_what_is_worth_less() {
    let (attention, cost) = (sink(), cost());
    let served = serve(&config(&attention, &cost, 1, None, KeepRule::TokenPd(price(0.5, 0.1, 8))));
    let mut price_now = 0.1;
    for stamp in &served.stamps {
        price_now = f64::clamp(price_now * (0.5 * (f64::from(stamp.demanded) - 8.0) / 8.0).exp(), 1e-3, 1e2);
        assert!((stamp.price - price_now).abs() < 1e-9 * price_now, "{stamp:?}, must be {price_now}");
    }
    // A price that nothing is worth, but for what is being written; and one that everything is.
    let at =
        |first: f64| serve(&config(&attention, &cost, 1, None, KeepRule::TokenPd(price(0.0, first, 8)))).peak_blocks;
    assert_eq!((at(100.0), at(1e-3)), (1, 12));
}

#[test]
fn what_is_wanted_enough_comes_back_and_costs_time() {
    let (attention, cost) = (sink(), cost());
    let run = |demand: f32| serve(&ServeConfig { demand, ..config(&attention, &cost, 1, Some(6), KeepRule::Fifo) });
    let (without, with) = (run(1.0), run(0.4));
    assert!(with.recomputed > 0 && without.recomputed == 0);
    // FIFO lets go of the sink at once again, so that it is there in no row more.
    assert!((with.retained - without.retained).abs() < 1e-6 && with.time >= without.time);
    assert!((with.utility - (with.retained * with.rows as f64 - 0.02 * with.recomputed as f64)).abs() < 1e-6);
}

#[test]
fn whatever_the_rule_blocks_are_counted_and_a_seed_says_the_same() {
    let cost = cost();
    let process: Process = "mixed:prompt=128,answer=128,n=8".parse().unwrap();
    for seed in 0..4 {
        let attention = process.draw(seed);
        for rule in [KeepRule::Fifo, KeepRule::Lru, KeepRule::H2o, KeepRule::TokenPd(price(0.1, 0.1, 40))] {
            let run = || serve(&ServeConfig { demand: 0.05, ..config(&attention, &cost, 8, Some(60), rule) });
            let served: Served = run();
            assert_eq!(served, run(), "{}", rule.name());
            for stamp in &served.stamps {
                assert!(stamp.kept <= 60 && stamp.kept <= stamp.demanded, "{}: {stamp:?}", rule.name());
            }
            assert!((0.0..=1.0001).contains(&served.retained) && served.evicted > 0, "{}", rule.name());
        }
    }
}
