"""Says when a node has been falling back for long, and when it is back; in between, nothing."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable

# What is long: so many decisions in a row, or so much time; said again at every tenfold.
DECISIONS = 1_000
TIME_US = 60_000_000
AGAIN = 10


class Fallbacks:
    """Fallbacks in a row. Counting costs next to nothing; a line is written a few times a day at most."""

    def __init__(self, logger) -> None:
        self.logger = logger
        self._start()

    def _start(self) -> None:
        self.decisions = 0
        self.since_us = 0
        self.was_said = False
        self.say_at = (DECISIONS, TIME_US)
        self.features: Counts[str] = Counts()

    def note(self, reason: str | None, outside: Iterable[str], now_us: int) -> None:
        """A decision fell back for `reason`, with these features out of range; None: the table took it."""
        if reason is None:
            if self.was_said:
                self.logger.warning("kvtide: the table decides again, after %d fallbacks (%.0f s)",
                                    self.decisions, (now_us - self.since_us) * 1e-6)  # fmt: skip
            if self.decisions:
                self._start()
            return
        if self.decisions == 0:
            self.since_us = now_us
        self.decisions += 1
        self.features.update(outside)
        decisions, time_us = self.say_at
        if self.decisions >= decisions or now_us - self.since_us >= time_us:
            self.was_said = True
            self.say_at = (
                max(decisions, self.decisions) * AGAIN, max(time_us, now_us - self.since_us) * AGAIN
            )  # fmt: skip
            self.logger.warning("kvtide: falling back for %d decisions (%.0f s): %s%s", self.decisions,
                                (now_us - self.since_us) * 1e-6, reason, self._blamed())  # fmt: skip

    def _blamed(self) -> str:
        if not self.features:
            return ""
        # Those most often outside; whoever is there hardly ever is not what keeps the table out.
        blamed = [name for name, count in self.features.most_common() if 10 * count >= self.decisions]
        return f"; outside what the table was trained on: {', '.join(blamed or self.features)}"
