"""What vLLM's own scheduler serves, recorded: `record_check.py --kvtide PATH [--quick]`.

For each scenario named here, vLLM's scheduler serves it twice, by itself and with `KVTIDE_RECORD`, without any table. It fails
where

- a step differs between the two;
- the recording, put in order, is not what was served: every arrival to the microsecond, every length, and which blocks of
  which prompts are equal to which;
- `kvtide trace stats` reads another number of requests, tokens or reused prefixes out of it than were served;
- the recording tells a text, a token or a name, or files of one recording have hashes in common.

Then a few requests by hand: an aborted one, one that is aborted before its first token, salts. Whether engines side by side
have files of their own. And whether a table for another engine is refused and one for another model warned of, on the scheduler
that has a model.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from engine import BLOCK, Engine, answer, sampled
from traffic import Missing, traffic
from vllm_replay import Driver, Text, World, drive, setting, world_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from tables import leaf, table_bytes  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ("memory-bound", "chat", "agents")
QUICK = ("chat",)
SAME = ("requests", "slo_attainment", "preemptions", "scheduler_steps", "makespan_s")


def classes(prompts) -> list[list[int]]:
    """Which block of which prompt is which, numbered as they come: what is left of hashes that are the same up to names."""
    known: dict = {}
    return [[known.setdefault(block, len(known)) for block in blocks] for blocks in prompts]


def blocks_of(row: dict, index: int):
    """A prompt's full blocks, each with all before it."""
    prompt, chain = Text(row, index).prompt(), 0
    for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
        chain = hash((chain, *prompt[start : start + BLOCK]))
        yield chain


