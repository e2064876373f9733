"""The simulator: worlds, and what is done with them. Use `kvtide.scenario` and `kvtide.gym`."""

from os import PathLike
from typing import final

SCENARIOS: tuple[str, ...]

class ScenarioError(ValueError):
    """A world, a policy or a range that cannot be; it says which."""

@final
class Scenario:
    """What is served on what, by which targets, and how episodes are cut from it: an experiment, with its first world set up."""

    @staticmethod
    def load(path: str | PathLike[str]) -> Scenario:
        """The experiment in the file at `path`; paths in it are relative to its folder. Raises `ScenarioError`, `OSError`."""

    @staticmethod
    def from_toml(text: str) -> Scenario:
        """The experiment that `text` is; paths in it are relative to the working directory. Raises `ScenarioError`, `OSError`."""

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
