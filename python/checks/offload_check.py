"""kvtide's policies for vLLM's CPU offload tier, under vLLM's own manager: `offload_check.py --kvtide PROGRAM [--trace FILE …]`.

First the contract: what the base class asks for is there, with its signatures; in thousands of random requests, some of which
are being read, fail to be stored or ask for more than fits, the manager's books agree with the policy's and nothing that is
protected goes; and as long as recency is obeyed, or nothing differs in what is declared, evictions are those of vLLM's `lru`,
one for one.

Then the figures, of traces with prefix hashes: prompts one after the other, hits in per cent of the
chunks asked for, beside vLLM's own policies. Fails where `RetentionCachePolicy` is below `lru` by more than half a point; those by
intent are told what a prompt token costs on an H100, and are shown.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager  # noqa: E402
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy  # noqa: E402
from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory  # noqa: E402

from kvtide import vllm_offload  # noqa: E402

MOONCAKE = Path(__file__).resolve().parents[3] / "shared/traces/mooncake_conversation_0-2358s.jsonl.zst"
OURS, MODULE = "RetentionCachePolicy", "kvtide.vllm_offload"
BY_INTENT = ("IntentAwareCachePolicy", "DeadlineAwareCachePolicy")
# Nanoseconds a prompt token, Llama 3 8B on an H100.
PRICE = "35000"
CHUNK = 512
# Chunks of a long prompt that are stored at once.
PART = 4
MOST_BEHIND = 0.005


def manager_of(capacity: int, policy: str) -> CPUOffloadingManager:
    return CPUOffloadingManager(capacity, policy, MODULE if policy in (OURS, *BY_INTENT) else None)


def context_of(name: str, keys: list[bytes]) -> ReqContext:
    context = ReqContext(name)
    for place, key in enumerate(keys):
        context.set_offload_key_position(key, (place + 1) * CHUNK)
    return context


def found(manager: CPUOffloadingManager, keys: list[bytes], context: ReqContext) -> int:
    """Chunks from the front that are there."""
    return next((place for place, key in enumerate(keys) if manager.lookup(key, context) is not LookupResult.HIT), len(keys))


def check_interface(policy: str) -> None:
    policy = CachePolicyFactory.get_cache_policy_cls(policy, MODULE)
    assert issubclass(policy, CachePolicy) and not policy.__abstractmethods__
    for name, theirs in inspect.getmembers(CachePolicy, inspect.isfunction):
        ours = inspect.signature(getattr(policy, name))
        assert list(ours.parameters) == list(inspect.signature(theirs).parameters), f"{name}{ours}"


def check_books(seed: int, name: str) -> int:
    """Random requests; how many chunks were evicted."""
    stream, capacity = random.Random(seed), 60
    manager = manager_of(capacity, name)
    policy, loading, evictions = manager._policy, [], 0
    for number in range(4000):
        path = [stream.randrange(5)] + [stream.randrange(3) for _ in range(stream.randrange(20))]
        keys = [make_offload_key(repr(path[: depth + 1]).encode(), 0) for depth in range(len(path))]
        context = context_of(str(number), keys)
        manager.on_new_request(context)
        hits = keys[: found(manager, keys, context)]
        if hits and stream.random() < 0.7:
            manager.prepare_load(hits, context)
            loading.append((hits, context))
        stored = manager.prepare_store(keys, context)
        if stored is not None:
            evictions += len(stored.evicted_keys)
            assert not set(stored.evicted_keys) & set(keys), "what was offered is protected"
            assert all(policy.get(key) is None for key in stored.evicted_keys)
            manager.complete_store(stored.keys_to_store, context, success=stream.random() < 0.9)
        if stream.random() < 0.5:
            vllm_offload.hand(str(number), (stream.randrange(4), stream.randrange(4)))
        manager.on_request_finished(context)
        while loading and (len(loading) > 3 or stream.random() < 0.5):
            manager.complete_load(*loading.pop(stream.randrange(len(loading))))
        chunks = policy.chunks.values()
        assert len(chunks) <= capacity and len({chunk.chunk_id for chunk in chunks}) == len(chunks)
        assert sum(chunk.ref_cnt == 0 for chunk in chunks) == manager._num_evictable_cache_chunks
        assert len(chunks) + manager._get_num_free_chunks() == capacity
        if number % 1500 == 1499:
            manager.reset_cache()
            loading.clear()
            assert not policy.chunks
    return evictions


def check_recency(seed: int, name: str) -> int:
    """The same requests under vLLM's `lru`, whose evictions must be the same while recency is obeyed; how many there were."""
    stream, capacity = random.Random(seed), 80
    sides = [manager_of(capacity, policy) for policy in (name, "lru")]
    ours = sides[0]._policy
    if name == OURS:
        ours.duel.used = lambda key: None
    else:
        # Nobody declares anything.
        ours.order = Undeclared(ours.order)
    evictions = 0
    for number in range(3000):
        path = [stream.randrange(12)] + [stream.randrange(3) for _ in range(stream.randrange(12))]
        keys = [make_offload_key(repr(path[: depth + 1]).encode(), 0) for depth in range(len(path))]
        evicted = []
        for manager in sides:
            context = context_of(str(number), keys)
            manager.on_new_request(context)
            stored = manager.prepare_store(keys, context)
            manager.complete_store(stored.keys_to_store, context)
            manager.on_request_finished(context)
            evicted.append(stored.evicted_keys)
        assert evicted[0] == evicted[1], f"request {number}: {evicted}"
        evictions += len(evicted[0])
    return evictions


