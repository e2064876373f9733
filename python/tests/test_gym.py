"""One environment, as Gymnasium and its users take it."""

import json
import pickle
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import kvtide
import kvtide.gym
from kvtide.evaluate import Arena
from kvtide.gym import IDS, KvCacheEnv, check, scenario
from kvtide.scenario import ScenarioError

HERE = Path(__file__).parent
# An episode of some dozen decisions, on a node that runs out of blocks.
WORDS = {"workload": "chat:rate=6,duration=120,seed=3", "length_s": 20, "set": ["num_gpu_blocks=900"]}


@pytest.fixture(scope="module")
def world():
    return scenario(**WORDS)


@pytest.fixture(scope="module")
def two_worlds():
    """Of two worlds with different masks."""
    return scenario(HERE / "trajectory.toml")


@pytest.mark.parametrize("observations", ["array", "dict"])
@pytest.mark.parametrize("actions", ["multi", "flat"])
def test_gymnasiums_checker_passes(world, actions, observations):
    env = gymnasium.make("kvtide/KvCache-v0", scenario=world, actions=actions, observations=observations).unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@pytest.mark.parametrize("env_id", IDS)
def test_what_ships_has_an_id(env_id):
    env = gymnasium.make(env_id)
    observation, info = env.reset(seed=1)
    assert observation in env.observation_space
    assert env.unwrapped.scenario.name == IDS[env_id]
    observation, reward, *_ = env.step(env.unwrapped.engine_action())
    assert observation in env.observation_space
    assert np.isfinite(reward)
    assert info["action_mask"].any()


def test_the_ids_are_camel_case():
    assert list(IDS)[:3] == ["kvtide/Agentic-v0", "kvtide/Chat24g-v0", "kvtide/Chat80g-v0"]


def test_rust_and_python_play_the_same(two_worlds):
    """`tests/trajectory.rs` holds Rust to the same file."""
    kept = json.loads((HERE / "trajectory.json").read_text())
    sizes = {key: kept[key] for key in ("num_envs", "decisions", "seed")}
    digests = {check.check_trajectories(two_worlds, **sizes, threads=threads) for threads in (1, 3)}
    assert digests == {kept["digest"]}


def test_the_check_sees_a_difference(two_worlds, monkeypatch):
    together = check._together
    monkeypatch.setattr(check, "_together", lambda *args: together(*args)[:-1] + b"?")
    with pytest.raises(AssertionError, match="another trajectory"):
        check.check_trajectories(two_worlds, decisions=20)


def play(env, decisions, seed):
    env.action_space.seed(seed)
    seen = [env.reset(seed=seed)]
    for _ in range(decisions):
        seen.append(env.step(env.action_space.sample()))
        if seen[-1][2] or seen[-1][3]:
            seen.append(env.reset())
    return seen


def test_a_seed_is_a_trajectory(world):
    one, again, other = (play(KvCacheEnv(world), 200, seed) for seed in (5, 5, 6))
    assert repr(one) == repr(again)
    assert repr(one) != repr(other)


def test_an_episodes_seed_is_that_of_an_arena(world):
    """What the documentation says of `reset(seed)`: two episodes under it, and each by its own seed."""
    env, arena = KvCacheEnv(world), Arena(world)
    for episode, seed in enumerate((7, None)):
        env.reset(seed=seed)
        done = False
        while not done:
            _, _, terminated, truncated, info = env.step(env.engine_action())
            done = terminated or truncated
        played = arena.play("default", [kvtide.gym.episode_seed(7, episode)])
        assert info["outcome"]["hash"] == f"{played.hash.item():016x}"
        assert info["outcome"]["return"] == pytest.approx(played.returns.item())


def test_without_a_seed_the_next_episode_is_another(world):
    env = KvCacheEnv(world)
    episodes = set()
    for seed in (5, None, None, 5):
        env.reset(seed=seed)
        episodes.add(repr([env.step(env.engine_action()) for _ in range(5)]))
    assert len(episodes) == 3
    unseeded = [KvCacheEnv(world) for _ in range(2)]
    for env in unseeded:
        env.reset()
    assert unseeded[0].np_random_seed != unseeded[1].np_random_seed


