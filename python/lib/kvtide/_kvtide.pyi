"""The runtime, in Rust. Documented in `python/README.md`."""

import os
from collections.abc import Buffer, Callable, Iterable, Iterator
from typing import Any, Literal, TypedDict

__version__: str
SCHEMA_HASH: int
ACTION_SET_HASH: int
FEATURE_NAMES: tuple[str, ...]
HEADS: dict[str, list[float] | list[str]]
WATERMARK_LEVELS: list[float]
# Classes of given-back blocks, and how many turnovers of the pool `keep` and `keep-long` last.
RELEASE_FEATURE_NAMES: tuple[str, ...]
RELEASE_SCHEMA_HASH: int
RETENTION: tuple[tuple[str, str, str, str], int, int]
FALLBACK_REASONS: tuple[str, ...]

Profile = Literal["watermark", "core", "full"]
# tokens, computed tokens, generated tokens, held blocks, deadline of the next token
RunningRow = tuple[int, int, int, int, int]
# tokens, arrival, deadline of the first token (None if it has had it), prefill time
WaitingRow = tuple[int, int, int | None, int]

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
    @property
    def budget(self) -> int: ...
    @property
    def eviction(self) -> Literal["lru", "lfu"]: ...

class Visit:
    """What is known of a request from its first admission on."""

    @property
    def head(self) -> int: ...
    @property
    def turn(self) -> int: ...

class Retainer:
    """Chooses the classes of what requests give back, and remembers what that is chosen by."""

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        *,
        max_age_us: int = 1_000_000,
        range_tolerance: float = 0.1,
        out_of_range_decisions: int = 8,
        recovery_decisions: int = 32,
    ) -> None: ...
    def replace(self, table: Table | None) -> None: ...
    def observed(self, observation: Observation, now_us: int) -> None: ...
    def admitted(
        self, hashes: list[bytes], prompt_tokens: int, head: int, free: int, kind: int, now_us: int, evicted: int
    ) -> Visit: ...
    def resumed(self, visit: Visit, hashes: list[bytes], now_us: int) -> None: ...
    def release(
        self,
        visit: Visit,
        hashes: list[bytes],
        blocks: list,
        tokens: tuple[int, int],
        stop: Literal["preempted", "length", "unknown"],
        now_us: int,
        evicted: int,
        kept: int,
        ttft_target_us: int,
    ) -> tuple[int, int]: ...
    @property
    def is_behind(self) -> bool: ...
    @property
    def last_fallback(self) -> str | None: ...
    @property
    def counters(self) -> dict[str, int]: ...

class Slo:
    """Targets a request must meet all at once; times are microseconds."""

    def __init__(self) -> None: ...
    @staticmethod
    def parse(text: str) -> Slo: ...
    @property
    def ttft_us(self) -> int: ...
    @property
    def tpot_us(self) -> int: ...
    @property
    def stall_us(self) -> int: ...
    def deadline_us(self, arrival_us: int, index: int) -> int: ...
    def admit_by_us(
        self, arrival_us: int, tokens: int, pricing: Pricing, was_late: bool | None = None, last_token_us: int = 0
    ) -> int: ...

class Pricing:
    """What computing a prompt costs: as it is told, or as it is learnt from full steps."""

    def __init__(
        self, prefill_ns_per_token: float | None = None, attention_ns_per_token_pair: float = 0.0
    ) -> None: ...
    def planned(self, now_us: int, tokens: int, budget: int) -> None: ...
    @property
    def prefill_ns_per_token(self) -> float: ...
    def prefill_us(self, tokens: int) -> int: ...

class Recorder:
    """Writes a kvtide trace of what a node serves."""

    def __init__(self, path: str | os.PathLike[str], file_bytes: int, files: int, secret: bytes, header: str) -> None: ...
    def ended(
        self,
        arrival_us: int,
        prompt_tokens: int,
        output_tokens: int,
        *,
        block_tokens: int = 0,
        hashes: list[bytes] | None = None,
        tokens: list[int] | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        cache_salt: str | None = None,
        aborted: bool = False,
    ) -> bool: ...
    def close(self) -> None: ...
    @property
    def written(self) -> int: ...
    @property
    def dropped(self) -> list[tuple[str, int]]: ...
    @property
    def aborted(self) -> int: ...
    @property
    def failure(self) -> str | None: ...

