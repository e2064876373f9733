"""An offload tier by what requests declare of what they leave in it: their targets, whether their session is expected back, what
computing it again costs. What follows for each chunk, its score and for how long that holds are kvtide's own rules
(`rules/src/intent`), the simulator's `host_cache_order=intent-aware` and `deadline-aware`; this keeps what vLLM knows chunks by.

A request that says nothing has the targets of `KVTIDE_SLO` (default `ttft:2000,tpot:100,stall:3000`). It says its own in
`kv_transfer_params`, as a class or as targets: `{"kvtide_slo": "batch"}`. What computing a token costs is
`KVTIDE_PREFILL_NS_PER_TOKEN`, or what the plugin learns from steps where a table is at work in the same engine; without either,
costs and slack count for nothing. Sessions are not told: a prompt that continues what an earlier one left is its next turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from kvtide._kvtide import IntentOrder, Pricing, Slo
from kvtide.settings import targets_and_price
from kvtide.tier_order import in_order

logger = logging.getLogger("kvtide")

# Different `kvtide_slo` that are told apart; a node has a few.
MOST_CLASSES = 64

# What the plugin of this process learns of prices, if it is at work.
_learnt: Pricing | None = None


def priced(pricing: Pricing) -> None:
    """What a plugin in the same engine knows of prices."""
    global _learnt
    _learnt = pricing


@dataclass(slots=True)
class Seen:
    """When a request first asked; kept with it."""

    owner: object
    at_us: int


class DeclaredOrder:
    """Everything the policies by intent do, in terms of what vLLM calls them with; its base class says what each call means.

    A chunk whose `ref_cnt` is not 0 is being written or read, and stays. Until its request has finished nothing is declared of it."""

    scoring = "intent-aware"
    clock = staticmethod(time.monotonic)

    def __init__(self, cache_capacity: int) -> None:
        self.cache_capacity = cache_capacity
        self.slo, self.told = targets_and_price()
        self.classes: dict[str, Slo] = {}
        self.clear()

    def clear(self) -> None:
        self.chunks: dict[bytes, object] = {}
        # By the number of a chunk's place in the tier.
        self.keys: dict[int, bytes] = {}
        self.order = IntentOrder(self.cache_capacity, self.scoring)

    # --- what is there ---------------------------------------------------------------------------------------------

    def get(self, key: bytes):
        return self.chunks.get(key)

    def insert(self, key: bytes, chunk, req_context) -> None:
        self.chunks[key] = chunk
        self.keys[chunk.chunk_id] = key
        self.order.insert(chunk.chunk_id)

    def remove(self, key: bytes) -> None:
        slot = self.chunks.pop(key).chunk_id
        del self.keys[slot]
        self.order.remove(slot)

    # --- what is used ----------------------------------------------------------------------------------------------

    def touch(self, keys: Iterable[bytes], req_context) -> None:
        """Of a prefix the end goes first: what comes before it is then the more recent."""
        self.order.use_all([self.chunks[key].chunk_id for key in reversed(list(keys)) if key in self.chunks])

    def on_store_miss(self, keys: Iterable[bytes], req_context) -> None:
        """Nothing is kept of what is not there."""

    def on_request_access(self, keys: Iterable[bytes], req_context) -> None:
        """Otherwise a long prompt, stored part by part, would evict its own beginning."""
        seen = req_context.get_state(Seen)
        if seen is None or seen.owner is not self:
            req_context.set_state(Seen(self, self.now_us()))
        self.touch(keys, req_context)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[bytes]],
        insertion_only_keys: Collection[bytes],
        reused_keys: Collection[bytes],
        req_context,
    ) -> None:
        """What the request leaves is declared, and used once, its end first."""
        # Any group of layers has the same text; the one with the most chunks has all of it.
        text = max(key_groups, key=len, default=())
        if not text:
            return
        seen, now = req_context.get_state(Seen), self.now_us()
        head = next((place for place, key in enumerate(text) if key not in reused_keys), len(text))
        slo, kind = self.class_of(req_context)
        seen_us = now if seen is None or seen.owner is not self else seen.at_us
        visit = self.order.finished(list(text), head, kind, seen_us, now)
        ends = [req_context.get_offload_key_position(key) for key in text]
        chunk_tokens = 0 if None in ends else min(after - before for before, after in zip([0, *ends], ends, strict=False))
        for group in key_groups:
            path = [
                (self.place_of(key, at, chunk_tokens, req_context), self.chunks[key].chunk_id)
                for at, key in enumerate(group)
                if key in self.chunks
            ]
            self.order.declare(visit, path, max(chunk_tokens, 0), slo, _learnt or self.told)
        self.touch(in_order(key_groups, req_context), req_context)

    def place_of(self, key: bytes, at: int, chunk_tokens: int, req_context) -> int:
        """Which chunk of the text it is; groups of windows have the last ones alone."""
        end = req_context.get_offload_key_position(key)
        return at if end is None or chunk_tokens <= 0 else max(-(-end // chunk_tokens) - 1, 0)

    def class_of(self, req_context) -> tuple[Slo, int]:
        """A request's targets, and a number that stands for its class."""
        text = (getattr(req_context, "kv_transfer_params", None) or {}).get("kvtide_slo")
        if not isinstance(text, str):
            return self.slo, 0
        if text not in self.classes:
            if len(self.classes) == MOST_CLASSES:
                del self.classes[next(iter(self.classes))]
            try:
                self.classes[text] = Slo.parse(text)
            except ValueError as error:
                logger.warning("kvtide_slo of a request: %s; KVTIDE_SLO is used", error)
                self.classes[text] = self.slo
        return self.classes[text], crc32(text.encode())

    # --- what goes -------------------------------------------------------------------------------------------------

    def evict(self, n: int, protected: Collection[bytes]) -> list[tuple[bytes, object]] | None:
        """Exactly `n` that may go, or None and nothing has changed."""

        def may_go(slot: int) -> bool:
            key = self.keys[slot]
            return self.chunks[key].ref_cnt == 0 and key not in protected

        slots = self.order.evict(n, may_go)
        if slots is None:
            return None
        gone = [self.keys.pop(slot) for slot in slots]
        return [(key, self.chunks.pop(key)) for key in gone]

    def now_us(self) -> int:
        return int(self.clock() * 1e6)


class IntentAwareOrder(DeclaredOrder):
    """First what least depends on being there: of requests that are over and not expected back, of classes with little urgency,
    cheap to compute again."""


class DeadlineAwareOrder(DeclaredOrder):
    """The same, with more weight on chunks without which a next turn would miss its target."""

    scoring = "deadline-aware"
