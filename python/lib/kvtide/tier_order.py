"""Orders of eviction for a tier of chunks, and which of two fits what is served. Knows no engine.

Recency (LRU) loses to frequency where many prompts are asked once and few again and again, and wins by far where sessions come
back in turn. Neither is always right, so both are kept, and two small caches without content, which see a sample of the keys,
say which of them would have hit more of late (set dueling: Qureshi et al., ISCA 2007; sampled shadows as in SHARDS, FAST 2015).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain
from zlib import crc32

# Counts end here, as in a few bits.
MOST = 15
# Uses after which counts are halved, and evicted keys whose counts are remembered: both in capacities.
PERIOD = 16
MEMORY = 4
# Of a sample, chunks; smaller ones are too noisy to tell.
LEAST_SAMPLE = 512
MOST_SAMPLED = 8
# How many hits frequency must lead by before it is obeyed, as a share of what a lead can grow to.
MARGIN = 0.01


class Frequencies:
    """Keys by how often they were used, and those used as often by when. Constant time an operation, amortised."""

    def __init__(self, capacity: int) -> None:
        self.capacity = max(capacity, 1)
        self.counts: dict[bytes, int] = {}
        self.places: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(MOST + 1)]
        self.gone: OrderedDict[bytes, int] = OrderedDict()
        self.uses = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self.counts

    def __len__(self) -> int:
        return len(self.counts)

    def add(self, key: bytes) -> None:
        """A key comes, perhaps back: what it had counts on."""
        count = self.counts[key] = min(self.gone.pop(key, -1) + 1, MOST)
        self.places[count][key] = None
        self._used()

    def use(self, key: bytes) -> None:
        count = self.counts[key]
        more = self.counts[key] = min(count + 1, MOST)
        if self.places[count].pop(key, self) is None:
            self.places[more][key] = None
        self._used()

    def refresh(self, key: bytes) -> None:
        """As if it had been used last, of those used as often."""
        place = self.places[self.counts[key]]
        if key in place:
            place.move_to_end(key)

    def hide(self, key: bytes) -> None:
        """Leaves the order, and is counted on."""
        self.places[self.counts[key]].pop(key, None)

    def show(self, key: bytes) -> None:
        self.places[self.counts[key]][key] = None

    def drop(self, key: bytes, remember: bool) -> None:
        count = self.counts.pop(key)
        self.places[count].pop(key, None)
        if remember:
            self.gone[key] = count
            if len(self.gone) > MEMORY * self.capacity:
                self.gone.popitem(last=False)

    def order(self) -> Iterator[bytes]:
        """Next to be evicted first."""
        return chain.from_iterable(self.places)

    def _used(self) -> None:
        self.uses += 1
        if self.uses < PERIOD * self.capacity:
            return
        self.uses = 0
        places: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in self.places]
        for count, place in enumerate(self.places):
            places[count // 2].update(place)
        self.places = places
        self.counts = {key: count // 2 for key, count in self.counts.items()}
        for key in self.gone:
            self.gone[key] //= 2


class Duel:
    """Whether frequency would have hit more than recency of late."""

    def __init__(self, capacity: int) -> None:
        rate = min(max(capacity // LEAST_SAMPLE, 1), MOST_SAMPLED)
        # The largest power of two, so that a mask samples.
        self.mask = (1 << rate.bit_length() - 1) - 1
        self.capacity = max(capacity // (self.mask + 1), 1)
        self.recent: OrderedDict[bytes, None] = OrderedDict()
        self.frequent = Frequencies(self.capacity)
        # Hits by which frequency leads, of which the older count less.
        self.lead = 0.0
        self.decay = 1 - 1 / (4 * self.capacity)
        self.by_frequency = False

    def used(self, key: bytes) -> None:
        """A key was asked for, and is there now; of a request, the last of its prefix first."""
        if crc32(key) & self.mask:
            return
        self.lead = self.lead * self.decay + self._frequent_hits(key) - self._recent_hits(key)
        if self.by_frequency:
            self.by_frequency = self.lead > 0
        else:
            self.by_frequency = self.lead > MARGIN * 4 * self.capacity

    def _recent_hits(self, key: bytes) -> bool:
        if key in self.recent:
            self.recent.move_to_end(key)
            return True
        self.recent[key] = None
        if len(self.recent) > self.capacity:
            self.recent.popitem(last=False)
        return False

    def _frequent_hits(self, key: bytes) -> bool:
        frequent = self.frequent
        if key in frequent:
            frequent.use(key)
            return True
        if len(frequent) >= self.capacity:
            frequent.drop(next(frequent.order()), remember=True)
        frequent.add(key)
        return False


def in_order(key_groups: Sequence[Sequence[bytes]], req_context) -> list[bytes]:
    """All keys, from the head of the text to its tail, whichever group they are of."""
    keys = [key for group in key_groups for key in group]
    places = {key: req_context.get_offload_key_position(key) for key in keys}
    return keys if None in places.values() else sorted(keys, key=places.__getitem__)
