"""Many environments, beside Gymnasium's own way to step several."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from kvtide.gym import KvCacheEnv, KvCacheVectorEnv, scenario
from kvtide.scenario import ScenarioError

WORDS = {"workload": "chat:rate=6,duration=120,seed=3", "length_s": 10, "set": ["num_gpu_blocks=900"]}
NUM_ENVS = 3


@pytest.fixture(scope="module")
def world():
    return scenario(**WORDS)


def pair(world, mode, **keywords):
    """Ours, and Gymnasium's over as many of ours."""
    ours = KvCacheVectorEnv(world, NUM_ENVS, autoreset_mode=mode, **keywords)
    theirs = SyncVectorEnv([partial(KvCacheEnv, world, **keywords)] * NUM_ENVS, autoreset_mode=mode)
    for env in (ours, theirs):
        env.action_space.seed(1)
    return ours, theirs


def same(left, right):
    assert data_equivalence(left, right), f"{left}\n{right}"


@pytest.mark.parametrize("keywords", [{}, {"actions": "flat"}, {"observations": "dict"}])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_it_is_what_gymnasium_makes_of_single_ones(world, mode, keywords):
    ours, theirs = pair(world, mode, **keywords)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] is mode
    same(ours.reset(seed=5), theirs.reset(seed=5))
    ends = 0
    for _ in range(300):
        action = ours.action_space.sample()
        (*left, left_infos), (*right, right_infos) = ours.step(action), theirs.step(action)
        same(tuple(left), tuple(right))
        # Theirs are arrays of objects, which `data_equivalence` does not look into.
        for found, expected in zip(
            (left_infos.pop("final_obs", [])), (right_infos.pop("final_obs", [])), strict=True
        ):
            assert (found is None) == (expected is None)
            if found is not None:
                same(found, expected)
        assert repr(left_infos) == repr(right_infos) or data_equivalence(left_infos, right_infos), (left_infos, right_infos)
        ends += int((left[2] | left[3]).sum())
    assert ends > 3
    same(ours.reset(), theirs.reset())
    same(ours.reset(seed=[9, None, 8]), theirs.reset(seed=[9, None, 8]))


def test_the_same_step_begins_the_next_episode(world):
    env = KvCacheVectorEnv(world, 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=1)
    while True:
        observations, _, terminated, truncated, infos = env.step(env.engine_actions())
        if (terminated | truncated).any():
            break
    ended = int(np.flatnonzero(terminated | truncated)[0])
    assert infos["_final_obs"][ended]
    assert (infos["final_obs"][ended] != observations[ended]).any()
    assert infos["final_info"]["elapsed_s"][ended] >= 10
    assert infos["elapsed_s"][ended] == 0
    outcome = infos["final_info"]["outcome"]
    assert outcome["_requests"][ended]
    assert outcome["requests"][ended] > 0
    assert "outcome" not in infos


def test_the_next_step_resets_and_has_no_reward(world):
    env = KvCacheVectorEnv(world, 1)
    env.reset(seed=1)
    while True:
        observations, _, terminated, truncated, infos = env.step(env.engine_actions())
        if (terminated | truncated).any():
            break
    assert infos["outcome"]["requests"][0] > 0
    # Whatever the action.
    observations, rewards, terminated, truncated, infos = env.step(np.full((1, 4), 99))
    assert (rewards[0], terminated[0], truncated[0], infos["elapsed_s"][0]) == (0.0, False, False, 0.0)
    assert "outcome" not in infos
    with pytest.raises(ValueError, match="watermark 99: expected 0 to 19"):
        env.step(np.full((1, 4), 99))


def test_disabled_waits_for_who_is_reset(world):
    ours, theirs = pair(world, AutoresetMode.DISABLED)
    same(ours.reset(seed=2)[0], theirs.reset(seed=2)[0])
    resets = 0
    while resets < 4:
        action = ours.action_space.sample()
        left, right = ours.step(action), theirs.step(action)
        same(left[:4], right[:4])
        over = left[2] | left[3]
        if not over.any():
            continue
        with pytest.raises(gymnasium.error.ResetNeeded, match=f"environment {np.flatnonzero(over)[0]} needs a reset"):
            ours.step(action)
        before = left[0]
        (observations, infos), (expected, _) = (
            env.reset(options={"reset_mask": over.copy()}) for env in (ours, theirs)
        )
        same(observations, expected)
        assert (observations[~over] == before[~over]).all()
        assert infos["elapsed_s"][over].tolist() == [0.0] * int(over.sum())
        resets += 1


@pytest.mark.parametrize(
    ("mask", "error"),
    [([True] * 3, TypeError), (np.ones(3), TypeError), (np.ones(2, dtype=bool), ValueError), (np.zeros(3, dtype=bool), ValueError)],
)
def test_a_mask_that_is_none_is_refused(world, mask, error):
    env = KvCacheVectorEnv(world, 3, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=1)
    with pytest.raises(error, match="reset_mask"):
        env.reset(options={"reset_mask": mask})


def test_before_everyone_was_reset_nobody_is_stepped(world):
    env = KvCacheVectorEnv(world, 2, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros((2, 4), dtype=int))
    env.reset(seed=1, options={"reset_mask": np.array([True, False])})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros((2, 4), dtype=int))
    with pytest.raises(ValueError, match="seed: expected one for each of 2"):
        env.reset(seed=[1, 2, 3])


