"""What vLLM's CPU offload tier evicts: a `CachePolicy` for its own hook.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 64000000000,
        "eviction_policy": "RetentionCachePolicy", "cache_policy_module_path": "kvtide.vllm_offload"}}'

It needs neither a table nor the plugin. Chunks go in the order of recency or of frequency, whichever would have hit more of
late (`tier_order.py`). Where a table with a retention tree is at work in the same engine, a finished request's chunks are of
the classes of its blocks: `evict-first` before all others, `keep` and `keep-long` behind them, for so many turnovers of the
tier (`retention.py` has the rules).

`"eviction_policy": "IntentAwareCachePolicy"` and `"DeadlineAwareCachePolicy"` order chunks by what requests declare instead:
targets, a session that is expected back, what computing again costs (`intent_order.py` has what is declared and how it is told).
They look at no table's classes.

Measured with vLLM's own manager, prompt chunks of 512 tokens, the last one partial, one request after the other; hits in per
cent of chunks asked for. The order was chosen with these two traces in view, and no other was tried.
`python/checks/offload_check.py` runs the same over full chunks alone, which gives other figures (3,280: 7.60, 7.49, 14.02):

    Mooncake's conversations, 39 min     820 chunks  1,600  3,280  6,500  15,000  30,000
    vLLM's lru                                 4.25   4.87   6.97  14.69   24.95   31.78
    vLLM's arc                                 4.67   5.67   7.07  13.98   25.25   30.33
    RetentionCachePolicy                       6.59   9.62  13.44  17.92   24.95   31.78
    60 coding-agent sessions             800 chunks  1,600  4,000
    vLLM's lru                                35.81  61.53  88.49
    vLLM's arc                                31.97  57.51  85.30
    RetentionCachePolicy                      36.82  61.44  88.49
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from kvtide.intent_order import DeadlineAwareOrder, IntentAwareOrder
from kvtide.retention import EVICT_FIRST, KEEP, KEEP_LONG, NONE, NORMAL, Term, class_of, next_term, term_of
from kvtide.tier_order import Duel, Frequencies, in_order

# Requests whose classes are waited for: far more than run at once.
MOST_HANDED = 65_536

_handed: OrderedDict[str, tuple[int, int]] = OrderedDict()
_policies = 0


def is_used() -> bool:
    """Whether an offload tier of this process asks for classes."""
    return _policies > 0


def hand(request_id: str, classes: tuple[int, int]) -> None:
    """Of which classes the blocks are that this request found, and those that it computed; it is about to finish."""
    _handed[request_id] = classes
    if len(_handed) > MOST_HANDED:
        _handed.popitem(last=False)


class RetentionOrder:
    """Everything `RetentionCachePolicy` does, in terms of what vLLM calls it with; its base class says what each call means.

    A chunk whose `ref_cnt` is not 0 is being written or read, and stays."""

    def __init__(self, cache_capacity: int) -> None:
        global _policies
        _policies += 1
        self.cache_capacity = cache_capacity
        self.clear()

    def clear(self) -> None:
        self.chunks: dict[bytes, object] = {}
        # Each class in the order of use; of normal ones, how often they were used as well.
        self.classes: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(KEEP_LONG + 1)]
        self.frequencies = Frequencies(self.cache_capacity)
        self.duel = Duel(self.cache_capacity)
        # Of chunks that are not normal: their class and its term.
        self.placed: dict[bytes, int] = {}
        self.terms: dict[bytes, Term] = {}
        # By chunk: the one before it in its text, and how many come behind it.
        self.parents: dict[bytes, bytes] = {}
        self.children: dict[bytes, int] = {}
        self.evicted = 0

    # --- what is there ---------------------------------------------------------------------------------------------

    def get(self, key: bytes):
        return self.chunks.get(key)

    def insert(self, key: bytes, chunk, req_context) -> None:
        self.chunks[key] = chunk
        self.classes[NORMAL][key] = None
        self.frequencies.add(key)

    def remove(self, key: bytes) -> None:
        self._drop(key, remember=False)

    def _drop(self, key: bytes, remember: bool) -> object:
        self.classes[self.placed.pop(key, NORMAL)].pop(key)
        self.frequencies.drop(key, remember)
        self.terms.pop(key, None)
        parent = self.parents.pop(key, None)
        if parent is not None:
            self.children[parent] -= 1
            if not self.children[parent]:
                del self.children[parent]
        return self.chunks.pop(key)

    # --- what is used ----------------------------------------------------------------------------------------------

    def touch(self, keys: Iterable[bytes], req_context) -> None:
        """Of a prefix the end goes first: what comes before it is then the more recent."""
        for key in reversed(list(keys)):
            if key in self.chunks:
                self._refresh(key)

    def on_store_miss(self, keys: Iterable[bytes], req_context) -> None:
        """What a chunk had counts on as soon as it is inserted."""

    def on_request_access(self, keys: Iterable[bytes], req_context) -> None:
        """Otherwise a long prompt, stored part by part, would evict its own beginning."""
        self.touch(keys, req_context)

    def _refresh(self, key: bytes) -> None:
        retention = self.placed.get(key, NORMAL)
        self.classes[retention].move_to_end(key)
        if retention == NORMAL:
            self.frequencies.refresh(key)

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[bytes]],
        insertion_only_keys: Collection[bytes],
        reused_keys: Collection[bytes],
        req_context,
    ) -> None:
        """One use of everything the request asked for, whether it was there or not."""
        for key in reversed(in_order(key_groups, req_context)):
            self.duel.used(key)
            if key in self.chunks:
                if key in reused_keys:
                    self.frequencies.use(key)
                self._refresh(key)
        classes = _handed.pop(req_context.req_id, (NORMAL, NORMAL))
        for keys in key_groups:
            self._release([key for key in keys if key in self.chunks], reused_keys, classes)

    def _release(self, keys: list[bytes], found: Collection[bytes], classes: tuple[int, int]) -> None:
        for before, key in zip(keys, keys[1:], strict=False):
            if key not in self.parents:
                self.parents[key] = before
                self.children[before] = self.children.get(before, 0) + 1
        if classes == (NORMAL, NORMAL) and not self.terms:
            return
        of_head, of_tail = (term_of(retention, self.evicted, self.cache_capacity) for retention in classes)
        floor, behind = NONE, None
        for key in reversed(keys):
            others = self.children.get(key, 0) - (behind is not None and self.parents.get(behind) == key)
            given = of_head if key in found else of_tail
            floor = next_term(given, floor, self.terms.get(key, NONE), others > 0)
            self._place(key, floor)
            behind = key

    def _place(self, key: bytes, term: Term) -> None:
        self._move(key, class_of(term, self.evicted))
        if term == term_of(NORMAL, 0, 0):
            self.terms.pop(key, None)
        else:
            self.terms[key] = term

    def _move(self, key: bytes, retention: int) -> None:
        """To the end of another class, or of its own."""
        now = self.placed.get(key, NORMAL)
        self.classes[now].pop(key)
        self.classes[retention][key] = None
        if retention == NORMAL:
            self.placed.pop(key, None)
        else:
            self.placed[key] = retention
        if now == NORMAL and retention != NORMAL:
            self.frequencies.hide(key)
        elif retention == NORMAL and now != NORMAL:
            self.frequencies.show(key)

    # --- what goes -------------------------------------------------------------------------------------------------

    def evict(self, n: int, protected: Collection[bytes]) -> list[tuple[bytes, object]] | None:
        """Exactly `n` that may go, or None and nothing has changed."""
        if n == 0:
            return []
        self._age()
        found = []
        for key in self._order():
            if self.chunks[key].ref_cnt == 0 and key not in protected:
                found.append(key)
                if len(found) == n:
                    self.evicted += n
                    return [(key, self._drop(key, remember=True)) for key in found]
        return None

    def _order(self) -> Iterator[bytes]:
        normal = self.frequencies.order() if self.duel.by_frequency else self.classes[NORMAL]
        return chain(self.classes[EVICT_FIRST], normal, self.classes[KEEP], self.classes[KEEP_LONG])

    def _age(self) -> None:
        for above in (KEEP, KEEP_LONG):
            members = self.classes[above]
            while members:
                key = next(iter(members))
                if class_of(self.terms[key], self.evicted) >= above:
                    break
                self._move(key, above - 1)


# By the names that `eviction_policy` has for them.
POLICIES = {
    "RetentionCachePolicy": RetentionOrder,
    "IntentAwareCachePolicy": IntentAwareOrder,
    "DeadlineAwareCachePolicy": DeadlineAwareOrder,
}


def __getattr__(name: str):
    """vLLM's hook takes a subclass of its own base class, and vLLM need not be installed to import this module."""
    order = POLICIES.get(name)
    if order is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy

    made = type(name, (order, CachePolicy), {"__doc__": order.__doc__, "__module__": __name__})
    globals()[name] = made
    return made
