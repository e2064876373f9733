"""What kvtide costs vLLM's scheduler: `adapter_cost.py [--limit 2]`.

One process, five schedulers that are given the same requests and do the same steps: vLLM's own twice, of which the second
is the noise floor, with kvtide in shadow mode, with kvtide acting by a full table whose choice is what the others do
anyway, and with kvtide that only records. They take turns of as many steps as lie between two decisions, in an order that is
drawn for each round: whatever else the machine does falls on all alike, and every turn has its share of the decisions. That
the steps are the same is checked.

The cost of a turn is what its planning took more than that of vLLM's own in the same round, in parts of the latter's
`schedule()`: once of `schedule()`, once of everything that is planned with (`add_request` and `update_from_output` too).
Medians over rounds with their quartiles. Fails if a median of `schedule()` is above `--limit` per cent.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from engine import Engine, answer, sampled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from tables import leaf, table_bytes  # noqa: E402

# Steps from decision to decision.
INTERVAL = 8
# Level 10 of the watermark, which all of them have: growth never fails, so that victims differ in nothing.
WATERMARK, LEVEL = 0.25, 10
# Answers of 200 to 600 tokens keep requests coming and going.
PROMPT, ANSWER = 1600, 200
# Blocks that a request holds on average.
HELD = 112
# Nobody is late and all are as long, so that the shortest of those on time is the first.
SLO = "ttft:86400000,tpot:100,stall:86400000"
PLAIN, FLOOR, SHADOW, ACT, RECORD = KINDS = ("vllm", "vllm again", "shadow", "act", "record")


@dataclass(frozen=True)
class Case:
    """A state to be in: so many running, about so many waiting."""

    running: int
    waiting: int

    def engine(self) -> Engine:
        # Those who wait do so for blocks: they are looked at, and refused, in every step.
        slots = 2 * self.running if self.waiting else self.running
        return Engine(num_gpu_blocks=int(self.running * HELD / (1 - WATERMARK)), max_num_seqs=slots)


class Side:
    """One of the five, with what its turns took."""

    def __init__(self, kind: str, case: Case, table: str) -> None:
        for name in ("KVTIDE_TABLE", "KVTIDE_RECORD"):
            os.environ.pop(name, None)
        cls = None
        if kind == RECORD:
            os.environ["KVTIDE_RECORD"] = str(Path(table).with_name("traffic.jsonl"))
            cls = "kvtide.vllm.Scheduler"
        if kind in (SHADOW, ACT):
            os.environ.update(KVTIDE_TABLE=table, KVTIDE_MODE=kind, KVTIDE_SLO=SLO)
            cls = "kvtide.vllm.Scheduler"
        self.kind, self.case = kind, case
        self.engine = case.engine()
        self.scheduler = self.engine.scheduler(WATERMARK, cls)
        self.in_flight = None
        self.arrived = 0
        self.story: list[tuple[int, int]] = []

    def newcomers(self, count: int) -> list:
        """Requests of which nobody's prompt is like another's."""
        indices = range(self.arrived, self.arrived + count)
        self.arrived += count
        return [
            self.engine.request(
                str(index), list(range(index << 12, (index << 12) + PROMPT)), ANSWER + index * 37 % 400, time.time()
            )
            for index in indices
        ]

    def turn(self) -> tuple[int, int]:
        """As many steps as lie between two decisions; nanoseconds of `schedule()`, and of all that is planned with."""
        clock, scheduler = time.thread_time_ns, self.scheduler
        planned = total = 0
        for _ in range(INTERVAL):
            newcomers = self.newcomers(self.case.running + self.case.waiting - len(scheduler.requests))
            started = clock()
            for request in newcomers:
                scheduler.add_request(request)
            arrived = clock()
            output = scheduler.schedule()
            done = clock()
            planned += done - arrived
            total += done - started
            self.story.append((output.total_num_scheduled_tokens, len(output.preempted_req_ids or ())))
            previous, self.in_flight = self.in_flight, (output, sampled(scheduler, output))
            if previous is not None:
                _, result = answer(scheduler, *previous, lambda request: request.num_tokens)
                started = clock()
                scheduler.update_from_output(previous[0], result)
                total += clock() - started
        return planned, total


def measure(case: Case, rounds: int, table: str) -> dict[str, list[tuple[int, int]]]:
    sides = [Side(kind, case, table) for kind in KINDS]
    took: dict[str, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
    # Prompts are computed, the batch is full, code is warm.
    warm = case.running * PROMPT // 2048 // INTERVAL + 8
    gc.collect()
    gc.freeze()
    gc.disable()
    stream = random.Random(1)
    for number in range(warm + rounds):
        for side in stream.sample(sides, len(sides)):
            turn = side.turn()
            if number >= warm:
                took[side.kind].append(turn)
    gc.enable()
    for side in sides[1:]:
        assert side.story == sides[0].story, f"{side.kind} did other steps than vLLM's own"
    scheduler = sides[0].scheduler
    print(f"{len(scheduler.running)} running, {len(scheduler.waiting)} waiting, {rounds} rounds:", file=sys.stderr)
    return took


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--limit", type=float, help="most per cent of schedule() that is let pass")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "policy.kvt"
        table.write_bytes(table_bytes([leaf(watermark=LEVEL, victim=2, admission=2)], "full"))
        print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, "
              f"{options.rounds} rounds of {INTERVAL} steps")  # fmt: skip
        print(f"{'running':>7} {'waiting':>7}  {'':12}{'schedule() us/step':>20}{'more, %':>10}{'[quartiles]':>18}"
              f"{'all of it, %':>14}{'[quartiles]':>18}")  # fmt: skip
        worst = 0.0
        for case in (Case(64, 0), Case(256, 0), Case(256, 1600)):
            took = measure(case, options.rounds, str(table))
            for kind in KINDS:
                step_us = statistics.median(planned for planned, _ in took[kind]) / INTERVAL / 1000
                line = f"{case.running:>7} {case.waiting:>7}  {kind:12}{step_us:>20.1f}"
                if kind != PLAIN:
                    pairs = list(zip(took[kind], took[PLAIN], strict=True))
                    low, more, high = quartiles([100 * (mine[0] / plain[0] - 1) for mine, plain in pairs])
                    least, whole, most = quartiles([100 * (mine[1] - plain[1]) / plain[0] for mine, plain in pairs])
                    line += f"{more:>10.1f}{f'[{low:.1f}, {high:.1f}]':>18}{whole:>14.1f}{f'[{least:.1f}, {most:.1f}]':>18}"
                    worst = max(worst, more if kind != FLOOR else 0.0)
                print(line, flush=True)
    return int(options.limit is not None and worst > options.limit)


if __name__ == "__main__":
    sys.exit(main())
