"""What the offload tier evicts: the rules alone; `python/checks/offload_check.py` holds them to vLLM's own manager."""

import random
import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from types import ModuleType, SimpleNamespace

import pytest

from kvtide import vllm_offload
from kvtide.retention import EVICT_FIRST, KEEP, KEEP_LONG, KEEP_LONG_TURNOVERS, KEEP_TURNOVERS, NORMAL
from kvtide.tier_order import MOST, PERIOD, Duel, Frequencies
from kvtide.vllm_offload import RetentionOrder, hand, in_order


class Context:
    """A request, as its connector tells of it."""

    def __init__(self, name, keys=()):
        self.req_id, self.places = name, {key: place for place, key in enumerate(keys)}

    def get_offload_key_position(self, key):
        return self.places.get(key)


def key(text):
    return text.encode()


def keys(text):
    return [key(part) for part in text.split()]


def serve(order, name, text, classes=None, capacity=None):
    """One request from its arrival to its end, as vLLM's manager has it; how many chunks it found. None if it did not fit."""
    wanted = keys(text)
    context = Context(name, wanted)
    found = [chunk for chunk in wanted if order.get(chunk) is not None]
    missing = [chunk for chunk in wanted if order.get(chunk) is None]
    order.on_store_miss(missing, context)
    order.on_request_access(wanted, context)
    over = len(order.chunks) + len(missing) - (capacity or order.cache_capacity)
    if over > 0 and order.evict(over, set(wanted)) is None:
        return None
    for chunk in missing:
        order.insert(chunk, SimpleNamespace(ref_cnt=0), context)
    if classes is not None:
        hand(name, classes)
    order.on_request_finished((tuple(wanted),), set(missing), set(found), context)
    return len(found)


def evicted(order, count=1, protected=()):
    found = order.evict(count, set(protected))
    return found if found is None else [chunk.decode() for chunk, _ in found]


def test_what_was_used_longest_ago_goes_first_and_tails_before_heads():
    order = RetentionOrder(8)
    serve(order, "1", "a b c")
    serve(order, "2", "a x y")
    assert evicted(order, 5) == ["c", "b", "y", "x", "a"]
    assert order.chunks == {} and evicted(order) is None


def test_an_eviction_is_of_all_or_of_none():
    order = RetentionOrder(8)
    serve(order, "1", "a b c d")
    order.chunks[b"c"].ref_cnt = 1
    order.chunks[b"d"].ref_cnt = -1
    before = [list(members) for members in order.classes]
    assert evicted(order, 2, protected=[b"b"]) is None
    assert [list(members) for members in order.classes] == before and order.evicted == 0
    assert evicted(order, 0) == []
    assert evicted(order, 1, protected=[b"b"]) == ["a"]
    order.chunks[b"c"].ref_cnt = 0
    assert evicted(order, 2) == ["c", "b"]


def test_a_store_that_failed_leaves_nothing_behind():
    order = RetentionOrder(8)
    serve(order, "1", "a b")
    order.remove(b"b")
    assert order.get(b"b") is None and list(order.chunks) == [b"a"]
    serve(order, "2", "a b")
    # It counts as new: nobody used what was never there.
    assert order.frequencies.counts == {b"a": 1, b"b": 0}


def test_a_long_prompt_does_not_evict_its_own_beginning():
    order = RetentionOrder(6)
    serve(order, "1", "a b c d")
    serve(order, "2", "x y")
    context = Context("3", keys("a b c d e"))
    order.on_request_access(keys("a b c d"), context)
    assert evicted(order, 2, protected=[b"e"]) == ["y", "x"]


def test_classes_go_one_after_the_other_and_only_for_a_while():
    order = RetentionOrder(8)
    serve(order, "1", "k l", classes=(KEEP_LONG, KEEP_LONG))
    serve(order, "2", "m n", classes=(KEEP, KEEP))
    serve(order, "3", "o", classes=(NORMAL, NORMAL))
    serve(order, "4", "f g", classes=(EVICT_FIRST, EVICT_FIRST))
    assert evicted(order, 3) == ["g", "f", "o"]
    # Some turnovers after they were given back, `keep` is as all others, and the most recent of them.
    for number in range(8 * KEEP_TURNOVERS - 3):
        serve(order, f"x{number}", f"x{number}")
        assert evicted(order)[0].startswith("x")
    for number in range(4):
        serve(order, f"y{number}", f"y{number}")
        evicted(order)
    assert order.get(b"m") is None and order.get(b"n") is None
    assert order.get(b"k") is not None
    for number in range(8 * (KEEP_LONG_TURNOVERS + KEEP_TURNOVERS)):
        serve(order, f"p{number}", f"p{number}")
        evicted(order)
    assert order.get(b"k") is None and order.get(b"l") is None and order.placed == {}


def test_a_head_that_others_continue_is_not_given_up_with_one_of_them():
    order = RetentionOrder(8)
    serve(order, "1", "h a b", classes=(KEEP, KEEP))
    serve(order, "2", "h c", classes=(EVICT_FIRST, EVICT_FIRST))
    assert evicted(order) == ["c"]
    serve(order, "3", "z")
    assert evicted(order, 2) == ["z", "b"]
    # Nobody but its own continuation is behind it: the last release decides.
    serve(order, "4", "h a", classes=(EVICT_FIRST, EVICT_FIRST))
    assert evicted(order, 2) == ["a", "h"]
    assert (order.children, order.parents) == ({}, {})


