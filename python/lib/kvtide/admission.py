"""Order of admission: kvtide's waiting queue over an engine's own.

The rules are those of the simulator (`envs/src/sched/waiting.rs`, `ageing.rs`): waited too long, on time, late; within
these in queue order, or shortest first. Times are microseconds.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MAX_WAIT_US = 10_000_000
PATIENCE = 2.5
MEMORY_US = 600_000_000
FOREVER = 1 << 62


class Entry(NamedTuple):
    """What admission order needs of a waiting request."""

    tokens: int
    arrival_us: int
    # From when on it cannot meet its targets any more.
    late_at_us: int


def rank(entry: Entry, shortest: bool, now_us: int, max_wait_us: int) -> tuple[int, int]:
    """Less is sooner."""
    if now_us - entry.arrival_us > max_wait_us:
        return (0, 0)
    if now_us > entry.late_at_us:
        return (2, 0)
    return (1, entry.tokens if shortest else 0)


class Ageing:
    """When waiting has become too long: a multiple of the longest wait that queue order would have given anybody lately.

    Queue order admits the same tokens in another order, so a request would have been admitted once as many tokens were
    admitted as waited before it, with its own, when it arrived.
    """

    def __init__(self) -> None:
        self.admitted = 0
        self.waiting = 0
        self.line: deque[tuple[int, int]] = deque()
        self.waits: deque[tuple[int, int]] = deque()

    def arrive(self, arrival_us: int, tokens: int) -> None:
        self.join(tokens)
        self.line.append((arrival_us, self.admitted + self.waiting))

    def join(self, tokens: int) -> None:
        self.waiting += tokens

    def leave(self, tokens: int) -> None:
        self.waiting = max(self.waiting - tokens, 0)
        self.admitted += tokens

    def admit(self, tokens: int, now_us: int) -> None:
        self.leave(tokens)
        while self.line and (self.line[0][1] <= self.admitted or self.waiting == 0):
            arrival_us, _ = self.line.popleft()
            wait = max(now_us - arrival_us, 0)
            while self.waits and self.waits[-1][1] <= wait:
                self.waits.pop()
            self.waits.append((now_us, wait))
        while self.waits and now_us - self.waits[0][0] > MEMORY_US:
            self.waits.popleft()

    def bound(self, max_wait_us: int = MAX_WAIT_US, patience: float = PATIENCE) -> int:
        longest = self.waits[0][1] if self.waits else 0
        return max(max_wait_us, int(longest * patience))


class OrderedQueue:
    """Mixed into an engine's first-come-first-served deque: same queue, but its next request is chosen by `order`.

    Everything else about the queue stays as it is: what iterates over it sees queue order. Whatever fails here, the next
    request is the first one.
    """

    order = "fcfs"
    now_us = 0

    def attach(self, entry_of, failed) -> None:
        """`entry_of(request)` gives its Entry as it joins the queue; `failed()` counts a failure."""
        self.entry_of = entry_of
        self.failed = failed
        self.ageing = Ageing()
        self.entries: dict[str, Entry] = {}
        # (request, order, max_wait, until)
        self.choice = None

    def add_request(self, request) -> None:
        super().add_request(request)
        self._joined(request, arrived=True)

    def prepend_request(self, request) -> None:
        super().prepend_request(request)
        self._joined(request, arrived=False)

    def prepend_requests(self, requests) -> None:
        requests = list(requests)
        super().prepend_requests(requests)
        for request in requests:
            self._joined(request, arrived=False)

    def peek_request(self):
        request = self._next()
        return super().peek_request() if request is None else request

    def pop_request(self):
        request = self._next()
        self.choice = None
        if request is None or request is self[0]:
            request = super().pop_request()
        else:
            super().remove_request(request)
        self._left(request, admitted=True)
        return request

    def remove_request(self, request) -> None:
        super().remove_request(request)
        self._left(request, admitted=False)

    def remove_requests(self, requests) -> None:
        requests = list(requests)
        super().remove_requests(requests)
        for request in requests:
            self._left(request, admitted=False)

    def _joined(self, request, arrived: bool) -> None:
        self.choice = None
        try:
            entry = self.entry_of(request)
            self.entries[request.request_id] = entry
            if arrived:
                self.ageing.arrive(entry.arrival_us, entry.tokens)
            else:
                self.ageing.join(entry.tokens)
        except Exception:
            self.failed()

    def _left(self, request, admitted: bool) -> None:
        self.choice = None
        try:
            entry = self.entries.pop(request.request_id, None)
            if entry is None:
                return
            if admitted:
                self.ageing.admit(entry.tokens, self.now_us)
            else:
                self.ageing.leave(entry.tokens)
        except Exception:
            self.failed()

    def lengthen(self, request) -> None:
        """A waiting request has more tokens than when it joined."""
        entry = self.entries.get(request.request_id)
        if entry is not None and request.num_tokens > entry.tokens:
            self.choice = None
            self.ageing.join(request.num_tokens - entry.tokens)
            self.entries[request.request_id] = entry._replace(tokens=request.num_tokens)

    def _next(self):
        """The request to admit next, or None for the first."""
        if self.order == "fcfs" or not self:
            return None
        try:
            max_wait = self.ageing.bound()
            choice = self.choice
            # A choice stands until the queue changes or a clock runs out.
            if choice is None or choice[1:3] != (self.order, max_wait) or self.now_us > choice[3]:
                choice = self.choice = self._choose(max_wait)
            return choice[0]
        except Exception:
            self.failed()
            self.order = "fcfs"
            return None

    def _choose(self, max_wait: int):
        now_us, shortest, entries = self.now_us, self.order == "shortest-on-time-first", self.entries
        best = best_rank = best_entry = None
        oldest_us = FOREVER
        for request in self:
            entry = entries[request.request_id]
            oldest_us = min(oldest_us, entry.arrival_us)
            ranked = rank(entry, shortest, now_us, max_wait)
            if best_rank is None or ranked < best_rank:
                best, best_rank, best_entry = request, ranked, entry
                if ranked[0] == 0:
                    # Nobody comes before the first who waited too long.
                    return (best, self.order, max_wait, now_us)
        until = oldest_us + max_wait
        if best_rank[0] == 1:
            until = min(until, best_entry.late_at_us)
        return (best, self.order, max_wait, until)
