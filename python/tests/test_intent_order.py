"""What the offload tier evicts by what requests declare: the order alone; `python/checks/offload_check.py` holds it to vLLM's own
manager, and `rules/` has what is declared."""

import logging
import random
import sys
from abc import ABC, abstractmethod
from types import ModuleType, SimpleNamespace

import pytest

from kvtide import IntentOrder, Pricing, Slo, intent_order, vllm_offload
from kvtide.intent_order import MOST_CLASSES, DeadlineAwareOrder, IntentAwareOrder
from kvtide.settings import SettingError

CHUNK = 256
ORDERS = (IntentAwareOrder, DeadlineAwareOrder)


@pytest.fixture(autouse=True)
def nothing_learnt(monkeypatch):
    """What a plugin of another test has learnt of prices is not at work here."""
    monkeypatch.setattr(intent_order, "_learnt", None)


class Context:
    """A request, as its connector tells of it."""

    def __init__(self, name, keys=(), params=None):
        self.req_id, self.kv_transfer_params, self.states = name, params, {}
        self.places = {key: (place + 1) * CHUNK for place, key in enumerate(keys)}

    def get_offload_key_position(self, key):
        return self.places.get(key)

    def get_state(self, kind):
        return self.states.get(kind)

    def set_state(self, state):
        self.states[type(state)] = state


class Tier:
    """A tier under one of the policies, as vLLM's manager has it, with a clock of its own."""

    def __init__(self, order, capacity):
        self.order, self.free, self.now = order(capacity), list(range(capacity)), 0.0
        self.order.clock = lambda: self.now

    def serve(self, name, text, params=None):
        """One request from its arrival to its end; how many chunks it found. None if it did not fit."""
        wanted = [part.encode() for part in text.split()]
        context = Context(name, wanted, params)
        found = [key for key in wanted if self.order.get(key) is not None]
        missing = [key for key in wanted if self.order.get(key) is None]
        self.order.on_store_miss(missing, context)
        self.order.on_request_access(wanted, context)
        over = len(missing) - len(self.free)
        if over > 0:
            gone = self.order.evict(over, set(wanted))
            if gone is None:
                return None
            self.free += [chunk.chunk_id for _, chunk in gone]
        for key in missing:
            self.order.insert(key, SimpleNamespace(ref_cnt=0, chunk_id=self.free.pop()), context)
        self.order.on_request_finished((tuple(wanted),), set(missing), set(found), context)
        return len(found)

    def evicted(self, count=1, protected=()):
        gone = self.order.evict(count, set(protected))
        if gone is None:
            return None
        self.free += [chunk.chunk_id for _, chunk in gone]
        return [key.decode() for key, _ in gone]


@pytest.mark.parametrize("order", ORDERS)
def test_of_what_is_declared_alike_the_longest_unused_goes_first_and_tails_before_heads(order):
    tier = Tier(order, 8)
    tier.serve("1", "a b c")
    tier.serve("2", "x y")
    assert tier.evicted(5) == ["c", "b", "a", "y", "x"]
    assert tier.order.chunks == {} and tier.order.keys == {} and tier.evicted() is None


@pytest.mark.parametrize("order", ORDERS)
def test_a_session_that_came_back_outlasts_what_was_asked_for_once(order):
    tier = Tier(order, 8)
    tier.serve("1", "a b")
    tier.now += 30
    tier.serve("2", "a b c")
    tier.serve("3", "x y z")
    assert tier.evicted(4) == ["z", "y", "x", "c"]


@pytest.mark.parametrize("order", ORDERS)
def test_an_urgent_class_outlasts_one_with_time(order, monkeypatch):
    monkeypatch.setenv("KVTIDE_SLO", "batch")
    tier = Tier(order, 8)
    tier.serve("1", "a b", {"kvtide_slo": "agent"})
    tier.serve("2", "x y", {"kvtide_slo": "ttft:60000,tpot:200"})
    tier.serve("3", "m n")
    assert tier.evicted(6) == ["y", "x", "n", "m", "b", "a"]


def test_what_is_dear_to_compute_again_stays_longer(monkeypatch):
    def first(price):
        monkeypatch.setenv("KVTIDE_PREFILL_NS_PER_TOKEN", price)
        monkeypatch.setenv("KVTIDE_ATTENTION_NS_PER_TOKEN_PAIR", "60")
        tier = Tier(IntentAwareOrder, 40)
        tier.serve("1", " ".join(f"long{place}" for place in range(24)))
        tier.serve("2", "short0 short1")
        return tier.evicted()[0]

    # What reads a long text is dearer; where nothing costs anything, the one used first goes.
    assert (first("1000"), first("0")) == ("short1", "short1")
    monkeypatch.setenv("KVTIDE_ATTENTION_NS_PER_TOKEN_PAIR", "0")
    tier = Tier(IntentAwareOrder, 40)
    tier.serve("1", " ".join(f"long{place}" for place in range(24)))
    tier.serve("2", "short0 short1")
    assert tier.evicted() == ["long23"]


def test_the_price_is_the_plugins_where_it_is_at_work(monkeypatch):
    monkeypatch.setattr(intent_order, "_learnt", None)
    tier = Tier(DeadlineAwareOrder, 4)
    assert tier.order.told.prefill_ns_per_token == 0.0
    learnt = Pricing(5_000.0)
    intent_order.priced(learnt)
    assert intent_order._learnt is learnt
    tier.serve("1", "a b")
    assert tier.evicted(2) == ["b", "a"]


