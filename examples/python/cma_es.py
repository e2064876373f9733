"""CMA-ES over the linear policy (pip install cma): only ask and tell; kvtide plays.

    python examples/python/cma_es.py --generations 20 --out runs/cma
"""

import argparse

import cma
import numpy as np

from kvtide.evaluate import Arena

options = argparse.ArgumentParser()
options.add_argument("--scenario", default="chat-24g")
options.add_argument("--generations", type=int, default=20)
options.add_argument("--population", type=int, default=32)
options.add_argument("--episodes", type=int, default=8)
options.add_argument("--out")
options = options.parse_args()

arena = Arena(options.scenario)
rng = np.random.default_rng(1)
# Some hundred coordinates: the diagonal of the covariance is learned, not all of it.
strategy = cma.CMAEvolutionStrategy(arena.start, 0.3, {"popsize": options.population, "CMA_diagonal": True, "seed": 1, "verbose": -9})
for generation in range(options.generations):
    points = np.array(strategy.ask())
    scores = arena.play(points, rng.integers(2**32, size=options.episodes)).score()
    strategy.tell(points, -scores)
    print(f"generation {generation + 1}: mean {scores.mean():.4f}, best {scores.max():.4f}")
if options.out:
    arena.save(strategy.result.xfavorite, options.out, made_by="CMA-ES")
    print(f"kvtide export --checkpoint {options.out} --out policy.kvt")