class Undeclared:
    """An order of which nothing is declared."""

    def __init__(self, order) -> None:
        self.order = order

    def declare(self, *args) -> None: ...

    def __getattr__(self, name: str):
        return getattr(self.order, name)


def prompts_of(path: Path, kvtide: str) -> list[tuple[float, list[bytes]]]:
    """When each prompt came, and its chunks; where hashes are of smaller blocks, each chunk has that of its last."""
    done = subprocess.run([kvtide, "trace", "convert", "--quiet", str(path), "-"], stdout=subprocess.PIPE, check=True)
    prompts = []
    for row in map(json.loads, done.stdout.splitlines()):
        step = max(CHUNK // row["hash_block_tokens"], 1)
        keys = [make_offload_key(number.to_bytes(8, "big"), 0) for number in row["hash_ids"][step - 1 :: step]]
        prompts.append((row["arrival_us"] / 1e6, keys))
    return prompts


def hits(prompts: list[tuple[float, list[bytes]]], capacity: int, policy: str) -> float:
    manager, asked, there, now = manager_of(capacity, policy), 0, 0, 0.0
    manager._policy.clock = lambda: now
    for number, (now, keys) in enumerate(prompts):
        context = context_of(str(number), keys)
        manager.on_new_request(context)
        count = found(manager, keys, context)
        asked, there = asked + len(keys), there + count
        if count:
            manager.prepare_load(keys[:count], context)
            manager.complete_load(keys[:count], context)
        for first in range(0, len(keys), PART):
            stored = manager.prepare_store(keys[first : first + PART], context)
            if stored is not None:
                manager.complete_store(stored.keys_to_store, context)
        manager.on_request_finished(context)
    return there / max(asked, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvtide", required=True, help="the built program, which reads traces")
    parser.add_argument("--trace", type=Path, action="append", help="of prompts with hash_ids; Mooncake's if it is here")
    parser.add_argument("--chunks", default="820,1600,3280,6500,15000,30000", help="capacities")
    options = parser.parse_args()
    os.environ["KVTIDE_PREFILL_NS_PER_TOKEN"] = PRICE
    for name in (OURS, *BY_INTENT):
        check_interface(name)
        print(f"{name}, the base class's interface: as it asks for")
        evicted = sum(check_books(seed, name) for seed in range(3))
        print(f"{name}, books agree: {evicted} chunks evicted, some while others were read")
        evicted = sum(check_recency(seed, name) for seed in range(3))
        print(f"{name}, evictions in the order of recency: {evicted}, those of vLLM's lru")
    wrong = 0
    for trace in options.trace or [MOONCAKE]:
        if not trace.exists():
            print(f"\n{trace.name}: skipped, it is not here")
            continue
        prompts = prompts_of(trace, options.kvtide)
        print(f"\n{trace.name}: {len(prompts)} prompts, hits in % of chunks of {CHUNK} tokens")
        print(f"{'chunks':>8}{'lru':>8}{'arc':>8}{'ours':>8}{'intent':>10}{'deadline':>10}")
        for capacity in map(int, options.chunks.split(",")):
            lru, arc, ours, *by_intent = (hits(prompts, capacity, policy) for policy in ("lru", "arc", OURS, *BY_INTENT))
            is_behind = ours < lru - MOST_BEHIND
            wrong += is_behind
            shown = "".join(f"{100 * share:>8.2f}" for share in (lru, arc, ours))
            shown += "".join(f"{100 * share:>10.2f}" for share in by_intent)
            print(f"{capacity:>8}{shown}{'  FAILS' if is_behind else ''}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
