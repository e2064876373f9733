"""Runs of evaluations in few lines: condense.py FILE …, a line for each setting and policy to stdout. Figures are by load and, within
it, by draw."""
import json
import sys
from collections import defaultdict
from pathlib import Path

found = defaultdict(list)
for file in sys.argv[1:]:
    draw = int(Path(file).stem.rsplit("-", 1)[1])
    for line in open(file):
        line = json.loads(line)
        if line["type"] == "run":
            run = line["data"]
            found[(json.dumps(run.get("set", {}), sort_keys=True), run["policy"])].append((run["load"], draw, run))
for (settings, policy), runs in sorted(found.items()):
    loads = sorted({load for load, _, _ in runs})
    by_load = [[run for of, _, run in sorted(runs, key=lambda run: run[:2]) if of == load] for load in loads]

    def each(figure):
        return [[round(figure(run), 4) for run in of] for of in by_load]

    line = {"settings": json.loads(settings), "policy": policy, "loads": loads, "draws": sorted({draw for _, draw, _ in runs})}
    line["attained"] = each(lambda run: run["slo_attainment"])
    line["hits"] = each(lambda run: run["prefix_hit_ratio"])
    line["ttft_p99"] = each(lambda run: run["ttft_ms"]["p99"] / 1000)
    if any("host_cache" in run for _, _, run in runs):
        line["host_hits"] = each(lambda run: run["host_cache"]["hit_ratio"])
    if any(run.get("by_class") for _, _, run in runs):
        line["groups"] = [[{name: round(group["slo_attainment"], 4) for name, group in run["by_class"].items()} for run in of] for of in by_load]
    print(json.dumps(line, separators=(",", ":")))
