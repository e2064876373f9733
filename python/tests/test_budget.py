"""Tokens a step: what is set, and what of it is left where decodes or the engine need other."""

import pytest
from fake_vllm import Request, Scheduler, VllmScheduler
from tables import leaf, split, table_bytes

from kvtide.budget import StepBudget, can_follow


@pytest.fixture
def acting(environ, monkeypatch):
    monkeypatch.setenv("KVTIDE_MODE", "act")
    return environ


def planned(scheduler, steps):
    story = []
    for _ in range(steps):
        output = scheduler.schedule()
        scheduler.update_from_output(output)
        story.append(output.total_num_scheduled_tokens)
    return story


def test_a_step_has_as_many_tokens_as_the_table_says(acting):
    # 512 from the first request on, the engine's own 2,048 without one.
    acting.write_bytes(table_bytes([split("running", 1, 0.01), leaf(budget=8), leaf(budget=2)], "full"))
    scheduler = Scheduler()
    assert scheduler.kvtide.pilot.table is not None
    scheduler.add_request(Request("a", 1400, 40))
    assert planned(scheduler, 9) == [1400] + [1] * 8
    assert scheduler.max_num_scheduled_tokens == 512
    scheduler.add_request(Request("b", 120, 3))
    scheduler.kv_cache_manager.free += 100
    scheduler.add_request(Request("c", 900, 3))
    assert planned(scheduler, 3) == [512, 511, 3]
    assert scheduler.kvtide.metrics.of("overrides")[""] >= 1
    # Without the table it is vLLM's own again.
    scheduler.kvtide.obey(None)
    assert scheduler.max_num_scheduled_tokens == 2048


def test_shadow_leaves_the_engine_its_own(environ):
    environ.write_bytes(table_bytes([leaf(budget=0)], "full"))
    scheduler = Scheduler()
    scheduler.add_request(Request("a", 1400, 40))
    assert planned(scheduler, 2) == [1400, 1]
    assert scheduler.kvtide.metrics.of("overrides")[""] > 0


def test_a_failure_gives_the_engine_its_own(acting):
    acting.write_bytes(table_bytes([leaf(budget=0)], "full"))
    scheduler = Scheduler()
    assert scheduler.max_num_scheduled_tokens == 128
    scheduler.kvtide.budget.needed = lambda: 1 / 0
    scheduler.add_request(Request("a", 400, 40))
    assert planned(scheduler, 2) == [400, 1]
    assert scheduler.kvtide.metrics.of("errors") == {"before": 1}


def running(scheduler, story, spec=0, threshold=0):
    """Those who run: `d` decodes, of `l` the last token is on its way, a number is what is left of a prompt."""
    scheduler.num_spec_tokens, scheduler.scheduler_config.long_prefill_token_threshold = spec, threshold
    for place, what in enumerate(story):
        decodes = what in ("d", "l")
        request = Request(str(place), 5000 if decodes else what, 10)
        request.num_computed_tokens = 5000 + (9 if what == "l" else 0) if decodes else 0
        request.num_output_placeholders = int(decodes)
        request.is_prefill_chunk = not decodes
        scheduler.running.append(request)
    return scheduler


@pytest.mark.parametrize(
    ("story", "more", "needed"),
    [
        ([], {}, 0),
        (["d"] * 3, {}, 3),
        (["d"] * 3, {"spec": 2}, 9),
        (["d", "d", 700], {}, 2),
        ([700], {}, 0),
        ([700, 80], {}, 0),
        (["d", 700, "d", 80], {}, 702),
        (["d", 700, "d", 80], {"threshold": 256}, 258),
        (["d", 90, "d", 80], {"threshold": 256, "spec": 1}, 94),
        (["d", "l", "d", 700], {}, 2),
        (["d", 700, "l"], {}, 1),
    ],
)
def test_it_suffices_for_all_up_to_the_last_that_decodes(story, more, needed):
    scheduler = running(VllmScheduler(), story, **more)
    budget = StepBudget(scheduler)
    budget.set(1)
    assert budget.needed() == needed
    budget.before()
    assert scheduler.max_num_scheduled_tokens == max(needed, 1)
    # A step that is raised for decodes is not full of prompts.
    assert budget.full == (2048 if needed > 1 else 1)
    budget.own = 2
    budget.before()
    assert scheduler.max_num_scheduled_tokens == min(max(needed, 1), 2)


def test_no_more_than_the_engine_has():
    scheduler = VllmScheduler()
    budget = StepBudget(scheduler)
    budget.set(1_048_576)
    budget.before()
    assert scheduler.max_num_scheduled_tokens == budget.full == 2048


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("config", "enable_chunked_prefill", False),
        ("config", "disable_chunked_mm_input", True),
        ("scheduler", "is_encoder_decoder", True),
        ("scheduler", "need_mamba_block_aligned_split", True),
        ("scheduler", "num_sampled_tokens_per_step", 0),
    ],
)
def test_a_table_that_bounds_what_is_computed_whole_is_refused(acting, monkeypatch, where, name, value):
    acting.write_bytes(table_bytes([leaf(budget=0)], "full"))

    def configured(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.max_num_encoder_input_tokens = 2048
        setattr(self.scheduler_config if where == "config" else self, name, value)

    assert can_follow(VllmScheduler())
    original = VllmScheduler.__init__
    monkeypatch.setattr(VllmScheduler, "__init__", configured)
    scheduler = Scheduler()
    assert (scheduler.kvtide.pilot.table, scheduler.kvtide.pilot.refusal) == (None, "profile")
    assert scheduler.max_num_scheduled_tokens == 2048
