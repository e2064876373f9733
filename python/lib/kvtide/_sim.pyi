"""The simulator: worlds, and what is done with them. Use `kvtide.scenario` and `kvtide.gym`."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, final

SCENARIOS: tuple[str, ...]

class ScenarioError(ValueError):
    """A world, a policy or a range that cannot be; it says which."""

class ResetNeeded(RuntimeError):
    """An environment that cannot be stepped before it is reset."""

@final
class Scenario:
    """What is served on what, by which targets, and how episodes are cut from it: an experiment, with its first world set up."""

    def __new__(cls, toml: str) -> Scenario:
        """The experiment that `toml` is; paths in it are relative to the working directory. Raises `ScenarioError`, `OSError`."""

    @staticmethod
    def load(path: str | PathLike[str]) -> Scenario:
        """The experiment in the file at `path`; paths in it are relative to its folder. Raises `ScenarioError`, `OSError`."""

    @staticmethod
    def shipped(name: str, traces: str | PathLike[str] | None = None) -> Scenario:
        """One of `SCENARIOS`, its recorded traffic in the folder `traces`, or left out. Raises `ScenarioError`, `OSError`."""

    @property
    def name(self) -> str: ...
    @property
    def profile(self) -> str:
        """The heads that are decided: watermark, core, full or cache."""

    @property
    def host(self) -> str:
        """The engine it is decided for: vllm-0.33, sglang-0.5 or kvtide."""

    @property
    def interval(self) -> int:
        """Scheduler steps between decisions."""

    @property
    def num_worlds(self) -> int:
        """How many worlds episodes are drawn from."""

    @property
    def toml(self) -> str:
        """All of it, as an experiment file."""

    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Grounds:
    """Where candidates are played: use `kvtide.evaluate.Arena`. Candidates are a contiguous array of float64, or policies in words."""

    def __new__(
        cls,
        scenario: Scenario,
        *,
        part: str = "train",
        loads: Sequence[float] | None = None,
        window: str | None = None,
        space: str | None = None,
    ) -> Grounds:
        """Raises `ScenarioError`, `OSError`."""

    @property
    def names(self) -> list[str]: ...
    def space(self, threads: int = 0) -> str: ...
    def known_space(self) -> str | None: ...
    def start(self, threads: int = 0) -> list[float]: ...
    def play(
        self, candidates: Any, seeds: Sequence[int], worlds: Sequence[int] | None = None, threads: int = 0
    ) -> tuple[int, dict[str, bytes]]:
        """How many candidates, and a column of eight bytes a run for each number. Raises `ScenarioError`, `OSError`."""

    def run(
        self, candidate: Any, world: int, seed: int
    ) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes]]:
        """Numbers, requests and steps of one run. Raises `ScenarioError`, `OSError`."""

    def save(self, point: Any, out: str | PathLike[str], *, made_by: str, decisions: int = 0) -> None:
        """Raises `ScenarioError`, `OSError`."""

@final
class StepCost:
    """A deployment's prices, and vLLM's settings for it."""

    def __new__(cls, env: str) -> StepCost:
        """Of `MODEL@HARDWARE`. Raises `ValueError`."""

    def step_us(self, decodes: int, decode_context: int, chunks: list[tuple[int, int]]) -> int:
        """Microseconds of a step with so many decodes, which attend to `decode_context` tokens together, and chunks of prompts:
        (tokens before it, tokens)."""

    @property
    def num_gpu_blocks(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def prefill_ns_per_token(self) -> float: ...
    @property
    def attention_ns_per_token_pair(self) -> float: ...

BUILD: str

class WorkError(RuntimeError):
    """A setting that cannot be set up, or a task that has no result: done again it would fail again."""

def file_digest(path: str | PathLike[str]) -> str:
    """The BLAKE3 of what a file holds. Raises `OSError`."""

@final
class Workshop:
    """What a worker of a cluster does its tasks in: a setting (JSON, as the tool tells it) that was set up."""

    def __new__(cls, text: str, folder: str | PathLike[str]) -> Workshop:
        """With the files it names beneath `folder`. Raises `WorkError`."""

    def work(self, task: str) -> str:
        """Does a task, JSON in and out. Raises `WorkError`."""

    @staticmethod
    def files(text: str) -> list[tuple[str, str, int]]:
        """Of each file a setting names: its path beneath the folder, its BLAKE3, its length. Raises `WorkError`."""

@final
class Envs:
    """Environments stepped together, by one call, with the interpreter's lock released. What they show is written into the arrays of
    `bind` at the end of every `reset` and `step`."""

    def __new__(
        cls,
        scenario: Scenario,
        num_envs: int,
        *,
        autoreset: str,
        part: str = "train",
        heads: Sequence[str] | None = None,
        joint: bool = False,
        strict: bool = False,
        threads: int = 0,
    ) -> Envs:
        """`autoreset` is next-step, same-step or disabled; `heads`, by default, those of which a world leaves a choice; `joint`: one number
        for all heads; `strict`: what is forbidden is refused, not replaced. Raises `ScenarioError`."""

    @property
    def heads(self) -> list[str]: ...
    @property
    def sizes(self) -> list[int]:
        """How many choices each number of an action has."""

    @property
    def joint_choices(self) -> list[list[int]] | None: ...
    @staticmethod
    def ranges() -> tuple[list[float], list[float]]:
        """Smallest and largest value of each feature."""

    def bind(
        self, observations: Any, masks: Any, rewards: Any, terminated: Any, truncated: Any, loads: Any, elapsed_s: Any
    ) -> None:
        """The arrays that are written to, contiguous: `[num_envs, features]` float32, `[num_envs, sum of sizes]` int8, and `[num_envs]`
        float64, uint8, uint8, float64, float64. Raises `ValueError`, `BufferError`."""

    def reset(
        self,
        seeds: Sequence[int | None],
        chosen: Sequence[bool],
        *,
        load: float | None = None,
        start_s: float | None = None,
        world: int | None = None,
    ) -> None:
        """Begins an episode in each environment that `chosen` says. Raises `ScenarioError` if none can be drawn as asked."""

    def step(self, actions: Any) -> list[dict[str, Any]] | None:
        """Takes `actions`, int64; the episodes that ended, if any. Raises `ValueError` and `ResetNeeded`; then nothing was done."""

    def default_action(self, env: int) -> list[int]:
        """What the engine does by itself, as an action. Raises `ResetNeeded`."""

    def state(self, env: int) -> dict[str, float]:
        """The node of environment `env` in numbers. Raises `ResetNeeded`."""

def episode_seed(seed: int, episode: int) -> int:
    """The seed of episode number `episode`, from 0, of an environment that was reset by `seed`."""

@final
class Reference:
    """The environments that agents in Rust train on, without Python."""

    def __new__(cls, scenario: Scenario, num_envs: int, *, part: str = "train", threads: int = 0) -> Reference: ...
    def reset(self, seed: int) -> None: ...
    def step_default(self, decisions: int) -> None:
        """Takes what the engine does by itself so many times in each environment."""

    @property
    def default_choices(self) -> list[int]: ...
    def random_play(self, seed: int, decisions: int) -> tuple[bytes, bytes, str]:
        """The actions, `[decisions, num_envs, heads]` bytes; what was seen, environment by environment after the reset and after each
        decision (observation as little-endian float32, a byte of the mask for each choice, reward as little-endian float32, terminated,
        truncated); and a hash of both."""

    @staticmethod
    def env_seeds(seed: int, num_envs: int) -> list[int]:
        """Seeds with which environments of `kvtide.gym` play the same episodes."""
