"""kvtide inside vLLM's V1 scheduler (0.33).

Installed, the plugin puts `kvtide.vllm.Scheduler` in the place of vLLM's own wherever `KVTIDE_TABLE` is set and
`--scheduler-cls` is not; `--scheduler-cls kvtide.vllm.Scheduler` says so outright. The scheduler is vLLM's, synchronous or
asynchronous as configured. What a table decides is carried out like this:

- **watermark**: the KV-cache manager's `watermark_blocks`, which vLLM reads at every admission;
- **admission**: a request queue that is vLLM's deque, except for which request is next;
- **victim**: when a running request is refused blocks, the victim is moved to the end of `running`, whence vLLM takes it;
- **preemption**: V1 knows recompute only, and the guard asks for nothing else.

Under `--scheduling-policy priority` only the watermark is kvtide's, since order and victim are the operator's then.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from itertools import islice

from kvtide._kvtide import Observer
from kvtide.admission import Entry, OrderedQueue
from kvtide.metrics import Metrics, serve
from kvtide.pilot import Pilot
from kvtide.settings import Settings

logger = logging.getLogger("kvtide")

# As far as an observation looks from either end of the waiting queue.
WAITING_WINDOW = 16
NEWEST_WINDOW = 64
# Free blocks looked at to find the first that holds a cache entry.
FREE_WINDOW = 4096
# Steps at least this full tell what a prompt token costs.
PRICED_SHARE = 0.5
ALL_HEADS = frozenset({"watermark", "victim", "preemption", "admission"})


class Tide:
    """Everything kvtide keeps about one scheduler. What it raises goes no further than `TideMixin`."""

    def __init__(self, scheduler, settings: Settings, clock=time.time) -> None:
        self.scheduler = scheduler
        self.settings = settings
        self.clock = clock
        self.acts = settings.mode == "act"
        self.metrics = Metrics("vllm", settings.mode)
        manager = scheduler.kv_cache_manager
        self.manager = manager
        self.engine_blocks = manager.watermark_blocks
        heads = supported_heads(scheduler)
        watermark = scheduler.scheduler_config.watermark
        self.pilot = Pilot(settings, self.metrics, heads, watermark)
        self.observer = Observer()
        self.victim = "newest"
        self.now_us = 0
        self.steps_since = 0
        self.is_due = True
        self.was_refused = False
        # In the step being planned.
        self.refused_admission = False
        self.preempted = 0
        # Preempted, with tokens perhaps on their way.
        self.victims: list = []
        # Of steps that are planned and not done.
        self.planned: deque[tuple[bool, int]] = deque()
        # Counters since the start.
        self.steps = self.refused_steps = self.preemptions = 0
        self.arrivals = self.arrived_tokens = self.completions = self.completed_tokens = 0
        # Requests without a first token yet, and of the others whether it was late.
        self.unanswered: dict = {}
        self.was_late: dict[str, bool] = {}
        self.last_output_us = 0
        # Nanoseconds a prompt token, and what it is measured by.
        self.price = settings.prefill_ns_per_token or 0.0
        self.last_step: tuple[int, int] | None = None

        self.allocate = manager.allocate_slots
        manager.allocate_slots = self.allocate_slots
        self.queue = None
        if self.acts and "admission" in heads:
            self.queue = ordered(type(scheduler.waiting))()
            self.queue.attach(self.entry, lambda: self.pilot.failed("queue"))
            scheduler.waiting = self.queue

    # --- around a step ---------------------------------------------------------------------------------------------

    def before(self) -> None:
        """Before a step is planned: decide if it is time to, and put the decision in force."""
        try:
            self.refused_admission, self.preempted = False, 0
            self.now_us = max(int(self.clock() * 1e6 + 0.5), self.now_us)
            if self.queue is not None:
                self.queue.now_us = self.now_us
            self.pilot.poll(self.now_us * 1e-6)
            if self.is_due or self.steps_since >= self.pilot.interval:
                self.is_due, self.steps_since = False, 0
                self.obey(self.pilot.decide(self.observe))
        except Exception:
            self.pilot.failed("decide")
            self.obey(None)

    def obey(self, controls) -> None:
        """Puts `controls` in force; None is vLLM's own behaviour. Shadow mode touches nothing."""
        if not self.acts:
            return
        try:
            if controls is None:
                blocks, self.victim, order = self.engine_blocks, "newest", "fcfs"
            else:
                # Of all blocks, the null block included, as vLLM counts its own.
                blocks = int(controls.watermark * self.manager.block_pool.num_gpu_blocks)
                self.victim, order = controls.victim, controls.admission
            self.manager.watermark_blocks = blocks
            if self.queue is not None:
                self.queue.order = order
        except Exception:
            self.pilot.failed("obey")
            self.manager.watermark_blocks, self.victim = self.engine_blocks, "newest"
            if self.queue is not None:
                self.queue.order = "fcfs"

    def after(self, output) -> None:
        """After a step is planned."""
        tokens = output.total_num_scheduled_tokens
        self.steps_since += 1
        if tokens > 0:
            self.planned.append((self.refused_admission, self.preempted))
        for request in output.scheduled_new_reqs:
            self.unanswered[request.req_id] = self.scheduler.requests.get(request.req_id)
        # The first refusal after a step without one asks for a decision.
        refused = self.refused_admission or self.preempted > 0
        self.is_due = refused and not self.was_refused
        self.was_refused = refused
        self.learn_price(tokens)

    def learn_price(self, tokens: int) -> None:
        if self.settings.prefill_ns_per_token is not None:
            return
        if self.last_step is not None:
            before_us, planned = self.last_step
            # One full step after the other: the time between them is that of the first.
            if planned >= PRICED_SHARE * self.scheduler.max_num_scheduled_tokens and tokens > 0:
                price = (self.now_us - before_us) * 1000 / planned
                self.price += (price - self.price) * (0.1 if self.price else 1.0)
        self.last_step = (self.now_us, tokens)

    def answered(self, output) -> None:
        """A step is done, which counts from now on; asynchronously that is one step late. Who has its first token now, and
        was it in time?"""
        if output.total_num_scheduled_tokens > 0 and self.planned:
            refused, preempted = self.planned.popleft()
            self.steps += 1
            self.refused_steps += refused
            self.preemptions += preempted
        now_us = max(int(self.clock() * 1e6 + 0.5), self.now_us)
        self.last_output_us = now_us
        if self.queue is None:
            self.victims.clear()
        elif self.victims:
            # Asynchronously a victim's last token comes when it already waits.
            for request in self.victims:
                self.queue.lengthen(request)
            self.victims = [request for request in self.victims if request.num_stale_output_tokens > 0]
        if not self.unanswered:
            return
        for request_id, request in list(self.unanswered.items()):
            if request is None:
                del self.unanswered[request_id]
            elif request.num_output_tokens > 0:
                del self.unanswered[request_id]
                if not request.is_finished():
                    self.was_late[request_id] = now_us > arrival_us(request) + self.pilot.slo.ttft_us

    # --- what happens to requests ----------------------------------------------------------------------------------

    def arrived(self, request) -> None:
        self.arrivals += 1
        self.arrived_tokens += request.num_prompt_tokens

    def was_preempted(self, request) -> None:
        self.preempted += 1
        self.victims.append(request)

    def freed(self, request) -> None:
        self.unanswered.pop(request.request_id, None)
        self.was_late.pop(request.request_id, None)
        if "ABORTED" not in request.status.name:
            self.completions += 1
            self.completed_tokens += request.num_output_tokens

    def entry(self, request) -> Entry:
        """What admission order needs of a request as it joins the queue."""
        slo, tokens, arrived_us = self.pilot.slo, request.num_tokens, arrival_us(request)
        was_late = self.was_late.get(request.request_id)
        if was_late:
            late_at_us = 0
        elif was_late is None:
            late_at_us = arrived_us + slo.ttft_us
        else:
            late_at_us = self.last_output_us + slo.stall_us
        return Entry(tokens, arrived_us, max(late_at_us - self.prefill_us(tokens), 0))

    def prefill_us(self, tokens: int) -> int:
        pairs = tokens * tokens / 2
        return int((tokens * self.price + pairs * self.settings.attention_ns_per_token_pair) * 1e-3 + 0.5)

    def allocate_slots(self, request, *args, **kwargs):
        """vLLM's own, with a look at what it refuses."""
        blocks = self.allocate(request, *args, **kwargs)
        if blocks is None:
            try:
                if request.status.name == "RUNNING":
                    if self.victim != "newest":
                        self.offer_victim(request)
                else:
                    self.refused_admission = True
            except Exception:
                self.pilot.failed("victim")
        return blocks

    def offer_victim(self, request) -> None:
        """Moves the victim to the end of running. Those before `request` have had their turn in this step, and it is its
        own victim only when nobody is behind it: both as vLLM has it."""
        running = self.scheduler.running
        first = running.index(request) + 1
        if len(running) - first < 2:
            return
        cost = {
            "fewest-blocks": self.held_blocks,
            "most-blocks": lambda other: -self.held_blocks(other),
            "least-progress": lambda other: other.num_output_tokens,
            "most-slack": lambda other: -self.deadline_us(other),
        }[self.victim]
        # From the end, so that the first of equals is the newest.
        victim = min(range(len(running) - 1, first - 1, -1), key=lambda index: cost(running[index]))
        running.append(running.pop(victim))

    def held_blocks(self, request) -> int:
        held = self.manager.coordinator.single_type_managers[0].req_to_blocks
        return len(held.get(request.request_id, ()))

    def deadline_us(self, request) -> int:
        """By when its next token is on time."""
        slo = self.pilot.slo
        return arrival_us(request) + slo.ttft_us + request.num_output_tokens * slo.tpot_us

    # --- observation -----------------------------------------------------------------------------------------------

    def observe(self):
        """What the scheduler knows at this moment."""
        scheduler, slo = self.scheduler, self.pilot.slo
        pool = self.manager.block_pool
        held = self.manager.coordinator.single_type_managers[0].req_to_blocks
        ttft_us, tpot_us = slo.ttft_us, slo.tpot_us
        running = []
        for request in scheduler.running:
            generated = request.num_output_tokens
            running.append((
                request.num_tokens,
                request.num_computed_tokens,
                generated,
                len(held.get(request.request_id, ())),
                int(request.arrival_time * 1e6 + 0.5) + ttft_us + generated * tpot_us,
            ))  # fmt: skip
        queue = scheduler.waiting
        if hasattr(queue, "__reversed__"):
            first, last = islice(queue, WAITING_WINDOW), islice(reversed(queue), NEWEST_WINDOW)
        else:
            # A priority queue: in its order, and by arrival.
            everybody = list(queue)
            first = everybody[:WAITING_WINDOW]
            last = sorted(everybody, key=arrival_us, reverse=True)[:NEWEST_WINDOW]
        free = pool.get_num_free_blocks()
        return self.observer.observe(
            now_us=self.now_us,
            block_size=scheduler.block_size,
            # Without the null block, which is never given out.
            num_gpu_blocks=pool.num_gpu_blocks - 1,
            free_gpu_blocks=free,
            evictable_blocks=self.evictable_blocks(pool, free),
            max_num_seqs=scheduler.max_num_running_reqs,
            max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
            ttft_target_us=ttft_us,
            tpot_target_us=tpot_us,
            running=running,
            waiting=[self.waiting_row(request) for request in first],
            newest=[self.waiting_row(request) for request in last],
            num_waiting=len(queue),
            total_steps=self.steps,
            total_refused_steps=self.refused_steps,
            total_arrivals=self.arrivals,
            total_arrived_prompt_tokens=self.arrived_tokens,
            total_completions=self.completions,
            total_completed_output_tokens=self.completed_tokens,
            total_preemptions=self.preemptions,
        )

    def waiting_row(self, request):
        tokens, arrived_us = request.num_tokens, int(request.arrival_time * 1e6 + 0.5)
        deadline_us = None if request.num_output_tokens else arrived_us + self.pilot.slo.ttft_us
        return (tokens, arrived_us, deadline_us, self.prefill_us(tokens))

    def evictable_blocks(self, pool, free: int) -> int:
        """Free blocks that hold a cache entry. Those without one are in front of the free queue, as vLLM frees them."""
        cached = len(pool.cached_block_hash_to_block)
        if cached == 0:
            return 0
        end = pool.free_block_queue.fake_free_list_tail
        block = pool.free_block_queue.fake_free_list_head.next_free_block
        looked_at = 0
        while block is not None and block is not end and block.block_hash is None:
            looked_at += 1
            if looked_at >= FREE_WINDOW:
                # A pool that is nearly empty: at most what is cached and not held by somebody who runs.
                in_use = self.manager.coordinator.single_type_managers[0].num_cached_block
                return max(min(free - looked_at, cached - sum(in_use.values())), 0)
            block = block.next_free_block
        return max(free - looked_at, 0)


