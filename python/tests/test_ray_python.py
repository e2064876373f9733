"""`kvtide.evaluate` on a cluster of two, Ray Tune over it, and RLlib's PPO, which ships. Needs what `make ray-test` sets up."""

import os
import subprocess
import threading

import pytest
from ray_cluster import cluster, kill_one_at_work

pytest.importorskip("ray", reason="Ray is not installed: make ray-test sets it up")
pytest.importorskip("torch", reason="PyTorch is not installed: make ray-test sets it up")
TOOL = os.environ.get("KVTIDE", "")
if not TOOL:
    pytest.skip("KVTIDE does not name the kvtide program: make ray-test does", allow_module_level=True)

import numpy as np  # noqa: E402

WORLD = {"workload": "chat:rate=5,duration=300", "length_s": 100, "load": (0.8, 1.6)}


@pytest.fixture(scope="module")
def ray():
    with cluster(2) as made:
        from kvtide.ray import connect

        joined = connect(made.address)
        yield joined
        joined.shutdown()


def columns(played):
    return {name: column.tobytes() for name, column in vars(played).items()}


def test_candidates_are_played_as_here_with_a_worker_killed(ray):
    from kvtide.evaluate import Arena
    from kvtide.ray import search

    arena = Arena(WORLD)
    candidates = arena.start + 0.2 * np.random.default_rng(1).standard_normal((6, arena.dimension))
    alone = arena.play(candidates, range(9))
    killer = threading.Thread(target=lambda: kill_one_at_work(titles=("ray::_play",)))
    killer.start()
    spread = search.play(arena, candidates, range(9), tasks=18)
    killer.join()
    assert columns(spread) == columns(alone)
    words = ["default", "fixed:0.05"]
    assert columns(search.play(arena, words, 3, tasks=5)) == columns(arena.play(words, 3))


def test_candidates_are_cut_evenly():
    from kvtide.ray.search import cut

    assert [cut(*sizes) for sizes in [(66, 16, 8), (66, 16, 66), (6, 9, 18), (2, 3, 99), (1, 1, 4)]] == [
        (9, 16), (1, 16), (1, 3), (1, 1), (1, 1)
    ]  # fmt: skip


def test_tune_finds_what_playing_all_finds(ray, tmp_path):
    from kvtide.evaluate import Arena
    from kvtide.ray.tune import trial
    from ray import tune

    marks = [0.0, 0.1, 0.5]
    tuner = tune.Tuner(
        trial(lambda config: f"fixed:{config['watermark']}", WORLD, seeds=3),
        param_space={"watermark": tune.grid_search(marks)},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="marks", verbose=0),
    )
    results = tuner.fit()
    assert not results.errors
    found = {result.config["watermark"]: result.metrics["score"] for result in results}
    expected = Arena(WORLD).play([f"fixed:{mark}" for mark in marks], 3).score()
    assert [found[mark] for mark in marks] == list(expected)
    # Of a node's settings, in the same way.
    assert trial(lambda config: {"pool": config["pool"]}, WORLD, seeds=2)({"pool": 0.5})["attainment"] <= 1.0


EXPERIMENT = """
name = "rllib"
profile = "core"
[world]
workload = "chat:rate=5,duration=300"
[episodes]
fit = 1.0
length_s = 60.0
load = [1.0, 1.6]
"""


def test_what_rllib_learned_ships(ray, tmp_path):
    from kvtide.ray import rllib

    experiment = tmp_path / "small.toml"
    experiment.write_text(EXPERIMENT)
    small = {"train_batch_size_per_learner": 256, "minibatch_size": 64, "num_epochs": 2}
    algorithm = rllib.ppo({"scenario": str(experiment)}, runners=1, hidden=(16, 16), **small).build_algo()
    before = _actor(algorithm)
    for _ in range(2):
        found = algorithm.train()
        assert found["env_runners"]["num_env_steps_sampled"] > 0
    after = _actor(algorithm)
    assert all(np.isfinite(after[name]).all() for name in after) and any((after[name] != before[name]).any() for name in after)
    manifest = rllib.export(algorithm, tmp_path / "out", experiment=experiment)
    seen, allowed, logits = _decided(algorithm)
    algorithm.stop()
    # What the mask forbids has no probability there.
    assert (logits[~allowed] < -1e30).all() and np.isfinite(logits[allowed]).all() and seen.shape[1] == 35

    def tool(*words):
        done = subprocess.run([TOOL, *map(str, words)], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    tool("import-policy", manifest, "--out", "checkpoint")
    # Of two iterations nothing is asked but that it goes the whole way.
    tool("export", "--checkpoint", "checkpoint", "--leaves", 16, "--episodes", 4, "--max-loss", 100, "--out", "policy.kvt")
    world = ["--workload", "chat:rate=5,duration=120", "--policy", "checkpoint:checkpoint", "--policy", "table:policy.kvt"]
    assert tool("evaluate", *world, "--json").count('"type":"run"') == 2


def _actor(algorithm):
    state = algorithm.get_module().state_dict()
    return {name: value.numpy().copy() for name, value in state.items() if name.startswith(("encoder.actor", "pi.net"))}


def _decided(algorithm):
    """Observations of an episode's beginning, what is allowed there, and the module's logits."""
    import torch
    from kvtide.ray import rllib

    env = rllib.environment(algorithm.config.env_config)
    observation, _ = env.reset(seed=3)
    batch = {"obs": {name: torch.as_tensor(value[None]) for name, value in observation.items()}}
    with torch.no_grad():
        logits = algorithm.get_module().forward_inference(batch)["action_dist_inputs"].numpy()
    env.close()
    return observation["observations"][None], observation["action_mask"][None].astype(bool), logits
