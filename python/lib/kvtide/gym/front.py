"""What both environments have in common: the native ones, the arrays they write into, and spaces."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from kvtide._sim import Envs, ResetNeeded, Scenario, ScenarioError
from kvtide.scenario import scenario

# What `reset` takes beside a seed: the load, the second of the traffic an episode starts at, the number of the world.
OPTIONS = ("load", "start_s", "world")


@contextmanager
def _gymnasiums_errors():
    try:
        yield
    except ResetNeeded as error:
        raise gymnasium.error.ResetNeeded(str(error)) from None


class Front:
    """`num_envs` native environments of one scenario.

    The arrays are allocated once and are written to at the end of every `reset` and `step`, never in between.
    """

    def __init__(
        self,
        spec: str | PathLike | Scenario | None,
        words: dict[str, Any],
        *,
        num_envs: int,
        autoreset: str,
        actions: str,
        observations: str,
        heads: str | Sequence[str] | None,
        masked: str,
        part: str,
        traces: str | PathLike | None,
        threads: int,
    ) -> None:
        for name, value, known in (
            ("actions", actions, ("multi", "flat")),
            ("observations", observations, ("array", "dict")),
            ("masked", masked, ("repair", "raise")),
        ):
            if value not in known:
                raise ScenarioError(f"{name} {value!r}: expected {' or '.join(known)}")
        self.scenario = spec if isinstance(spec, Scenario) and not words else scenario(spec, traces=traces, **words)
        if heads == "all":
            from kvtide import HEADS

            heads = list(HEADS)
        elif isinstance(heads, str):
            heads = [heads]
        self.native = Envs(
            self.scenario,
            num_envs,
            autoreset=autoreset,
            part=part,
            heads=None if heads is None else list(heads),
            joint=actions == "flat",
            strict=masked == "raise",
            threads=threads,
        )
        self.is_flat, self.is_dict = actions == "flat", observations == "dict"
        sizes = self.native.sizes
        self.num_choices = sum(sizes)
        low, high = (np.array(bounds, dtype=np.float32) for bounds in Envs.ranges())
        self.observations = np.zeros((num_envs, len(low)), dtype=np.float32)
        self.masks = np.zeros((num_envs, self.num_choices), dtype=np.int8)
        self.rewards, self.loads, self.elapsed_s = (np.zeros(num_envs) for _ in range(3))
        self.terminated, self.truncated = (np.zeros(num_envs, dtype=np.bool_) for _ in range(2))
        self.native.bind(
            self.observations,
            self.masks,
            self.rewards,
            self.terminated.view(np.uint8),
            self.truncated.view(np.uint8),
            self.loads,
            self.elapsed_s,
        )
        # RLlib multiplies by it.
        self.float_masks = np.zeros_like(self.masks, dtype=np.float32) if self.is_dict else None
        self.action_space = spaces.Discrete(sizes[0]) if self.is_flat else spaces.MultiDiscrete(sizes)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)
        if self.is_dict:
            mask = spaces.Box(0.0, 1.0, shape=(self.num_choices,), dtype=np.float32)
            self.observation_space = spaces.Dict({"action_mask": mask, "observations": self.observation_space})

    def reset(self, seeds: list[int | None], chosen: list[bool], options: dict[str, Any]) -> None:
        """Begins an episode in each environment of `chosen`."""
        with _gymnasiums_errors():
            self.native.reset(seeds, chosen, **options)
        self._derive()

    def step(self, actions: Any, shape: tuple[int, ...]) -> list[dict[str, Any]] | None:
        """Takes `actions` of `shape`; what ended, or None."""
        actions = np.asarray(actions)
        if actions.shape != shape or actions.dtype.kind not in "iu":
            raise ValueError(f"actions: expected whole numbers of shape {shape}, found {actions.dtype} of shape {actions.shape}")
        with _gymnasiums_errors():
            ended = self.native.step(np.ascontiguousarray(actions, dtype=np.int64))
        self._derive()
        return ended

    def state(self, env: int) -> dict[str, float]:
        """The node of environment `env` in numbers."""
        with _gymnasiums_errors():
            return self.native.state(env)

    def _derive(self) -> None:
        if self.float_masks is not None:
            np.copyto(self.float_masks, self.masks)

    def choices(self, env: int = 0) -> np.int64 | np.ndarray:
        """What the engine of environment `env` does by itself, as an action."""
        with _gymnasiums_errors():
            own = self.native.default_action(env)
        return np.int64(own[0]) if self.is_flat else np.array(own, dtype=np.int64)

    def last(self, ended: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """What an environment whose episode ended showed last: observation and info."""
        observation = np.frombuffer(ended["observation"], dtype=np.float32).copy()
        mask = np.frombuffer(ended["action_mask"], dtype=np.int8).copy()
        info = {"action_mask": mask} | {key: ended[key] for key in ("load", "elapsed_s", "outcome")}
        if self.is_dict:
            observation = {"action_mask": mask.astype(np.float32), "observations": observation}
        return observation, info


class Fronted:
    """What is asked of both environments alike. Who has it sets `_front`, and `None` once it is closed."""

    _front: Front | None

    @property
    def scenario(self) -> Scenario:
        """What is served on what."""
        return self._open().scenario

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads that are chosen, in order."""
        return tuple(self._open().native.heads)

    @property
    def joint_choices(self) -> list[list[int]] | None:
        """What each number of a flat action chooses of each head; None for others."""
        return self._open().native.joint_choices

    def _open(self) -> Front:
        if self._front is None:
            raise gymnasium.error.ClosedEnvironmentError("it is closed: nothing can be asked of it")
        return self._front


def checked_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """`options` of `reset`, whole. Raises `ScenarioError`."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ScenarioError(f"options = {options!r}: expected a dict")
    unknown = [key for key in options if key not in OPTIONS]
    if unknown:
        raise ScenarioError(f"options[{unknown[0]!r}]: there are {', '.join(OPTIONS)}")
    return dict(options)
