//! A world by other clocks than its profile's own.

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{ClockFactors, Deployment};

use super::World;

/// Most draws of the clock.
pub const MAX_CLOCK_DRAWS: u32 = 1000;
/// Seed of the clocks that policies are judged by.
const JUDGING: u64 = 0;

impl World {
    /// The same world by draw `draw` of its clock, which is within the spread of its hardware's profile; by draw 0 it is itself.
    /// The engine's settings, the price list of preemptions among them, the pool, the targets and the host stay: a node's do not
    /// follow what its steps turn out to take.
    #[must_use]
    pub fn by_clock(&self, draw: u32) -> World {
        if draw == 0 {
            return self.clone();
        }
        let mut world = self.clone();
        world.node.cost = self.drawn_cost(JUDGING, draw.into());
        world.clock_draw = Some(draw);
        world
    }

    /// Prices of steps by draw `draw` under `seed`.
    pub fn drawn_cost(&self, seed: u64, draw: u64) -> CostModel {
        let hardware = self.deployment.hardware.drawn(seed, draw);
        CostModel::new(&Deployment { hardware, ..self.deployment.clone() }, self.node.engine.block_size)
    }

    /// What draw `draw` of the clock multiplies times by.
    pub fn clock_factors(&self, draw: u32) -> ClockFactors {
        self.deployment.hardware.clock_spread().factors(JUDGING, draw.into())
    }

    /// The groups of constants that times depend on here.
    fn clock_groups(&self) -> Vec<&'static str> {
        let mut groups = self.deployment.hardware.clock_groups();
        let has = |group: &&str| match *group {
            "link" => self.deployment.devices > 1,
            "copies" => self.node.engine.num_cpu_blocks > 0,
            _ => true,
        };
        groups.retain(has);
        groups
    }

    /// The factors that times depend on here, as `products ×1.12, memory ×0.95`.
    pub fn factors_text(&self, factors: &ClockFactors) -> String {
        self.met(factors.by_group(), |factor| format!("×{factor:.2}"))
    }

    /// How far its clocks are drawn apart: `clocks of h100, drawn with standard deviations of products 15 %, memory 15 %`.
    pub fn spread_text(&self) -> String {
        let hardware = &self.deployment.hardware;
        let met = self.met(hardware.clock_spread().by_group(), |spread| format!("{:.0} %", spread * 100.0));
        format!("clocks of {}, drawn with standard deviations of {met}", hardware.name)
    }

    /// The groups that times depend on here, with a number each.
    fn met(&self, numbers: Vec<(&'static str, f64)>, text: impl Fn(f64) -> String) -> String {
        let groups = self.clock_groups();
        let met = numbers.into_iter().filter(|(group, _)| groups.contains(group));
        met.map(|(group, number)| format!("{group} {}", text(number))).collect::<Vec<String>>().join(", ")
    }
}
