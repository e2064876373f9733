#!/usr/bin/env python3
"""What it costs to have runs served by a Ray cluster: efficiency from one worker to two, and CPU time and bytes a task.

    KVTIDE=target/release/kvtide PYTHONPATH=… python3 python/checks/ray_cost.py [REPEATS]

Two clusters of this machine's own, of one worker and of two, are asked in turn for the same evaluation, which one process does
before; each comes to the same bytes, or there is no table. CPU time is what each process used, which other work on the machine
lengthens less than it does the clock.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ray_cluster import cluster, workers  # noqa: E402

TOOL = os.environ.get("KVTIDE", "kvtide")
TICKS = os.sysconf("SC_CLK_TCK")
# Runs as those of the off-road matrix, and of next to nothing, which are what a task costs by itself.
WORK = {
    "long": ["--workload", "chat:rate=5,duration=900", "--load", "0.8,1,1.2,1.4", "--seeds", "1..3", "--policy", "fixed:0.03"],
    "short": ["--workload", "chat:rate=1,n=1", "--load", "1,1.01,1.02,1.03,1.04", "--seeds", "1..100", "--policy", "fixed:0.03"],
}


def of_workers(processes):
    """Seconds of CPU that worker processes have used."""
    used = 0
    for pid, _ in processes:
        try:
            fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used += int(fields[11]) + int(fields[12])
    return used / TICKS


def run(words, address=None):
    """Seconds by the clock, CPU seconds of the tool and of what serves it, what it wrote, what was said."""
    environment = os.environ | {"KVTIDE_PYTHON": sys.executable, "RAYON_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs.jsonl"
        command = [TOOL, "evaluate", *words, "--out", str(out), *(["--ray", address] if address else [])]
        said = Path(folder) / "said"
        with said.open("w") as stderr:
            begun = time.perf_counter()
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
            _, status, usage = os.wait4(process.pid, 0)
            took = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{command}: {said.read_text()}")
        return took, usage.ru_utime + usage.ru_stime, out.read_bytes(), said.read_text()


def measure(name, words, addresses, repeats):
    """A table: alone, one worker, two workers."""
    clock, driver, worker, counted, expected = {}, {}, {}, {}, None
    for repeat in range(repeats + 1):
        for workers_of, address in addresses.items():
            before = of_workers(workers())
            took, used, written, said = run(words, address)
            time.sleep(0.2)
            expected = expected or written
            if written != expected:
                sys.exit(f"{name}, {workers_of}: other bytes than alone")
            # The first time workers set the world up.
            if repeat == 0:
                continue
            clock.setdefault(workers_of, []).append(took)
            driver.setdefault(workers_of, []).append(used)
            worker.setdefault(workers_of, []).append(of_workers(workers()) - before)
            counted[workers_of] = re.search(r"(\d+) tasks on .*; (\d+) bytes sent, (\d+) received", said)
    print(f"\n{name}: {' '.join(words)}; {repeats} in turn\nworkers    s by the clock: least, median, most   CPU s: tool and server   workers")
    for workers_of in addresses:
        least, middle, most = min(clock[workers_of]), statistics.median(clock[workers_of]), max(clock[workers_of])
        print(f"{workers_of:8} {least:17.2f} {middle:8.2f} {most:8.2f} {statistics.median(driver[workers_of]):24.2f} {statistics.median(worker[workers_of]):9.2f}")
    ratios = sorted(one / two / 2 for one, two in zip(clock["1"], clock["2"], strict=True))
    found = counted["2"]
    tasks, sent, received = (int(text) for text in found.groups())
    runs = sum(json.loads(line)["type"] == "run" for line in expected.splitlines())
    print(f"efficiency from 1 to 2: {ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}")
    print(f"{tasks} tasks ({runs} runs): {sent / tasks:.0f} bytes sent a task, {received / tasks:.0f} received")
    a_task = statistics.median(driver["2"]) - statistics.median(driver["alone"]) * ("alone" in driver and name == "short")
    print(f"CPU of tool and server: {1000 * a_task / tasks:.2f} ms a task, start and end included")


def main():
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with cluster(1) as one, cluster(2) as two:
        addresses = {"alone": None, "1": one.address, "2": two.address}
        for name, words in WORK.items():
            measure(name, words, addresses, repeats)


main()
