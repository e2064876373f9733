//! Environments whose best policy and value are known in closed form.

use kvtide_envs::seed::Stream;
use kvtide_runtime::NUM_FEATURES;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::Toy;

/// Two one-hot symbols; each head earns ½ by naming its own. About a third of the wrong names are forbidden if `MASKED`.
#[derive(Serialize, Deserialize)]
pub struct Identity<const MASKED: bool> {
    symbols: [u8; 2],
    forbidden: [bool; 7],
}

impl<const MASKED: bool> Toy for Identity<MASKED> {
    const OBSERVATION: usize = 7;
    const HEADS: &'static [usize] = &[3, 4];
    const LIMIT: u64 = 16;

    fn new(stream: &mut Stream) -> Self {
        let symbols = [stream.random_range(0..3), stream.random_range(0..4)];
        let mut forbidden: [bool; 7] = std::array::from_fn(|_| MASKED && stream.random_range(0..3) == 0);
        forbidden[usize::from(symbols[0])] = false;
        forbidden[usize::from(symbols[1]) + 3] = false;
        Identity { symbols, forbidden }
    }

    fn observe(&self, row: &mut [f32]) {
        row.fill(0.0);
        row[usize::from(self.symbols[0])] = 1.0;
        row[usize::from(self.symbols[1]) + 3] = 1.0;
    }

    fn mask(&self, row: &mut [bool]) {
        row.iter_mut().zip(self.forbidden).for_each(|(allowed, forbidden)| *allowed = !forbidden);
    }

    fn step(&mut self, action: &[u8], stream: &mut Stream) -> (f32, bool) {
        let right = action.iter().zip(self.symbols).filter(|(choice, symbol)| **choice == *symbol).count();
        *self = Identity::new(stream);
        (right as f32 / 2.0, false)
    }
}

/// Four arms that earn `OFFSET` and 0.1, 0.6, 1 or 0.3 of a `SHARE`th; the third is never allowed.
#[derive(Serialize, Deserialize)]
pub struct Bandit<const SHARE: u16 = 1, const OFFSET: u16 = 0> {}

impl<const SHARE: u16, const OFFSET: u16> Toy for Bandit<SHARE, OFFSET> {
    const OBSERVATION: usize = 1;
    const HEADS: &'static [usize] = &[4];
    const LIMIT: u64 = 8;

    fn new(_: &mut Stream) -> Self {
        Bandit {}
    }

    fn observe(&self, row: &mut [f32]) {
        row[0] = 1.0;
    }

    fn mask(&self, row: &mut [bool]) {
        row[2] = false;
    }

    fn step(&mut self, action: &[u8], _: &mut Stream) -> (f32, bool) {
        (f32::from(OFFSET) + [0.1, 0.6, 1.0, 0.3][usize::from(action[0])] / f32::from(SHARE), false)
    }
}

/// One of three symbols is shown, then nothing for fifteen ticks in which waiting is the only choice. The last tick earns
/// 1 if the first named the symbol; nothing seen between tells, so no value can: only the sum of GAE reaches back.
#[derive(Serialize, Deserialize)]
pub struct Delayed {
    symbol: u8,
    tick: u8,
    right: bool,
}

const DELAY: u8 = 16;
const WAIT: usize = 3;

impl Toy for Delayed {
    const OBSERVATION: usize = 4;
    const HEADS: &'static [usize] = &[4];
    const LIMIT: u64 = 100;

    fn new(stream: &mut Stream) -> Self {
        Delayed { symbol: stream.random_range(0..3), tick: 0, right: false }
    }

    fn observe(&self, row: &mut [f32]) {
        row.fill(0.0);
        row[WAIT] = f32::from(self.tick) / f32::from(DELAY);
        if self.tick == 0 {
            row[usize::from(self.symbol)] = 1.0;
        }
    }

    fn mask(&self, row: &mut [bool]) {
        row.fill(self.tick == 0);
        row[WAIT] = self.tick > 0;
    }

    fn step(&mut self, action: &[u8], _: &mut Stream) -> (f32, bool) {
        if self.tick == 0 {
            self.right = action[0] == self.symbol;
        }
        self.tick += 1;
        let ended = self.tick == DELAY;
        (f32::from(u8::from(ended && self.right)), ended)
    }
}

