"""Many environments, stepped by one call."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from kvtide._sim import Scenario
from kvtide.gym.front import Front, Fronted, checked_options
from kvtide.gym.render import History, text

_AUTORESET = {
    AutoresetMode.NEXT_STEP: "next-step",
    AutoresetMode.SAME_STEP: "same-step",
    AutoresetMode.DISABLED: "disabled",
}


class KvCacheVectorEnv(Fronted, VectorEnv, EzPickle):
    """`num_envs` of `KvCacheEnv`, whose other arguments it takes as well, in Rust on `threads` cores (0: all).

    What is returned is what `SyncVectorEnv` of as many `KvCacheEnv` returns, in each `AutoresetMode`: environment `i` is seeded with
    `seed + i`, or the `i`-th of a list. With `copy=False` observations, rewards, flags, and masks in `infos` are the arrays that every
    `reset` and `step` writes into, always the same: take what you keep before the next call. In `infos` the masks of all environments
    stand after a partial reset (`options={"reset_mask": …}`), not of those alone that were reset.

    Ctrl-C in a step raises KeyboardInterrupt and leaves some environments a step ahead of others: reset all of them.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10, "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        scenario: str | PathLike | Scenario | None = None,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        threads: int = 0,
        actions: Literal["multi", "flat"] = "multi",
        observations: Literal["array", "dict"] = "array",
        heads: str | Sequence[str] | None = None,
        masked: Literal["repair", "raise"] = "repair",
        part: Literal["train", "validation", "unseen"] = "train",
        traces: str | PathLike | None = None,
        render_mode: Literal["ansi", "rgb_array"] | None = None,
        **words: Any,
    ) -> None:
        keywords = {"actions": actions, "observations": observations, "heads": heads, "masked": masked, "part": part}
        keywords |= {"traces": traces, "threads": threads}
        EzPickle.__init__(
            self, scenario, num_envs, autoreset_mode=autoreset_mode, copy=copy, render_mode=render_mode, **keywords, **words
        )
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode {render_mode!r}: expected one of {', '.join(self.metadata['render_modes'])}")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._front = Front(scenario, words, num_envs=num_envs, autoreset=_AUTORESET[self.autoreset_mode], **keywords)
        self.num_envs, self.copy, self.render_mode = num_envs, copy, render_mode
        self.metadata = self.metadata | {"autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self._front.observation_space
        self.single_action_space = self._front.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._history = History(num_envs) if render_mode == "rgb_array" else None
        self._all, self._seeded = np.ones(num_envs, dtype=np.bool_), np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins episodes: by `seed` (environment `i` by `seed + i`) or a list of seeds; without one, the next.

        `options`: load, start_s, world; and `reset_mask`, which environments are reset (a boolean array; the others stay).
        """
        options = dict(options) if options is not None else {}
        mask = self._mask(options.pop("reset_mask", None))
        options = checked_options(options)
        if seed is None:
            seeds = [None] * self.num_envs
        elif isinstance(seed, (int, np.integer)):
            seeds = [int(seed) + env for env in range(self.num_envs)]
        else:
            seeds = [None if one is None else int(one) for one in seed]
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: expected one for each of {self.num_envs} environments, found {len(seeds)}")
        # The generator is for those that have no seed of their own, and for `np_random`.
        super().reset(seed=seeds[0] if seed is not None else None)
        for env in np.flatnonzero(mask & ~self._seeded):
            if seeds[env] is None:
                seeds[env] = int(self.np_random.integers(2**63))
        front = self._open()
        front.reset(seeds, mask.tolist(), options)
        self._seeded |= mask
        if self._history is not None:
            self._history.clear(mask)
            self._history.add(front.observations, front.rewards)
        return self._observations(), self._infos()

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Takes an action in each environment."""
        front = self._open()
        ended = front.step(actions, self.action_space.shape)
        if self._history is not None:
            self._history.add(front.observations, front.rewards)
        infos = self._infos()
        for one in ended or ():
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                observation, info = front.last(one)
                infos = self._add_info(infos, {"final_obs": observation, "final_info": info}, one["env"])
            else:
                infos = self._add_info(infos, {"outcome": one["outcome"]}, one["env"])
        rewards, terminated, truncated = front.rewards, front.terminated, front.truncated
        if self.copy:
            rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
        return self._observations(), rewards, terminated, truncated, infos

    def action_masks(self) -> np.ndarray:
        """Whether each choice can be taken now: a row for each environment, all heads one after another."""
        masks = self._open().masks
        return masks.astype(np.bool_) if self.copy else masks.view(np.bool_)

    def engine_actions(self) -> np.ndarray:
        """What the engines do by themselves."""
        return np.array([self._open().choices(env) for env in range(self.num_envs)])

    def render(self) -> tuple[str | np.ndarray, ...] | None:
        """A frame for each environment."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render_mode: give one to make_vec(), ansi or rgb_array")
            return None
        front = self._open()
        if self._history is not None:
            return tuple(self._history.picture(env) for env in range(self.num_envs))
        return tuple(
            text(self.scenario, front.state(env), front.rewards[env]) for env in range(self.num_envs)
        )

    def close_extras(self, **_: Any) -> None:
        """Gives the nodes back."""
        self._front = None

    def _mask(self, mask: np.ndarray | None) -> np.ndarray:
        if mask is None:
            return self._all
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask']: expected a boolean array, found {mask!r}")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"options['reset_mask']: expected {self.num_envs} values of which one is true, found {mask!r}")
        return mask

    def _observations(self) -> Any:
        front = self._front
        observations = front.observations.copy() if self.copy else front.observations
        if not front.is_dict:
            return observations
        return {"action_mask": front.float_masks.copy() if self.copy else front.float_masks, "observations": observations}

    def _infos(self) -> dict[str, Any]:
        front = self._front
        infos = {"action_mask": front.masks, "load": front.loads, "elapsed_s": front.elapsed_s}
        if self.copy:
            infos = {key: values.copy() for key, values in infos.items()}
        return infos | {f"_{key}": self._all.copy() for key in ("action_mask", "load", "elapsed_s")}
