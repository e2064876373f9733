"""The SGLang adapter over stand-ins with SGLang's names."""

import importlib.util
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from tables import leaf, table_bytes

from kvtide import sglang
from kvtide.settings import Settings
from kvtide.sglang import TideTracker


class Tracker:
    """SGLang's, in short."""

    init, min, decay = 0.7, 0.1, 0.01

    def __init__(self):
        self.current = 0.7

    def decay_step(self):
        self.current = max(self.current - self.decay, self.min)

    def reset(self):
        self.current = self.init


def request(rid, prompt=100, output=10, limit=210, ignore_eos=False):
    return SimpleNamespace(
        rid=rid, origin_input_ids=[0] * prompt, output_ids=[0] * output, finished_reason=None,
        finished=lambda: False, time_stats=SimpleNamespace(scheduler_recv_time=1.0),
        sampling_params=SimpleNamespace(max_new_tokens=limit, ignore_eos=ignore_eos),
    )  # fmt: skip


def scheduler(*running):
    return SimpleNamespace(
        page_size=1, max_total_num_tokens=1000, max_running_requests=8, chunked_prefill_size=512, max_prefill_tokens=4096,
        waiting_queue=[request(f"w{i}", output=0) for i in range(100)],
        running_batch=SimpleNamespace(reqs=list(running)),
        tree_cache=SimpleNamespace(evictable_size=lambda: 100),
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: 150),
        new_token_ratio_tracker=Tracker(), server_args=SimpleNamespace(disable_radix_cache=False),
    )  # fmt: skip


@pytest.fixture
def acting(environ, monkeypatch):
    monkeypatch.setenv("KVTIDE_MODE", "act")
    return environ


def tracker(*running, ranks=1):
    host = scheduler(*running)
    return TideTracker(host, host.new_token_ratio_tracker, Settings.from_env(), ranks, clock=lambda: 2.0)


def test_a_watermark_becomes_the_ratio_that_leaves_as_much_free(acting):
    acting.write_bytes(table_bytes([leaf(watermark=8)]))
    # 200 tokens each may come; 0.18 of 1000 tokens is 180.
    assert tracker(request("a"), request("b")).current == pytest.approx(180 / 400)
    # What ignores the end of sequence is reserved in full by SGLang itself.
    assert tracker(request("a"), request("b", ignore_eos=True)).current == pytest.approx(180 / 200)
    assert tracker(request("a", limit=30)).current == 1.0
    assert tracker().current == 0.7


def test_the_observation_is_sglangs_state(acting):
    acting.write_bytes(table_bytes([leaf()]))
    host = tracker(request("a"), request("b"))
    host.now_us = 2_000_000
    seen = host.observe()
    assert (seen["free_fraction"], seen["evictable_fraction"], seen["running"]) == (0.25, pytest.approx(0.1), 0.25)
    assert seen["waiting"] == 8.0
    assert seen["oldest_wait"] == 0.5


def test_it_decides_every_interval_and_after_a_retraction(acting):
    acting.write_bytes(table_bytes([leaf(watermark=1)], metadata={"interval": "4"}))
    host = tracker(request("a"))
    decisions = []
    for _ in range(8):
        host.current  # noqa: B018
        host.decay_step()
        decisions.append(host.metrics.counts["decisions", ""])
    assert decisions == [1, 1, 1, 1, 2, 2, 2, 2]
    host.current = 0.9
    assert host.engine.current == 0.9
    host.current  # noqa: B018
    assert host.metrics.counts["decisions", ""] == 3
    assert (host.ledger.steps, host.ledger.preemptions) == (9, 1)


@pytest.mark.parametrize("what", ["missing", "damaged", "profile", "shadow", "ranks", "failure"])
def test_otherwise_the_ratio_is_sglangs(acting, monkeypatch, what):
    data = table_bytes([leaf(watermark=8)], "full" if what == "profile" else "watermark")
    if what != "missing":
        acting.write_bytes(data[:-1] if what == "damaged" else data)
    if what == "shadow":
        monkeypatch.setenv("KVTIDE_MODE", "shadow")
    host = tracker(request("a"), request("b"), ranks=2 if what == "ranks" else 1)
    if what == "failure":
        host.scheduler.tree_cache = None
    mine, theirs = [], []
    engine = Tracker()
    for _ in range(20):
        mine.append(host.current)
        theirs.append(engine.current)
        host.decay_step()
        engine.decay_step()
    assert mine == theirs
    fallbacks = {"missing": "no_table", "damaged": "no_table", "profile": "profile"}
    if what in fallbacks:
        assert host.metrics.of("fallbacks") == {fallbacks[what]: 3}
    elif what == "failure":
        assert host.metrics.of("errors") == {"current": 3}
    else:
        assert host.metrics.of("overrides") == {"": 3}