def test_an_eviction_is_of_all_or_of_none():
    tier = Tier(IntentAwareOrder, 8)
    tier.serve("1", "a b c d")
    tier.order.chunks[b"c"].ref_cnt = 1
    tier.order.chunks[b"d"].ref_cnt = -1
    assert tier.evicted(2, protected=[b"b"]) is None
    assert tier.order.order.evicted == 0 and len(tier.order.chunks) == 4
    assert tier.order.evict(0, set()) == []
    assert tier.evicted(1, protected=[b"b"]) == ["a"]
    tier.order.chunks[b"c"].ref_cnt = tier.order.chunks[b"d"].ref_cnt = 0
    assert tier.evicted(3) == ["d", "c", "b"]


def test_a_prefix_that_others_continue_is_not_given_up_with_one_of_them():
    tier = Tier(IntentAwareOrder, 12)
    tier.serve("1", "h a", {"kvtide_slo": "agent"})
    tier.serve("2", "h b", {"kvtide_slo": "agent"})
    tier.serve("3", "h c", {"kvtide_slo": "batch"})
    # Nobody had come back when the first was done. The last declares least of what all have; it stays with what the second left.
    assert tier.evicted(4) == ["a", "c", "b", "h"]


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_kept_for_ever(order):
    tier = Tier(order, 8)
    tier.serve("1", "a b", {"kvtide_slo": "agent"})
    tier.serve("2", "a b c", {"kvtide_slo": "agent"})
    gone = 0
    for number in range(60):
        tier.serve(f"x{number}", f"x{number}", {"kvtide_slo": "batch"})
        gone += 1
        if tier.order.get(b"a") is None:
            break
    # 140 / 32 turnovers of eight chunks and one more, and five that were free.
    assert 5 < gone <= 5 + 8 * (140 / 32 + 1)


def test_what_failed_to_be_stored_leaves_nothing_behind():
    tier = Tier(IntentAwareOrder, 4)
    tier.serve("1", "a b")
    tier.free.append(tier.order.chunks[b"b"].chunk_id)
    tier.order.remove(b"b")
    assert tier.order.get(b"b") is None and list(tier.order.keys.values()) == [b"a"]
    assert tier.serve("2", "a b") == 1
    tier.order.clear()
    assert tier.order.chunks == {} and tier.order.evict(1, set()) is None


def test_classes_that_are_none_are_told_once_and_bounded(caplog):
    tier = Tier(IntentAwareOrder, 4)
    with caplog.at_level(logging.WARNING, "kvtide"):
        for _ in range(2):
            tier.serve("1", "a", {"kvtide_slo": "fast"})
    assert len(caplog.records) == 1 and "unknown SLO" in caplog.text
    assert tier.order.class_of(Context("2", params={"kvtide_slo": 7})) == (Slo(), 0)
    for number in range(2 * MOST_CLASSES):
        tier.order.class_of(Context("3", params={"kvtide_slo": f"ttft:{number + 1}"}))
    assert len(tier.order.classes) == MOST_CLASSES


def test_wrong_settings_are_named(monkeypatch):
    with pytest.raises(ValueError, match="unknown order \"lru\": expected intent-aware or deadline-aware"):
        IntentOrder(4, "lru")
    with pytest.raises(ValueError, match="place 4 of a tier of 4 chunks"):
        IntentOrder(4, "intent-aware").insert(4)
    monkeypatch.setenv("KVTIDE_SLO", "fast")
    with pytest.raises(SettingError, match="KVTIDE_SLO: unknown SLO"):
        IntentAwareOrder(4)


def test_a_question_that_fails_is_raised_and_changes_nothing():
    order = IntentOrder(2, "intent-aware")
    order.insert(0)
    with pytest.raises(ZeroDivisionError):
        order.evict(1, lambda slot: 1 / slot)
    assert order.evict(1, lambda slot: True) == [0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", ORDERS)
def test_whatever_happens_what_is_kept_is_of_chunks_that_are_there(order, seed):
    stream, tier, pinned, evicted = random.Random(seed), Tier(order, 40), set(), 0
    for number in range(2000):
        tier.now += stream.random() * 5
        path = f"{stream.randrange(6)}"
        text = " ".join(
            path + "".join(f"/{stream.randrange(3)}" for _ in range(depth)) for depth in range(stream.randint(1, 5))
        )
        params = stream.choice([None, {"kvtide_slo": "batch"}, {"kvtide_slo": "agent"}])
        tier.serve(str(number), text, params)
        chunks = tier.order.chunks
        if chunks and stream.random() < 0.3:
            key = stream.choice(list(chunks))
            chunks[key].ref_cnt = 1
            pinned.add(key)
        for key in [key for key in pinned if stream.random() < 0.2]:
            assert key in chunks, "what is being read stays"
            chunks[key].ref_cnt = 0
            pinned.discard(key)
        assert len(chunks) <= 40 and set(tier.order.keys.values()) == set(chunks)
        assert {chunk.chunk_id for chunk in chunks.values()} == set(tier.order.keys)
        assert len(chunks) + len(tier.free) == 40
    assert tier.order.order.evicted > 1000


def test_vllm_finds_them_by_name(monkeypatch):
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
    for name, scoring in (("IntentAwareCachePolicy", "intent-aware"), ("DeadlineAwareCachePolicy", "deadline-aware")):
        found = getattr(vllm_offload, name)
        monkeypatch.delitem(vars(vllm_offload), name)
        assert issubclass(found, CachePolicy)
        policy = found(cache_capacity=4)
        assert (policy.cache_capacity, policy.scoring, policy.mark_evictable(b"a")) == (4, scoring, "theirs")
        assert policy.evict(1, set()) is None
