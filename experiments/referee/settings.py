"""What all learners are given: the same network and the same settings, in everybody's words."""

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """PPO with actor and critic of two layers of 64 each, tanh between, orthogonal to begin with; observations and rewards normalised,
    Adam with 1e-5, the learning rate falling to 0, advantages standardised in the minibatch, values not clipped."""

    num_envs: int
    num_steps: int
    num_epochs: int
    minibatch: int
    learning_rate: float
    gamma: float
    gae_lambda: float
    entropy_coef: float
    samples: int

    @property
    def batch(self):
        return self.num_envs * self.num_steps

    def planned(self):
        """Whole iterations, as all of them count."""
        return dataclasses.replace(self, samples=self.samples // self.batch * self.batch)


# What is learned: the cart-pole as `make learn-check` has it, and 64 nodes under pressure. Their discount was looked for with the plain
# learner (README.md): at 0.99 and more nobody learns much from so few decisions.
LEARN = {
    "cartpole": Settings(8, 128, 4, 256, 1e-3, 0.99, 0.95, 0.01, 150_000),
    "kv": Settings(64, 128, 4, 256, 1e-3, 0.95, 0.9, 0.0, 300_000),
}

# How fast: stable-baselines3 as it comes, and many environments with few passes.
SPEED = {
    "8 environments x 2048, 10 epochs of 64": Settings(8, 2048, 10, 64, 3e-4, 0.99, 0.95, 0.0, 16_384),
    "64 environments x 128, 4 epochs of 256": Settings(64, 128, 4, 256, 3e-4, 0.99, 0.95, 0.0, 3 * 8192),
}

CLIP, VALUE_COEF, MAX_GRAD_NORM, HIDDEN, ADAM_EPSILON, BOUND = 0.2, 0.5, 0.5, (64, 64), 1e-5, 10.0
