"""What kvtide keeps about one scheduler of vLLM's, and what it does to it. `vllm.py` says when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import islice
from zlib import crc32

from kvtide import intent_order, vllm_offload
from kvtide._kvtide import Ledger, Observer, Pricing, Retainer, Visit, VllmView, WaitingQueue
from kvtide.budget import StepBudget, can_follow
from kvtide.metrics import Metrics
from kvtide.pilot import Engine, Pilot
from kvtide.retention import CLASSES, NORMAL, Retention, can_replace
from kvtide.settings import Settings

# vLLM shows what is logged under its own name.
logger = logging.getLogger("vllm.kvtide")

# This vLLM, as kvtide knows it.
HOST = "vllm-0.33"

# As far as an observation looks from either end of a waiting queue that is not kvtide's.
WAITING_WINDOW = 16
NEWEST_WINDOW = 64
# Older than this on arrival is nobody: somebody has set the clock.
MAX_AGE_S = 60.0
# Of a request, its blocks and how many of them it found: the class of these, and of the others.
Retain = Callable[[object, list, int], tuple[int, int]]
ALL_HEADS = frozenset({"watermark", "victim", "preemption", "admission", "budget"})


class Tide:
    """Everything kvtide keeps about one scheduler. What it raises goes no further than `TideMixin`.

    Time is of a clock that nobody sets. vLLM stamps arrivals with one that is: how old a request is when it arrives is
    taken from that one, once, and so an hour's step forward, or back, is nothing to those who are here already.

    A decision is made where the simulator makes it: as soon as a step is done, before anybody new arrives. So the next step
    waits for nothing, and what a table sees here is what it was trained to see.
    """

    clock = staticmethod(time.monotonic)
    wall_clock = staticmethod(time.time)

    def __init__(self, scheduler, settings: Settings, metrics: Metrics | None = None) -> None:
        self.scheduler = scheduler
        self.acts = settings.mode == "act"
        self.metrics = metrics or Metrics("vllm", settings.mode, logger)
        self.manager = scheduler.kv_cache_manager
        self.engine_blocks = self.manager.watermark_blocks
        engine = engine_of(scheduler)
        self.pilot = Pilot(settings, self.metrics, engine, logger)
        self.observer = Observer()
        self.ledger = Ledger()
        self.pricing = Pricing(settings.prefill_ns_per_token, settings.attention_ns_per_token_pair)
        intent_order.priced(self.pricing)
        # None: vLLM's own.
        self.in_force, self.victim = None, "newest"
        self.now_us = self.last_output_us = self.time_us()
        self.preempted = 0
        # Preempted, with tokens perhaps on their way.
        self.victims: list = []
        self.arrived_us: dict[str, int] = {}
        self.view = VllmView(scheduler, self.arrived_us)
        self.budget = StepBudget(scheduler)
        # Classes of given-back blocks, and who says them; None: vLLM's own queue.
        self.retention: Retention | None = None
        self.retain: Retain | None = None
        # Whether that is the table's tree, which its guard sets aside where LRU would do better.
        self.is_guarded = False
        # Blocks that a request found in the cache when it was first admitted, and what else a retention tree looks at.
        self.found: dict[str, int] = {}
        self.visits: dict[str, Visit] = {}
        self.retainer = Retainer(
            self.manager.block_pool.num_gpu_blocks, scheduler.block_size, range_tolerance=settings.range_tolerance,
            out_of_range_decisions=settings.out_of_range_decisions, recovery_decisions=settings.recovery_decisions,
        )  # fmt: skip
        self.followed = None
        # Requests without a first token yet, and of the others whether it was late.
        self.unanswered: dict = {}
        self.was_late: dict[str, bool] = {}
        self.is_ordered = "admission" in engine.heads
        if self.is_ordered:
            self.queue = WaitingQueue(self.entry, lambda error: self.pilot.failed("queue", error))
        else:
            self.queue = watched(type(scheduler.waiting))()
        scheduler.waiting = self.queue
        self.is_async = scheduler.scheduler_config.async_scheduling
        self.decide()

    def time_us(self) -> int:
        return int(self.clock() * 1e6 + 0.5)

    # --- around a step ---------------------------------------------------------------------------------------------

    def before(self) -> None:
        """Before a step is planned."""
        try:
            self.preempted = 0
            self.now_us = self.queue.now_us = self.time_us()
            # Only where the engine plans further ahead than a step.
            if self.ledger.is_due(self.pilot.interval):
                self.decide()
            self.budget.before()
        except Exception:
            self.pilot.failed("before")
            self.budget.set(None)

    def decide(self) -> None:
        """Decides, and puts the decision in force."""
        try:
            self.ledger.decided()
            self.pilot.poll(self.now_us)
            self.follow()
            self.obey(self.pilot.decide(self.observe, self.now_us))
            if self.retain is not None and self.pilot.seen is not None:
                self.retainer.observed(self.pilot.seen, self.now_us)
        except Exception:
            self.pilot.gave_up("decide", self.now_us)
            self.obey(None)

    def obey(self, controls) -> None:
        """Puts `controls` in force; None is vLLM's own behaviour. Shadow mode touches nothing."""
        if not self.acts or controls == self.in_force:
            return
        try:
            self.in_force = controls
            if controls is None:
                blocks, self.victim, order, tokens = self.engine_blocks, "newest", "fcfs", None
            else:
                # Of all blocks, the null block included, as vLLM counts its own.
                blocks = int(controls.watermark * self.manager.block_pool.num_gpu_blocks)
                self.victim, order, tokens = controls.victim, controls.admission, controls.budget
            self.manager.watermark_blocks = blocks
            self.queue.order = order
            self.budget.set(tokens)
        except Exception:
            self.pilot.failed("obey")
            self.in_force = None
            self.manager.watermark_blocks, self.victim, self.queue.order = self.engine_blocks, "newest", "fcfs"
            self.budget.set(None)

    def after(self, output) -> None:
        """After a step is planned."""
        tokens = output.total_num_scheduled_tokens
        # Running requests that were refused have preempted somebody.
        self.ledger.planned(tokens, self.queue.take_refusal(), self.preempted)
        self.pricing.planned(self.now_us, tokens, self.budget.full)
        for request in output.scheduled_new_reqs:
            # vLLM's second model runner has those here too who return after a preemption.
            if request.req_id not in self.was_late:
                self.unanswered[request.req_id] = self.scheduler.requests.get(request.req_id)
        if self.retention is not None:
            self.note_found(output)
        # The first step after a pause: asynchronously the next is planned before it is done.
        if self.is_async and self.ledger.in_flight == 1 and self.ledger.is_due(self.pilot.interval):
            self.decide()

    def answered(self, output) -> None:
        """A step is done, which counts from now on; asynchronously that is one step late."""
        if output.total_num_scheduled_tokens > 0:
            self.ledger.done()
        self.now_us = self.last_output_us = self.time_us()
        self.look_at_answers()
        if self.ledger.is_due(self.pilot.interval):
            self.decide()

    def look_at_answers(self) -> None:
        """Who has its first token now, and was it in time?"""
        if self.victims:
            # Asynchronously a victim's last token comes when it already waits.
            if self.is_ordered:
                for request in self.victims:
                    self.queue.lengthen(request, request.num_tokens)
            # Of whom nothing more comes if it was aborted.
            self.victims = [
                request for request in self.victims if request.num_stale_output_tokens > 0 and not request.is_finished()
            ]
        if not self.unanswered:
            return
        for request_id, request in list(self.unanswered.items()):
            if request is None:
                del self.unanswered[request_id]
            elif request.num_output_tokens > 0:
                del self.unanswered[request_id]
                if not request.is_finished():
                    self.was_late[request_id] = self.now_us > self.pilot.slo.deadline_us(self.arrival_us(request), 0)

    # --- what happens to requests ----------------------------------------------------------------------------------

    def arrived(self, request) -> None:
        self.arrival_us(request)
        self.ledger.arrived(request.num_prompt_tokens)

    def arrival_us(self, request) -> int:
        """When it arrived, on the clock that nobody sets."""
        arrived_us = self.arrived_us.get(request.request_id)
        if arrived_us is None:
            age_s = min(max(self.wall_clock() - request.arrival_time, 0.0), MAX_AGE_S)
            arrived_us = max(int((self.clock() - age_s) * 1e6 + 0.5), 0)
            self.arrived_us[request.request_id] = arrived_us
        return arrived_us

    def went_on(self, session) -> None:
        """A session whose client sends its input in parts has had the next one: it is due as a request that arrives now."""
        self.arrived_us.pop(session.request_id, None)
        self.was_late.pop(session.request_id, None)
        self.arrival_us(session)

    def was_preempted(self, request) -> None:
        self.preempted += 1
        self.victims.append(request)

    def freed(self, request) -> None:
        self.arrived_us.pop(request.request_id, None)
        self.unanswered.pop(request.request_id, None)
        self.was_late.pop(request.request_id, None)
        # Its name without a property's call.
        if request.status._name_ != "FINISHED_ABORTED":
            self.ledger.completed(request.num_output_tokens)

    # --- who keeps what ---------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Another table may have another tree, or none."""
        table = self.pilot.table
        if table is self.followed:
            return
        self.followed = table
        self.retainer.replace(table)
        self.is_guarded = self.acts and table.retains
        self.set_retain(self.choose if self.is_guarded else None)

    def set_retain(self, retain: Retain | None) -> None:
        """From now on `retain` says of which classes the blocks are that a request found, and those that it computed."""
        self.retain = retain
        if retain is None and self.retention is not None:
            self.retention.withdraw()
            self.retention = None
            self.found.clear()
            self.visits.clear()
        elif retain is not None and self.retention is None:
            self.retention = Retention(self.manager.block_pool)

    def note_found(self, output) -> None:
        """How much those who were admitted in this step for the first time found. vLLM's second model runner has those among
        the new who return after a preemption, too."""
        size, evicted = self.scheduler.block_size, self.retention.terms.evicted
        pool, held = self.manager.block_pool, self.manager.coordinator.single_type_managers[0].req_to_blocks
        # What was free when each looked: what is free now, and what those admitted since have taken.
        free, visitors = pool.get_num_free_blocks(), []
        for new in reversed(output.scheduled_new_reqs):
            free += sum(block.ref_cnt == 1 for block in held.get(new.req_id, ()))
            visitors.append((new, free))
        for new, free in reversed(visitors):
            request = self.scheduler.requests.get(new.req_id)
            if request is None:
                continue
            if new.req_id in self.found:
                self.note_resumed(request)
                continue
            head = self.found[new.req_id] = new.num_computed_tokens // size
            kind = crc32(str(request.lora_request.lora_name if request.lora_request else "").encode())
            self.visits[new.req_id] = self.retainer.admitted(
                request.block_hashes, request.num_prompt_tokens, head, free, kind, self.now_us, evicted
            )
        for request_id in output.scheduled_cached_reqs.resumed_req_ids:
            self.note_resumed(self.scheduler.requests[request_id])
        # What a table has given classes already would go on losing. Whom the operator told to keep it keeps.
        pool.free_block_queue.is_flat = self.is_guarded and self.retainer.is_behind

    def note_resumed(self, request) -> None:
        visit = self.visits.get(request.request_id)
        if visit is not None:
            self.retainer.resumed(visit, request.block_hashes, self.now_us)

    def choose(self, request, blocks, head) -> tuple[int, int]:
        """By the table's tree, or normal where it cannot be trusted."""
        visit = self.visits.get(request.request_id)
        if visit is None:
            return NORMAL, NORMAL
        # An engine does not know whether an answer was a call of a tool; what is cut off by the model's length it does.
        is_cut_off = request.num_tokens >= getattr(self.scheduler, "max_model_len", request.num_tokens + 1)
        stop = "preempted" if not request.is_finished() else "length" if is_cut_off else "unknown"
        queue, tokens = self.manager.block_pool.free_block_queue, (request.num_prompt_tokens, request.num_output_tokens)
        classes = self.retainer.release(
            visit, request.block_hashes, blocks, tokens, stop, self.now_us, self.retention.terms.evicted, len(queue.kept),
            self.pilot.slo.ttft_us,
        )  # fmt: skip
        for retention in classes:
            self.metrics.count("retained", CLASSES[retention])
        return classes

    def gives_back(self, request) -> None:
        """A request is about to give its blocks back, finished or preempted."""
        request_id, is_finished = request.request_id, request.is_finished()
        blocks = self.manager.coordinator.single_type_managers[0].req_to_blocks.get(request_id)
        head = self.found.pop(request_id, 0) if is_finished else self.found.get(request_id, 0)
        if not blocks:
            return
        classes = self.retain(request, blocks, head)
        self.retention.terms.release(blocks, head, classes)
        if is_finished:
            self.visits.pop(request_id, None)
        if is_finished and vllm_offload.is_used():
            vllm_offload.hand(request_id, classes)

    def entry(self, request) -> tuple[int, int, int, int | None]:
        """What admission order and an observation need of a request as it joins the queue."""
        slo, tokens, arrival_us = self.pilot.slo, request.num_tokens, self.arrival_us(request)
        was_late = self.was_late.get(request.request_id)
        admit_by_us = slo.admit_by_us(arrival_us, tokens, self.pricing, was_late, self.last_output_us)
        return tokens, arrival_us, admit_by_us, None if request.num_output_tokens else slo.deadline_us(arrival_us, 0)

    def offer_victim(self, request, asker):
        """vLLM is about to preempt `request`, the last that runs, because `asker` was refused blocks. Moves the victim in its
        place, and returns it. Those before `asker` have had their turn in this step, and it is its own victim only when
        nobody is behind it: both as vLLM has it."""
        running = self.scheduler.running
        first = running.index(asker) + 1
        if len(running) - first < 2:
            return request
        victim = self.view.victim(self.victim, self.pilot.slo, self.now_us, first)
        running.append(running.pop(victim))
        return running[-1]

    # --- observation -----------------------------------------------------------------------------------------------

    def observe(self):
        """What the scheduler knows at this moment."""
        waiting = (self.queue,) if self.is_ordered else self.waiting_rows()
        return self.view.observe(self.observer, self.now_us, self.pilot.slo, self.ledger, self.pricing, *waiting)

    def waiting_rows(self) -> tuple[list, list, int]:
        """Of a priority queue: the first in its order, the last to arrive, and how many there are. Sorting them all would
        take longer than deciding."""
        requests = map(self.scheduler.requests.get, reversed(self.arrived_us))
        last = (request for request in requests if request is not None and request.status._name_ != "RUNNING")
        first = [self.waiting_row(request) for request in islice(self.queue, WAITING_WINDOW)]
        return first, [self.waiting_row(request) for request in islice(last, NEWEST_WINDOW)], len(self.queue)

    def waiting_row(self, request):
        tokens, arrival_us, _, first_token_by_us = self.entry(request)
        return tokens, arrival_us, first_token_by_us, self.pricing.prefill_us(tokens)