def arrival_us(request) -> int:
    return int(request.arrival_time * 1e6 + 0.5)


def supported_heads(scheduler) -> frozenset[str]:
    """The heads this scheduler lets kvtide decide."""
    if len(scheduler.kv_cache_manager.coordinator.single_type_managers) != 1:
        logger.error("kvtide: blocks of several kinds (hybrid model) are not what tables are made for")
        return frozenset()
    if getattr(scheduler.policy, "value", scheduler.policy) != "fcfs":
        return frozenset({"watermark"})
    return ALL_HEADS


def ordered(base: type) -> type:
    """vLLM's queue, with kvtide's order."""
    return type("OrderedRequestQueue", (OrderedQueue, base), {})


def attach(scheduler) -> Tide | None:
    """kvtide at work on `scheduler`; None if it is not asked for or cannot start."""
    try:
        settings = Settings.from_env()
        if settings is None:
            logger.warning("kvtide: KVTIDE_TABLE is not set; vLLM schedules by itself")
            return None
        tide = Tide(scheduler, settings)
        if settings.metrics_port:
            rank = getattr(scheduler.vllm_config.parallel_config, "data_parallel_index", 0)
            serve(settings.metrics_port + rank)
        return tide
    except Exception:
        logger.exception("kvtide: cannot start; vLLM schedules by itself")
        return None


