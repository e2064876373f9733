"""What policies attain: thousands of candidates on the same worlds and seeds, in Rust on every core.

>>> from kvtide.evaluate import Arena, play, simulate
>>> play(["default", "fixed:0.05,budget=1024"], "chat-24g", seeds=range(16)).attainment     # [policies, worlds, seeds]
>>> arena = Arena("chat-24g")                                                                # for searchers: prepared once
>>> arena.play(arena.start + 0.1 * rng.standard_normal((1000, arena.dimension)), seeds).score()
>>> arena.save(best, "runs/mine", made_by="CMA-ES")                                          # a checkpoint: evaluate, export

A candidate is a policy in the words of the command line, or a point: the coordinates of the linear policy that `kvtide train` searches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from os import PathLike, fspath
from typing import Any, Literal

import numpy as np

from kvtide._sim import Grounds, Scenario, ScenarioError
from kvtide.scenario import scenario as _scenario

__all__ = ["Arena", "Played", "Simulated", "concatenate", "play", "simulate"]

Spec = str | PathLike | Scenario | Mapping[str, Any]
Candidates = np.ndarray | Sequence[str] | str


@dataclass(frozen=True, eq=False)
class Played:
    """What came of every run: arrays `[candidates, worlds, seeds]`. Times are of requests that finished, NaN where there are none."""

    attainment: np.ndarray
    """The share of requests that missed no target."""
    returns: np.ndarray
    """The sum of rewards of an episode; NaN of whole traffic, where nothing is rewarded."""
    requests: np.ndarray
    on_time: np.ndarray
    """Requests that missed no target; of an episode that was cut short, those that had missed none by then."""
    load: np.ndarray
    output_tok_s: np.ndarray
    preemptions: np.ndarray
    hit_ratio: np.ndarray
    """Prompt tokens found in the prefix cache / prompt tokens found or computed."""
    kv_usage: np.ndarray
    wait_p50_ms: np.ndarray
    wait_p99_ms: np.ndarray
    longest_wait_ms: np.ndarray
    decisions: np.ndarray
    steps: np.ndarray
    seconds: np.ndarray
    hash: np.ndarray
    """Equal for equal runs, and that of `kvtide evaluate`: `f"{hash:016x}"`."""

    def score(self) -> np.ndarray:
        """What the search maximises, of each candidate: within a world every request counts the same, and a world as many times as it
        has runs with requests."""
        requests, on_time = self.requests.astype(float), self.on_time.astype(float)
        runs = (requests > 0).sum(axis=2)
        served = requests.sum(axis=2)
        shares = np.divide(on_time.sum(axis=2), served, out=np.ones_like(served), where=served > 0)
        total = runs.sum(axis=1)
        return np.divide((runs * shares).sum(axis=1), total, out=np.ones(len(total)), where=total > 0)

    def __getitem__(self, index: Any) -> "Played":
        """The same part of every array."""
        return replace(self, **{field.name: getattr(self, field.name)[index] for field in fields(self)})


@dataclass(frozen=True, eq=False)
class Simulated:
    """One run in full. `requests` and `steps` are structured arrays; column by column (`requests["wait_s"]`) they are what
    `pandas.DataFrame` and `pyarrow.table({name: requests[name] for name in requests.dtype.names})` take."""

    requests: np.ndarray
    """In the order of arrival. Times are simulated seconds; NaN for what did not happen."""
    steps: np.ndarray
    """The node each time its scheduler was asked for a step; with asynchronous scheduling that is once before the first step ends, and
    once after the last."""
    summary: dict[str, float | int]
    """The numbers of the run, as `Played` has them."""


class Arena:
    """Where candidates are played. `scenario` is anything that `kvtide.scenario.scenario` takes, or its words as a mapping.

    Without `loads`: episodes of `part` of its traffic, drawn by their seed as training draws them; each of its worlds is played with
    every seed. With `loads`: all of the traffic of its first world, or of `window` ("600s..1200s"), at each of them, as `kvtide
    evaluate` runs it. `space` says what points stand for, as `space` of another arena has it; otherwise the prior and the moments of the
    features are found as `kvtide train` does before it searches, the first time somebody asks.

    A run depends on its candidate, its world and its seed, and on nothing else. An arena can be pickled: what it knows goes along.
    """

    def __init__(
        self,
        scenario: Spec,
        *,
        part: Literal["train", "validation", "unseen"] = "train",
        loads: Iterable[float] | None = None,
        window: str | None = None,
        space: str | None = None,
        traces: str | PathLike | None = None,
        threads: int = 0,
    ) -> None:
        if isinstance(scenario, Mapping):
            scenario = _scenario(traces=traces, **scenario)
        else:
            scenario = _scenario(scenario, traces=traces)
        loads = None if loads is None else [float(load) for load in loads]
        self._words = {"part": part, "loads": loads, "window": window, "threads": threads}
        self.scenario: Scenario = scenario
        self._threads = threads
        self._grounds = Grounds(scenario, part=part, loads=loads, window=window, space=space)

    @property
    def worlds(self) -> list[str]:
        """What axis 1 of the results counts."""
        return self._grounds.names

    @property
    def dimension(self) -> int:
        """How many coordinates a point has: for each choice of a head with names, and for each head with levels, a weight of every
        feature and a bias."""
        return len(self.start)

    @property
    def start(self) -> np.ndarray:
        """The point that stands for the prior: what a search starts from."""
        return np.array(self._grounds.start(self._threads))

    @property
    def space(self) -> str:
        """What points stand for, as JSON: `Arena(…, space=…)` elsewhere finds nothing again."""
        return self._grounds.space(self._threads)

    def play(
        self,
        candidates: Candidates,
        seeds: int | Iterable[int],
        *,
        worlds: Sequence[int] | None = None,
        threads: int | None = None,
    ) -> Played:
        """Plays every candidate in every world with every seed.

        `candidates` is an array `[n, dimension]`, or `[dimension]` for one, or policies in the words of the command line: default,
        fixed:W[,…], table:FILE, checkpoint:DIR, …. `seeds` are numbers, a number of them counting from 0; `worlds` are numbers of
        `self.worlds`. Ctrl-C raises KeyboardInterrupt. Raises ScenarioError (a ValueError), or OSError for a file."""
        seeds = _seeds(seeds)
        worlds = list(range(len(self.worlds))) if worlds is None else [int(world) for world in worlds]
        given = self._given(candidates)
        count, columns = self._grounds.play(given, seeds, worlds, self._threads if threads is None else threads)
        shape = (count, len(worlds), len(seeds))
        return Played(**{field.name: _column(columns[field.name], field.name).reshape(shape) for field in fields(Played)})

    def simulate(self, candidate: Candidates, *, seed: int = 1, world: int = 0) -> Simulated:
        """One run in full: every request, and the node after every scheduler step."""
        summary, requests, steps = self._grounds.run(self._given(candidate), world, seed)
        return Simulated(
            requests=_table(requests),
            steps=_table(steps),
            summary={name: _column(column, name)[0].item() for name, column in summary.items()},
        )

    def save(self, point: np.ndarray, folder: str | PathLike, *, made_by: str = "a search of its owner", decisions: int = 0) -> None:
        """Writes the policy of `point` as a checkpoint, which `kvtide evaluate`, `export` and `inspect` take as one of their own."""
        self._grounds.save(self._given(np.asarray(point)), fspath(folder), made_by=made_by, decisions=decisions)

    def _given(self, candidates: Candidates) -> np.ndarray | list[str]:
        if isinstance(candidates, str):
            return [candidates]
        if not isinstance(candidates, np.ndarray):
            candidates = list(candidates)
            if all(isinstance(candidate, str) for candidate in candidates):
                return candidates
        points = np.ascontiguousarray(candidates, dtype=np.float64)
        if points.ndim not in (1, 2) or (points.size and points.shape[-1] != self.dimension):
            raise ScenarioError(f"candidates of shape {points.shape}: expected (n, {self.dimension})")
        return points

    def __reduce__(self):
        return _again, (self.scenario, self._words, self._grounds.known_space())

    def __repr__(self) -> str:
        return f"<Arena {self.scenario.name}: {len(self.worlds)} worlds>"


def _again(scenario, words, space):
    return Arena(scenario, space=space, **words)


def play(candidates: Candidates, scenario: Spec | Arena, seeds: int | Iterable[int], **options: Any) -> Played:
    """Plays every candidate in every world of `scenario` with every seed: `Arena(scenario, **options).play(candidates, seeds)`. Who
    calls it more than once with points makes the `Arena` first: it looks for a prior and plays for moments."""
    chosen = {name: options.pop(name) for name in ("worlds", "threads") if name in options}
    if isinstance(scenario, Arena):
        if options:
            raise TypeError(f"{', '.join(options)}: of an Arena that is still to be made")
        return scenario.play(candidates, seeds, **chosen)
    if "threads" in chosen:
        options["threads"] = chosen["threads"]
    return Arena(scenario, **options).play(candidates, seeds, **chosen)


def simulate(
    policy: Candidates = "default",
    scenario: Spec | Arena | None = None,
    *,
    load: float = 1.0,
    window: str | None = None,
    seed: int = 1,
    **words: Any,
) -> Simulated:
    """One run in full, of whole traffic at `load`: `simulate("fixed:0.05", workload="chat:rate=2,duration=600")`, or of a scenario."""
    if isinstance(scenario, Arena):
        return scenario.simulate(policy, seed=seed)
    return Arena(words if scenario is None else scenario, loads=[load], window=window).simulate(policy, seed=seed)


def concatenate(parts: Sequence[Played], axis: int = 0) -> Played:
    """Parts that were played apart, put together along candidates (0), worlds (1) or seeds (2)."""
    names = [field.name for field in fields(Played)]
    return Played(**{name: np.concatenate([getattr(part, name) for part in parts], axis=axis) for name in names})


_NUMBERS = {"requests", "on_time", "preemptions", "decisions", "steps", "hash"}
_NUMBERS |= {"prompt_tokens", "output_tokens", "prefill_tokens", "decodes", "preempted", "running", "waiting", "swapped"}
_NUMBERS |= {"used_blocks", "evictable_blocks", "num_blocks", "decision"}
_FLAGS = {"finished", "rejected", "attained"}


def _column(data: bytes, name: str) -> np.ndarray:
    if name in _FLAGS:
        return np.frombuffer(data, dtype=np.uint64).astype(bool)
    return np.frombuffer(data, dtype=np.uint64 if name in _NUMBERS else np.float64).copy()


def _table(columns: Mapping[str, bytes]) -> np.ndarray:
    read = {name: _column(data, name) for name, data in columns.items()}
    rows = len(next(iter(read.values())))
    table = np.empty(rows, dtype=[(name, column.dtype) for name, column in read.items()])
    for name, column in read.items():
        table[name] = column
    return table


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    found = list(range(seeds)) if isinstance(seeds, Integral) else [int(seed) for seed in seeds]
    if wrong := [seed for seed in found if not 0 <= seed < 2**64]:
        raise ScenarioError(f"seed {wrong[0]}: expected a number from 0, below 2^64")
    return found
