"""Candidates of a search of yours, played on a Ray cluster: `kvtide.evaluate`, cut and put together again.

>>> from kvtide import evaluate
>>> from kvtide.ray import connect, search
>>> connect("10.0.0.1:6379")
>>> scenario = evaluate.Scenario("experiments/chat-24g.toml")
>>> played = search.play(scenario, candidates, seeds=range(16))      # what scenario.play(candidates, range(16)) gives, sooner

`kvtide train --ray ADDRESS` does the same for the search of kvtide's own.
"""

from kvtide.ray import needs_ray

__all__ = ["cut", "play"]

# Tasks for each worker: the last to end keeps the others waiting, and what is cut too finely is spent on sending it.
_TASKS_A_WORKER = 4
# How often a task is done again when whoever did it is lost.
_MOST_TRIES = 8


def cut(candidates, seeds, tasks):
    """How many candidates and seeds make a task, so that there are about so many; candidates are kept whole while there are enough."""
    if candidates >= tasks:
        return -(-candidates // max(tasks, 1)), seeds
    parts = min(-(-tasks // max(candidates, 1)), max(seeds, 1))
    return 1, max(-(-seeds // parts), 1)


def play(scenario, candidates, seeds, worlds=None, *, tasks=None):
    """What ``scenario.play(candidates, seeds, worlds)`` gives, byte for byte, in about so many Ray tasks.

    The cluster is the one that was joined (`kvtide.ray.connect`, ``ray.init``). The scenario is put into the object store once. A task
    whose worker is lost is done again by another.
    """
    from kvtide import evaluate

    ray = needs_ray()
    if isinstance(seeds, range):
        seeds = list(seeds)
    seeds = [int(seed) for seed in seeds]
    if not isinstance(candidates, list) and getattr(candidates, "ndim", 2) == 1:
        candidates = candidates[None, :]
    # So that no worker plays prior and moments for itself.
    if not isinstance(candidates, list):
        _ = scenario.space
    workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
    some, few = cut(len(candidates), len(seeds), tasks or _TASKS_A_WORKER * workers)
    there = ray.put(scenario)
    do = ray.remote(num_cpus=1, max_retries=_MOST_TRIES)(_play)
    parts = [
        [do.remote(there, candidates[row : row + some], seeds[first : first + few], worlds) for first in range(0, len(seeds), few)]
        for row in range(0, len(candidates), some)
    ]
    rows = [evaluate.concatenate(ray.get(row), axis=2) for row in parts]
    return evaluate.concatenate(rows, axis=0)


def _play(scenario, candidates, seeds, worlds):
    # One task, one core: the others are for other tasks.
    return scenario.play(candidates, seeds, worlds=worlds, threads=1)
