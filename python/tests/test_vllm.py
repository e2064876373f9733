"""The vLLM adapter over a fake scheduler: what it sets, when it lets go, and that no failure reaches vLLM."""

import gc
import logging
import os
import sys
import weakref
from abc import ABC
from types import ModuleType, SimpleNamespace

import pytest
from fake_vllm import Request, Scheduler, Status, VllmScheduler
from tables import leaf, split, table_bytes

from kvtide import vllm as adapter
from kvtide.tide import Tide

FULL = [leaf(watermark=10, victim=2, admission=2)]


@pytest.fixture
def acting(environ, monkeypatch):
    """Acts by whatever table is written to the path returned."""
    monkeypatch.setenv("KVTIDE_MODE", "act")
    monkeypatch.setenv("KVTIDE_RELOAD_S", "0")
    return environ


def run(scheduler, requests, steps=2000, step_s=0.02):
    """Plays the engine; returns what happened, step by step."""
    now = [0.0]
    if getattr(scheduler, "kvtide", None) is not None:
        scheduler.kvtide.clock = scheduler.kvtide.wall_clock = lambda: now[0]
    pending, story = list(requests), []
    for _ in range(steps):
        while pending and pending[0].arrival_time <= now[0]:
            scheduler.add_request(pending.pop(0))
        output = scheduler.schedule()
        scheduler.update_from_output(output)
        story.append((dict(output.num_scheduled_tokens), sorted(output.preempted_req_ids)))
        now[0] += step_s
        if not pending and not scheduler.requests:
            return story
    raise AssertionError("not done")


def crowd():
    return [Request(str(i), 60 + 37 * i % 250, 20 + 13 * i % 60, arrival_s=0.01 * i) for i in range(40)]


def counts(scheduler, name):
    return scheduler.kvtide.metrics.of(name)


def test_the_watermark_is_set_before_each_step(acting):
    acting.write_bytes(table_bytes([split("running", 1, 0.01), leaf(watermark=0), leaf(watermark=10)]))
    scheduler = Scheduler()
    assert scheduler.kvtide.pilot.interval == 8
    assert scheduler.kv_cache_manager.watermark_blocks == 0
    scheduler.add_request(Request("a", 100, 50))
    scheduler.schedule()
    assert scheduler.kv_cache_manager.watermark_blocks == 0
    for _ in range(8):
        scheduler.schedule()
    # A quarter of all 101 blocks, truncated.
    assert scheduler.kv_cache_manager.watermark_blocks == 25
    assert counts(scheduler, "decisions") == {"": 2}
    assert counts(scheduler, "overrides") == {"": 1}
    assert scheduler.kvtide.metrics.values["watermark"] == 0.25


def test_a_first_refusal_asks_for_a_decision(acting):
    acting.write_bytes(table_bytes([leaf()]))
    scheduler = Scheduler()
    scheduler.add_request(Request("a", 1500, 90))
    scheduler.schedule()
    scheduler.add_request(Request("b", 1500, 5))
    scheduler.schedule()
    assert counts(scheduler, "decisions") == {"": 1}
    scheduler.schedule()
    assert counts(scheduler, "decisions") == {"": 2}
    scheduler.schedule()
    assert counts(scheduler, "decisions") == {"": 2}


def test_every_head_of_a_full_table_is_honoured(acting):
    acting.write_bytes(table_bytes(FULL, "full"))
    scheduler = Scheduler()
    story = run(scheduler, crowd())
    assert scheduler.kvtide.pilot.table is not None
    assert story != run(VllmScheduler(), crowd())
    assert (scheduler.kvtide.victim, scheduler.waiting.order) == ("most-blocks", "shortest-on-time-first")
    assert counts(scheduler, "errors") == {}


@pytest.mark.parametrize(
    ("victim", "wanted"), [(0, "d"), (1, "d"), (2, "b"), (3, "c"), (4, "d")],
    ids=["newest", "fewest-blocks", "most-blocks", "least-progress", "most-slack"],
)  # fmt: skip
def test_the_victim_is_moved_to_the_end(acting, victim, wanted):
    acting.write_bytes(table_bytes([leaf(victim=victim)], "core"))
    scheduler = Scheduler(num_blocks=41)
    for name, prompt, arrival in (("a", 160, 0.0), ("b", 240, 0.1), ("c", 112, 0.2), ("d", 112, 0.3)):
        scheduler.add_request(Request(name, prompt, 500, arrival))
    output = scheduler.schedule()
    assert sorted(output.num_scheduled_tokens) == ["a", "b", "c", "d"]
    for name, generated in (("a", 9), ("b", 9), ("c", 3), ("d", 4)):
        scheduler.requests[name].num_output_tokens = generated
    scheduler.kvtide.arrived_us["d"] += 9_000_000
    # Whoever asks first is a; the victim is one of those behind it, and the order of the others stays.
    scheduler.kv_cache_manager.free = 0
    output = scheduler.schedule()
    assert wanted in output.preempted_req_ids
    assert [request.request_id for request in scheduler.running] == [
        name for name in "abcd" if name not in output.preempted_req_ids
    ]
    assert scheduler.running[0].request_id == "a"


