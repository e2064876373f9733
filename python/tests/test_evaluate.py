"""Candidates on the same worlds and seeds: the numbers of the command line, cut in any way, and what searchers make of them."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import kvtide
from kvtide.evaluate import Arena, Played, concatenate, play, simulate
from kvtide.scenario import ScenarioError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
WORDS = {"workload": "chat:rate=3,duration=40", "set": {"num_gpu_blocks": 600}, "length_s": 15, "load": (0.8, 1.6)}
COLUMNS = Played.__dataclass_fields__


@pytest.fixture(scope="module")
def arena():
    return Arena(WORDS)


@pytest.fixture(scope="module")
def points(arena):
    return arena.start + 0.3 * np.random.default_rng(1).standard_normal((5, arena.dimension))


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name != "hash") for name in COLUMNS)


def test_every_candidate_is_played_in_every_world_with_every_seed(arena, points):
    played = arena.play(points, [3, 1, 2])
    assert played.attainment.shape == (5, 1, 3)
    assert played.hash.dtype == np.uint64 and len(np.unique(played.hash[0])) == 3
    # All see the same traffic.
    assert (played.requests == played.requests[0]).all() and (played.load == played.load[0]).all()
    assert ((played.attainment >= 0) & (played.attainment <= 1)).all()
    assert np.isfinite(played.returns).all()
    assert len(np.unique(played.score())) > 1
    assert arena.worlds == ["chat:rate=3,duration=40 on llama-3-8b@rtx-4090"]


def test_the_first_point_is_the_prior(arena):
    first = arena.play(arena.start, 4)
    assert same(first, arena.play("default", 4))


def test_parts_are_those_of_the_whole(arena, points):
    whole = arena.play(points, 6)
    elsewhere = pickle.loads(pickle.dumps(arena))
    assert elsewhere.space == arena.space
    first, second = elsewhere.play(points[:2], 6), arena.play(points[2:], 6, threads=1)
    assert same(concatenate([first, second]), whole)
    by_seed = [arena.play(points, [seed], worlds=[0]) for seed in range(6)]
    assert same(concatenate(by_seed, axis=2), whole)
    assert same(play(points, arena, range(6)), whole)
    assert same(whole[1:3], arena.play(points[1:3], 6))


def test_a_point_is_saved_as_what_was_played(arena, points, tmp_path):
    arena.save(points[1], tmp_path / "found", made_by="this test", decisions=7)
    manifest = json.loads((tmp_path / "found" / "manifest.json").read_text())
    assert (manifest["imported"]["framework"], manifest["decisions"]) == ("this test", 7)
    assert same(arena.play([f"checkpoint:{tmp_path / 'found'}"], 3), arena.play(points[1], 3))


def derived(seed, name, index):
    """As `kvtide_envs::seed::derive`: what an environment makes of its seed for each of its episodes."""

    def mix(state):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return state ^ state >> 31

    named = mix(seed)
    for byte in name.encode():
        named = mix(named ^ byte)
    return mix(named ^ mix(index))


def test_an_episode_is_that_of_the_environment(arena):
    gymnasium = pytest.importorskip("gymnasium")
    import kvtide.gym

    env = gymnasium.make("kvtide/KvCache-v0", **WORDS)
    env.reset(seed=5)
    done = False
    while not done:
        _, _, terminated, truncated, info = env.step(env.unwrapped.engine_action())
        done = terminated or truncated
    played, outcome = arena.play("default", [derived(5, "episode", 0)]), info["outcome"]
    assert played.requests.item() == outcome["requests"] and played.on_time.item() == outcome["on_time"]
    assert played.returns.item() == pytest.approx(outcome["return"], rel=1e-12)
    assert played.decisions.item() == outcome["decisions"]


def test_whole_traffic_is_what_the_command_line_runs(arena, points, tmp_path):
    tool = os.environ.get("KVTIDE_TOOL")
    if not tool:
        pytest.skip("KVTIDE_TOOL names no kvtide")
    arena.save(points[2], tmp_path / "found")
    policies = ["default", "fixed:0.05,victim=most-blocks", f"checkpoint:{tmp_path / 'found'}"]
    command = [tool, "evaluate", "--workload", WORDS["workload"], "--set", "num_gpu_blocks=600", "--loads", "1,1.5", "--seeds", "1,2"]
    command += ["--json"] + [word for policy in policies for word in ("--policy", policy)]
    lines = map(json.loads, subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())
    rows = {(line["data"]["policy"], line["data"]["load"], line["data"]["seed"]): line["data"] for line in lines if line["type"] == "run"}
    whole = Arena(WORDS, loads=[1, 1.5], space=arena.space)
    played = whole.play(policies, [1, 2])
    for index in np.ndindex(played.attainment.shape):
        row = rows[policies[index[0]], [1, 1.5][index[1]], [1, 2][index[2]]]
        assert f"{played.hash[index]:016x}" == row["hash"]
        assert played.attainment[index] == row["slo_attainment"]
        assert (played.requests[index], played.preemptions[index]) == (row["requests"], row["preemptions"])
        assert played.wait_p99_ms[index] == row["ttft_ms"]["p99"] and played.kv_usage[index] == row["kv_usage_mean"]
    assert np.array_equal(whole.play(points[2], [1, 2]).hash[0], played.hash[2])


def test_a_run_in_full_adds_up():
    run = kvtide.simulate("fixed:0.05", workload="chat:rate=3,duration=40", set={"num_gpu_blocks": 600}, load=1.5, seed=2)
    requests, steps = run.requests, run.steps
    assert len(requests) == run.summary["requests"]
    # Asked for a plan ahead of the first step, and once more behind the last.
    assert len(steps) == run.summary["steps"] + 2
    assert requests["attained"].sum() == run.summary["on_time"]
    assert (np.diff(requests["arrival_s"]) >= 0).all() and (np.diff(steps["time_s"]) >= 0).all()
    assert np.allclose(requests["wait_s"], requests["first_token_s"] - requests["arrival_s"], equal_nan=True)
    assert np.nanmax(requests["wait_s"]) * 1e3 == pytest.approx(run.summary["longest_wait_ms"])
    assert (steps["used_blocks"] <= steps["num_blocks"]).all() and steps["preempted"].sum() == run.summary["preemptions"]
    assert steps["decision"][-1] + 1 == run.summary["decisions"] and set(steps["watermark"]) == {0.05}
    again = simulate("fixed:0.05", Arena({"workload": "chat:rate=3,duration=40", "set": {"num_gpu_blocks": 600}}, loads=[1.5]), seed=2)
    assert again.summary["hash"] == run.summary["hash"]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda arena: arena.play(np.zeros((2, 3)), 1), r"shape \(2, 3\): expected \(n, "),
        (lambda arena: arena.play(np.full(arena.dimension, np.nan), 1), "candidate 0, coordinate 0 is NaN"),
        (lambda arena: arena.play(["default", "lru"], 1), 'unknown policy "lru"; known: default'),
        (lambda arena: arena.play("best-fixed", 1), "best-fixed is many runs"),
        (lambda arena: arena.play("default", [-1]), "seed -1: expected a number from 0"),
        (lambda arena: arena.play("default", 1, worlds=[7]), "there is no world 7: there are 1"),
        (lambda arena: arena.play("fixed:0,mode=swap", 1), "has no host tier"),
        (lambda arena: Arena(WORDS, part="all"), 'part "all": expected train, validation or unseen'),
        (lambda arena: Arena(WORDS, loads=[]), "loads is empty"),
        (lambda arena: Arena(WORDS, loads=[0]), "load 0: expected a number from"),
        (lambda arena: Arena(WORDS, window="1s..2s"), "window: of whole traffic alone"),
        (lambda arena: Arena(WORDS, space="{}"), "space: missing field"),
        (lambda arena: Arena(WORDS, space=arena.space.replace('"full"', '"all"')), 'the profile "all", which there is not'),
        (lambda arena: arena.save(np.zeros(2), "never"), r"shape \(2,\)"),
    ],
)
def test_what_cannot_be_played_is_refused(arena, make, what):
    with pytest.raises(ScenarioError, match=what):
        make(arena)


def test_a_file_that_is_not_there_is_an_oserror(arena):
    with pytest.raises(FileNotFoundError, match="none.kvt"):
        arena.play("table:none.kvt", 1)


def test_ctrl_c_ends_it(arena):
    pressed = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt):
        arena.play(["default"] * 2000, 2000)
    pressed.cancel()
    # It can be played again.
    assert arena.play("default", 1).attainment.shape == (1, 1, 1)


def ran(script, *arguments, folder):
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.toml").write_text(
        'name = "small"\nprofile = "core"\nfallback = 0.02\n[world]\nworkload = "chat:rate=3,duration=40"\n'
        'set = ["num_gpu_blocks=600"]\n[episodes]\nfit = 1.0\nlength_s = 10.0\nload = [1.0, 2.0]\n'
    )
    return tmp_path


def test_an_evolution_strategy_takes_thirty_lines(small):
    arguments = ["--scenario", "small.toml", "--generations", "2", "--pairs", "4", "--episodes", "2", "--out", "found"]
    told = ran("evolution.py", *arguments, folder=small)
    assert told.count("generation ") == 2
    assert play(f"checkpoint:{small / 'found'}", small / "small.toml", 1).attainment.shape == (1, 1, 1)


def test_cma_es_asks_and_tells(small):
    pytest.importorskip("cma")
    arguments = ["--scenario", "small.toml", "--generations", "2", "--population", "4", "--episodes", "2", "--out", "found"]
    assert ran("cma_es.py", *arguments, folder=small).count("generation ") == 2


def test_optuna_looks_for_constants(small):
    pytest.importorskip("optuna")
    arguments = ["--scenario", "small.toml", "--trials", "4", "--batch", "2", "--episodes", "2"]
    assert "best constant" in ran("optuna_constants.py", *arguments, folder=small)


def test_the_main_plots_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    ran("main_plots.py", str(tmp_path), folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"attainment.svg", "waits.svg", "blocks.svg"}
