"""From a table file to decisions: loading, reloading, refusing, falling back. Knows no engine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from kvtide._kvtide import Controls, Guard, Observation, Slo, Table, TableError
from kvtide.fallbacks import Fallbacks
from kvtide.fit import KNOWN, WrongEngine, check_engine, differences
from kvtide.metrics import Metrics
from kvtide.settings import Settings

DEFAULT_INTERVAL = 8


class Unsupported(Exception):
    """A table that asks for heads this engine, as it is configured, keeps for itself."""


@dataclass(frozen=True)
class Engine:
    """What a pilot must know of the engine it sits in."""

    # As kvtide knows it: `vllm-0.33`, `sglang-0.5`.
    host: str
    # The heads it can carry out as it is configured.
    heads: frozenset[str]
    prefix_cache: bool
    # What it does by itself.
    watermark: float
    # Whether a table may know a better watermark to fall back to.
    asks_table: bool
    # Names of the model it serves, as far as it has any.
    models: tuple[str, ...] = ()
    # Tokens its steps have at most; None where nobody bounds them anew.
    step_tokens: int | None = None
    # Whether it lets given-back blocks have classes.
    retains: bool = False


class Pilot:
    """Decides with the table at `settings.table`, as long as there is a good one.

    A table that the engine cannot follow, or that would fall back for good, is refused whole: half of a policy is another
    policy, which nobody has judged.
    """

    def __init__(self, settings: Settings, metrics: Metrics, engine: Engine, logger) -> None:
        self.settings = settings
        self.metrics = metrics
        self.logger = logger
        self.engine = engine
        self.table: Table | None = None
        self.refusal = "no_table"
        self.fallbacks = Fallbacks(logger)
        self.guard = Guard(
            None,
            fallback_watermark=engine.watermark if settings.fallback_watermark is None else settings.fallback_watermark,
            asks_table=settings.fallback == "table" or settings.fallback is None and engine.asks_table,
            out_of_range_decisions=settings.out_of_range_decisions,
            recovery_decisions=settings.recovery_decisions,
            hold_decisions=settings.hold_decisions,
            range_tolerance=settings.range_tolerance,
        )
        self.slo = settings.slo or Slo()
        self.interval = settings.interval or DEFAULT_INTERVAL
        self._seen: tuple[int, int, int] | None = None
        self._poll_at_us = 0
        # What was decided last, and whether that is not what the engine does by itself.
        self._decided: Controls | None = None
        self._overrides = False
        # What was seen last.
        self.seen: Observation | None = None
        self.load()

    def poll(self, now_us: int) -> None:
        """Looks for another file, every few seconds. A bad one never replaces a good table."""
        if now_us < self._poll_at_us:
            return
        self._poll_at_us = now_us + int(self.settings.reload_s * 1e6)
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
        try:
            table = Table.load(self.settings.table)
            self._check(table)
            slo, interval, unlike = self._trained(table)
        except OSError as error:
            return self._refuse("no_table", "unreadable", error)
        except TableError as error:
            refusals = {"schema": "unknown_schema", "action_set": "unknown_schema", "profile": "profile", "host": "host"}
            return self._refuse(refusals.get(error.reason, "no_table"), error.reason, error)
        except Unsupported as error:
            return self._refuse("profile", "profile", error)
        except WrongEngine as error:
            return self._refuse("host", "engine", error)
        except ValueError as error:
            return self._refuse("no_table", "metadata", error)
        self.table = table
        self.slo, self.interval = slo, interval
        # An excursion is remembered: another file is no reason to act on traffic it has not seen.
        self.guard.replace(table)
        self.metrics.count("reloads", "ok")
        name, digest = table.metadata.get("name", "unnamed"), hashlib.sha256(table.data).hexdigest()[:12]
        self.metrics.loaded(name, table.profile, digest)
        self.logger.info(
            "kvtide: table %r loaded: mode %s, profile %s, sha256 %s, %d leaves, decides every %d steps (%s)",
            name, self.metrics.mode, table.profile, digest, table.leaves, interval, self.settings.table,
        )  # fmt: skip
        self.metrics.mismatched(frozenset(unlike), KNOWN)
        for sentence in unlike.values():
            self.logger.warning("kvtide: table %r is not for what is served: %s; judge it there before it acts", name, sentence)
        return True

    def _check(self, table: Table) -> None:
        check_engine(table.metadata, self.engine.host)
        missing = sorted(set(table.heads) - self.engine.heads)
        if missing:
            raise Unsupported(
                f"decides {', '.join(missing)} (profile {table.profile}), which this engine does not let kvtide decide; "
                "export it for a smaller profile"
            )
        if table.retains and not self.engine.retains:
            raise Unsupported("says which blocks stay cached, which this engine does not let kvtide say; export it without")
        table.check_host(
            self.engine.host, prefix_cache=self.engine.prefix_cache, range_tolerance=self.settings.range_tolerance
        )

    def _trained(self, table: Table) -> tuple[Slo, int, dict[str, str]]:
        """Targets and interval it is used with, and in what it is for something else than is served."""
        metadata = table.metadata
        unlike = differences(metadata, self.engine.host, self.engine.models)
        # Several where it was trained for several; the first is what it was trained for first of all.
        trained = [Slo.parse(targets.strip()) for targets in metadata.get("slo", "").split(";") if targets.strip()]
        slo = self.settings.slo or (trained or [Slo()])[0]
        if trained and slo not in trained:
            unlike["slo"] = f"it was trained for {metadata['slo']}, KVTIDE_SLO says otherwise: {slo}"
        interval = metadata.get("interval", "")
        return slo, self.settings.interval or (int(interval) if interval.isdecimal() else 0) or DEFAULT_INTERVAL, unlike

    def _refuse(self, refusal: str, reason: str, error: Exception) -> bool:
        self.metrics.count("reloads", reason)
        stays = "the engine goes on by itself" if self.table is None else "the table before it stays"
        if self.table is None:
            self.refusal = refusal
        self.logger.error("kvtide: %s is refused (%s): %s; %s", self.settings.table, reason, error, stays)
        return False

    def decide(self, observe: Callable[[], Observation], now_us: int, swap: bool = False) -> Controls | None:
        """What to do: by the table, or the fallback; None is what the engine does by itself."""
        self.metrics.count("decisions")
        if self.table is None:
            self._note(self.refusal, (), self.engine.watermark, now_us)
            return None
        self.seen = observe()
        controls = self.guard.decide(self.seen, swap=swap)
        outside = self.guard.outside
        for feature in outside:
            self.metrics.count("out_of_range", feature)
        fallback = self.guard.last_fallback
        self._note(fallback, outside, controls.watermark, now_us)
        if fallback is not None and self._falls_back_to_engine():
            return None
        if controls != self._decided:
            own = (self.engine.watermark, "newest", "fcfs", False)
            is_bounded = controls.budget < (self.engine.step_tokens or 0)
            self._decided = controls
            self._overrides = (controls.watermark, controls.victim, controls.admission, is_bounded) != own
        if self._overrides:
            self.metrics.count("overrides")
        return controls

    def _falls_back_to_engine(self) -> bool:
        return self.settings.fallback_watermark is None and self.guard.fallback_watermark == self.engine.watermark

    def _note(self, fallback: str | None, outside, watermark: float, now_us: int) -> None:
        self.fallbacks.note(fallback, outside, now_us)
        if fallback is not None:
            self.metrics.count("fallbacks", fallback)
        values = self.metrics.values
        values["watermark"], values["in_force"] = watermark, float(fallback is None and self.metrics.mode == "act")
        self.metrics.tell(now_us)

    def gave_up(self, where: str, now_us: int) -> None:
        """Counts the exception being handled, for which nothing was decided, and tells: whoever watches must see it."""
        self.failed(where)
        self.metrics.values["in_force"] = 0.0
        self.metrics.tell(now_us)

    def failed(self, where: str, error: Exception | None = None) -> None:
        """Counts `error`, or the exception being handled. The first of a kind is logged in full, later ones ever more
        rarely."""
        count = self.metrics.count("errors", where)
        if count & (count - 1) == 0:
            self.logger.error("kvtide: failure %d in %s; the engine goes on by itself", count, where,
                              exc_info=error or True)  # fmt: skip
