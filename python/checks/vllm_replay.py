"""Drives vLLM's own V1 scheduler over traffic, without a GPU or a model, with and without kvtide.

vLLM's scheduler, KV-cache manager, block pool and queues are those of the published wheel. Only what surrounds them is
played: requests arrive as the trace says, or as so many clients send them; a step takes as long as the simulator prices it
(by the simulator's own code, `kvtide._sim.StepCost`); every finished prefill or decode returns one token. So the numbers
compare with `kvtide simulate` on the same trace.

Prints one JSON object a policy: `default`, `fixed:W`, `table:PATH`, `shadow:PATH`, `record:PATH` (default, recorded). A table
may be followed by `,retention=HEAD/TAIL`, classes for what requests found and for what they computed, as in the simulator.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from engine import BLOCK, Engine, answer, sampled

from kvtide import Slo
from kvtide._sim import StepCost
from kvtide.recording import Recording
from kvtide.retention import CLASSES
from kvtide.tide import Tide


@dataclass(frozen=True)
class World:
    """What is served, on what, and what it is asked for."""

    requests: list[dict]
    # None: an open loop.
    clients: int | None
    cost: StepCost
    engine: Engine
    slo: Slo


class Text:
    """A request's tokens by position. Where prefix hashes are known, those of equal hashes are equal; all others are like
    nobody else's."""

    def __init__(self, row: dict, index: int) -> None:
        if row.get("session") and not row.get("hash_ids"):
            raise SystemExit("sessions without prefix hashes are not played: their texts are not known here")
        self.index = index
        self.tokens = row["prompt_tokens"]
        self.size = row.get("hash_block_tokens", 0)
        self.hashes = row.get("hash_ids", [])

    def prompt(self) -> list[int]:
        shared = [hash_id * self.size + place for hash_id in self.hashes for place in range(self.size)][: self.tokens]
        return shared + [self.own(place) for place in range(len(shared), self.tokens)]

    def own(self, place: int) -> int:
        return -(self.index << 24 | place) - 1


@dataclass
class Record:
    """When a request got its tokens."""

    arrival_us: int
    first_us: int | None = None
    last_us: int = 0
    stall_us: int = 0
    tokens: int = 0

    def token(self, now_us: int) -> None:
        if self.first_us is None:
            self.first_us = now_us
        else:
            self.stall_us = max(self.stall_us, now_us - self.last_us)
        self.last_us = now_us
        self.tokens += 1

    def attains(self, slo: Slo) -> bool:
        gaps = self.tokens - 1
        tpot = (self.last_us - self.first_us) / gaps if gaps else 0
        ttft_us = self.first_us - self.arrival_us
        return ttft_us <= slo.ttft_us and tpot <= slo.tpot_us and self.stall_us <= slo.stall_us


