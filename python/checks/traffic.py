"""The traffic of a scenario as one file that both sides are given: the simulator and vLLM's scheduler."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path


class Missing(Exception):
    """Traffic that is not on this machine."""


def traffic(scenario: dict, kvtide: str, root: Path, path: Path, quick: bool) -> Path:
    """Writes it to `path`, in kvtide's own form."""
    if "trace" not in scenario:
        workload = scenario.get("quick", scenario["workload"]) if quick else scenario["workload"]
        _run(kvtide, "trace", "generate", workload, path)
        return path
    recorded = root / scenario["trace"]
    if not recorded.exists():
        raise Missing(f"{scenario['trace']} is not here")
    _run(kvtide, "trace", "convert", recorded, path)
    requests = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(request) + "\n" for request in thinned(requests, scenario)))
    return path


def thinned(requests: list[dict], scenario: dict) -> list[dict]:
    """A share of the requests of a window, spread over the step of a coarse clock: `keep`, `window_s`, `jitter_s`."""
    stream = random.Random(1)
    first_us, last_us = (int(second * 1e6) for second in scenario["window_s"])
    jitter_us = int(scenario["jitter_s"] * 1e6)
    kept = []
    for request in requests:
        if stream.random() < scenario["keep"] and first_us <= request["arrival_us"] < last_us:
            kept.append(request | {"arrival_us": request["arrival_us"] + stream.randrange(jitter_us)})
    return sorted(kept, key=lambda request: request["arrival_us"])


def _run(*arguments) -> None:
    done = subprocess.run([str(argument) for argument in arguments], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
