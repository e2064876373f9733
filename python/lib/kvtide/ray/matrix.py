"""The evaluation matrix on a Ray cluster: `kvtide evaluate --ray`, once or for many worlds.

>>> from kvtide.ray import matrix
>>> rows = matrix.evaluate("--workload", "chat:rate=5,duration=600", "--load", "auto", "--seeds", "1..5",
...                        "--policy", "default", "--policy", "table:policy.kvt", address="10.0.0.1:6379", out="runs.jsonl")

A task is one run: a policy, a world, a window, a load, a seed and a clock. A policy of hindsight is many runs, those of a round side
by side. Runs are kept in `out` in the order one machine has them, as ``--out`` does, and an evaluation that was interrupted goes on
from there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Evaluation", "EvaluationError", "evaluate", "evaluate_all"]


class EvaluationError(RuntimeError):
    """An evaluation that came to no end; it says what the tool says."""


@dataclass(frozen=True)
class Evaluation:
    """What `kvtide evaluate` is told, and the file its runs are kept in."""

    words: Sequence[object]
    out: str | os.PathLike[str]


def evaluate(
    *words: object, address: str, out: str | os.PathLike[str], tool: str | os.PathLike[str] | None = None
) -> list[dict[str, Any]]:
    """Evaluates what `words` say (options of ``kvtide evaluate``) on the workers at `address`; its runs, as dictionaries.

    What `out` holds of it already is not run again. `tool` is the program, otherwise KVTIDE or ``kvtide`` on the path; it must be of
    this wheel's build. Raises EvaluationError.
    """
    return next(evaluate_all([Evaluation(words, out)], address=address, tool=tool))


def evaluate_all(
    evaluations: Iterable[Evaluation], *, address: str, at_once: int = 8, tool: str | os.PathLike[str] | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Evaluates each of `evaluations`, `at_once` side by side, and yields their runs in their order.

    An evaluation that looks for its loads waits for one run after another, so several are needed to keep many workers busy. Each takes
    a process and about 0.2 GB here. The first that fails ends the others; what they had done is kept.
    """
    tool = tool or os.environ.get("KVTIDE") or "kvtide"
    running = set()
    pool = ThreadPoolExecutor(at_once)
    try:
        futures = [pool.submit(_run, one, address, tool, running) for one in evaluations]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            # As Ctrl-C would: what is finished is kept.
            process.terminate()
        pool.shutdown()


def _run(evaluation, address, tool, running):
    out = Path(evaluation.out)
    command = [tool, "evaluate", *map(str, evaluation.words), "--ray", address, "--out", str(out)]
    if out.exists():
        command.append("--resume")
    environment = os.environ | {"KVTIDE_PYTHON": os.environ.get("KVTIDE_PYTHON") or sys.executable}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    try:
        process = subprocess.Popen(command, env=environment, text=True, **pipes)
    except OSError as error:
        raise EvaluationError(f"{tool}: {error.strerror}; set KVTIDE or tool to the kvtide program") from error
    running.add(process)
    try:
        _, said = process.communicate()
    finally:
        running.discard(process)
    if process.returncode not in (0, 1):
        raise EvaluationError(f"{' '.join(command)}: {said.strip() or process.returncode}")
    lines = (json.loads(line) for line in out.read_text().splitlines())
    return [line["data"] for line in lines if line["type"] == "run"]
