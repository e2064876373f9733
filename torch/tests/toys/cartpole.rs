//! The cart-pole of Barto, Sutton, Anderson 1983 ("Neuronlike adaptive elements that can solve difficult learning control
//! problems"), with the constants of Gymnasium's `CartPole-v1`; a test holds it against episodes recorded there.

use kvtide_envs::seed::Stream;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::Toy;

const GRAVITY: f64 = 9.8;
const CART_MASS: f64 = 1.0;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = CART_MASS + POLE_MASS;
/// Half the pole.
const LENGTH: f64 = 0.5;
const FORCE: f64 = 10.0;
const SECONDS: f64 = 0.02;
const MAX_POSITION: f64 = 2.4;
const MAX_ANGLE: f64 = 12.0 * std::f64::consts::TAU / 360.0;

/// Position, velocity, angle, angular velocity.
#[derive(Serialize, Deserialize)]
pub struct CartPole {
    pub state: [f64; 4],
}

impl Toy for CartPole {
    const OBSERVATION: usize = 4;
    const HEADS: &'static [usize] = &[2];
    const LIMIT: u64 = 500;

    fn new(stream: &mut Stream) -> Self {
        CartPole { state: std::array::from_fn(|_| stream.random_range(-0.05..0.05)) }
    }

    fn observe(&self, row: &mut [f32]) {
        row.iter_mut().zip(self.state).for_each(|(value, state)| *value = state as f32);
    }

    fn step(&mut self, action: &[u8], _: &mut Stream) -> (f32, bool) {
        let [position, velocity, angle, spin] = self.state;
        let force = if action[0] == 1 { FORCE } else { -FORCE };
        let (sin, cos) = angle.sin_cos();
        let pushed = (force + POLE_MASS * LENGTH * spin * spin * sin) / TOTAL_MASS;
        let turning = (GRAVITY * sin - cos * pushed) / (LENGTH * (4.0 / 3.0 - POLE_MASS * cos * cos / TOTAL_MASS));
        let acceleration = pushed - POLE_MASS * LENGTH * turning * cos / TOTAL_MASS;
        self.state = [
            position + SECONDS * velocity,
            velocity + SECONDS * acceleration,
            angle + SECONDS * spin,
            spin + SECONDS * turning,
        ];
        (1.0, self.state[0].abs() > MAX_POSITION || self.state[2].abs() > MAX_ANGLE)
    }
}
