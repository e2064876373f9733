"""PPO by RLlib on `kvtide.gym`, on its newer API stack and with masks, and the way from its module to a checkpoint of kvtide's.

>>> from kvtide.ray import connect, rllib
>>> connect("local")
>>> algorithm = rllib.ppo({"scenario": "experiments/chat-24g.toml"}).build_algo()
>>> for _ in range(20):
...     algorithm.train()
>>> rllib.export(algorithm, "chat-24g-rllib", experiment="experiments/chat-24g.toml")
>>> # kvtide import-policy chat-24g-rllib/manifest.json --out chat-24g-rllib/checkpoint

Needs ``ray[rllib]``, torch and ``kvtide[gym]``.
"""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.torch_utils import FLOAT_MIN
from ray.tune.registry import register_env

import kvtide
from kvtide.gym import KvCacheEnv

__all__ = ["ENV", "MaskedPPO", "Standardised", "environment", "export", "moments", "ppo"]

# The environment's name at RLlib.
ENV = "kvtide"
# Where RLlib keeps the layers of the actor.
_ACTOR = ("encoder.encoder.net.", "encoder.actor_encoder.net.", "pi.net.")
# Standardised observations lie within this, as RLlib's own filter has it.
CLIP = 10.0
# Added to a deviation; as RLlib's filter.
EPSILON = 1e-6


class Standardised(gymnasium.ObservationWrapper):
    """Observations less `mean`, by `deviation`, clipped; masks as they are. Every runner has the same, and so has who decides later."""

    def __init__(self, env: gymnasium.Env, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__(env)
        self._mean, self._scale = np.asarray(mean, np.float32), np.asarray(deviation, np.float32) + np.float32(EPSILON)
        seen = gymnasium.spaces.Box(-CLIP, CLIP, self._mean.shape, np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {"action_mask": env.observation_space["action_mask"], "observations": seen}
        )

    def observation(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen = np.clip((observation["observations"] - self._mean) / self._scale, -CLIP, CLIP)
        return {"action_mask": observation["action_mask"], "observations": seen.astype(np.float32)}


def moments(words: Mapping[str, Any], *, decisions: int = 2000, seed: int = 1) -> tuple[list[float], list[float]]:
    """Mean and deviation of what is seen in the environment of `words` while the engine decides by itself.

    A feature that hardly varies is only centred: divided by next to nothing, the first policy that moves it would see nothing else.
    """
    env = KvCacheEnv(**{"observations": "dict", **words})
    rows, (observation, _), episode = [], env.reset(seed=seed), seed
    while len(rows) < decisions:
        rows.append(observation["observations"])
        observation, _, terminated, truncated, _ = env.step(env.engine_action())
        if terminated or truncated:
            episode += 1
            observation, _ = env.reset(seed=episode)
    env.close()
    deviation = np.std(rows, axis=0, dtype=np.float64)
    return np.mean(rows, axis=0, dtype=np.float64).tolist(), np.where(deviation < 1e-3, 1.0, deviation).tolist()


def environment(config: Mapping[str, Any]) -> Standardised:
    """An environment as RLlib makes it: the words of `KvCacheEnv`, and the `moments` it is standardised by."""
    words = {key: value for key, value in dict(config).items() if key != "moments"}
    return Standardised(KvCacheEnv(**{"observations": "dict", **words}), *config["moments"])


class MaskedPPO(DefaultPPOTorchRLModule):
    """RLlib's own module for PPO, which gives what the mask forbids no probability."""

    def __init__(self, *args, observation_space, **keywords):
        super().__init__(*args, observation_space=observation_space["observations"], **keywords)

    def _forward(self, batch, **keywords):
        return _masked(super()._forward(_seen(batch), **keywords), batch)

    def _forward_train(self, batch, **keywords):
        return _masked(super()._forward_train(_seen(batch), **keywords), batch)

    def compute_values(self, batch, embeddings=None):
        return super().compute_values(_seen(batch), embeddings)


def _seen(batch):
    return {**batch, Columns.OBS: batch[Columns.OBS]["observations"]}


def _masked(output, batch):
    # The heads' logits lie one after another, and so do their masks.
    allowed = batch[Columns.OBS]["action_mask"].bool()
    logits = output[Columns.ACTION_DIST_INPUTS]
    return {**output, Columns.ACTION_DIST_INPUTS: logits.masked_fill(~allowed, FLOAT_MIN)}


def ppo(
    words: Mapping[str, Any], *, runners: int = 1, hidden: Sequence[int] = (64, 64), seed: int = 1, **training: Any
) -> PPOConfig:
    """A configuration of PPO that learns in the environment of `words`: those of `KvCacheEnv`, such as ``{"scenario": "chat-24g"}``.

    `runners` are processes that play; `training` is passed on to `PPOConfig.training`. Change what you like of it before
    ``build_algo()``.
    """
    register_env(ENV, environment)
    words = dict(words)
    found = words.pop("moments", None) or moments(words)
    training = {
        "lr": 3e-4,
        "gamma": 0.99,
        "lambda_": 0.95,
        "clip_param": 0.2,
        "entropy_coeff": 0.005,
        "grad_clip": 0.5,
        "num_epochs": 4,
        "train_batch_size_per_learner": 4096,
        "minibatch_size": 512,
        **training,
    }
    network = DefaultModelConfig(fcnet_hiddens=list(hidden), fcnet_activation="tanh", vf_share_layers=False)
    return (
        PPOConfig()
        .environment(ENV, env_config={**words, "moments": found})
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=4)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=MaskedPPO, model_config=network))
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(**training)
        .debugging(seed=seed)
    )


def export(
    algorithm: Algorithm, folder: str | os.PathLike[str], *, experiment: str | os.PathLike[str], name: str | None = None
) -> Path:
    """Writes what ``kvtide import-policy`` takes into `folder`: the module's weights and a manifest; the manifest's path.

    `experiment` is the file whose world it was trained in.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = algorithm.get_module().state_dict()
    # The critic's and what only continuous actions use are no part of the policy.
    actor = {key: value.detach().cpu().numpy() for key, value in state.items() if key.startswith(_ACTOR)}
    _write_safetensors(folder / "policy.safetensors", actor)
    config = algorithm.config.env_config
    env = KvCacheEnv(**{"observations": "dict", **{key: value for key, value in config.items() if key != "moments"}})
    mean, deviation = config["moments"]
    manifest = {
        "layout": "rllib",
        "weights": "policy.safetensors",
        "experiment": os.path.relpath(experiment, folder),
        "schema": f"{kvtide.SCHEMA_HASH:016x}",
        "actions": f"{kvtide.ACTION_SET_HASH:016x}",
        "heads": list(env.heads),
        "activation": "tanh",
        "normalise": {"mean": mean, "deviation": deviation, "epsilon": EPSILON, "added_to": "deviation", "clip": CLIP},
        "seed": int(algorithm.config.seed or 0),
    }
    if name is not None:
        manifest["name"] = name
    env.close()
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest, indent=1) + "\n")
    return path


def _write_safetensors(path, tensors):
    """The format in five lines: the length of a header, the header, the tensors in its order."""
    header, parts, offset = {}, [], 0
    for name in sorted(tensors):
        data = np.ascontiguousarray(tensors[name], np.float32)
        header[name] = {"dtype": "F32", "shape": list(data.shape), "data_offsets": [offset, offset + data.nbytes]}
        parts.append(data.tobytes())
        offset += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
