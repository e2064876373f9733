"""RLlib's PPO on a small world, and what it learned as a table a node runs.

    python examples/python/ray_rllib.py --experiment experiments/chat-24g.toml --iterations 50 --out runs/rllib
    kvtide import-policy runs/rllib/manifest.json --out runs/rllib/checkpoint
    kvtide export --checkpoint runs/rllib/checkpoint --out runs/rllib/policy.kvt

Needs kvtide[ray,gym], ray[rllib] and torch. --address joins a cluster; without it one of this machine's own is started.
"""

import argparse

from kvtide.ray import connect, rllib


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", required=True, help="the file whose world it learns in")
    parser.add_argument("--out", required=True, help="folder for the weights and the manifest")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--runners", type=int, default=1, help="processes that play")
    parser.add_argument("--address", default="local", help="of a Ray cluster")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()

    connect(asked.address)
    algorithm = rllib.ppo({"scenario": asked.experiment}, runners=asked.runners, seed=asked.seed).build_algo()
    for iteration in range(1, asked.iterations + 1):
        found = algorithm.train()["env_runners"]
        print(f"{iteration:4} mean return {found.get('episode_return_mean', float('nan')):.3f}", flush=True)
    print(rllib.export(algorithm, asked.out, experiment=asked.experiment))
    algorithm.stop()


if __name__ == "__main__":
    main()
