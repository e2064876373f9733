"""The runtime, in Rust. Documented in `python/README.md`."""

import os
from collections.abc import Buffer, Iterable, Iterator
from typing import Literal, TypedDict

__version__: str
SCHEMA_HASH: int
ACTION_SET_HASH: int
FEATURE_NAMES: tuple[str, ...]
WATERMARK_LEVELS: list[float]
FALLBACK_REASONS: tuple[str, ...]

Profile = Literal["watermark", "core", "full"]
# tokens, computed tokens, generated tokens, held blocks, deadline of the next token
Running = tuple[int, int, int, int, int]
# tokens, arrival, deadline of the first token (None if it has had it), prefill time
Waiting = tuple[int, int, int | None, int]

class Comparison(TypedDict):
    feature: str
    value: float
    threshold: float
    greater: bool

class TableError(ValueError):
    """Bytes that are not a table for this build."""

    reason: str
    """The error's name: `crc`, `truncated`, `magic`, `schema`, `action_set`, …"""

class Controls:
    """What a scheduler obeys until the next decision."""

    @property
    def watermark(self) -> float: ...
    @property
    def victim(self) -> Literal["newest", "fewest-blocks", "most-blocks", "least-progress", "most-slack"]: ...
    @property
    def preemption(self) -> Literal["swap", "recompute", "cheaper"]: ...
    @property
    def admission(self) -> Literal["fcfs", "on-time-first", "shortest-on-time-first"]: ...

class Observation:
    """What a policy sees: a fixed sequence of named floats."""

    names: tuple[str, ...]
    def __init__(self, values: Iterable[float]) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: int | str) -> float: ...
    def __iter__(self) -> Iterator[float]: ...
    def as_dict(self) -> dict[str, float]: ...

class Observer:
    """Turns what a scheduler knows into observations; remembers counters and running averages."""

    def __init__(self) -> None: ...
    def observe(
        self,
        *,
        now_us: int,
        block_size: int,
        num_gpu_blocks: int,
        free_gpu_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        ttft_target_us: int,
        tpot_target_us: int,
        evictable_blocks: int = 0,
        num_cpu_blocks: int = 0,
        free_cpu_blocks: int = 0,
        num_swapped: int = 0,
        running: Iterable[Running] | Buffer | None = None,
        waiting: Iterable[Waiting] | Buffer | None = None,
        newest: Iterable[Waiting] | Buffer | None = None,
        num_waiting: int | None = None,
        total_steps: int = 0,
        total_refused_steps: int = 0,
        total_arrivals: int = 0,
        total_arrived_prompt_tokens: int = 0,
        total_completions: int = 0,
        total_completed_output_tokens: int = 0,
        total_preemptions: int = 0,
        total_swapped_blocks: int = 0,
    ) -> Observation: ...

class Table:
    """A validated decision table made for this build's observations and actions."""

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Table: ...
    @staticmethod
    def from_bytes(data: bytes) -> Table: ...
    @property
    def profile(self) -> Profile: ...
    @property
    def heads(self) -> list[str]: ...
    @property
    def leaves(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def ranges(self) -> dict[str, tuple[float, float]]: ...
    def decide(self, observation: Observation, *, swap: bool = False) -> Controls: ...
    def explain(self, observation: Observation) -> list[Comparison]: ...

class Guard:
    """A table where it can be trusted, the fallback where it cannot."""

    def __init__(
        self,
        table: Table | None = None,
        *,
        fallback_watermark: float = 0.0,
        max_age_us: int = 1_000_000,
        range_tolerance: float = 0.1,
        out_of_range_decisions: int = 8,
        recovery_decisions: int = 32,
        hold_decisions: int = 0,
    ) -> None: ...
    def replace(self, table: Table) -> None: ...
    def decide(self, observation: Observation, *, age_us: int = 0, swap: bool = False) -> Controls: ...
    @property
    def last_fallback(self) -> str | None: ...
    @property
    def counters(self) -> dict[str, int]: ...