class Watched:
    """Mixed into a queue of vLLM's that stays in its own order: notices who is looked at and not taken, for want of blocks."""

    order, now_us, was_asked = "fcfs", 0, False

    def peek_request(self):
        self.was_asked = True
        return super().peek_request()

    def pop_request(self):
        self.was_asked = False
        return super().pop_request()

    def take_refusal(self) -> bool:
        was_refused, self.was_asked = self.was_asked, False
        return was_refused


def watched(base: type) -> type:
    return type("WatchedRequestQueue", (Watched, base), {})


def engine_of(scheduler) -> Engine:
    """What there is to know of vLLM as it is configured."""
    manager, heads = scheduler.kv_cache_manager, ALL_HEADS
    if len(manager.coordinator.single_type_managers) != 1:
        logger.error("kvtide: blocks of several kinds (hybrid model) are not what tables are made for")
        heads = frozenset()
    elif getattr(scheduler.policy, "value", scheduler.policy) != "fcfs":
        heads = frozenset({"watermark"})
    elif not can_follow(scheduler):
        heads -= {"budget"}
    retains = bool(heads) and manager.enable_caching and can_replace(manager.block_pool.free_block_queue)
    watermark = scheduler.scheduler_config.watermark
    return Engine(HOST, heads, prefix_cache=manager.enable_caching, watermark=watermark, asks_table=True,
                  models=models_of(scheduler), step_tokens=scheduler.max_num_scheduled_tokens, retains=retains)  # fmt: skip


def models_of(scheduler) -> tuple[str, ...]:
    """Names by which the model goes: where it was loaded from, what clients call it, what its own configuration calls it."""
    config = getattr(scheduler.vllm_config, "model_config", None)
    own, served = getattr(config, "hf_config", None), getattr(config, "served_model_name", None)
    names = [getattr(config, "model", None), *([served] if isinstance(served, str) else served or ())]
    names += [getattr(own, "model_type", None), *(getattr(own, "architectures", None) or ())]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
