"""An evolution strategy in NumPy alone (Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"):
the mean moves along the noise, weighed by the ranks of what it attained. Then the policy is saved as a checkpoint.

    python examples/python/evolution.py --generations 20 --out runs/evolution
"""

import argparse

import numpy as np

from kvtide.evaluate import Arena

options = argparse.ArgumentParser()
options.add_argument("--scenario", default="chat-24g")
options.add_argument("--generations", type=int, default=20)
options.add_argument("--pairs", type=int, default=32)
options.add_argument("--episodes", type=int, default=8)
options.add_argument("--out")
options = options.parse_args()

arena = Arena(options.scenario)
rng, mean, sigma, rate = np.random.default_rng(1), arena.start, 0.3, 0.3
for generation in range(options.generations):
    noise = rng.standard_normal((options.pairs, arena.dimension))
    seeds = rng.integers(2**32, size=options.episodes)  # the same for all candidates: they share the luck of the draw
    points = np.concatenate([mean + sigma * noise, mean - sigma * noise, [mean]])
    scores = arena.play(points, seeds).score()
    ranks = scores[:-1].argsort().argsort() / (2 * options.pairs - 1) - 0.5
    mean = mean + rate * sigma * (ranks[: options.pairs] - ranks[options.pairs :]) @ noise / options.pairs**0.5
    print(f"generation {generation + 1}: mean {scores[-1]:.4f}, best {scores.max():.4f}")
if options.out:
    arena.save(mean, options.out, made_by="an evolution strategy")
    print(f"kvtide export --checkpoint {options.out} --out policy.kvt")
