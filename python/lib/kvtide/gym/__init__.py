"""A serving node under memory pressure, as an environment of Gymnasium. Needs `kvtide[gym]`: gymnasium and numpy.

>>> import gymnasium, kvtide.gym
>>> env = gymnasium.make("kvtide/Chat24g-v0")
>>> observation, info = env.reset(seed=1)
>>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())

`KvCacheVectorEnv` (`gymnasium.make_vec`) steps many of them by one call, in Rust, on all cores. `python -m kvtide.gym.check` checks
all of it on this machine. Which episodes are drawn is said by the id, or in words: see `kvtide.scenario.scenario`.
"""

import gymnasium

from kvtide._sim import SCENARIOS, ScenarioError, episode_seed
from kvtide.gym.env import KvCacheEnv
from kvtide.gym.vector import KvCacheVectorEnv
from kvtide.scenario import scenario

__all__ = ["IDS", "KvCacheEnv", "KvCacheVectorEnv", "ScenarioError", "episode_seed", "scenario"]


def _id(name):
    """`chat-24g` is `kvtide/Chat24g-v0`."""
    return f"kvtide/{''.join(part[0].upper() + part[1:] for part in name.split('-'))}-v0"


# The id of each scenario that ships, and the one of worlds in words.
IDS = {_id(name): name for name in SCENARIOS}


def _register():
    entries = {"entry_point": KvCacheEnv, "vector_entry_point": KvCacheVectorEnv}
    entries = {key: f"{of.__module__}:{of.__name__}" for key, of in entries.items()}
    for env_id, name in IDS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, kwargs={"scenario": name}, **entries)
    if "kvtide/KvCache-v0" not in gymnasium.registry:
        gymnasium.register(id="kvtide/KvCache-v0", **entries)


_register()