class Ledger:
    """Counts what an observation counts, and says when a decision is due."""

    def __init__(self) -> None: ...
    def is_due(self, interval: int) -> bool: ...
    def decided(self) -> None: ...
    def planned(self, tokens: int | None, refused_admission: bool, preempted: int) -> None: ...
    def done(self) -> None: ...
    @property
    def in_flight(self) -> int: ...
    def arrived(self, prompt_tokens: int) -> None: ...
    def completed(self, output_tokens: int) -> None: ...
    @property
    def steps(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def refused_steps(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def arrivals(self) -> int: ...
    @property
    def arrived_prompt_tokens(self) -> int: ...
    @property
    def completions(self) -> int: ...
    @property
    def completed_output_tokens(self) -> int: ...

class WaitingQueue:
    """vLLM's queue of waiting requests, except that `order` says who is next."""

    order: str
    now_us: int
    def __init__(
        self,
        # tokens, arrival, by when to be admitted, by when the first token is on time (None if it has come)
        entry_of: Callable[[Any], tuple[int, int, int, int | None]],
        failed: Callable[[Exception], object],
    ) -> None: ...
    def add_request(self, request: Any) -> None: ...
    def prepend_request(self, request: Any) -> None: ...
    def prepend_requests(self, requests: Iterable[Any]) -> None: ...
    def peek_request(self) -> Any: ...
    def pop_request(self) -> Any: ...
    def remove_request(self, request: Any) -> None: ...
    def remove_requests(self, requests: Iterable[Any]) -> None: ...
    def lengthen(self, request: Any, tokens: int) -> None: ...
    def take_refusal(self) -> bool: ...
    def __len__(self) -> int: ...
    def __contains__(self, request: Any) -> bool: ...
    def __iter__(self) -> Iterator[Any]: ...

class VllmView:
    """A scheduler of vLLM's, with one kind of blocks."""

    def __init__(self, scheduler: Any, arrived_us: dict[str, int]) -> None: ...
    def observe(
        self,
        observer: Observer,
        now_us: int,
        slo: Slo,
        ledger: Ledger,
        pricing: Pricing,
        waiting: WaitingQueue | Iterable[WaitingRow] | Buffer,
        newest: Iterable[WaitingRow] | Buffer | None = None,
        num_waiting: int | None = None,
    ) -> Observation: ...
    def victim(self, rule: str, slo: Slo, now_us: int, first: int) -> int | None: ...

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
        running: Iterable[RunningRow] | Buffer | None = None,
        waiting: WaitingQueue | Iterable[WaitingRow] | Buffer | None = None,
        newest: Iterable[WaitingRow] | Buffer | None = None,
        num_waiting: int | None = None,
        total_steps: int = 0,
        total_tokens: int = 0,
        total_refused_steps: int = 0,
        total_arrivals: int = 0,
        total_arrived_prompt_tokens: int = 0,
        total_completions: int = 0,
        total_completed_output_tokens: int = 0,
        total_preemptions: int = 0,
        total_swapped_blocks: int = 0,
        pricing: Pricing | None = None,
        ledger: Ledger | None = None,
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
    def retains(self) -> bool: ...
    @property
    def leaves(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def ranges(self) -> dict[str, tuple[float, float]]: ...
    @property
    def features(self) -> list[str]: ...
    @property
    def fallback_watermark(self) -> float | None: ...
    def check_host(self, host: str, *, prefix_cache: bool = True, range_tolerance: float = 0.1) -> None: ...
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
        asks_table: bool = False,
    ) -> None: ...
    def replace(self, table: Table) -> None: ...
    def decide(self, observation: Observation, *, age_us: int = 0, swap: bool = False) -> Controls: ...
    @property
    def last_fallback(self) -> str | None: ...
    @property
    def fallback_watermark(self) -> float: ...
    @property
    def outside(self) -> list[str]: ...
    @property
    def counters(self) -> dict[str, int]: ...