def test_shadow_changes_nothing_and_counts(environ):
    environ.write_bytes(table_bytes(FULL, "full"))
    scheduler = Scheduler()
    assert run(scheduler, crowd()) == run(VllmScheduler(), crowd())
    assert counts(scheduler, "overrides")[""] == counts(scheduler, "decisions")[""] > 1
    assert scheduler.kv_cache_manager.watermark_blocks == 0


@pytest.mark.parametrize("what", ["missing", "damaged", "other schema", "folder"])
def test_without_a_good_table_vllm_goes_on_by_itself(acting, what):
    if what == "damaged":
        acting.write_bytes(table_bytes(FULL, "full")[:-1])
    elif what == "other schema":
        acting.write_bytes(table_bytes(FULL, "full", schema=1))
    elif what == "folder":
        acting.mkdir()
    scheduler = Scheduler(watermark=0.05)
    assert run(scheduler, crowd()) == run(VllmScheduler(watermark=0.05), crowd())
    reason = "unknown_schema" if what == "other schema" else "no_table"
    assert counts(scheduler, "fallbacks") == {reason: counts(scheduler, "decisions")[""]}
    assert scheduler.kvtide.metrics.values["watermark"] == 0.05


def test_a_table_that_asks_for_more_than_the_host_has_is_refused(acting, caplog):
    acting.write_bytes(table_bytes(FULL, "core"))
    with caplog.at_level(logging.ERROR, logger="vllm.kvtide"):
        scheduler = Scheduler(policy="priority")
    assert "decides preemption, victim (profile core)" in caplog.text
    scheduler.schedule()
    assert counts(scheduler, "fallbacks") == {"profile": 1}
    assert counts(scheduler, "reloads") == {"profile": 1}
    # The watermark alone is fine there.
    acting.write_bytes(table_bytes([leaf(watermark=4)], "watermark"))
    assert Scheduler(policy="priority").kvtide.pilot.table is not None


def test_a_hybrid_model_is_refused(acting, monkeypatch):
    acting.write_bytes(table_bytes([leaf(watermark=4)]))
    init = VllmScheduler.__init__

    def two_kinds(self):
        init(self)
        self.kv_cache_manager.coordinator.single_type_managers *= 2

    monkeypatch.setattr(VllmScheduler, "__init__", two_kinds)
    assert Scheduler().kvtide.pilot.refusal == "profile"


def replace(path, data, age):
    """Another file in its place, as a deployment does it."""
    other = path.with_suffix(".new")
    other.write_bytes(data)
    os.utime(other, ns=(age, age))
    other.replace(path)


def test_a_new_file_is_taken_and_a_bad_one_is_not(acting):
    acting.write_bytes(table_bytes([leaf(watermark=4)]))
    scheduler = Scheduler()
    pilot = scheduler.kvtide.pilot
    manager = scheduler.kv_cache_manager
    scheduler.add_request(Request("a", 50, 500))

    def steps():
        for _ in range(9):
            scheduler.schedule()
        return manager.watermark_blocks

    assert steps() == 5
    replace(acting, table_bytes([leaf(watermark=10)]), 10**18)
    assert steps() == 25
    first = pilot.table
    for age, bad in ((2 * 10**18, b"nothing at all"), (3 * 10**18, table_bytes([leaf()], schema=1))):
        replace(acting, bad, age)
        assert steps() == 25
        assert pilot.table is first
    acting.unlink()
    assert steps() == 25
    assert counts(scheduler, "fallbacks") == {}
    assert counts(scheduler, "reloads") == {"ok": 2, "magic": 1, "schema": 1, "unreadable": 1}
    replace(acting, table_bytes([leaf(watermark=0)]), 4 * 10**18)
    assert steps() == 0