class TideMixin:
    """Around vLLM's scheduler: what is called, and when."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.kvtide = attach(self)

    def _tell_kvtide(self, what: str, *args) -> None:
        if self.kvtide is not None:
            try:
                getattr(self.kvtide, what)(*args)
            except Exception:
                self.kvtide.pilot.failed(what)

    def schedule(self, *args, **kwargs):
        self._tell_kvtide("before")
        output = super().schedule(*args, **kwargs)
        self._tell_kvtide("after", output)
        return output

    def update_from_output(self, scheduler_output, *args, **kwargs):
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)
        self._tell_kvtide("answered", scheduler_output)
        return outputs

    def add_request(self, request, *args, **kwargs):
        is_new = request.request_id not in self.requests
        result = super().add_request(request, *args, **kwargs)
        if is_new:
            self._tell_kvtide("arrived", request)
        return result

    def _preempt_request(self, request, *args, **kwargs):
        self._tell_kvtide("was_preempted", request)
        return super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request, *args, **kwargs):
        self._tell_kvtide("freed", request)
        return super()._free_request(request, *args, **kwargs)


_classes: dict[str, type] = {}


def _make_classes() -> dict[str, type]:
    """The scheduler classes. Made when asked for, since vLLM need not be installed to import this module."""
    if not _classes:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

        class Scheduler(TideMixin, VllmScheduler):
            """vLLM's scheduler with kvtide; asynchronous where that is configured."""

            def __new__(cls, vllm_config=None, *args, **kwargs):
                is_async = vllm_config is not None and vllm_config.scheduler_config.async_scheduling
                return super().__new__(AsyncScheduler if is_async and cls is Scheduler else cls)

        class AsyncScheduler(Scheduler, VllmAsyncScheduler):
            """vLLM's asynchronous scheduler with kvtide."""

        _classes.update(Scheduler=Scheduler, AsyncScheduler=AsyncScheduler)
    return _classes


def __getattr__(name: str):
    if name in ("Scheduler", "AsyncScheduler"):
        return _make_classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """vLLM's plugin hook, called in each of its processes, perhaps more than once. Never raises."""
    try:
        if Settings.from_env() is None:
            return
        from vllm.config.scheduler import SchedulerConfig

        original = SchedulerConfig.get_scheduler_cls
        if getattr(original, "is_kvtide", False):
            return

        def get_scheduler_cls(self):
            if self.scheduler_cls is None:
                try:
                    return _make_classes()["Scheduler"]
                except Exception:
                    logger.exception("kvtide: cannot start; vLLM schedules by itself")
            return original(self)

        get_scheduler_cls.is_kvtide = True
        SchedulerConfig.get_scheduler_cls = get_scheduler_cls
    except Exception:
        logger.exception("kvtide: cannot start; vLLM schedules by itself")
