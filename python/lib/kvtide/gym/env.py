"""One environment."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from kvtide._sim import Scenario
from kvtide.gym.front import Front, Fronted, checked_options
from kvtide.gym.render import History, text


class KvCacheEnv(Fronted, gymnasium.Env, EzPickle):
    """A serving node that is sent traffic; an action is what its scheduler obeys until the next decision.

    `scenario` is a name of `kvtide.scenario.SCENARIOS`, the path of an experiment file or a `Scenario`; or `words` describe a world.
    `actions`: "multi", a choice of each head (`MultiDiscrete`), or "flat", one number for every joint choice that can occur
    (`Discrete`). `heads`: which are chosen, by default those of which a world leaves a choice; "all" for every one there is.
    `masked`: what the mask forbids is replaced by the first choice that it allows ("repair", as a node does) or refused ("raise").
    `observations`: "array", or "dict" with the mask beside it, as RLlib takes it. `part` of the traffic: "train", "validation" or
    "unseen".

    An episode is a stretch of traffic on a node that starts empty: `truncated` when its time is over, `terminated` only if every
    request was served before. `info` has the `action_mask`, the `load` and `elapsed_s`, and at the end the `outcome`.
    Pickled, it is made anew: it must be reset.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10}

    def __init__(
        self,
        scenario: str | PathLike | Scenario | None = None,
        *,
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
        EzPickle.__init__(self, scenario, **keywords, traces=traces, render_mode=render_mode, **words)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode {render_mode!r}: expected one of {', '.join(self.metadata['render_modes'])}")
        self._front = Front(scenario, words, num_envs=1, autoreset="disabled", traces=traces, threads=1, **keywords)
        self.render_mode = render_mode
        self.observation_space, self.action_space = self._front.observation_space, self._front.action_space
        self._history = History(1) if render_mode == "rgb_array" else None
        self._seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode: that of `seed`, or without one the next. `options`: load, start_s, world."""
        options = checked_options(options)
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**63))
        self._open().reset([seed], [True], options)
        self._seeded = True
        if self._history is not None:
            self._history.clear()
            self._history.add(self._front.observations, self._front.rewards)
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Obeys `action` until the next decision."""
        front = self._open()
        ended = front.step(action, self.action_space.shape)
        if self._history is not None:
            self._history.add(front.observations, front.rewards)
        info = self._info()
        if ended:
            info["outcome"] = ended[0]["outcome"]
        reward, terminated, truncated = front.rewards[0], front.terminated[0], front.truncated[0]
        return self._observation(), float(reward), bool(terminated), bool(truncated), info

    def action_masks(self) -> np.ndarray:
        """Whether each choice can be taken now, all heads one after another, as `sb3_contrib` takes it."""
        return self._open().masks[0].astype(np.bool_)

    def engine_action(self) -> np.int64 | np.ndarray:
        """What the engine does by itself."""
        return self._open().choices()

    def render(self) -> str | np.ndarray | None:
        """What `render_mode` says: the node in a few lines, or a picture of the episode so far."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render_mode: give one to make(), ansi or rgb_array")
            return None
        state = self._open().state(0)
        return self._history.picture(0) if self._history is not None else text(self.scenario, state, self._front.rewards[0])

    def close(self) -> None:
        """Gives the node back. Nothing can be done with it after."""
        self._front = None

    def _observation(self) -> Any:
        observation = self._front.observations[0].copy()
        if not self._front.is_dict:
            return observation
        return {"action_mask": self._front.float_masks[0].copy(), "observations": observation}

    def _info(self) -> dict[str, Any]:
        front = self._front
        return {"action_mask": front.masks[0].copy(), "load": float(front.loads[0]), "elapsed_s": float(front.elapsed_s[0])}
