"""What kvtide predicts beside what vLLM's scheduler did: `compare.py KVTIDE.jsonl [VLLM.jsonl]`.

Fails where they must agree and do not: a fixed watermark is the same decisions on either side, and shadow mode is vLLM by
itself. A table is decided on by the same code, but its guard and its clock are a node's, so it may differ, and is shown.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FIELDS = ("requests", "slo_attainment", "preemptions", "steps", "makespan_s")


def kvtide(path: str) -> dict[str, tuple]:
    rows = {}
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        if row["type"] == "run":
            data = row["data"]
            kind, _, value = data["policy"].partition(":")
            name = f"{kind}:{Path(value).name}" if kind == "table" else data["policy"]
            rows[name] = (data["requests"], round(data["slo_attainment"], 4), data["preemptions"],
                          data["scheduler_steps"], round(data["makespan_s"], 6))  # fmt: skip
    return rows


def vllm(path: str) -> dict[str, tuple]:
    rows = map(json.loads, Path(path).read_text().splitlines())
    return {row["policy"]: (*(row[field] for field in FIELDS[:4]), round(row["makespan_s"], 6)) for row in rows}


def main() -> int:
    predicted = kvtide(sys.argv[1])
    found = vllm(sys.argv[2]) if len(sys.argv) > 2 else predicted
    print(f"{'policy':24}" + "".join(f"{field:>16}" for field in FIELDS))
    wrong = 0
    for policy, row in found.items():
        name = "default" if policy.startswith("shadow:") else policy
        agrees = row == predicted.get(name)
        must = policy.split(":")[0] in ("default", "fixed", "shadow")
        wrong += must and name in predicted and not agrees
        said = "" if found is predicted else "  as predicted" if agrees else "  differs"
        print(f"{policy:24}" + "".join(f"{value:>16}" for value in row) + said)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
