"""kvtide inside SGLang's scheduler (0.5): the new-token-ratio tracker, replaced through SGLang's plugin hooks.

SGLang has no watermark. What it leaves free when it admits is `new_token_ratio` times the tokens that the running requests
may still generate. So a table's watermark becomes the ratio that leaves as much free:

    ratio = watermark * max_total_num_tokens / (tokens running requests may still generate), within 0..=1

Where kvtide falls back, the ratio is that of SGLang's own tracker, which goes on all the time.

What this cannot do: requests with `ignore_eos` are reserved in full by SGLang itself, a new request is always asked for
its own whole answer, and order of admission and choice of victim are SGLang's. So only tables of the profile `watermark`
are taken. And every tensor- or pipeline-parallel rank has a scheduler of its own that must decide alike: clocks differ, so
with more than one rank kvtide only counts (shadow mode).
"""

from __future__ import annotations

import logging
import os
import time

from kvtide._kvtide import Ledger, Observer, Pricing
from kvtide.metrics import Metrics, serve
from kvtide.pilot import Engine, Pilot
from kvtide.settings import Settings

logger = logging.getLogger("sglang.kvtide")

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
HEADS = frozenset({"watermark"})
WAITING_WINDOW = 16
NEWEST_WINDOW = 64


class TideTracker:
    """In the place of SGLang's `NewTokenRatioTracker`, which it keeps and asks."""

    def __init__(self, scheduler, tracker, settings: Settings, ranks: int = 1, clock=time.perf_counter) -> None:
        self.scheduler = scheduler
        self.engine = tracker
        # SGLang's arrival times are of this clock.
        self.clock = clock
        self.acts = settings.mode == "act" and ranks == 1
        if settings.mode == "act" and not self.acts:
            logger.error("kvtide: %d ranks schedule at once and must agree; kvtide only counts", ranks)
        self.metrics = Metrics("sglang", "act" if self.acts else "shadow", logger)
        # What SGLang does by itself is no watermark, so where kvtide falls back the ratio is SGLang's.
        has_cache = not getattr(scheduler.server_args, "disable_radix_cache", False)
        args = scheduler.server_args
        named = (getattr(args, field, None) for field in ("model_path", "served_model_name"))
        models = tuple(name for name in named if isinstance(name, str))
        engine = Engine("sglang-0.5", HEADS, prefix_cache=has_cache, watermark=0.0, asks_table=False, models=models)
        self.pilot = Pilot(settings, self.metrics, engine, logger)
        self.observer = Observer()
        self.ledger = Ledger()
        self.pricing = Pricing(settings.prefill_ns_per_token, settings.attention_ns_per_token_pair)
        self.watermark: float | None = None
        self.now_us = 0
        self.is_reset = True
        self.live: dict = {}
        # SGLang reads this where it was given on the command line; ours is what it says.
        limit = os.environ.get("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "4096")
        self.clip_tokens = int(limit) if limit.isdecimal() else 4096

    # --- what SGLang asks of its tracker ---------------------------------------------------------------------------

    @property
    def init(self) -> float:
        return self.engine.init

    @property
    def min(self) -> float:
        return self.engine.min

    @property
    def decay(self) -> float:
        return self.engine.decay

    @property
    def current(self) -> float:
        """The ratio: asked for in every pass over the waiting queue."""
        ratio = self.engine.current
        try:
            self.decide_if_due()
            if self.acts and self.watermark is not None:
                return self.ratio(self.watermark)
        except Exception:
            self.pilot.gave_up("current", self.now_us)
            self.watermark = None
        return ratio

    @current.setter
    def current(self, ratio: float) -> None:
        """SGLang's own estimate, after requests were retracted because memory ran out."""
        self.engine.current = ratio
        self.step(retracted=1)

    def decay_step(self) -> None:
        """A decode step in which nobody was retracted."""
        self.engine.decay_step()
        self.step(retracted=0)

    def step(self, retracted: int) -> None:
        self.ledger.planned(None, False, retracted)
        self.ledger.done()

    def reset(self) -> None:
        self.engine.reset()
        self.watermark = None
        self.is_reset = True

    def estimate_new_token_ratio_after_retract(self, reqs) -> float:
        return self.engine.estimate_new_token_ratio_after_retract(reqs)

    # --- decisions -------------------------------------------------------------------------------------------------

    def decide_if_due(self) -> None:
        if not self.is_reset and not self.ledger.is_due(self.pilot.interval):
            return
        self.is_reset = False
        self.ledger.decided()
        self.now_us = int(self.clock() * 1e6 + 0.5)
        self.pilot.poll(self.now_us)
        # Whatever fails from here on leaves SGLang's own ratio.
        self.watermark = None
        controls = self.pilot.decide(self.observe, self.now_us)
        if controls is not None:
            self.watermark = controls.watermark

    def ratio(self, watermark: float) -> float:
        """The ratio that leaves as much free as the watermark does."""
        left = 0
        for request in self.scheduler.running_batch.reqs:
            if not request.sampling_params.ignore_eos:
                left += min(max(request.sampling_params.max_new_tokens - len(request.output_ids), 0), self.clip_tokens)
        if left == 0:
            return self.engine.current
        return min(max(watermark * self.scheduler.max_total_num_tokens / left, 0.0), 1.0)

    def arrived(self, request) -> None:
        """A request joined the waiting queue, perhaps again."""
        if request.rid not in self.live:
            self.live[request.rid] = request
            self.ledger.arrived(len(request.origin_input_ids))

    def sweep(self) -> None:
        """Counts who is done."""
        for rid, request in list(self.live.items()):
            if request.finished():
                del self.live[rid]
                if "ABORT" not in type(request.finished_reason).__name__:
                    self.ledger.completed(len(request.output_ids))

    def observe(self):
        """What the scheduler knows at this moment. A page is a block."""
        self.sweep()
        scheduler, slo = self.scheduler, self.pilot.slo
        page = max(scheduler.page_size, 1)
        evictable = scheduler.tree_cache.evictable_size()
        free = scheduler.token_to_kv_pool_allocator.available_size() + evictable
        running = []
        for request in scheduler.running_batch.reqs:
            generated = len(request.output_ids)
            tokens = len(request.origin_input_ids) + generated
            deadline_us = slo.deadline_us(arrival_us(request), generated)
            running.append((tokens, tokens - 1, generated, -(-(tokens - 1) // page), deadline_us))
        queue = scheduler.waiting_queue
        return self.observer.observe(
            now_us=self.now_us,
            block_size=page,
            num_gpu_blocks=scheduler.max_total_num_tokens // page,
            free_gpu_blocks=free // page,
            evictable_blocks=evictable // page,
            max_num_seqs=scheduler.max_running_requests,
            max_num_batched_tokens=scheduler.chunked_prefill_size or scheduler.max_prefill_tokens,
            ttft_target_us=slo.ttft_us,
            tpot_target_us=slo.tpot_us,
            running=running,
            waiting=[self.waiting_row(request) for request in queue[:WAITING_WINDOW]],
            newest=[self.waiting_row(request) for request in queue[: -NEWEST_WINDOW - 1 : -1]],
            num_waiting=len(queue),
            ledger=self.ledger,
        )

    def waiting_row(self, request):
        tokens = len(request.origin_input_ids) + len(request.output_ids)
        arrived_us = arrival_us(request)
        deadline_us = None if len(request.output_ids) else self.pilot.slo.deadline_us(arrived_us, 0)
        return (tokens, arrived_us, deadline_us, self.pricing.prefill_us(tokens))


def arrival_us(request) -> int:
    return int(request.time_stats.scheduler_recv_time * 1e6 + 0.5)


def ranks_of(scheduler) -> int:
    """Schedulers that must decide alike. Taken for several where it cannot be told."""
    try:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return parallel.tp_size * parallel.pp_size
    except Exception:
        logger.exception("kvtide: the number of ranks cannot be told")
        return 2


def after_init(result, scheduler, *args, **kwargs):
    """After `Scheduler.init_schedule_policy`: puts our tracker where SGLang's is."""
    try:
        settings = Settings.from_env()
        if settings is not None and settings.record:
            logger.warning("kvtide: KVTIDE_RECORD is for vLLM; of SGLang, kvtide record takes rates and lengths by its metrics")
        if settings is not None and settings.table:
            tracker = TideTracker(scheduler, scheduler.new_token_ratio_tracker, settings, ranks_of(scheduler))
            scheduler.new_token_ratio_tracker = tracker
            if settings.metrics_port:
                serve(settings.metrics_port, logger)
    except Exception:
        logger.exception("kvtide: cannot start; SGLang schedules by itself")
    return result


def after_arrival(result, scheduler, request, *args, **kwargs):
    """After `Scheduler._add_request_to_queue`."""
    tracker = getattr(scheduler, "new_token_ratio_tracker", None)
    if isinstance(tracker, TideTracker):
        try:
            tracker.arrived(request)
        except Exception:
            tracker.pilot.failed("arrived")
    return result


def register() -> None:
    """SGLang's plugin hook, called in each of its processes. Never raises."""
    try:
        if Settings.from_env() is None:
            return
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(f"{SCHEDULER}.init_schedule_policy", after_init, HookType.AFTER)
        HookRegistry.register(f"{SCHEDULER}._add_request_to_queue", after_arrival, HookType.AFTER)
    except Exception:
        logger.exception("kvtide: cannot start; SGLang schedules by itself")
