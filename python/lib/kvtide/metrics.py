"""Counters, kept here and exported to Prometheus where its client is installed."""

from __future__ import annotations

import logging
from collections import Counter as Counts

logger = logging.getLogger("kvtide")

COUNTERS = {
    "decisions": ("Decisions asked for", ()),
    "overrides": ("Decisions that differ from what the engine would have done", ()),
    "fallbacks": ("Decisions left to the engine", ("reason",)),
    "errors": ("Failures inside kvtide; the engine went on by itself", ("where",)),
    "reloads": ("Table files read", ("result",)),
}
_exported: dict | None = None


class Metrics:
    """Counts by name and label. `exported` is what Prometheus has, if anything."""

    def __init__(self, host: str, mode: str) -> None:
        self.host = host
        self.mode = mode
        self.counts: Counts[tuple[str, str]] = Counts()
        self.watermark = 0.0
        self.exported = _export()

    def count(self, name: str, label: str = "") -> int:
        """Adds one; returns how many there are."""
        self.counts[name, label] += 1
        if self.exported is not None:
            labels = (self.host, self.mode) + ((label,) if label else ())
            self.exported[name].labels(*labels).inc()
        return self.counts[name, label]

    def set_watermark(self, watermark: float) -> None:
        """The watermark in force; in shadow mode the one that would be."""
        if watermark != self.watermark or self.counts["decisions", ""] <= 1:
            self.watermark = watermark
            if self.exported is not None:
                self.exported["watermark"].labels(self.host, self.mode).set(watermark)

    def of(self, name: str) -> dict[str, int]:
        """Counts of `name` by label."""
        return {label: count for (counter, label), count in self.counts.items() if counter == name}


def _export() -> dict | None:
    """One set of counters a process, whoever asks."""
    global _exported
    if _exported is None:
        try:
            from prometheus_client import Counter, Gauge
        except ImportError:
            return None
        try:
            base = ("host", "mode")
            counters = {
                name: Counter(f"kvtide_{name}", help_text, base + labels)
                for name, (help_text, labels) in COUNTERS.items()
            }
            counters["watermark"] = Gauge(
                "kvtide_watermark",
                "Share of the pool that admission leaves free, as decided last",
                base,
                multiprocess_mode="mostrecent",
            )
            _exported = counters
        except Exception:
            logger.exception("kvtide: counters are not exported")
            return None
    return _exported


def serve(port: int) -> None:
    """Serves the counters of this process: vLLM and SGLang schedule in a process that has no metrics page of its own."""
    try:
        from prometheus_client import start_http_server

        start_http_server(port)
    except Exception as error:
        logger.warning("kvtide: counters are not served on port %d: %s", port, error)
