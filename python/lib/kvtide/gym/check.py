"""Checks the environments on this machine: `python -m kvtide.gym.check`.

Gymnasium's own checker, in every form of actions and observations; the same seeds and actions against the environments agents in Rust
train on, byte for byte, one by one and together; and how many decisions a second are left of theirs. Exit code 1: one of them failed.
"""

import argparse
import json
import statistics
import struct
import sys
import time
import warnings

import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from kvtide._sim import Reference, ScenarioError
from kvtide.gym import IDS, KvCacheEnv, KvCacheVectorEnv
from kvtide.scenario import scenario

# What must be left of the Rust-only decisions a second.
SHARE = 0.5


def check_api(world):
    """Gymnasium's checker on every form; its warnings are failures. The number of forms."""
    forms = [(actions, observations) for actions in ("multi", "flat") for observations in ("array", "dict")]
    for actions, observations in forms:
        env = KvCacheEnv(world, actions=actions, observations=observations, render_mode="rgb_array")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # Made by hand, it has no id to be made again by.
            warnings.filterwarnings("ignore", message=".*spec.*")
            check_env(env, skip_close_check=True)
        env.close()
    return len(forms)


def check_trajectories(world, *, num_envs=4, decisions=600, seed=1, threads=0):
    """Random play in Rust, again by `KvCacheVectorEnv` and by `KvCacheEnv`: the hash of it all. Raises AssertionError."""
    reference = Reference(world, num_envs, threads=threads)
    actions, seen, digest = reference.random_play(seed, decisions)
    actions = np.frombuffer(actions, dtype=np.uint8).reshape(decisions, num_envs, -1)
    seeds = Reference.env_seeds(seed, num_envs)
    for copy in (True, False):
        env = KvCacheVectorEnv(
            world, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, heads="all", masked="raise", copy=copy, threads=threads
        )
        assert _together(env, seeds, actions) == seen, "KvCacheVectorEnv plays another trajectory than Rust"
        env.close()
    single = [KvCacheEnv(world, heads="all", masked="raise") for _ in range(num_envs)]
    assert _one_by_one(single, seeds, actions) == seen, "KvCacheEnv plays another trajectory than Rust"
    return digest


def _seen(observation, mask, reward, terminated, truncated):
    head = np.asarray(observation, dtype="<f4").tobytes() + np.asarray(mask, dtype=np.uint8).tobytes()
    return head + struct.pack("<f??", reward, terminated, truncated)


def _together(env, seeds, actions):
    observations, _ = env.reset(seed=seeds)
    nothing = np.zeros(env.num_envs)
    seen = [_seen(*row) for row in zip(observations, env.action_masks(), nothing, nothing, nothing, strict=True)]
    for action in actions:
        observations, rewards, terminated, truncated, infos = env.step(action)
        rows = zip(observations, infos["action_mask"], rewards, terminated, truncated, strict=True)
        seen.extend(_seen(*row) for row in rows)
    return b"".join(seen)


def _one_by_one(envs, seeds, actions):
    rows = []
    for env, seed, own in zip(envs, seeds, actions.swapaxes(0, 1), strict=True):
        observation, info = env.reset(seed=seed)
        row = [_seen(observation, info["action_mask"], 0.0, False, False)]
        for action in own:
            observation, reward, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                observation, info = env.reset()
            row.append(_seen(observation, info["action_mask"], reward, terminated, truncated))
        rows.append(row)
        env.close()
    return b"".join(one for step in zip(*rows, strict=True) for one in step)


def throughput(world, *, num_envs=64, decisions=400, repeats=5, threads=0):
    """Decisions a second, medians of `repeats` in turn: in Rust alone, and from Python with and without copies."""
    reference = Reference(world, num_envs, threads=threads)
    reference.reset(1)
    seeds = Reference.env_seeds(1, num_envs)

    def native():
        reference.step_default(decisions)

    def python(copy):
        env = KvCacheVectorEnv(
            world, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, heads="all", copy=copy, threads=threads
        )
        env.reset(seed=seeds)
        action = env.engine_actions()

        def play():
            for _ in range(decisions):
                env.step(action)

        return play

    turns = {"rust": native, "python": python(True), "python, copy=False": python(False)}
    rates = {name: [] for name in turns}
    for _ in range(repeats):
        for name, play in turns.items():
            begun = time.perf_counter()
            play()
            rates[name].append(num_envs * decisions / (time.perf_counter() - begun))
    return {name: statistics.median(measured) for name, measured in rates.items()}


def main():
    parser = argparse.ArgumentParser(prog="python -m kvtide.gym.check", description=__doc__)
    parser.add_argument("--scenario", default="chat-24g", help=f"{', '.join(IDS.values())}, or an experiment file")
    parser.add_argument("--envs", type=int, default=64, help="environments whose speed is measured")
    parser.add_argument("--decisions", type=int, default=400, help="of each environment, a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: one a core")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    try:
        world = scenario(options.scenario)
        forms = check_api(world)
        digest = check_trajectories(world, threads=options.threads)
        sizes = {"num_envs": options.envs, "decisions": options.decisions, "repeats": options.repeats}
        rates = throughput(world, **sizes, threads=options.threads)
    except (ScenarioError, OSError) as error:
        sys.exit(f"error: {error}")
    except (AssertionError, Warning) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        sys.exit(1)
    shares = {name: rate / rates["rust"] for name, rate in rates.items() if name != "rust"}
    passed = min(shares.values()) >= SHARE
    if options.json:
        found = {"scenario": world.name, "num_envs": options.envs, "trajectory": digest}
        print(json.dumps(found | {"decisions_per_s": rates, "shares": shares, "passed": passed}))
    else:
        print(f"{world.name}: check_env passes, {forms} forms")
        print(f"{world.name}: the same trajectory from Rust and from Python, hash {digest}")
        for name, rate in rates.items():
            share = f", {100 * shares[name]:.0f} % of Rust's" if name in shares else ""
            print(f"{world.name}: {options.envs} environments, {name}: {rate:,.0f} decisions/s{share}")
    if not passed:
        print(f"FAILED: less than {100 * SHARE:.0f} % of Rust's decisions a second", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
