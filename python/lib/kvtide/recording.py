"""What an engine serves, recorded as a kvtide trace: arrival, lengths and hashed prefixes of each request, and no text.

A row is written when its request ends, by a thread of the extension module that holds no lock of Python's: the scheduler
copies a few numbers and goes on. What the disk is too slow for is dropped and counted; a disk that fails ends the recording,
and nothing else.
"""

from __future__ import annotations

import json
import os
import time

from kvtide._kvtide import Recorder, __version__
from kvtide.metrics import Metrics
from kvtide.settings import SUFFIXES, Settings

# Older than this on arrival is nobody: somebody has set the clock.
MAX_AGE_S = 60.0
LOOK_US = 1_000_000


class Recording:
    """One engine's recording. What it raises goes no further than whoever calls it."""

    # One that nobody sets, and the one that engines stamp arrivals with.
    clock = staticmethod(time.monotonic)
    wall_clock = staticmethod(time.time)

    def __init__(self, settings: Settings, metrics: Metrics, host: str, block_tokens: int, logger) -> None:
        self.metrics, self.logger, self.block_tokens = metrics, logger, block_tokens
        self.path = settings.record
        about = {"host": host, "kvtide": __version__, "began_unix_us": int(self.wall_clock() * 1e6)}
        self.recorder = Recorder(
            settings.record, settings.record_mb * 1_000_000, settings.record_files, os.urandom(32), json.dumps(about)
        )
        self.began_s = self.clock()
        self.arrived_us: dict[str, int] = {}
        self._look_at_us = 0
        self._failures = 0
        self._has_failed = False
        logger.info("kvtide: what is served is recorded beside %s: arrivals, lengths and salted hashes, no text", self.path)

    def arrived(self, request_id: str, arrival_s: float) -> None:
        """A request is here that was stamped at `arrival_s`, by the clock on the wall."""
        age_s = self.wall_clock() - arrival_s
        if not 0.0 <= age_s <= MAX_AGE_S:
            age_s = 0.0
        self.arrived_us[request_id] = max(int((self.clock() - age_s - self.began_s) * 1e6 + 0.5), 0)

    def ended(self, request_id: str, prompt_tokens: int, output_tokens: int, **what) -> None:
        """A request has ended. `what` is as `Recorder.ended` has it."""
        arrival_us = self.arrived_us.pop(request_id, None)
        # Of whom nobody knows when it came.
        if arrival_us is None:
            return
        self.recorder.ended(arrival_us, prompt_tokens, output_tokens, block_tokens=self.block_tokens, **what)
        now_us = int(self.clock() * 1e6)
        if now_us >= self._look_at_us:
            self._look_at_us = now_us + LOOK_US
            self.look(now_us)

    def look(self, now_us: int) -> None:
        """Counts what has been written, and says once that nothing more will be."""
        recorder, metrics = self.recorder, self.metrics
        metrics.total("record_rows", "", recorder.written)
        metrics.total("record_aborted", "", recorder.aborted)
        for reason, count in recorder.dropped:
            if count:
                metrics.total("record_dropped", reason, count)
        failure = recorder.failure
        if failure is not None and not self._has_failed:
            self._has_failed = True
            metrics.count("errors", "record")
            self.logger.error("kvtide: nothing more is recorded, the engine goes on: %s", failure)
        metrics.tell(now_us)

    def failed(self, where: str) -> None:
        """Counts the exception being handled; it is logged ever more rarely."""
        count = self.metrics.count("errors", where)
        if count & (count - 1) == 0:
            self.logger.exception("kvtide: failure %d in %s; the engine goes on", count, where)

    def close(self) -> None:
        """Writes what waits. Requests that have not ended are not in the trace."""
        self.recorder.close()
        self.look(int(self.clock() * 1e6))
        missing = sum(count for _, count in self.recorder.dropped)
        self.logger.info("kvtide: %d requests recorded beside %s, %d left out, %d had not ended",
                         self.recorder.written, self.path, missing, len(self.arrived_us))  # fmt: skip


def of_rank(path: str, rank: int, ranks: int) -> str:
    """The file of one of several engines that were given one name."""
    # vLLM tells engines of a dense model that they are alone, and keeps their index.
    if rank == 0 and ranks <= 1:
        return path
    suffix = next(suffix for suffix in SUFFIXES if path.endswith(suffix))
    return f"{path.removesuffix(suffix)}-dp{rank}{suffix}"