class Driver:
    """One scheduler, one world, one clock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now_us = 0
        self.records: list[Record] = []
        self.steps = self.preemptions = 0
        self.schedule_s = 0.0
        # Tokens computed in all steps, which says how much was found in the cache.
        self.computed = 0
        # Told of every step, if anybody wants to know.
        self.watch: Callable | None = None
        # What the guard had done when the last request arrived: from then on the node runs empty, as none does.
        self.while_served: dict | None = None

    def run(self, scheduler) -> dict:
        self.scheduler, in_flight = scheduler, None
        while True:
            self.deliver()
            planned = self.plan() if scheduler.requests else None
            if planned is None and in_flight is None:
                if len(self.records) == len(self.world.requests):
                    if scheduler.requests:
                        raise SystemExit("stalled")
                    return self.summary()
                self.now_us = self.world.requests[len(self.records)]["arrival_us"]
                continue
            previous, in_flight = in_flight, planned
            if planned is not None:
                start_us = max(self.now_us, previous["ends_us"]) if previous else self.now_us
                planned["ends_us"] = start_us + planned["took_us"]
            if not scheduler.scheduler_config.async_scheduling:
                previous, in_flight = in_flight, None
            if previous is not None:
                self.now_us = max(self.now_us, previous["ends_us"])
                self.complete(previous)

    def deliver(self) -> None:
        """Everybody who has arrived; in a closed loop, a request for each client that waits for none."""
        requests, clients = self.world.requests, self.world.clients
        while len(self.records) < len(requests):
            index = len(self.records)
            row = requests[index]
            arrival_us = row["arrival_us"] if clients is None else self.now_us
            if arrival_us > self.now_us or clients is not None and len(self.scheduler.requests) >= clients:
                return
            self.records.append(Record(arrival_us))
            request = self.world.engine.request(
                str(index), Text(row, index).prompt(), row["output_tokens"], arrival_us * 1e-6
            )
            self.scheduler.add_request(request)
        if self.while_served is None:
            self.while_served = guard_report(self.scheduler)

    def plan(self) -> dict | None:
        scheduler = self.scheduler
        started = time.thread_time()
        output = scheduler.schedule()
        self.schedule_s += time.thread_time() - started
        self.preemptions += len(output.preempted_req_ids or ())
        if output.total_num_scheduled_tokens == 0:
            return None
        self.steps += 1
        self.computed += output.total_num_scheduled_tokens
        if self.watch is not None:
            self.watch(scheduler, output)
        decodes, context, chunks = 0, 0, []
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[request_id]
            before = request.num_computed_tokens - tokens
            # Of a request that has its first token, or will have once the step before is done.
            if tokens == 1 and before >= request.num_prompt_tokens:
                decodes += 1
                # Those computed before and the one being computed.
                context += before + 1
            else:
                chunks.append((before, tokens))
        took_us = self.world.cost.step_us(decodes, context, chunks)
        return {"output": output, "samples": sampled(scheduler, output), "took_us": took_us}

    def complete(self, step: dict) -> None:
        def token(request) -> int:
            index = int(request.request_id)
            return -(index << 24 | request.num_tokens) - 1

        answered, result = answer(self.scheduler, step["output"], step["samples"], token)
        for request_id in answered:
            self.records[int(request_id)].token(self.now_us)
        self.scheduler.update_from_output(step["output"], result)

    def summary(self) -> dict:
        for row, record in zip(self.world.requests, self.records, strict=True):
            assert record.tokens == row["output_tokens"], "every request is answered in full"
        ttfts = sorted(record.first_us - record.arrival_us for record in self.records)
        summary = {
            "requests": len(self.records),
            "slo_attainment": sum(record.attains(self.world.slo) for record in self.records) / len(self.records),
            "preemptions": self.preemptions,
            "scheduler_steps": self.steps,
            "makespan_s": round(self.now_us * 1e-6, 6),
            "computed_tokens": self.computed,
            "ttft_p99_ms": ttfts[len(ttfts) * 99 // 100] / 1000,
            "schedule_us_per_step": round(self.schedule_s / self.steps * 1e6, 1),
        }
        if self.while_served:
            summary |= {"kvtide": guard_report(self.scheduler), "kvtide_while_served": self.while_served}
        return summary


def guard_report(scheduler) -> dict:
    """As `kvtide simulate --json` has it, and what went wrong; nothing where kvtide is not."""
    tide = getattr(scheduler, "kvtide", None)
    if tide is None:
        return {}
    metrics, fallback = tide.metrics, tide.pilot.guard.last_fallback
    return {
        "decisions": metrics.counts["decisions", ""],
        "fallbacks": metrics.of("fallbacks"),
        "out_of_range": metrics.of("out_of_range"),
        "last_fallback": tide.pilot.refusal if tide.pilot.table is None else fallback,
        "errors": metrics.of("errors"),
        "reloads": metrics.of("reloads"),
    }


def serve(world: World, policy: str) -> dict:
    """The world, served under `policy`."""
    return {"policy": policy, **drive(world, policy)[1]}


def drive(world: World, policy: str, watch: Callable | None = None) -> tuple[Driver, dict]:
    """The world, served under `policy`: who drove it, and what came of it. `watch` is told of scheduler and step."""
    kind, _, value = policy.partition(":")
    value, _, classes = value.partition(",retention=")
    watermark, scheduler_cls = 0.0, None
    for name in ("KVTIDE_TABLE", "KVTIDE_RECORD"):
        os.environ.pop(name, None)
    if kind == "fixed":
        watermark = float(value)
    elif kind in ("table", "shadow"):
        scheduler_cls = "kvtide.vllm.Scheduler"
        os.environ.update(KVTIDE_TABLE=value, KVTIDE_MODE="act" if kind == "table" else "shadow")
        os.environ["KVTIDE_SLO"] = str(world.slo)
        os.environ["KVTIDE_PREFILL_NS_PER_TOKEN"] = str(world.cost.prefill_ns_per_token)
        os.environ["KVTIDE_ATTENTION_NS_PER_TOKEN_PAIR"] = str(world.cost.attention_ns_per_token_pair)
    elif kind == "record":
        scheduler_cls = "kvtide.vllm.Scheduler"
        os.environ["KVTIDE_RECORD"] = value
    elif kind != "default":
        sys.exit(f"no policy {policy!r}")
    driver = Driver(world)
    driver.watch = watch
    for told in (Tide, Recording):
        told.clock = told.wall_clock = staticmethod(lambda: driver.now_us * 1e-6)
    scheduler = world.engine.scheduler(watermark, scheduler_cls)
    if classes:
        head, _, tail = classes.partition("/")
        chosen = CLASSES.index(head), CLASSES.index(tail or head)
        scheduler.kvtide.set_retain(lambda request, blocks, found: chosen)
    # Otherwise every policy pays for the objects of those before it.
    gc.collect()
    gc.disable()
    try:
        return driver, driver.run(scheduler)
    finally:
        gc.enable()
        scheduler.shutdown()


def read(path: Path) -> list[dict]:
    """Requests in order of arrival, of whom the first comes at 0, as kvtide has it."""
    requests = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(first["arrival_us"] <= second["arrival_us"] for first, second in pairwise(requests)), "in order"
    start_us = requests[0]["arrival_us"]
    return [row | {"arrival_us": row["arrival_us"] - start_us} for row in requests]


def setting(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name not in ("num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens"):
        raise argparse.ArgumentTypeError(f"{name} is not set here")
    return name, int(value)


def world_of(options) -> World:
    cost = StepCost(options.env)
    engine = {
        "num_gpu_blocks": cost.num_gpu_blocks,
        "max_num_seqs": cost.max_num_seqs,
        "max_num_batched_tokens": cost.max_num_batched_tokens,
    }
    engine = Engine(**(engine | dict(options.set)), prefix_cache=options.prefix_cache == "on")
    return World(read(options.trace), options.clients, cost, engine, Slo.parse(options.slo))


def parser() -> argparse.ArgumentParser:
    """What a world is told by."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, required=True, help="kvtide JSON Lines")
    parser.add_argument("--policy", action="append", required=True)
    parser.add_argument("--env", default="llama-3-8b@rtx-4090")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--slo", default="ttft:2000,tpot:100,stall:3000")
    parser.add_argument("--set", type=setting, action="append", default=[])
    parser.add_argument("--prefix-cache", choices=("on", "off"), default="on")
    return parser


def main() -> None:
    assert BLOCK == 16, "the simulator's blocks"
    options = parser().parse_args()
    world = world_of(options)
    for policy in options.policy:
        print(json.dumps(serve(world, policy)), flush=True)


if __name__ == "__main__":
    main()