def test_an_episode_is_cut_short_or_comes_to_its_end(world):
    env = KvCacheEnv(world)
    env.reset(seed=1)
    ended = False
    while not ended:
        *_, terminated, truncated, info = env.step(env.engine_action())
        ended = terminated or truncated
    assert (terminated, truncated) == (False, True)
    assert info["elapsed_s"] >= 20
    outcome = info["outcome"]
    assert 0 <= outcome["on_time"] <= outcome["requests"]
    assert outcome["attained"] == outcome["on_time"] / outcome["requests"]
    with pytest.raises(gymnasium.error.ResetNeeded, match="environment 0 needs a reset"):
        env.step(env.engine_action())
    # Few requests, all at the beginning.
    env = KvCacheEnv(workload="uniform:n=4,in=50,out=5,rate=9", clients=2, length_s=1000)
    env.reset(seed=1)
    while True:
        *_, terminated, truncated, info = env.step(env.engine_action())
        if terminated or truncated:
            break
    assert (terminated, truncated) == (True, False)
    assert info["outcome"]["requests"] == 4


def test_a_reset_takes_options(two_worlds):
    env = KvCacheEnv(two_worlds)
    _, info = env.reset(seed=1, options={"load": 0.75, "world": 1})
    assert info["load"] == 0.75
    for options, message in [
        ({"speed": 1}, "options\\['speed'\\]: there are load, start_s, world"),
        ({"load": -1.0}, "load = -1: expected a number from 0.000001 to 1000"),
        ({"start_s": float("nan")}, "start_s = NaN"),
        (7, "expected a dict"),
    ]:
        with pytest.raises(ScenarioError, match=message):
            env.reset(options=options)
    env.reset(seed=1)
    env.step(env.engine_action())


def test_masks_are_flat_and_obeyed(two_worlds):
    env = KvCacheEnv(two_worlds)
    assert env.heads == ("watermark", "victim", "preemption", "admission", "budget")
    for world, swaps in ((0, True), (1, False)):
        _, info = env.reset(seed=1, options={"world": world})
        masks = env.action_masks()
        assert masks.dtype == np.bool_
        assert masks.shape == (sum(env.action_space.nvec),)
        assert (masks == info["action_mask"]).all()
        # Swap, recompute, cheaper.
        assert masks[25:28].tolist() == [swaps, True, swaps]
        heads = tuple(np.split(info["action_mask"], np.cumsum(env.action_space.nvec)[:-1]))
        for _ in range(20):
            *_, info = env.step(env.action_space.sample(mask=heads))


def test_what_is_forbidden_is_replaced_or_refused(two_worlds):
    swap, recompute = np.array([0, 0, 0, 0, 8]), np.array([0, 0, 1, 0, 8])
    seen = []
    for action in (swap, recompute):
        env = KvCacheEnv(two_worlds)
        env.reset(seed=3, options={"world": 1})
        seen.append([env.step(action)[:2] for _ in range(8)])
    assert repr(seen[0]) == repr(seen[1])
    env = KvCacheEnv(two_worlds, masked="raise")
    env.reset(seed=3, options={"world": 1})
    with pytest.raises(ValueError, match="environment 0: preemption 0: forbidden by its mask"):
        env.step(swap)
    env.step(recompute)


def test_flat_actions_are_the_joint_choices_that_can_occur(two_worlds):
    multi, flat = KvCacheEnv(two_worlds), KvCacheEnv(two_worlds, actions="flat")
    assert flat.action_space.n == 20 * 5 * 3 * 3 * 9
    assert len(flat.joint_choices) == flat.action_space.n
    for env in (multi, flat):
        env.reset(seed=2, options={"world": 1})
    masks = flat.action_masks()
    assert masks.sum() == flat.action_space.n // 3
    for index in np.flatnonzero(masks)[::257]:
        left, right = multi.step(np.array(flat.joint_choices[index])), flat.step(index)
        assert (left[0] == right[0]).all()
        assert left[1:4] == right[1:4]
    assert flat.joint_choices[flat.engine_action()] == multi.engine_action().tolist()
    # What no world allows is no choice.
    one = KvCacheEnv(**WORDS, actions="flat", profile="watermark", watermarks=[0.0, 0.05, 0.12])
    assert one.action_space.n == 3


