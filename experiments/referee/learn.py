"""One learner on one problem with one seed: `learn.py LEARNER PROBLEM SEED SETTING FOLDER`, a line of JSON for each iteration."""

import json
import pathlib
import sys
import time

import numpy as np

from settings import LEARN, SPEED

LEARNERS = ("ours", "sb3", "sb3-maskable", "plain")


class Log:
    """Lines on stdout. Seconds are of the wall since learning began, and of all processors."""

    def __init__(self, **said):
        self.said, self.began, self.cpu = said, None, None

    def start(self):
        self.began, self.cpu = time.perf_counter(), time.process_time()

    def iteration(self, samples, returns, attained, acting):
        spent = {"cpu_s": time.process_time() - self.cpu, "acting_s": acting}
        self.row(samples, time.perf_counter() - self.began, returns, attained, **spent)

    def row(self, samples, seconds, returns, attained, **spent):
        row = {"samples": samples, "seconds": seconds, "episodes": len(returns)} | spent
        row = {key: round(value, 3) for key, value in row.items()}
        if returns:
            row["return"] = float(np.mean(returns))
        if attained:
            row["attained"] = float(np.mean(attained))
        self.write("iteration", row)

    def write(self, kind, row):
        print(json.dumps({"type": kind, "data": self.said | row}), flush=True)


def played(greedy, episodes=100):
    """The mean return on Gymnasium's cart-pole from starts that training never saw."""
    from worlds import vector_env

    envs = vector_env("cartpole", episodes)
    observations, _ = envs.reset(seed=1_000_000)
    returns, running = np.zeros(episodes), np.ones(episodes, dtype=bool)
    while running.any():
        observations, rewards, terminated, truncated, _ = envs.step(greedy(observations))
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def main():
    learner, problem, seed, setting, folder = sys.argv[1:]
    settings = (LEARN[problem] if setting == "learn" else SPEED[setting]).planned()
    folder = pathlib.Path(folder)
    log = Log(learner=learner, problem=problem, seed=int(seed), setting=setting)
    greedy = None
    if learner == "ours":
        import ours

        greedy = ours.learn(problem, int(seed), settings, folder, log)
    else:
        import plain
        import sb3

        tensors, choices = (plain if learner == "plain" else sb3).learn(learner, problem, int(seed), settings, log)
        if setting == "learn" and problem == "cartpole":
            greedy = played(choices)
        if setting == "learn" and problem == "kv":
            keep(tensors, folder, "cleanrl" if learner == "plain" else "sb3", settings, seed)
    if greedy is not None:
        log.write("greedy", {"return": greedy})


def keep(tensors, folder, layout, settings, seed):
    """As `kvtide import-policy` takes it."""
    from safetensors.torch import save_file

    import kvtide
    from worlds import EXPERIMENT

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "policy.safetensors")
    lines = {"layout": layout, "weights": "policy.safetensors", "experiment": str(EXPERIMENT), "schema": f"{kvtide.SCHEMA_HASH:016x}"}
    manifest = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    (folder / "import.toml").write_text(f"{manifest}decisions = {settings.samples}\nseed = {seed}\n")


if __name__ == "__main__":
    main()