def test_out_of_range_falls_back_to_vllms_watermark(acting):
    nodes = [split("free_fraction", 1, 0.5), leaf(watermark=10), leaf(watermark=10)]
    acting.write_bytes(table_bytes(nodes, ranges={"free_fraction": (0.0, 0.5)}))
    scheduler = Scheduler(watermark=0.02)
    scheduler.kvtide.pilot.interval = 1
    scheduler.add_request(Request("a", 50, 500))
    seen = []
    for _ in range(10):
        scheduler.schedule()
        seen.append(scheduler.kv_cache_manager.watermark_blocks)
    # Eight in a row, then vLLM's own.
    assert seen == [25] * 7 + [2] * 3
    assert counts(scheduler, "fallbacks") == {"out_of_range": 3}


FAILING = ["observe", "arrived", "entry", "offer_victim", "after", "arrival_us", "freed", "answered"]


@pytest.mark.parametrize("method", FAILING)
def test_a_failure_inside_is_counted_and_vllm_goes_on(acting, monkeypatch, method):
    acting.write_bytes(table_bytes([leaf(watermark=0, victim=4, admission=2)], "full"))

    def fail(*args, **kwargs):
        raise RuntimeError("injected")

    monkeypatch.setattr(Tide, method, fail)
    scheduler = Scheduler(num_blocks=61, watermark=0.03)
    run(scheduler, crowd())
    assert sum(counts(scheduler, "errors").values()) > 0
    if method == "observe":
        # Nothing is decided, so every step is vLLM's.
        again = Scheduler(num_blocks=61, watermark=0.03)
        assert run(again, crowd()) == run(VllmScheduler(61, 0.03), crowd())
        assert again.kv_cache_manager.watermark_blocks == 1


def test_what_was_in_force_ends_with_a_failure(acting, monkeypatch):
    acting.write_bytes(table_bytes([leaf(watermark=10, victim=2, admission=1)], "full"))
    scheduler = Scheduler(watermark=0.02)
    scheduler.add_request(Request("a", 50, 500))
    scheduler.schedule()
    assert scheduler.kv_cache_manager.watermark_blocks == 25
    monkeypatch.setattr(scheduler.kvtide, "observe", lambda: 1 / 0)
    for _ in range(8):
        scheduler.schedule()
    tide = scheduler.kvtide
    assert (scheduler.kv_cache_manager.watermark_blocks, tide.victim, scheduler.waiting.order) == (2, "newest", "fcfs")
    assert counts(scheduler, "errors") == {"decide": 1}