def test_arrays_are_the_same_ones_unless_copied(world):
    env = KvCacheVectorEnv(world, 2, copy=False)
    first, infos = env.reset(seed=1)
    kept = first.copy()
    observations, rewards, terminated, truncated, later = env.step(env.engine_actions())
    assert observations is first
    assert later["action_mask"] is infos["action_mask"]
    assert (kept != first).any()
    assert np.shares_memory(env.action_masks(), infos["action_mask"])
    again = env.step(env.engine_actions())
    assert all(left is right for left, right in zip((rewards, terminated, truncated), again[1:4], strict=True))
    copied = KvCacheVectorEnv(world, 2)
    first, _ = copied.reset(seed=1)
    copied.step(copied.engine_actions())
    assert (first == kept).all()


def test_threads_change_nothing(world):
    seen = []
    for threads in (1, 2, 5):
        env = KvCacheVectorEnv(world, 7, autoreset_mode=AutoresetMode.SAME_STEP, threads=threads)
        env.action_space.seed(3)
        seen.append(repr([env.reset(seed=1), *(env.step(env.action_space.sample()) for _ in range(60))]))
    assert seen[0] == seen[1] == seen[2]


def test_make_vec_makes_it():
    env = gymnasium.make_vec("kvtide/Chat24g-v0", num_envs=2, autoreset_mode="SameStep", copy=False)
    assert isinstance(env.unwrapped, KvCacheVectorEnv)
    observations, _ = env.reset(seed=1)
    assert observations in env.observation_space
    env.close()
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.make_vec("kvtide/KvCache-v0", num_envs=2, **WORDS))
    wrapped.reset(seed=1)
    for _ in range(100):
        *_, infos = wrapped.step(wrapped.unwrapped.engine_actions())
        if "episode" in infos:
            break
    assert infos["episode"]["r"][infos["_episode"]] == pytest.approx(infos["outcome"]["return"][infos["_outcome"]], rel=1e-5)


def test_what_cannot_be_is_refused(world):
    for num_envs, message in ((0, "num_envs = 0"), (1 << 20, "num_envs = 1048576: expected 1 to 65536")):
        with pytest.raises(ScenarioError, match=message):
            KvCacheVectorEnv(world, num_envs)
    with pytest.raises(ValueError, match="AutoresetMode"):
        KvCacheVectorEnv(world, 1, autoreset_mode="never")
    env = KvCacheVectorEnv(world, 2)
    env.reset(seed=1)
    for action in (np.zeros((3, 4), dtype=int), np.zeros((2, 4)), np.zeros((2, 4), dtype=bool), [[0] * 4]):
        with pytest.raises(ValueError, match="actions: expected whole numbers of shape"):
            env.step(action)
    with pytest.raises(ValueError, match="environment 1: victim 5: expected 0 to 4"):
        env.step([[0, 0, 0, 0], [0, 5, 0, 0]])
    env.close()
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.step(np.zeros((2, 4), dtype=int))


def test_it_is_drawn(world):
    env = KvCacheVectorEnv(world, 2, render_mode="ansi")
    env.reset(seed=1)
    assert [frame.startswith("words at load") for frame in env.render()] == [True, True]
    env = KvCacheVectorEnv(world, 2, render_mode="rgb_array")
    env.reset(seed=1)
    env.step(env.engine_actions())
    assert [frame.shape for frame in env.render()] == [(240, 480, 3)] * 2


def test_pickled_it_is_made_anew(world):
    env = KvCacheVectorEnv(world, 2, autoreset_mode=AutoresetMode.DISABLED, copy=False)
    env.reset(seed=1)
    again = pickle.loads(pickle.dumps(env))
    assert (again.num_envs, again.autoreset_mode, again.copy) == (2, AutoresetMode.DISABLED, False)
    same(again.reset(seed=4)[0].copy(), env.reset(seed=4)[0].copy())


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_processes_of_their_own_play_the_same(world, context):
    make = partial(gymnasium.make, "kvtide.gym:kvtide/KvCache-v0", **WORDS)
    # Threads that a forked process does not have are at work here.
    ours = KvCacheVectorEnv(world, 2)
    theirs = AsyncVectorEnv([make, make], context=context)
    try:
        same(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
        for _ in range(10):
            action = ours.engine_actions()
            same(ours.step(action)[:4], theirs.step(action)[:4])
    finally:
        theirs.close(terminate=True)


def _play_in_child(env, queue):
    observations, _ = env.reset(seed=8)
    queue.put(observations.copy() + 0 * env.step(env.engine_actions())[0])


def test_a_forked_process_goes_on_with_threads_of_its_own(world):
    env = KvCacheVectorEnv(world, 4)
    expected, _ = env.reset(seed=8)
    env.step(env.engine_actions())
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    child = fork.Process(target=_play_in_child, args=(env, queue))
    child.start()
    same(queue.get(timeout=120), expected)
    child.join(120)
    assert child.exitcode == 0


INTERRUPTED = """
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from kvtide.gym import KvCacheVectorEnv

# A decision takes all the requests of an hour.
env = KvCacheVectorEnv(
    workload="chat:rate=1,duration=3600", length_s=3600, interval=1000000, num_envs=24, autoreset_mode=AutoresetMode.SAME_STEP
)
env.reset(seed=1)
action = env.engine_actions()
try:
    print("ready", flush=True)
    while True:
        env.step(action)
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    env.step(action)
except ResetNeeded as error:
    print(error)
env.reset(seed=1)
assert (env.engine_actions() == action).all()
print("reset")
"""


def test_ctrl_c_ends_a_long_step():
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGINT)
    said, _ = child.communicate(timeout=300)
    assert said.splitlines()[0] == "interrupted"
    assert said.splitlines()[-1] == "reset"
    assert child.returncode == 0
