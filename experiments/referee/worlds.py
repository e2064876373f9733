"""Both problems for everyone: as stable-baselines3 takes environments, and as Gymnasium does."""

import os
import pathlib

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor

from kvtide.gym import KvCacheVectorEnv

EXPERIMENT = pathlib.Path(__file__).parent / "kv.toml"
# Between the seeds of two runs: environment `i` of a run is reset by its seed and `i`, and runs shall not share episodes.
APART = 100_000


def vector_env(problem, num_envs):
    """Gymnasium's vector environment, reset within the step that ends an episode."""
    if problem == "kv":
        threads = int(os.environ.get("RAYON_NUM_THREADS", "0"))
        return KvCacheVectorEnv(EXPERIMENT, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, copy=False, threads=threads)
    options = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync", vector_kwargs=options)


def vec_env(problem, num_envs):
    """stable-baselines3's, which remembers what episodes came to."""
    envs = KvVecEnv(num_envs) if problem == "kv" else DummyVecEnv([CartPole] * num_envs)
    return VecMonitor(envs)


class CartPole(gymnasium.Wrapper):
    """Gymnasium's, which forbids nothing."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def action_masks(self):
        return np.ones(2, dtype=np.bool_)


class KvVecEnv(VecEnv):
    """The native vector environment behind stable-baselines3's interface."""

    def __init__(self, num_envs):
        self.envs = vector_env("kv", num_envs)
        self.begin, self.actions = None, None
        super().__init__(num_envs, self.envs.single_observation_space, self.envs.single_action_space)

    def seed(self, seed=None):
        self.begin = seed
        return [seed] * self.num_envs

    def reset(self):
        observations, _ = self.envs.reset(seed=self.begin)
        self.begin = None
        return observations.copy()

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        observations, rewards, terminated, truncated, infos = self.envs.step(self.actions)
        done = terminated | truncated
        told = [{} for _ in range(self.num_envs)]
        for env in np.flatnonzero(done):
            told[env] = {
                "terminal_observation": infos["final_obs"][env],
                "TimeLimit.truncated": bool(truncated[env] and not terminated[env]),
                "outcome": {key: values[env] for key, values in infos["final_info"]["outcome"].items()},
            }
        return observations.copy(), rewards.astype(np.float32), done, told

    def env_method(self, method_name, *_, indices=None, **__):
        if method_name != "action_masks":
            raise AttributeError(method_name)
        return list(self.envs.action_masks())

    def get_attr(self, attr_name, indices=None):
        return [getattr(self.envs, attr_name)] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        raise AttributeError(attr_name)

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs

    def close(self):
        self.envs.close()
