"""From a table file to decisions: loading, reloading, refusing, falling back. Knows no engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from kvtide._kvtide import Controls, Guard, Observation, Table, TableError
from kvtide.metrics import Metrics
from kvtide.settings import Settings, SettingError, Slo

logger = logging.getLogger("kvtide")

DEFAULT_INTERVAL = 8


class Unsupported(Exception):
    """A table that asks for heads the host does not have."""


class Pilot:
    """Decides with the table at `settings.table`, as long as there is a good one.

    `heads` are those the host can carry out. A table that decides another is refused whole: half of a policy is another
    policy, which nobody has judged.
    """

    def __init__(self, settings: Settings, metrics: Metrics, heads: frozenset[str], watermark: float) -> None:
        self.settings = settings
        self.metrics = metrics
        self.heads = heads
        # What the engine would do by itself.
        self.engine_watermark = watermark
        self.table: Table | None = None
        self.refusal = "no_table"
        self.guard = Guard(
            None,
            fallback_watermark=watermark,
            out_of_range_decisions=settings.out_of_range_decisions,
            recovery_decisions=settings.recovery_decisions,
            hold_decisions=settings.hold_decisions,
            range_tolerance=settings.range_tolerance,
        )
        self.slo = settings.slo or Slo()
        self.interval = settings.interval or DEFAULT_INTERVAL
        self._seen: tuple[int, int, int] | None = None
        self._poll_at = 0.0
        self.load()

    def poll(self, now_s: float) -> None:
        """Looks for another file, every few seconds. A bad one never replaces a good table."""
        if now_s < self._poll_at:
            return
        self._poll_at = now_s + self.settings.reload_s
        if self._stamp() != self._seen:
            self.load()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.settings.table)
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_size, status.st_ino)

    def load(self) -> bool:
        """Reads the file; says whether its table is the one in force now."""
        # Taken before reading, so that a file written meanwhile is read again.
        self._seen = self._stamp()
        path = self.settings.table
        try:
            table = Table.load(path)
            missing = sorted(set(table.heads) - self.heads)
            if missing:
                raise Unsupported(
                    f"decides {', '.join(missing)} (profile {table.profile}), which this engine does not let kvtide decide; "
                    "export it for a smaller profile"
                )
            slo, interval = self._trained(table)
        except OSError as error:
            return self._refuse("no_table", "unreadable", error)
        except TableError as error:
            unknown = error.reason in ("schema", "action_set")
            return self._refuse("unknown_schema" if unknown else "no_table", error.reason, error)
        except Unsupported as error:
            return self._refuse("profile", "profile", error)
        except SettingError as error:
            return self._refuse("no_table", "metadata", error)
        self.table = table
        self.slo, self.interval = slo, interval
        # An excursion is remembered: another file is no reason to act on traffic it has not seen.
        self.guard.replace(table)
        self.metrics.count("reloads", "ok")
        name = table.metadata.get("name", "unnamed")
        logger.info(
            "kvtide: %s: table %r, profile %s, %d leaves, decided every %d steps, mode %s",
            path, name, table.profile, table.leaves, interval, self.settings.mode,
        )
        return True

    def _trained(self, table: Table) -> tuple[Slo, int]:
        metadata = table.metadata
        trained = Slo.parse(metadata["slo"]) if "slo" in metadata else None
        slo = self.settings.slo or trained or Slo()
        if trained and slo != trained:
            logger.warning("kvtide: the table was trained for %s, KVTIDE_SLO says otherwise", metadata["slo"])
        interval = metadata.get("interval", "")
        return slo, self.settings.interval or (int(interval) if interval.isdecimal() else 0) or DEFAULT_INTERVAL

    def _refuse(self, refusal: str, reason: str, error: Exception) -> bool:
        self.metrics.count("reloads", reason)
        if self.table is None:
            self.refusal = refusal
            logger.error("kvtide: %s is refused (%s): %s; the engine goes on by itself", self.settings.table, reason, error)
        else:
            logger.error("kvtide: %s is refused (%s): %s; the table before it stays", self.settings.table, reason, error)
        return False

    def decide(self, observe: Callable[[], Observation], swap: bool = False) -> Controls | None:
        """What to do, or None: what the engine does by itself."""
        self.metrics.count("decisions")
        if self.table is None:
            self.metrics.count("fallbacks", self.refusal)
            self.metrics.set_watermark(self.engine_watermark)
            return None
        controls = self.guard.decide(observe(), swap=swap)
        reason = self.guard.last_fallback
        if reason is not None:
            self.metrics.count("fallbacks", reason)
            self.metrics.set_watermark(self.engine_watermark)
            return None
        same = (
            controls.watermark == self.engine_watermark
            and controls.victim == "newest"
            and controls.admission == "fcfs"
        )
        if not same:
            self.metrics.count("overrides")
        self.metrics.set_watermark(controls.watermark)
        return controls

    def failed(self, where: str) -> None:
        """Counts the exception being handled. The first of a kind is logged in full, later ones ever more rarely."""
        count = self.metrics.count("errors", where)
        if count & (count - 1) == 0:
            logger.exception("kvtide: failure %d in %s; the engine goes on by itself", count, where)