def test_who_arrives_and_who_is_done_is_counted(acting):
    acting.write_bytes(table_bytes([leaf()]))
    host = tracker()
    done, aborted = request("a"), request("b")
    for joined in (done, aborted, done):
        sglang.after_arrival(None, SimpleNamespace(new_token_ratio_tracker=host), joined)
    assert (host.ledger.arrivals, host.ledger.arrived_prompt_tokens) == (2, 200)
    done.finished = aborted.finished = lambda: True
    aborted.finished_reason = type("FINISH_ABORT", (), {})()
    host.sweep()
    assert (host.ledger.completions, host.ledger.completed_output_tokens, host.live) == (1, 10, {})


def test_the_hook_replaces_the_tracker_or_leaves_it(acting, monkeypatch):
    acting.write_bytes(table_bytes([leaf()]))
    monkeypatch.setattr(sglang, "ranks_of", lambda scheduler: 1)
    host = scheduler()
    sglang.after_init(None, host)
    assert isinstance(host.new_token_ratio_tracker, TideTracker)
    monkeypatch.setenv("KVTIDE_MODE", "loud")
    host = scheduler()
    sglang.after_init(None, host)
    assert isinstance(host.new_token_ratio_tracker, Tracker)


def test_the_plugin_registers_two_hooks(acting, monkeypatch):
    registered = []
    module = ModuleType("hook_registry")
    module.HookType = SimpleNamespace(AFTER="after")
    module.HookRegistry = SimpleNamespace(register=lambda target, hook, kind: registered.append((target, hook, kind)))
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", module)
    sglang.register()
    assert [target.rsplit(".", 1)[1] for target, _, _ in registered] == ["init_schedule_policy", "_add_request_to_queue"]
    registered.clear()
    monkeypatch.delenv("KVTIDE_TABLE")
    sglang.register()
    assert registered == []


@pytest.mark.skipif("SGLANG_SOURCE" not in os.environ, reason="SGLANG_SOURCE is not set: a folder with sglang unpacked")
def test_sglangs_own_hook_registry_carries_the_hooks(acting, monkeypatch):
    """SGLang's registry and its names, from the published wheel; its scheduler needs a GPU."""
    root = os.environ["SGLANG_SOURCE"]
    spec = importlib.util.spec_from_file_location("hook_registry", f"{root}/sglang/srt/plugins/hook_registry.py")
    registry = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(registry)
    text = open(f"{root}/sglang/srt/managers/scheduler.py").read()
    for name in ("def init_schedule_policy(self)", "def _add_request_to_queue(self, req", "self.new_token_ratio_tracker ="):
        assert name in text
    acting.write_bytes(table_bytes([leaf(watermark=8)]))

    class Scheduler:
        def __init__(self):
            self.__dict__.update(vars(scheduler(request("a"))))
            self.init_schedule_policy()

        def init_schedule_policy(self):
            self.new_token_ratio_tracker = Tracker()

        def _add_request_to_queue(self, req, is_retracted=False):
            self.waiting_queue.append(req)

    stand_in = ModuleType("stand_in")
    stand_in.Scheduler = Scheduler
    monkeypatch.setitem(sys.modules, "stand_in", stand_in)
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sglang, "SCHEDULER", "stand_in.Scheduler")
    monkeypatch.setattr(sglang, "ranks_of", lambda scheduler: 1)
    sglang.register()
    registry.HookRegistry.apply_hooks()
    host = stand_in.Scheduler()
    host._add_request_to_queue(request("z"))
    assert host.new_token_ratio_tracker.ledger.arrivals == 1
    assert host.new_token_ratio_tracker.current == pytest.approx(180 / 200)
