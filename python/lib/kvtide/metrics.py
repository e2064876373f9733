"""Counters, kept here and exported to Prometheus where its client is installed. `python/ops` has what to do with them."""

from __future__ import annotations

from collections import Counter as Counts

# Name to what it counts, and the label it is counted by. Every one has the labels `host` and `mode` as well.
COUNTERS = {
    "decisions": ("Decisions asked for", ()),
    "overrides": ("Decisions that differ from what the engine would have done", ()),
    "fallbacks": ("Decisions left to the fallback", ("reason",)),
    "out_of_range": ("Decisions at which a feature that the table decides by was out of its trained range", ("feature",)),
    "errors": ("Failures inside kvtide; the engine went on by itself", ("where",)),
    "reloads": ("Table files read", ("result",)),
    "retained": ("Parts of requests' blocks given back, by the class they are kept in", ("retention",)),
    "record_rows": ("Requests written to the trace", ()),
    "record_aborted": ("Of these, requests that were aborted, with the tokens they had", ()),
    "record_dropped": ("Requests that ended and are not in the trace", ("reason",)),
}
GAUGES = {
    "watermark": ("Share of the pool that admission leaves free, as decided last", ()),
    "in_force": ("1 where what the table decided last is what the engine does", ()),
    "table_info": ("1 for the table that is loaded", ("name", "profile", "hash")),
    "table_mismatch": ("1 where the table that is loaded was made for something else than is served", ("what",)),
}
BASE = ("host", "mode")
TELL_US = 1_000_000
_exported: dict | None = None


class Metrics:
    """Counts by name and label. Prometheus is told once a second, since telling it takes longer than deciding."""

    def __init__(self, host: str, mode: str, logger) -> None:
        self.host = host
        self.mode = mode
        self.counts: Counts[tuple[str, str]] = Counts()
        self.values: dict[str, float] = {}
        self.table: tuple[str, ...] = ()
        self.mismatches: frozenset[str] = frozenset()
        self.exported = _export(logger)
        self._told: Counts[tuple[str, str]] = Counts()
        self._tell_at_us = 0

    def count(self, name: str, label: str = "") -> int:
        """Adds one; returns how many there are."""
        key = (name, label)
        count = self.counts[key] = self.counts[key] + 1
        return count

    def loaded(self, name: str, profile: str, digest: str) -> None:
        """Another table is loaded than before."""
        info = self.exported and self.exported["table_info"]
        labels = (name, profile, digest)
        if info and self.table and self.table != labels:
            info.labels(self.host, self.mode, *self.table).set(0)
        self.table = labels
        if info:
            info.labels(self.host, self.mode, *labels).set(1)

    def mismatched(self, found: frozenset[str], known: tuple[str, ...]) -> None:
        """In what the table that is loaded is for something else, of what can be known."""
        self.mismatches = found
        gauge = self.exported and self.exported["table_mismatch"]
        if gauge:
            for what in known:
                gauge.labels(self.host, self.mode, what).set(float(what in found))

    def total(self, name: str, label: str, count: int) -> None:
        """How many there are of what is counted elsewhere."""
        self.counts[name, label] = count

    def tell(self, now_us: int) -> None:
        """Tells Prometheus what has changed, if a second has passed."""
        if self.exported is None or now_us < self._tell_at_us:
            return
        self._tell_at_us = now_us + TELL_US
        for (name, label), count in tuple(self.counts.items()):
            labels = (self.host, self.mode) + ((label,) if label else ())
            if count != self._told[name, label]:
                self.exported[name].labels(*labels).inc(count - self._told[name, label])
                self._told[name, label] = count
        for name, value in self.values.items():
            self.exported[name].labels(self.host, self.mode).set(value)

    def of(self, name: str) -> dict[str, int]:
        """Counts of `name` by label."""
        return {label: count for (counter, label), count in self.counts.items() if counter == name}


def _export(logger) -> dict | None:
    """One set of counters a process, whoever asks."""
    global _exported
    if _exported is None:
        try:
            from prometheus_client import Counter, Gauge
        except ImportError:
            return None
        try:
            exported = {name: Counter(f"kvtide_{name}", says, BASE + labels) for name, (says, labels) in COUNTERS.items()}
            for name, (says, labels) in GAUGES.items():
                exported[name] = Gauge(f"kvtide_{name}", says, BASE + labels, multiprocess_mode="mostrecent")
            _exported = exported
        except Exception:
            logger.exception("kvtide: counters are not exported")
            return None
    return _exported


def serve(port: int, logger) -> None:
    """Serves the counters of this process: vLLM and SGLang schedule in a process that has no metrics page of its own."""
    try:
        from prometheus_client import start_http_server

        start_http_server(port)
    except Exception as error:
        logger.warning("kvtide: counters are not served on port %d: %s", port, error)