def rows_of(files: list[Path]) -> list[dict]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def stats_of(kvtide: str, path: Path) -> dict:
    done = subprocess.run([kvtide, "trace", "stats", "--json", str(path)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"kvtide trace stats {path.name}: {done.stderr.strip()}")
    return json.loads(done.stdout)["data"]


def served(driver: Driver, world: World) -> list[tuple]:
    """Arrival, lengths and blocks of each request, in order of arrival."""
    prompts = classes(blocks_of(row, index) for index, row in enumerate(world.requests))
    rows = zip(driver.records, world.requests, prompts, strict=True)
    return [(record.arrival_us, row["prompt_tokens"], record.tokens, blocks) for record, row, blocks in rows]


def in_order(rows: list[dict]) -> list[tuple]:
    """As `served` has it; of those who came together, as it has them is not known."""
    rows = sorted(rows, key=lambda row: row["arrival_us"])
    prompts = classes(row.get("hash_ids", []) for row in rows)
    return [
        (row["arrival_us"], row["prompt_tokens"], row["output_tokens"], blocks)
        for row, blocks in zip(rows, prompts, strict=True)
    ]


def reused(prompts: list[list[int]], tokens: int) -> float:
    blocks = sum(map(len, prompts))
    return (blocks - len({block for blocks in prompts for block in blocks})) * BLOCK / tokens


def compare(kvtide: str, world: World, folder: Path) -> list[str]:
    """What is wrong with a recording of this world."""
    _, alone = drive(world, "default")
    path = folder / "traffic.jsonl"
    driver, recorded = drive(world, f"record:{path}")
    found = [f"{field} {recorded[field]}, without {alone[field]}" for field in SAME if recorded[field] != alone[field]]
    files = sorted(folder.glob("traffic-*.jsonl"))
    wanted, rows = served(driver, world), rows_of(files)
    # Who came together may stand in either order: so many of each must be there.
    bare, bare_recorded = (sorted(row[:3] for row in some) for some in (wanted, in_order(rows)))
    if bare != bare_recorded:
        found.append(f"{len(rows)} rows with other arrivals or lengths than the {len(wanted)} requests that were served")
    elif len({row[0] for row in wanted}) == len(wanted) and wanted != in_order(rows):
        found.append("other blocks are equal than in the prompts that were served")
    if len(files) != 1:
        return found + [f"{len(files)} files of {len(rows)} rows"]
    stats = stats_of(kvtide, files[0])
    prompts = [row[3] for row in wanted]
    tokens = sum(row[1] for row in wanted)
    expected = {
        "requests": len(wanted),
        "total_tokens": tokens + sum(row[2] for row in wanted),
        "prefix_reuse": reused(prompts, tokens),
        "prefix_tokens": len({block for blocks in prompts for block in blocks}) * BLOCK,
        "duration_s": (max(row[0] for row in wanted) - min(row[0] for row in wanted)) * 1e-6,
    }
    for name, value in expected.items():
        if abs(stats[name] - value) > 1e-9 * max(abs(value), 1):
            found.append(f"kvtide trace stats: {name} {stats[name]}, served {value}")
    print(f"  {stats['requests']} requests, {files[0].stat().st_size / 1e6:.1f} MB, prefix reuse "
          f"{100 * stats['prefix_reuse']:.1f} %, the same steps", flush=True)  # fmt: skip
    return found


def by_hand(folder: Path) -> list[str]:
    """Aborts and salts on vLLM's scheduler."""
    os.environ.pop("KVTIDE_TABLE", None)
    os.environ["KVTIDE_RECORD"] = str(folder / "hand.jsonl")
    engine = Engine(num_gpu_blocks=200, max_num_seqs=3)
    scheduler = engine.scheduler(0.0, "kvtide.vllm.Scheduler")
    prompt = list(range(160))
    salts = {"a": "salt-of-alice", "b": "salt-of-alice", "c": "salt-of-bob", "late": None}
    for name, salt in salts.items():
        scheduler.add_request(engine.request(name, prompt, 40, 0.0, salt))
    for step in range(30):
        output = scheduler.schedule()
        _, result = answer(scheduler, output, sampled(scheduler, output), lambda request: request.num_tokens)
        scheduler.update_from_output(output, result)
        if step == 9:
            from vllm.v1.request import RequestStatus

            had = scheduler.requests["b"].num_output_tokens
            scheduler.finish_requests(["b", "late"], RequestStatus.FINISHED_ABORTED)
        if step == 20:
            break
    while scheduler.requests:
        output = scheduler.schedule()
        _, result = answer(scheduler, output, sampled(scheduler, output), lambda request: request.num_tokens)
        scheduler.update_from_output(output, result)
    scheduler.shutdown()
    rows = rows_of([folder / "hand-00001.jsonl"])
    meta = json.loads((folder / "hand-00001.meta.json").read_text())
    found = []
    if sorted(row["output_tokens"] for row in rows) != sorted([had, 40, 40]):
        found.append(f"aborted after {had} tokens, recorded {[row['output_tokens'] for row in rows]}")
    if (meta["rows"], meta["aborted"], meta["without_output"]) != (3, 1, 1):
        found.append(f"counts of aborted requests: {meta}")
    first, second, third = rows
    alike = [[row[key] for key in ("cache_salt", "hash_ids")] for row in (first, second, third)]
    if sorted(map(alike.count, alike)) != [1, 2, 2] or len({row["hash_ids"][0] for row in rows}) != 2:
        found.append("equal prompts under equal salts are equal, and no others")
    if any("alice" in (folder / name).read_text() for name in ("hand-00001.jsonl", "hand-00001.meta.json")):
        found.append("a salt is told")
    return found


def ranks(folder: Path) -> list[str]:
    """Engines of a dense model under data parallelism, as vLLM starts each: told that it is alone, with its index."""
    from kvtide.vllm import attach

    os.environ.pop("KVTIDE_TABLE", None)
    os.environ["KVTIDE_RECORD"] = str(folder / "ranks.jsonl")
    os.environ.pop("KVTIDE_MODE", None)
    for rank in range(3):
        scheduler = Engine(num_gpu_blocks=200).scheduler()
        parallel = scheduler.vllm_config.parallel_config
        parallel.data_parallel_size, parallel.data_parallel_index = 3, rank
        parallel.reconfigure_for_independent_dp_rank()
        attach(scheduler)[1].close()
    names = sorted(path.name for path in folder.glob("ranks*.jsonl"))
    wanted = ["ranks-00001.jsonl", "ranks-dp1-00001.jsonl", "ranks-dp2-00001.jsonl"]
    return [] if names == wanted else [f"three engines record to {names}"]


def tables(folder: Path) -> list[str]:
    """Tables for another engine and for another model, on a scheduler that has one."""
    os.environ.pop("KVTIDE_RECORD", None)
    path, found = folder / "policy.kvt", []
    os.environ.update(KVTIDE_TABLE=str(path), KVTIDE_MODE="act")
    cases = [
        ({"engine": "v0", "env": "llama-3-8b@h100"}, "llama-3-8b", {"engine": 1}, set()),
        ({"host": "sglang-0.5", "engine": "v1"}, "llama-3-8b", {"engine": 1}, set()),
        ({"engine": "v1", "env": "llama-3-8b@h100", "host": "vllm-0.33"}, "meta-llama/Meta-Llama-3-8B", {"ok": 1}, set()),
        ({"engine": "v1", "env": "llama-3-8b@h100"}, "Qwen/Qwen2.5-7B-Instruct", {"ok": 1}, {"model"}),
        # What clients call it says nothing; vLLM's own configuration says opt.
        ({"engine": "v1", "env": "llama-3-8b@h100"}, "prod", {"ok": 1}, {"model"}),
    ]
    for metadata, name, reloads, mismatches in cases:
        path.write_bytes(table_bytes([leaf(watermark=8)], metadata=metadata))
        scheduler = Engine(num_gpu_blocks=200, served_as=name).scheduler(0.0, "kvtide.vllm.Scheduler")
        metrics = scheduler.kvtide.metrics
        if (metrics.of("reloads"), metrics.mismatches) != (reloads, mismatches):
            found.append(f"{metadata} for {name}: {metrics.of('reloads')}, differs in {set(metrics.mismatches) or 'nothing'}")
        acts = scheduler.kv_cache_manager.watermark_blocks > 0
        if acts != ("ok" in reloads):
            found.append(f"{metadata} for {name}: {'acts' if acts else 'does not act'}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvtide", required=True, help="the built program")
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}, and less of it")
    options = parser.parse_args()
    logging.getLogger("vllm.kvtide").setLevel(logging.CRITICAL)
    scenarios = tomllib.loads((Path(__file__).parent / "scenarios.toml").read_text())
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="kvtide-record-") as folder:
        for name in QUICK if options.quick else SCENARIOS:
            scenario, place = scenarios[name], Path(folder) / name
            place.mkdir()
            print(f"\nrecording {name}: {scenario['about']}", flush=True)
            try:
                trace = traffic(scenario, options.kvtide, ROOT, place / "served.json", options.quick)
            except Missing as error:
                print(f"  skipped, {error}")
                continue
            told = argparse.Namespace(
                trace=trace, env=scenario["env"], slo=scenario["slo"], clients=scenario.get("clients"), prefix_cache="on",
                set=[setting(text) for text in scenario.get("set", ())],
            )  # fmt: skip
            wrong += told_of(compare(options.kvtide, world_of(told), place))
        print("\nby hand: aborts, salts, engines side by side, tables for something else", flush=True)
        wrong += told_of(by_hand(Path(folder)) + ranks(Path(folder)) + tables(Path(folder)))
    print(f"\nrecording: {wrong} faults")
    return int(wrong > 0)


def told_of(faults: list[str]) -> int:
    for fault in faults:
        print(f"    FAILS: {fault}")
    return len(faults)


if __name__ == "__main__":
    sys.exit(main())
