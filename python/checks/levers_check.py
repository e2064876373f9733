"""Tokens a step and classes of cached blocks, on vLLM's own V1 scheduler: `levers_check.py --kvtide PROGRAM [--quick]`.

- **Classes that change nothing.** With every block `normal`, or every block in any one class that is kept, the order of the
  free queue is that of time: every step has the same requests, tokens and blocks, number for number, as with vLLM's own queue.
- **Classes that do.** Other classes for what requests find than for what they compute: what comes of it is what
  `kvtide simulate --set eviction=classes` says, to the microsecond.
- **Trees that say which.** Tables with a retention tree behind its guard, by what a request is and by what is remembered of
  those before it: the same, and the tree is never set aside.
- **Trees that do harm.** In pools of which the guard's shadow holds a sample: the guard sets the tree aside, and takes it up
  again, in the same steps as simulated and as often. Not with `--quick`.
- **Budgets that change all the time.** Tables that bound steps by who runs and waits, decided every step: the same, and no step
  has more than it may, or less than decodes need.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import vllm_replay
from traffic import traffic
from vllm_check import EXACT, Failed, arguments_of, rows_of

from kvtide.retention import EVICT_FIRST, KEEP, KEEP_LONG, NORMAL, RetentionQueue

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "python/tests"))
from tables import asked, kept, leaf, section, split, table_bytes  # noqa: E402

# Prefix-heavy: sessions that come back, in a pool that holds some of them.
WORLD = {
    "workload": "agentic:rate=0.12,duration=400,seed=201",
    "quick": "agentic:rate=0.12,duration=150,seed=201",
    "env": "llama-3-8b@h100-datasheet",
    "slo": "ttft:2000,tpot:50,stall:2000",
    "set": ["num_gpu_blocks=9000"],
}
# Many decode at once, so that small budgets are raised for them.
CROWD = {
    "workload": "uniform:n=500,in=900,out=300,spread=0.8,seed=3",
    "quick": "uniform:n=300,in=900,out=300,spread=0.8,seed=3",
    "clients": 220,
    "env": "llama-3-8b@h100-datasheet",
    "slo": "ttft:2000,tpot:50,stall:2000",
    "set": ["max_num_batched_tokens=2048", "num_gpu_blocks=12000", "max_num_seqs=256"],
}
UNCHANGED = ("normal", "keep", "keep-long")
CLASSES = ("keep/normal", "normal/evict-first", "keep-long/evict-first", "keep/keep-long")
TREES = {
    "by part": [asked("part", 1, 0.5), kept(KEEP), kept(EVICT_FIRST)],
    "by turn": [asked("turn", 1, 1.5), kept(NORMAL), kept(KEEP)],
    "by who came before": [asked("kind_reuse", 1, 0.3), asked("asked_age", 3, 0.5), asked("held", 5, 0.2)]
    + [kept(KEEP), kept(NORMAL), kept(EVICT_FIRST), kept(KEEP_LONG)],
}
# Who comes back loses everything, and whoever asks once is kept.
HARM = [asked("turn", 1, 1.5), kept(KEEP_LONG), kept(EVICT_FIRST)]
# Pools that forget no turn that comes back: in one of 2,000 blocks the places in which a node remembers prefixes run out, and
# which of them are lost goes by an engine's own keys (`rules/src/reuse.rs`).
HARMED = (9000, 14000, 18000)
LEVEL = {tokens: place for place, tokens in enumerate((128, 256, 512, 1024, 2048))}


def budgets() -> dict[str, list[bytes]]:
    """Trees that bound steps."""

    def at(tokens: int) -> bytes:
        return leaf(budget=LEVEL[tokens])

    return {
        "engine's own": [leaf()],
        "128": [at(128)],
        "512": [at(512)],
        # Beyond 0.55 of the slots more decode than 128, whom no budget may leave out.
        "by who runs": [split("running", 1, 0.55), split("running", 3, 0.3), split("running", 5, 0.7)]
        + [at(1024), at(2048), at(128), at(256)],
        "by who waits": [split("waiting", 1, 0.02), at(512), split("running", 3, 0.6), at(2048), at(128)],
    }  # fmt: skip


class Story:
    """Every step in full, in 32 bytes, and what the free queue was like in the end."""

    def __init__(self) -> None:
        self.digest, self.queue, self.free = hashlib.sha256(), None, []

    def __call__(self, scheduler, output) -> None:
        cached = output.scheduled_cached_reqs
        step = [
            output.num_scheduled_tokens, sorted(output.preempted_req_ids or ()), cached.req_ids, cached.new_block_ids,
            [(request.req_id, request.num_computed_tokens, request.block_ids) for request in output.scheduled_new_reqs],
        ]  # fmt: skip
        self.digest.update(json.dumps(step).encode())
        self.queue = scheduler.kv_cache_manager.block_pool.free_block_queue
        if len(scheduler.requests) <= 1:
            self.free = [block.block_id for block in self.queue.get_all_free_blocks()]


class Limits:
    """That no step has more than it may, nor less than decodes need."""

    def __init__(self) -> None:
        self.values, self.raised = set(), 0

    def __call__(self, scheduler, output) -> None:
        budget = scheduler.kvtide.budget
        tokens = scheduler.max_num_scheduled_tokens
        self.values.add(tokens)
        self.raised += tokens > budget.level
        assert tokens <= budget.own and output.total_num_scheduled_tokens <= tokens
        if not output.preempted_req_ids:
            # In this step or in flight: an asynchronous scheduler plans nothing more for whom the last token is on its way.
            left = [
                request.request_id for request in scheduler.running
                if not request.is_prefill_chunk and request.request_id not in output.num_scheduled_tokens
                and request.num_output_tokens + request.num_output_placeholders < request.max_tokens
            ]  # fmt: skip
            assert not left, f"{left} decode, and are not in a step of {tokens} tokens"


def world_of(scenario: dict, trace: Path) -> vllm_replay.World:
    arguments = ["--policy", "default", *arguments_of(scenario, trace)]
    return vllm_replay.world_of(vllm_replay.parser().parse_args(arguments))


def compare(name: str, real: dict, predicted: dict) -> bool:
    unlike = [f"{field} {real[field]}, predicted {predicted[field]}" for field in EXACT if real[field] != predicted[field]]
    print(f"  {name:28}{100 * real['slo_attainment']:>8.2f} %{real['preemptions']:>9}{real['scheduler_steps']:>8}"
          f"{real['makespan_s']:>11.3f}{real['computed_tokens']:>11}   "
          + ("the same" if not unlike else f"FAILS: {'; '.join(unlike)}"), flush=True)  # fmt: skip
    return bool(unlike)


def simulated(kvtide: str, scenario: dict, trace: Path, policy: str, more: list[str]) -> dict:
    command = [kvtide, "simulate", "--json", "--engine", "v1", *arguments_of(scenario, trace), *more]
    try:
        (row,) = rows_of(command, [policy]).values()
    except Failed as error:
        raise SystemExit(f"{' '.join(command)} --policy {policy}: {error}") from None
    return row


def check_classes(kvtide: str, folder: Path, quick: bool) -> int:
    trace = traffic(WORLD, kvtide, ROOT, folder / "sessions.jsonl", quick)
    world, table = world_of(WORLD, trace), folder / "default.kvt"
    table.write_bytes(table_bytes([leaf()]))
    own, wrong = Story(), 0
    _, plain = vllm_replay.drive(world, "default", own)
    print(f"\nclasses: {len(world.requests)} requests, {plain['computed_tokens']} tokens computed by vLLM itself, "
          f"{plain['preemptions']} preemptions")  # fmt: skip
    for classes in UNCHANGED:
        story = Story()
        vllm_replay.drive(world, f"table:{table},retention={classes}", story)
        same = (story.digest.digest(), story.free) == (own.digest.digest(), own.free)
        assert isinstance(story.queue, RetentionQueue) and not isinstance(own.queue, RetentionQueue)
        print(f"  all {classes:24}every step, block and the free queue: {'as vLLM' if same else 'FAILS, not as vLLM'}")
        wrong += not same
    for classes in CLASSES:
        real = vllm_replay.serve(world, f"table:{table},retention={classes}")
        policy = f"fixed:0,retention={classes}"
        wrong += compare(classes, real, simulated(kvtide, WORLD, trace, policy, ["--set", "eviction=classes"]))
    return wrong


def check_trees(kvtide: str, folder: Path, quick: bool) -> int:
    trace = traffic(WORLD, kvtide, ROOT, folder / "trees.jsonl", quick)
    world, wrong = world_of(WORLD, trace), 0
    print(f"\ntrees: {len(world.requests)} requests")
    for number, (name, tree) in enumerate(TREES.items()):
        table, seen = folder / f"tree-{number}.kvt", {}
        table.write_bytes(table_bytes([leaf()], retention=section(tree), metadata={"interval": "1"}))
        _, real = vllm_replay.drive(world, f"table:{table}", lambda scheduler, _, seen=seen: seen.update(by=scheduler))
        counters = seen["by"].kvtide.retainer.counters
        assert not real["kvtide"]["errors"], real["kvtide"]
        assert counters["table_decisions"] == counters["decisions"] > len(world.requests), counters
        predicted = simulated(kvtide, WORLD, trace, f"table:{table}", ["--set", "eviction=classes", "--interval", "1"])
        wrong += compare(name, real, predicted)
    return wrong


def check_harm(kvtide: str, folder: Path, quick: bool) -> int:
    trace, table = traffic(WORLD, kvtide, ROOT, folder / "harm.jsonl", quick), folder / "harm.kvt"
    table.write_bytes(table_bytes([leaf()], retention=section(HARM), metadata={"interval": "1"}))
    wrong = switched = 0
    for blocks in HARMED:
        scenario, seen = {**WORLD, "set": [f"num_gpu_blocks={blocks}"]}, {}
        world = world_of(scenario, trace)
        if blocks == HARMED[0]:
            print(f"\nharm: {len(world.requests)} requests")
        _, real = vllm_replay.drive(world, f"table:{table}", lambda scheduler, _, seen=seen: seen.update(by=scheduler))
        behind = seen["by"].kvtide.retainer.counters["behind_lru"]
        assert not real["kvtide"]["errors"], real["kvtide"]
        predicted = simulated(kvtide, scenario, trace, f"table:{table}", ["--set", "eviction=classes", "--interval", "1"])
        wrong += compare(f"{blocks} blocks ({behind} behind)", real, predicted)
        if behind != predicted["retention"]["behind_lru"]:
            print(f"    FAILS: set aside in {behind} decisions, predicted {predicted['retention']['behind_lru']}")
            wrong += 1
        switched += behind > 0
    assert switched, "the guard had nothing to do"
    return wrong


def check_budgets(kvtide: str, folder: Path, quick: bool) -> int:
    trace = traffic(CROWD, kvtide, ROOT, folder / "crowd.jsonl", quick)
    world, wrong = world_of(CROWD, trace), 0
    print(f"\nbudgets: {len(world.requests)} requests of {CROWD['clients']} clients")
    for number, (name, tree) in enumerate(budgets().items()):
        table, limits = folder / f"budget-{number}.kvt", Limits()
        table.write_bytes(table_bytes(tree, "full", metadata={"interval": "1"}))
        _, real = vllm_replay.drive(world, f"table:{table}", limits)
        assert real["kvtide"]["last_fallback"] is None and not real["kvtide"]["errors"], real["kvtide"]
        predicted = simulated(kvtide, CROWD, trace, f"table:{table}", ["--interval", "1"])
        wrong += compare(f"{name} ({len(limits.values)} values, {limits.raised} raised)", real, predicted)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvtide", required=True, help="the built program")
    parser.add_argument("--quick", action="store_true", help="less of each")
    parser.add_argument("--only", choices=("classes", "trees", "harm", "budgets"))
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="kvtide-levers-") as folder:
        checks = {"classes": check_classes, "trees": check_trees, "harm": check_harm, "budgets": check_budgets}
        for name, check in checks.items():
            if options.only == name or options.only is None and not (options.quick and name == "harm"):
                wrong += check(options.kvtide, Path(folder), options.quick)
    print(f"\n{wrong} rows that fail")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
