#!/usr/bin/env python3
"""What it costs to have runs served by a Ray cluster: efficiency from one worker to two, CPU time and bytes a task.

    PYTHONPATH=… python3 python/checks/ray_cost.py [REPEATS]

Two clusters of this machine's own, of one worker and of two, do the same tasks in turn, after every worker has set the world up once;
their answers must be the same. Long tasks are runs as those of an evaluation; short ones have one request, and are what a task
costs by itself. The CPU time is that of the process that sends tasks out, which other work on the machine lengthens less than it
does the clock. Starting a driver and its workers, which each `--ray` does once, is timed apart.
"""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ray_cluster import cluster  # noqa: E402

from kvtide._sim import BUILD  # noqa: E402

WORK = {"long": ("chat:rate=5,duration=7200", 24), "short": ("chat:rate=1,n=1", 1000)}


def setting(workload):
    """The text of a setting, as the tool tells it."""
    matrix = {"world": {"workload": workload}, "policies": {}, "is_guarded": True, "traffic": None}
    return json.dumps({"build": BUILD, "files": [], "work": {"matrix": matrix}})


def tasks(count, first=0):
    errand = {"policy": "fixed:0.03", "window": None, "load": 1.0, "clock": None}
    return [json.dumps({**errand, "seed": first + seed}) for seed in range(count)]


def answers(foreman, name, some):
    """What came of each task, in order, and what each took in its worker; seconds by the clock, and of CPU here."""
    begun, used = time.perf_counter(), time.process_time()
    for number, task in enumerate(some):
        foreman.begin(number, name, task)
    found = {}
    while len(found) < len(some):
        number, is_done, text, took = foreman.done.get()
        if not is_done:
            sys.exit(text)
        found[number] = (text, took)
    clock, cpu = time.perf_counter() - begun, time.process_time() - used
    return [found[number] for number in range(len(some))], clock, cpu


def measure(address):
    """Of each kind of work: answers, clock, CPU here, seconds in workers, bytes."""
    from kvtide.ray import connect
    from kvtide.ray.serve import Foreman

    begun = time.perf_counter()
    ray = connect(address)
    foreman, measured = Foreman(ray), {}
    for name, (workload, count) in WORK.items():
        foreman.tell(name, setting(workload), [])
        # Every worker comes to have set it up.
        warm = {took["pid"] for _ in range(3) for _, took in answers(foreman, name, tasks(6, 10_000))[0]}
        started = time.perf_counter() - begun
        sent, received = foreman.sent, foreman.received
        found, clock, cpu = answers(foreman, name, tasks(count))
        measured[name] = {
            "texts": [text for text, _ in found],
            "clock": clock,
            "cpu": cpu,
            "inside": [took["seconds"] for _, took in found],
            "opened": sum(took["opened_s"] > 0 for _, took in found),
            "bytes": ((foreman.sent - sent) / count, (foreman.received - received) / count),
            "workers": len(warm),
            "started": started,
        }
    ray.shutdown()
    return measured


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with cluster(1) as one, cluster(2) as two:
        turns = [(measure(one.address), measure(two.address)) for _ in range(repeats)]
    spread = lambda values: f"{statistics.median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"  # noqa: E731
    print(f"median [least, most] of {repeats} turns")
    for name, (workload, count) in WORK.items():
        first, second = [turn[0][name] for turn in turns], [turn[1][name] for turn in turns]
        if any(of["texts"] != first[0]["texts"] for of in first + second):
            sys.exit(f"{name}: other answers from other workers")
        print(f"\n{name}: {count} tasks of {workload}")
        print(f"by the clock, s: one worker {spread([of['clock'] for of in first])}, two {spread([of['clock'] for of in second])}")
        print(f"efficiency from one to two: {spread([a['clock'] / b['clock'] / 2 for a, b in zip(first, second, strict=True)])}")
        inside = [1000 * statistics.mean(of["inside"]) for of in first + second]
        print(f"in a worker, ms a task: {spread(inside)}")
        print(f"CPU of who sends, ms a task: {spread([1000 * of['cpu'] / count for of in first + second])}")
        print("bytes a task: sent {:.0f}, received {:.0f}".format(*second[0]["bytes"]))
        print(f"opened anew while timed: {sum(of['opened'] for of in first + second)}; workers {first[0]['workers']}, {second[0]['workers']}")
    print(f"\nfrom joining to the first world set up, s: {spread([turn[0]['long']['started'] for turn in turns])}")


main()