def test_observations_may_be_a_dict(world):
    env = KvCacheEnv(world, observations="dict")
    observation, info = env.reset(seed=1)
    assert set(observation) == {"observations", "action_mask"}
    assert observation in env.observation_space
    assert (observation["action_mask"] == info["action_mask"]).all()


def test_heads_may_be_chosen(world):
    env = KvCacheEnv(world, heads="all")
    assert env.heads == tuple(kvtide.HEADS)
    assert env.action_space.nvec.tolist() == [len(choices) for choices in kvtide.HEADS.values()]
    assert KvCacheEnv(world, heads=["watermark"]).action_space.nvec.tolist() == [20]
    with pytest.raises(ScenarioError, match="no head \"mood\"; there are watermark, victim"):
        KvCacheEnv(world, heads=["mood"])


@pytest.mark.parametrize(
    "action",
    [[20, 0, 0, 0], [-1, 0, 0, 0], [0.0, 0, 0, 0], [0, 0], 3, [[0, 0, 0, 0]], None, "watermark", [2**63, 0, 0, 0]],
)
def test_what_is_no_action_is_refused_and_nothing_is_done(world, action):
    env = KvCacheEnv(world)
    env.reset(seed=1)
    with pytest.raises((ValueError, OverflowError)):
        env.step(action)
    twin = KvCacheEnv(world)
    twin.reset(seed=1)
    assert repr(env.step(env.engine_action())) == repr(twin.step(twin.engine_action()))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"actions": "many"}, "actions 'many': expected multi or flat"),
        ({"observations": "image"}, "observations 'image'"),
        ({"masked": "maybe"}, "masked 'maybe'"),
        ({"part": "test"}, 'part "test": expected train, validation or unseen'),
        ({"part": "validation"}, r"words has no \[validation\]"),
        ({"render_mode": "human"}, "render_mode 'human'"),
        ({"set": ["dead_ends=faithful"]}, "dead_ends=faithful"),
        ({"memory": "gpu"}, "memory"),
    ],
)
def test_what_cannot_be_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        KvCacheEnv(**WORDS | keywords)


def test_before_a_reset_and_after_the_end_there_is_nothing(world):
    env = KvCacheEnv(world, render_mode="ansi")
    for call in (lambda: env.step(np.zeros(4, dtype=int)), env.engine_action, env.render):
        with pytest.raises(gymnasium.error.ResetNeeded):
            call()
    env.close()
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.reset()


def test_it_is_drawn(world):
    env = KvCacheEnv(world, render_mode="ansi")
    env.reset(seed=1)
    env.step(env.engine_action())
    lines = env.render().splitlines()
    assert lines[0].startswith("words at load 1:")
    assert "of 899 in use" in lines[1]
    env = KvCacheEnv(world, render_mode="rgb_array")
    env.reset(seed=1)
    blank = env.render()
    for _ in range(50):
        env.step(env.engine_action())
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((240, 480, 3), np.uint8)
    assert (picture != blank).any()


def test_pickled_it_is_made_anew(world):
    env = KvCacheEnv(world, actions="flat", heads=["watermark", "admission"])
    env.reset(seed=1)
    again = pickle.loads(pickle.dumps(env))
    assert again.action_space == env.action_space
    assert repr(play(again, 20, 4)) == repr(play(env, 20, 4))


def test_the_check_runs(world, monkeypatch, capsys, tmp_path):
    path = tmp_path / "world.toml"
    path.write_text(world.toml)
    arguments = ["check", "--scenario", str(path), "--envs", "4", "--decisions", "20", "--repeats", "1", "--json"]
    monkeypatch.setattr("sys.argv", arguments)
    # How fast a machine is that does other work is nobody's mistake.
    monkeypatch.setattr(check, "SHARE", 0.0)
    check.main()
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert set(found["shares"]) == {"python", "python, copy=False"}
    monkeypatch.setattr(check, "SHARE", 1e9)
    with pytest.raises(SystemExit) as stopped:
        check.main()
    assert stopped.value.code == 1
