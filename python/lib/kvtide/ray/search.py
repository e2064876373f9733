"""Candidates of a search of yours, played on a Ray cluster: `kvtide.evaluate`, cut and put together again.

>>> from kvtide.evaluate import Arena
>>> from kvtide.ray import connect, search
>>> connect("10.0.0.1:6379")
>>> arena = Arena("experiments/chat-24g.toml")
>>> played = search.play(arena, candidates, range(16))       # what arena.play(candidates, range(16)) gives, sooner

`kvtide train --ray ADDRESS` does the same for the search of kvtide's own, and ships its traffic; an arena's files must lie at
the same path on every machine.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from kvtide import evaluate
from kvtide.evaluate import Arena, Candidates, Played
from kvtide.ray import needs_ray

__all__ = ["PlayedElsewhereError", "cut", "play"]

# Tasks for each worker: the last to end keeps the others waiting, and what is cut too finely is spent on sending it.
_TASKS_A_WORKER = 4
# How often a task is done again when whoever did it is lost.
_MOST_TRIES = 8


class PlayedElsewhereError(RuntimeError):
    """A worker comes to other numbers than this machine: its files are others, or its wheel is of another build."""


def cut(candidates: int, seeds: int, tasks: int) -> tuple[int, int]:
    """How many candidates and seeds make a task, so that there are about so many tasks; candidates are kept whole while there are
    enough of them."""
    if candidates >= tasks:
        return -(-candidates // max(tasks, 1)), max(seeds, 1)
    parts = min(-(-tasks // max(candidates, 1)), max(seeds, 1))
    return 1, max(-(-seeds // parts), 1)


def play(
    arena: Arena,
    candidates: Candidates,
    seeds: int | Iterable[int],
    *,
    worlds: Sequence[int] | None = None,
    tasks: int | None = None,
) -> Played:
    """What ``arena.play(candidates, seeds, worlds=worlds)`` gives, byte for byte, in about so many Ray tasks.

    The cluster is the one that was joined (`kvtide.ray.connect`, ``ray.init``). The arena is put into the object store once, with
    what points stand for. A task whose worker is lost is done again by another. The first run is played here as well, and
    PlayedElsewhereError raised where it is not the same.
    """
    ray = needs_ray()
    seeds = list(range(seeds)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    if isinstance(candidates, str):
        candidates = [candidates]
    is_words = not isinstance(candidates, np.ndarray) and all(isinstance(candidate, str) for candidate in candidates)
    if not is_words:
        candidates = np.atleast_2d(np.ascontiguousarray(candidates, np.float64))
        # So that no worker looks for a prior and plays for moments.
        _ = arena.space
    if not len(candidates) or not seeds:
        return arena.play(candidates, seeds, worlds=worlds)
    workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
    some, few = cut(len(candidates), len(seeds), tasks or _TASKS_A_WORKER * workers)
    there = ray.put(arena)
    do = ray.remote(num_cpus=1, max_retries=_MOST_TRIES)(_play)
    rows = [
        [do.remote(there, candidates[row : row + some], seeds[first : first + few], worlds) for first in range(0, len(seeds), few)]
        for row in range(0, len(candidates), some)
    ]
    here = arena.play(candidates[:1], seeds[:1], worlds=worlds)
    whole = evaluate.concatenate([evaluate.concatenate(ray.get(row), axis=2) for row in rows], axis=0)
    for field in dataclasses.fields(here):
        expected, found = getattr(here, field.name), getattr(whole, field.name)[:1, :, :1]
        if expected.tobytes() != found.tobytes():
            raise PlayedElsewhereError(f"{field.name} is {found.ravel()} by a worker, {expected.ravel()} on this machine")
    return whole


def _play(arena, candidates, seeds, worlds):
    # One task, one core: the others are for other tasks.
    return arena.play(candidates, seeds, worlds=worlds, threads=1)