def test_classes_wait_for_their_request_and_are_bounded(monkeypatch):
    monkeypatch.setattr(vllm_offload, "_handed", OrderedDict())
    monkeypatch.setattr(vllm_offload, "MOST_HANDED", 3)
    for number in range(5):
        hand(str(number), (KEEP, NORMAL))
    assert list(vllm_offload._handed) == ["2", "3", "4"]
    order = RetentionOrder(4)
    assert vllm_offload.is_used()
    serve(order, "3", "a")
    assert list(vllm_offload._handed) == ["2", "4"]
    # What it computed, and what it found.
    assert order.placed == {}
    serve(order, "4", "a b")
    assert order.placed == {b"a": KEEP}


def test_nothing_is_left_after_a_reset():
    order = RetentionOrder(4)
    serve(order, "1", "a b", classes=(KEEP, KEEP))
    order.clear()
    assert (order.chunks, order.terms, order.placed, order.evicted) == ({}, {}, {}, 0)
    assert evicted(order) is None and serve(order, "2", "a") == 0


def test_prefixes_are_in_order_across_groups_where_their_places_are_known():
    context = Context("1", keys("a b c d"))
    assert in_order((tuple(keys("a c")), tuple(keys("b d"))), context) == keys("a b c d")
    assert in_order((tuple(keys("a c")), tuple(keys("b x"))), context) == keys("a c b x")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_what_is_kept_of_chunks_is_of_those_that_are_there(seed):
    stream, order = random.Random(seed), RetentionOrder(40)
    pinned = set()
    for number in range(3000):
        path = f"{stream.randrange(6)}"
        text = " ".join(
            path + "".join(f"/{stream.randrange(3)}" for _ in range(depth)) for depth in range(stream.randint(1, 5))
        )
        classes = (stream.randrange(4), stream.randrange(4)) if stream.random() < 0.5 else None
        serve(order, str(number), text, classes)
        if order.chunks and stream.random() < 0.3:
            chunk = stream.choice(list(order.chunks))
            order.chunks[chunk].ref_cnt = 1
            pinned.add(chunk)
        for chunk in [chunk for chunk in pinned if stream.random() < 0.2]:
            assert chunk in order.chunks, "what is being read stays"
            order.chunks[chunk].ref_cnt = 0
            pinned.discard(chunk)
        there = set(order.chunks)
        assert len(there) <= 40
        members = [chunk for one in order.classes for chunk in one]
        assert len(members) == len(there) and set(members) == there == set(order.frequencies.counts)
        assert set(order.frequencies.order()) == set(order.classes[NORMAL])
        assert set(order.placed) == there - set(order.classes[NORMAL]) and set(order.terms) <= there
        assert set(order.parents) <= there
        assert sum(order.children.values()) == len(order.parents)
    assert order.evicted > 1000


def test_counts_age_and_are_remembered_beyond_an_eviction():
    frequencies = Frequencies(2)
    frequencies.add(b"a")
    for _ in range(MOST + 3):
        frequencies.use(b"a")
    assert frequencies.counts[b"a"] == MOST
    frequencies.drop(b"a", remember=True)
    frequencies.add(b"b")
    frequencies.add(b"a")
    assert list(frequencies.order()) == [b"b", b"a"] and frequencies.counts[b"a"] == MOST
    for _ in range(PERIOD * 2):
        frequencies.use(b"b")
    assert frequencies.counts[b"a"] == MOST // 2
    for number in range(20):
        frequencies.add(str(number).encode())
        frequencies.drop(str(number).encode(), remember=True)
    assert len(frequencies.gone) == 8


def test_of_two_orders_the_one_that_would_have_hit_more_is_obeyed():
    duel = Duel(64)
    # A few that come back, among many that do not: frequency keeps them, recency does not.
    for turn in range(400):
        for number in range(20):
            duel.used(f"often {number}".encode())
        for number in range(60):
            duel.used(f"once {turn} {number}".encode())
    assert duel.by_frequency
    # Sessions come back in turn, and never again once they are over.
    for turn in range(400):
        for _ in range(8):
            for number in range(40):
                duel.used(f"session {turn} {number}".encode())
    assert not duel.by_frequency


@pytest.mark.parametrize(("capacity", "mask", "sampled"), [(1, 0, 1), (900, 0, 900), (1100, 1, 550), (1 << 20, 7, 1 << 17)])
def test_a_large_tier_is_judged_by_a_sample(capacity, mask, sampled):
    duel = Duel(capacity)
    assert (duel.mask, duel.capacity) == (mask, sampled)


def test_vllm_finds_its_policy_by_name(monkeypatch):
    class CachePolicy(ABC):
        @abstractmethod
        def evict(self, n, protected): ...

        def mark_evictable(self, key):
            return "theirs"

    module = ModuleType("vllm.v1.kv_offload.cpu.policies.base")
    module.CachePolicy = CachePolicy
    for name in ("vllm", "vllm.v1", "vllm.v1.kv_offload", "vllm.v1.kv_offload.cpu", "vllm.v1.kv_offload.cpu.policies"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = vllm_offload.RetentionCachePolicy
    monkeypatch.delitem(vars(vllm_offload), "RetentionCachePolicy")
    assert issubclass(found, CachePolicy)
    policy = found(cache_capacity=4)
    assert (policy.cache_capacity, policy.mark_evictable(b"a"), policy.evict(1, set())) == (4, "theirs", None)
    with pytest.raises(AttributeError):
        vllm_offload.AnotherPolicy  # noqa: B018