/// A clock of four phases that earns 1 at the first of them. If it `ENDS`, an episode is one round from the first phase;
/// else it starts anywhere and is cut short after three ticks.
#[derive(Serialize, Deserialize)]
pub struct Clock<const ENDS: bool> {
    phase: usize,
}

impl<const ENDS: bool> Toy for Clock<ENDS> {
    const OBSERVATION: usize = 4;
    const HEADS: &'static [usize] = &[2];
    const LIMIT: u64 = if ENDS { 100 } else { 3 };

    fn new(stream: &mut Stream) -> Self {
        Clock { phase: if ENDS { 0 } else { stream.random_range(0..4) } }
    }

    fn observe(&self, row: &mut [f32]) {
        row.fill(0.0);
        row[self.phase] = 1.0;
    }

    fn step(&mut self, _: &[u8], _: &mut Stream) -> (f32, bool) {
        let reward = f32::from(u8::from(self.phase == 0));
        self.phase = (self.phase + 1) % 4;
        (reward, ENDS && self.phase == 0)
    }
}

/// Everything kvtide's own environment has the shape of: its features, four heads. Earns by naming the largest of the
/// first three features on the victim head; the preemption head is pinned.
#[derive(Serialize, Deserialize)]
pub struct Serving {
    features: Vec<f32>,
}

impl Toy for Serving {
    const OBSERVATION: usize = NUM_FEATURES;
    const HEADS: &'static [usize] = &[20, 5, 3, 3, 9, 2];
    const LIMIT: u64 = 50;

    fn new(stream: &mut Stream) -> Self {
        Serving { features: (0..NUM_FEATURES).map(|_| stream.random_range(0.0..1.0)).collect() }
    }

    fn observe(&self, row: &mut [f32]) {
        row.copy_from_slice(&self.features);
    }

    fn mask(&self, row: &mut [bool]) {
        row[17] = false;
        row[19] = false;
    }

    fn step(&mut self, action: &[u8], stream: &mut Stream) -> (f32, bool) {
        let best = (0..3).max_by(|&a, &b| self.features[a].total_cmp(&self.features[b]));
        let right = best == Some(usize::from(action[1]));
        *self = Serving::new(stream);
        (f32::from(u8::from(right)), false)
    }
}

/// Sound until its third step; then it does what `HOW` says: 0 a reward of NaN, 1 an infinite observation, 2 a mask that
/// allows nothing, 3 a reward whose square is no `f32`.
#[derive(Serialize, Deserialize)]
pub struct Broken<const HOW: u8> {
    steps: u32,
}

impl<const HOW: u8> Toy for Broken<HOW> {
    const OBSERVATION: usize = 2;
    const HEADS: &'static [usize] = &[2, 3];
    const LIMIT: u64 = 100;

    fn new(_: &mut Stream) -> Self {
        Broken { steps: 0 }
    }

    fn observe(&self, row: &mut [f32]) {
        row.fill(if HOW == 1 && self.steps >= 3 { f32::INFINITY } else { 0.5 });
    }

    fn mask(&self, row: &mut [bool]) {
        if HOW == 2 && self.steps >= 3 {
            row[2..].fill(false);
        }
    }

    fn step(&mut self, _: &[u8], _: &mut Stream) -> (f32, bool) {
        self.steps += 1;
        let reward = match (HOW, self.steps) {
            (0, 3) => f32::NAN,
            (3, 3) => 1e30,
            _ => 1.0,
        };
        (reward, false)
    }
}

/// Pays for taking the choice that was taken before.
#[derive(Serialize, Deserialize)]
pub struct Steady {
    last: Option<u8>,
}

impl Toy for Steady {
    const OBSERVATION: usize = 1;
    const HEADS: &'static [usize] = &[4];
    const LIMIT: u64 = 32;

    fn new(_: &mut Stream) -> Steady {
        Steady { last: None }
    }

    fn observe(&self, row: &mut [f32]) {
        row[0] = 1.0;
    }

    fn step(&mut self, action: &[u8], _: &mut Stream) -> (f32, bool) {
        let again = self.last.replace(action[0]) == Some(action[0]);
        (f32::from(u8::from(again)), false)
    }
}
