"""kvtide inside vLLM's V1 scheduler (0.33).

Installed, the plugin puts `kvtide.vllm.Scheduler` in the place of vLLM's own wherever `KVTIDE_TABLE` or `KVTIDE_RECORD` is
set and `--scheduler-cls` is not; `--scheduler-cls kvtide.vllm.Scheduler` says so outright. The scheduler is vLLM's,
synchronous or asynchronous as configured. What a table decides is carried out like this:

- **watermark**: the KV-cache manager's `watermark_blocks`, which vLLM reads at every admission;
- **admission**: a waiting queue with vLLM's interface and order, except for which request is next;
- **victim**: when a running request is refused blocks, the victim is moved to the end of `running`, whence vLLM takes it;
- **budget**: `max_num_scheduled_tokens`, set before every step as far as decodes and the engine let it (`budget.py`);
- **retention**: a table with a tree for it says of which class blocks are as a request gives them back; the block pool's free
  queue is then one that has classes (`retention.py`), and vLLM's own again without such a table;
- **preemption**: V1 knows recompute only, and the guard asks for nothing else.

Under `--scheduling-policy priority` only the watermark is kvtide's, since order and victim are the operator's then.

`KVTIDE_RECORD` writes down what is served (`recording.py`), with a table or without one: a few numbers are copied when a
request ends, and nothing at all in a step.

Nothing of deciding is called once a request: a step costs two looks at a clock and a few counters, a decision every few steps
one look at who runs, in Rust (`python/checks/adapter_cost.py` measures both).
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

from kvtide._kvtide import WaitingQueue
from kvtide.metrics import Metrics, serve
from kvtide.recording import Recording, of_rank
from kvtide.settings import Settings
from kvtide.tide import HOST, Tide

logger = logging.getLogger("vllm.kvtide")

MAX_PRIORITY = 2**31 - 1


def attach(scheduler) -> tuple[Tide | None, Recording | None]:
    """kvtide at work on `scheduler`, and what it records; None for what is not asked for or cannot start."""
    try:
        settings = Settings.from_env()
        if settings is None:
            logger.warning("kvtide: neither KVTIDE_TABLE nor KVTIDE_RECORD is set; vLLM schedules by itself")
            return None, None
        metrics = Metrics("vllm", settings.mode if settings.table else "record", logger)
        rank = getattr(scheduler.vllm_config.parallel_config, "data_parallel_index", 0)
        if settings.metrics_port:
            serve(settings.metrics_port + rank, logger)
    except Exception:
        logger.exception("kvtide: cannot start; vLLM schedules by itself")
        return None, None
    return deciding(scheduler, settings, metrics), recording(scheduler, settings, metrics, rank)


def deciding(scheduler, settings: Settings, metrics: Metrics) -> Tide | None:
    """The table at work, if there is to be one."""
    try:
        return Tide(scheduler, settings, metrics) if settings.table else None
    except Exception:
        logger.exception("kvtide: cannot start; vLLM schedules by itself")
        return None


def recording(scheduler, settings: Settings, metrics: Metrics, rank: int) -> Recording | None:
    """What is served, recorded, if it is to be."""
    if settings.record is None:
        return None
    try:
        ranks = getattr(scheduler.vllm_config.parallel_config, "data_parallel_size", 1)
        settings = replace(settings, record=of_rank(settings.record, rank, ranks))
        block_tokens = getattr(scheduler, "hash_block_size", scheduler.block_size)
        return Recording(settings, metrics, HOST, block_tokens, logger)
    except Exception:
        logger.exception("kvtide: cannot record; vLLM goes on")
        return None


def note(recording: Recording, request) -> None:
    """A request, or a turn of a session whose client sends its input in parts, has ended."""
    lora = request.lora_request
    recording.ended(
        request.request_id,
        request.num_prompt_tokens,
        request.num_output_tokens,
        hashes=request.block_hashes,
        tokens=request.prompt_token_ids,
        # vLLM's smaller is more urgent, kvtide's larger. A client may send any number.
        priority=min(max(-request.priority, -MAX_PRIORITY), MAX_PRIORITY) if request.priority else None,
        # Whom vLLM keeps apart by itself.
        tenant=lora.lora_name if lora else None,
        cache_salt=request.cache_salt or None,
        aborted=request.status.name == "FINISHED_ABORTED",
    )


class TideMixin:
    """Around vLLM's scheduler: what is called, and when."""

    kvtide: Tide | None = None
    kvtide_recording: Recording | None = None

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.kvtide, self.kvtide_recording = attach(self)

    def schedule(self, *args, **kwargs):
        tide = self.kvtide
        if tide is None:
            return super().schedule(*args, **kwargs)
        tide.before()
        output = super().schedule(*args, **kwargs)
        try:
            tide.after(output)
        except Exception:
            tide.pilot.failed("after")
        return output

    def update_from_output(self, scheduler_output, *args, **kwargs):
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)
        tide = self.kvtide
        if tide is not None:
            try:
                tide.answered(scheduler_output)
            except Exception:
                tide.pilot.failed("answered")
        return outputs

    def add_request(self, request, *args, **kwargs):
        is_new = request.request_id not in self.requests
        result = super().add_request(request, *args, **kwargs)
        tide = self.kvtide
        if is_new and tide is not None:
            try:
                tide.arrived(request)
            except Exception:
                tide.pilot.failed("arrived")
        recording = self.kvtide_recording
        if is_new and recording is not None:
            try:
                recording.arrived(request.request_id, request.arrival_time)
            except Exception:
                recording.failed("record")
        return result

    def _update_request_as_session(self, session, *args, **kwargs):
        recording = self.kvtide_recording
        if recording is not None:
            try:
                # The turn before, of which nothing is left afterwards.
                note(recording, session)
            except Exception:
                recording.failed("record")
        result = super()._update_request_as_session(session, *args, **kwargs)
        tide = self.kvtide
        if tide is not None:
            try:
                tide.went_on(session)
            except Exception:
                tide.pilot.failed("went_on")
        if recording is not None:
            try:
                recording.arrived(session.request_id, session.arrival_time)
            except Exception:
                recording.failed("record")
        return result

    def _request_blocks_can_be_freed(self, request, *args, **kwargs):
        """vLLM asks this of the last that runs, between being refused blocks and preempting that one: the one moment at which
        a victim can be chosen, and only refusals pay for it. It does not say for whom it asks, and so is looked at."""
        tide = self.kvtide
        if tide is not None and tide.victim != "newest" and self.running and self.running[-1] is request:
            caller = sys._getframe(1)
            if caller.f_code.co_name == "schedule":
                try:
                    request = tide.offer_victim(request, caller.f_locals["request"])
                except Exception:
                    tide.pilot.failed("victim")
        return super()._request_blocks_can_be_freed(request, *args, **kwargs)

    def _preempt_request(self, request, *args, **kwargs):
        tide = self.kvtide
        if tide is not None:
            tide.was_preempted(request)
        return super()._preempt_request(request, *args, **kwargs)

    def _free_request_blocks(self, request, *args, **kwargs):
        """Where vLLM gives the blocks of a request back that has finished, or is preempted, at once or when nobody writes to
        them any more."""
        tide = self.kvtide
        if tide is not None and tide.retention is not None:
            try:
                tide.gives_back(request)
            except Exception:
                tide.pilot.failed("gives_back")
        return super()._free_request_blocks(request, *args, **kwargs)

    def _free_request(self, request, *args, **kwargs):
        tide = self.kvtide
        if tide is not None:
            try:
                tide.freed(request)
            except Exception:
                tide.pilot.failed("freed")
        recording = self.kvtide_recording
        if recording is not None:
            try:
                note(recording, request)
            except Exception:
                recording.failed("record")
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self, *args, **kwargs):
        recording, self.kvtide_recording = self.kvtide_recording, None
        if recording is not None:
            try:
                recording.close()
            except Exception:
                recording.failed("record")
        return super().shutdown(*args, **kwargs)


_classes: dict[str, type] = {}


def _make_classes() -> dict[str, type]:
    """The scheduler classes. Made when asked for, since vLLM need not be installed to import this module."""
    if not _classes:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
        from vllm.v1.core.sched.request_queue import RequestQueue
        from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

        RequestQueue.register(WaitingQueue)

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
            """Whom it names outright is taken here too: vLLM would warn that asynchronous scheduling is lost, which is not
            so."""
            name = self.scheduler_cls
            ours = {None: "Scheduler", "kvtide.vllm.Scheduler": "Scheduler", "kvtide.vllm.AsyncScheduler": "AsyncScheduler"}
            if name is None or isinstance(name, str) and name in ours:
                try:
                    return _make_classes()[ours[name]]
                except Exception:
                    logger.exception("kvtide: cannot start; vLLM schedules by itself")
            return original(self)

        get_scheduler_cls.is_kvtide = True
        SchedulerConfig.get_scheduler_cls = get_scheduler_cls
    except Exception:
        logger.exception("kvtide: cannot start; vLLM schedules by itself")
