"""Runs of evaluations in few lines: condense.py [--stretch SECONDS] FILE …, a line for each setting and constant to stdout.

Attained shares are by load and, within it, by draw; other figures are means over draws, by load. With --stretch also
`[requests, attained]` of every so many seconds of arrivals, by draw.
"""
import json
import sys
from collections import defaultdict

FIGURES = {
    "ttft_mean": ("ttft_ms", "mean"), "ttft_p50": ("ttft_ms", "p50"), "ttft_p99": ("ttft_ms", "p99"), "tpot_p95": ("tpot_ms", "p95"),
    "e2e_mean": ("e2e_ms", "mean"),
}


def stretches(run, seconds):
    """Sums of the run's own stretches, which are shorter."""
    own = run["stretches"]
    each = seconds // own["seconds"]
    counts = own["counts"]
    return [[sum(pair[at] for pair in counts[start:start + each]) for at in (0, 1)] for start in range(0, len(counts), each)]


def value(run, path):
    for key in path:
        run = run[key]
    return run


def main(files, seconds):
    found = defaultdict(list)
    for file in files:
        for line in open(file):
            line = json.loads(line)
            if line["type"] == "run":
                run = line["data"]
                settings = {"max_num_batched_tokens": 2048, **{key: int(text) for key, text in run.get("set", {}).items()}}
                found[(tuple(sorted(settings.items())), run["policy"], run.get("clock_draw", 0))].append(run)
    for (settings, policy, clock), runs in sorted(found.items()):
        loads = sorted({run["load"] for run in runs})
        by_load = [sorted((run for run in runs if run["load"] == load), key=lambda run: (run["seed"], run["trace"])) for load in loads]
        line = {"settings": dict(settings), "policy": policy, "loads": loads}
        if clock:
            line["clock_draw"] = clock
        line["attained"] = [[round(run["slo_attainment"], 4) for run in of] for of in by_load]
        for name, path in FIGURES.items():
            line[name] = [round(sum(value(run, path) for run in of) / len(of)) for of in by_load]
        if seconds:
            line["stretches"] = [[stretches(run, seconds) for run in of] for of in by_load]
        print(json.dumps(line, separators=(",", ":")))


arguments = sys.argv[1:]
seconds = 0
if arguments[0] == "--stretch":
    seconds, arguments = int(arguments[1]), arguments[2:]
main(arguments, seconds)