def test_a_start_that_fails_leaves_vllm_alone(environ, monkeypatch):
    for name, value in (("KVTIDE_MODE", "full speed"), ("KVTIDE_SLO", "soon"), ("KVTIDE_INTERVAL", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            scheduler = Scheduler()
            assert scheduler.kvtide is None
            assert run(scheduler, crowd()) == run(VllmScheduler(), crowd())
    monkeypatch.delenv("KVTIDE_TABLE")
    assert Scheduler().kvtide is None


class SchedulerConfig:
    """vLLM's, in short."""

    def __init__(self, scheduler_cls=None, async_scheduling=True):
        self.scheduler_cls, self.async_scheduling, self.warnings = scheduler_cls, async_scheduling, 0

    def get_scheduler_cls(self):
        self.warnings += self.scheduler_cls is not None
        return VllmScheduler


@pytest.fixture
def vllm_config(acting, monkeypatch):
    """The modules of vLLM that the plugin touches."""
    names = ["config", "config.scheduler", "v1", "v1.core", "v1.core.sched", "v1.core.sched.scheduler",
             "v1.core.sched.async_scheduler", "v1.core.sched.request_queue"]  # fmt: skip
    modules = {name: ModuleType(f"vllm.{name}") for name in names}
    for name, module in (("vllm", ModuleType("vllm")), *((f"vllm.{name}", module) for name, module in modules.items())):
        monkeypatch.setitem(sys.modules, name, module)

    class Config(SchedulerConfig):
        pass

    modules["config.scheduler"].SchedulerConfig = Config
    modules["v1.core.sched.scheduler"].Scheduler = VllmScheduler
    modules["v1.core.sched.async_scheduler"].AsyncScheduler = type("AsyncScheduler", (VllmScheduler,), {})
    modules["v1.core.sched.request_queue"].RequestQueue = ABC
    monkeypatch.setattr(adapter, "_classes", {})
    return Config


@pytest.mark.parametrize("name", [None, "kvtide.vllm.Scheduler", "kvtide.vllm.AsyncScheduler"])
def test_the_plugin_puts_its_scheduler_in_place_and_vllm_has_nothing_to_warn_of(vllm_config, name):
    adapter.register()
    adapter.register()
    config = vllm_config(name)
    assert issubclass(config.get_scheduler_cls(), adapter.TideMixin)
    assert config.warnings == 0
    scheduler = config.get_scheduler_cls()
    made = scheduler.__new__(scheduler, SimpleNamespace(scheduler_config=config))
    assert type(made).__name__ == "AsyncScheduler"


def test_the_plugin_leaves_other_schedulers_alone(vllm_config, monkeypatch):
    adapter.register()
    config = vllm_config("some.other.Scheduler")
    assert config.get_scheduler_cls() is VllmScheduler
    assert config.warnings == 1


def test_without_a_table_the_plugin_does_nothing(vllm_config, monkeypatch):
    monkeypatch.delenv("KVTIDE_TABLE")
    original = vllm_config.get_scheduler_cls
    adapter.register()
    assert vllm_config.get_scheduler_cls is original


def test_targets_and_interval_come_from_the_table(acting, monkeypatch):
    metadata = {"slo": "ttft:400,tpot:30,stall:1000", "interval": "4"}
    acting.write_bytes(table_bytes([leaf()], metadata=metadata))
    pilot = Scheduler().kvtide.pilot
    assert (pilot.slo.ttft_us, pilot.slo.tpot_us, pilot.slo.stall_us, pilot.interval) == (400_000, 30_000, 1_000_000, 4)
    monkeypatch.setenv("KVTIDE_SLO", "ttft:500")
    monkeypatch.setenv("KVTIDE_INTERVAL", "2")
    pilot = Scheduler().kvtide.pilot
    assert (pilot.slo.ttft_us, pilot.slo.tpot_us, pilot.interval) == (500_000, 100_000, 2)


def test_a_table_may_be_trained_for_several_targets(acting, monkeypatch, caplog):
    acting.write_bytes(table_bytes([leaf()], metadata={"slo": "ttft:2000,tpot:100; ttft:1000,tpot:80,stall:2000"}))
    assert str(Scheduler().kvtide.pilot.slo) == "ttft:2000,tpot:100,stall:3000"
    monkeypatch.setenv("KVTIDE_SLO", "ttft:1000,tpot:80,stall:2000")
    Scheduler()
    assert "says otherwise" not in caplog.text
    monkeypatch.setenv("KVTIDE_SLO", "ttft:1000,tpot:20")
    assert Scheduler().kvtide.pilot.slo.tpot_us == 20_000
    assert "says otherwise" in caplog.text


def test_counters_of_requests_add_up(acting):
    acting.write_bytes(table_bytes(FULL, "full"))
    scheduler = Scheduler()
    requests = crowd()
    story = run(scheduler, requests)
    tide = scheduler.kvtide
    ledger = tide.ledger
    assert (ledger.arrivals, ledger.completions) == (40, 40)
    assert ledger.arrived_prompt_tokens == sum(request.num_prompt_tokens for request in requests)
    assert ledger.completed_output_tokens == sum(request.wanted for request in requests)
    assert ledger.preemptions == sum(len(preempted) for _, preempted in story)
    assert (tide.unanswered, tide.was_late, tide.arrived_us, list(scheduler.waiting)) == ({}, {}, {}, [])


def test_an_aborted_request_is_no_completion(acting):
    acting.write_bytes(table_bytes(FULL, "full"))
    scheduler = Scheduler()
    request = Request("a", 50, 500)
    scheduler.add_request(request)
    scheduler.schedule()
    request.status = Status.FINISHED_ABORTED
    scheduler.running.remove(request)
    scheduler._free_request(request)
    assert scheduler.kvtide.ledger.completions == 0


def test_a_victim_that_is_aborted_with_a_token_on_its_way_is_forgotten(acting):
    acting.write_bytes(table_bytes(FULL, "full"))
    scheduler = Scheduler()
    for name in "ab":
        scheduler.add_request(Request(name, 50, 500))
    output = scheduler.schedule()
    victim = scheduler.running.pop()
    victim.num_stale_output_tokens = 1
    scheduler._preempt_request(victim)
    scheduler.update_from_output(output)
    assert scheduler.kvtide.victims == [victim]
    victim.status = Status.FINISHED_ABORTED
    scheduler.waiting.remove_request(victim)
    scheduler._free_request(victim)
    scheduler.update_from_output(scheduler.schedule())
    assert scheduler.kvtide.victims == []


def test_whether_the_first_token_was_late_is_said_once(acting):
    acting.write_bytes(table_bytes([leaf()], metadata={"slo": "ttft:1000"}))
    scheduler, now = Scheduler(), [0.0]
    tide = scheduler.kvtide
    tide.clock = tide.wall_clock = lambda: now[0]
    scheduler.add_request(Request("a", 50, 500))
    for second in (0.5, 60.0):
        output = scheduler.schedule()
        now[0] = second
        scheduler.update_from_output(output)
        assert tide.was_late == {"a": False}
        # It returns, and vLLM's second model runner is told of it as of a new one.
        scheduler._preempt_request(scheduler.running.pop())


def test_a_session_is_due_anew_with_each_part_of_its_input(acting):
    acting.write_bytes(table_bytes([leaf()], metadata={"slo": "ttft:1000"}))
    scheduler, now = Scheduler(), [0.0]
    tide = scheduler.kvtide
    tide.clock = tide.wall_clock = lambda: now[0]
    session = Request("a", 50, 500)
    scheduler.add_request(session)
    output = scheduler.schedule()
    now[0] = 5.0
    scheduler.update_from_output(output)
    assert (tide.arrived_us, tide.was_late) == ({"a": 0}, {"a": True})
    now[0] = 3600.0
    scheduler._update_request_as_session(session, SimpleNamespace(prompt=20, arrival_time=3599.5))
    assert (tide.arrived_us, tide.was_late) == ({"a": 3_599_500_000}, {})
    assert tide.entry(session)[1:] == (3_599_500_000, 3_600_500_000, 3_600_500_000)


def test_both_ends_of_a_priority_queue_are_looked_at(acting):
    acting.write_bytes(table_bytes([leaf()]))
    scheduler = Scheduler(policy="priority")
    for index in range(100):
        scheduler.add_request(Request(str(index), 50 + index, 500, arrival_s=0.01 * index))
    scheduler.schedule()
    assert len(scheduler.running) == 8
    first, last, count = scheduler.kvtide.waiting_rows()
    assert ([row[0] for row in first], count) == ([*range(58, 74)], 92)
    assert [row[0] for row in last] == [*range(149, 85, -1)]


def test_a_scheduler_that_is_dropped_is_gone(acting):
    acting.write_bytes(table_bytes(FULL, "full"))
    scheduler = Scheduler()
    scheduler.add_request(Request("a", 50, 500))
    gone = weakref.ref(scheduler)
    del scheduler
    gc.collect()
    assert gone() is None


def cached_pool(pattern, entries, in_use):
    """A scheduler with free blocks that hold an entry (`#`) or none (`.`), in the order of vLLM's free queue."""
    scheduler = Scheduler(num_blocks=1 + len(pattern) + sum(held for held, _ in in_use))
    manager = scheduler.kv_cache_manager
    manager.free, pool = len(pattern), manager.block_pool
    pool.cached_block_hash_to_block.update((entry, None) for entry in range(entries))
    block = pool.free_block_queue.fake_free_list_tail
    for mark in reversed(pattern):
        block = SimpleNamespace(block_hash=mark if mark == "#" else None, next_free_block=block)
    pool.free_block_queue.fake_free_list_head.next_free_block = block
    blocks = manager.coordinator.single_type_managers[0]
    for index, (held, cached) in enumerate(in_use):
        blocks.req_to_blocks[str(index)] = [object()] * held
        blocks.num_cached_block[str(index)] = cached
    return scheduler.kvtide.observe()["evictable_fraction"] * (pool.num_gpu_blocks - 1)


@pytest.mark.parametrize(
    ("pattern", "entries", "in_use", "wanted"),
    [
        ("....", 0, [(6, 0)], 0),
        ("..##", 2, [(6, 0)], 2),
        ("..##", 6, [(6, 4)], 2),
        ("####", 4, [], 4),
        # Beyond those looked at, from what is held: 50 entries, of which 24 are running requests'.
        ("." * 30 + "#" * 26, 50, [(20, 16), (10, 8)], 26),
        # A pool that has never been full, without an entry that is free.
        ("." * 100, 24, [(20, 16), (10, 8)], 0),
    ],
)
def test_cached_blocks_that_nobody_uses_are_counted(acting, pattern, entries, in_use, wanted):
    acting.write_bytes(table_bytes([leaf()]))
    assert cached_pool(pattern, entries, in_use) == pytest.approx(wanted, abs=1e-3)
