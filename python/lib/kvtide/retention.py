"""vLLM's free queue with classes: which of the blocks that nobody holds is taken next.

vLLM takes free blocks from the head of one doubly linked list: those without an entry in the prefix cache, then the others,
the longest unused first. This is the same list, with the same interface, in which the second part has four classes behind each
other: `evict-first`, `normal`, `keep`, `keep-long`. Where each class ends is remembered, so every operation takes constant time
a block, and where everything is `normal` the order is vLLM's, block for block.

The rules are kvtide's own (`rules/src/retention.rs`). A class is in force for as many evictions as a term says: `keep` for a
few turnovers of the pool, `keep-long` for some more, after which it is `keep` for as long as that. The first of a class whose
term is over becomes the most recent of the class below; it lies next to it, so that is one step of a pointer. A request's
blocks are given their terms when it gives them back, from the last to the first: where no other text continues a block the
last release decides, where one does the block keeps what is in force and is `normal` at least, and nothing has less than what
continues it. While the queue is flat, classes are set aside, those in force included: the block that is free longest goes, as
under LRU.

What stands outside the scheduler sees the list through the same methods. One of vLLM's own does: the lazy mode of its simple
offload connector, which goes along the list with a cursor, overlooks blocks that enter before it, and they are not copied.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from itertools import pairwise

from kvtide._kvtide import RETENTION

# How long `keep` and `keep-long` are in force, in turnovers of the pool.
CLASSES, KEEP_TURNOVERS, KEEP_LONG_TURNOVERS = RETENTION
EVICT_FIRST, NORMAL, KEEP, KEEP_LONG = range(len(CLASSES))

# Whether it goes first once nothing is in force, and at how many evictions `keep` and `keep-long` end.
Term = tuple[bool, int, int]
NONE: Term = (True, 0, 0)


def term_of(retention: int, evicted: int, num_blocks: int) -> Term:
    """What a block of a pool of `num_blocks` is given once `evicted` have been evicted."""
    if retention < KEEP:
        return (retention == EVICT_FIRST, 0, 0)
    keep_long_until = evicted + KEEP_LONG_TURNOVERS * num_blocks if retention == KEEP_LONG else 0
    return (False, (keep_long_until or evicted) + KEEP_TURNOVERS * num_blocks, keep_long_until)


def class_of(term: Term, evicted: int) -> int:
    """The class in force once `evicted` blocks have been evicted."""
    is_first, keep_until, keep_long_until = term
    if evicted < keep_long_until:
        return KEEP_LONG
    if evicted < keep_until:
        return KEEP
    return EVICT_FIRST if is_first else NORMAL


def or_longer(one: Term, other: Term) -> Term:
    """Whatever of the two is in force longer."""
    return (one[0] and other[0], max(one[1], other[1]), max(one[2], other[2]))


def next_term(given: Term, floor: Term, before: Term, is_branch: bool) -> Term:
    """What the next block towards the front has: of this release, of the block behind it, and, where other text branches off
    behind it, of what it had."""
    term = or_longer(given, floor)
    if is_branch:
        term = or_longer(term, before)
        return (False, term[1], term[2])
    return term


class Terms:
    """What every block of a pool was given, and which are continued by what."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # Blocks whose entry was lost.
        self.evicted = 0
        # Of those that are not simply normal.
        self.terms: dict[int, Term] = {}
        # By block: which content it holds, counted, so that links to an earlier one are known to be stale; the block before it
        # in its text, 0 (the null block) for none, and what that held then; how many come behind it.
        self.contents = [0] * num_blocks
        self.parents = [0] * num_blocks
        self.parent_contents = [0] * num_blocks
        self.children = [0] * num_blocks

    def registered(self, blocks: Sequence, first: int, end: int) -> None:
        """The blocks from `first` to `end` of a request's own have entries now."""
        before = blocks[first - 1].block_id if first else 0
        for block in blocks[first:end]:
            number = block.block_id
            self._empty(number)
            if before:
                self.children[before] += 1
                self.parents[number], self.parent_contents[number] = before, self.contents[before]
            before = number

    def lost(self, number: int) -> None:
        """The entry of a block is evicted."""
        self.evicted += 1
        self._empty(number)

    def _empty(self, number: int) -> None:
        parent, children = self.parents[number], self.children
        if parent and self.contents[parent] == self.parent_contents[number] and children[parent]:
            children[parent] -= 1
        self.terms.pop(number, None)
        self.contents[number] += 1
        self.parents[number] = children[number] = 0

    def release(self, blocks: Sequence, head: int, classes: tuple[int, int]) -> None:
        """A request gives its blocks back: the first `head`, which it found, in one class, and those behind in another."""
        terms = self.terms
        if classes == (NORMAL, NORMAL) and not terms:
            return
        children, parents, contents = self.children, self.parents, self.contents
        of_head, of_tail = (term_of(retention, self.evicted, self.num_blocks) for retention in classes)
        floor, behind = NONE, 0
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            number = block.block_id
            if block.block_hash is None:
                continue
            # Its own continuation is no branch, if that was registered behind this copy of it.
            is_own = behind and parents[behind] == number and self.parent_contents[behind] == contents[number]
            others = children[number] - (1 if is_own else 0)
            given = of_head if place < head else of_tail
            floor = next_term(given, floor, terms.get(number, NONE), others > 0)
            behind = number
            if floor == (False, 0, 0):
                terms.pop(number, None)
            else:
                terms[number] = floor

    def of(self, number: int) -> int:
        term = self.terms.get(number)
        return NORMAL if term is None else class_of(term, self.evicted)


class RetentionQueue:
    """In the place of vLLM's `FreeKVCacheBlockQueue`, with what was in it."""

    def __init__(self, queue, terms: Terms) -> None:
        self.terms = terms
        self.num_free_blocks = queue.num_free_blocks
        self.fake_free_list_head = queue.fake_free_list_head
        self.fake_free_list_tail = queue.fake_free_list_tail
        # Those in a class above normal.
        self.kept: set[int] = set()
        # Whether they go in the order of time, whatever their class.
        self.is_flat = False
        # Of a block that has an entry, how many had entered before it when it did.
        self.entered, self.count = [0] * terms.num_blocks, 0
        # The last of each class and those before it; what is here already is normal, or has no entry.
        last = self.fake_free_list_tail.prev_free_block
        self.ends = [self.fake_free_list_head, last, last, last]
        block = self.fake_free_list_head.next_free_block
        while block is not self.fake_free_list_tail and block.block_hash is None:
            self.ends[EVICT_FIRST] = block
            block = block.next_free_block
        self._enter(self.iter_blocks_after(self.ends[EVICT_FIRST]))

    def popleft(self):
        """The next block, evicted if it has an entry."""
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, count: int) -> list:
        """The next `count` blocks, evicted if they have entries."""
        assert self.num_free_blocks >= count
        if self.is_flat:
            return [self._pop_oldest() for _ in range(count)]
        if self.ends[NORMAL] is not self.ends[KEEP_LONG]:
            return [self._pop_after_ageing() for _ in range(count)]
        return self._pop(count)

    def _pop(self, count: int) -> list:
        if not count:
            return []
        head, terms = self.fake_free_list_head, self.terms
        block, popped = head.next_free_block, []
        for _ in range(count):
            popped.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            if block.block_hash is not None:
                terms.lost(block.block_id)
                self.kept.discard(block.block_id)
            block = following
        head.next_free_block = block
        block.prev_free_block = head
        self.num_free_blocks -= count
        ends = self.ends
        for index, end in enumerate(ends):
            if end.next_free_block is None:
                ends[index] = head
        return popped

    def _pop_after_ageing(self):
        self._age()
        return self._pop(1)[0]

    def _pop_oldest(self):
        """Of the first of each class the one that is free longest, unless there is a block without an entry."""
        self._age()
        block = self.fake_free_list_head.next_free_block
        if block.block_hash is not None:
            ends = pairwise([self.fake_free_list_head, *self.ends])
            firsts = [before.next_free_block for before, end in ends if before is not end]
            block = min(firsts, key=lambda first: self.entered[first.block_id])
        self.remove(block)
        if block.block_hash is not None:
            self.terms.lost(block.block_id)
        return block

    def _age(self) -> None:
        """The first of a class whose term is over becomes the last of the class below."""
        ends, of = self.ends, self.terms.of
        for above in (KEEP_LONG, KEEP):
            while ends[above] is not ends[above - 1]:
                first = ends[above - 1].next_free_block
                now = of(first.block_id)
                if now >= above:
                    break
                if now == NORMAL:
                    self.kept.discard(first.block_id)
                if now == above - 1:
                    ends[now] = first
                else:
                    self.remove(first)
                    self._insert([first], now)
                    ends = self.ends
                self._enter([first])

    def remove(self, block) -> None:
        """A block leaves from wherever it is: it is held again."""
        before, behind = block.prev_free_block, block.next_free_block
        if before is None or behind is None:
            raise RuntimeError(f"remove() called on an invalid block: {block}")
        before.next_free_block, behind.prev_free_block = behind, before
        block.prev_free_block = block.next_free_block = None
        ends = self.ends
        for index, end in enumerate(ends):
            if end is block:
                ends[index] = before
        self.kept.discard(block.block_id)
        self.num_free_blocks -= 1

    def append(self, block) -> None:
        """A block enters at the end of its class."""
        self.append_n([block])

    def append_n(self, blocks: list) -> None:
        """Blocks enter, each at the end of its class."""
        if not blocks:
            return
        self._enter(blocks)
        if not self.terms.terms:
            self._insert(blocks, NORMAL)
            return
        of, split = self.terms.of, ([], [], [], [])
        for block in blocks:
            split[of(block.block_id)].append(block)
        for retention, members in enumerate(split):
            if members:
                self._insert(members, retention)

    def prepend_n(self, blocks: list) -> None:
        """Blocks without an entry enter, before all others."""
        if not blocks:
            return
        head = self.fake_free_list_head
        self._link(blocks, head)
        self.ends = [blocks[-1] if end is head else end for end in self.ends]

    def _enter(self, blocks) -> None:
        """From now on they are the last that entered."""
        entered, count = self.entered, self.count
        for block in blocks:
            entered[block.block_id] = count
            count += 1
        self.count = count

    def _insert(self, blocks: list, retention: int) -> None:
        old = self.ends[retention]
        self._link(blocks, old)
        if retention > NORMAL:
            self.kept.update(block.block_id for block in blocks)
        self.ends = [blocks[-1] if end is old and index >= retention else end for index, end in enumerate(self.ends)]

    def _link(self, blocks: list, before) -> None:
        behind = before.next_free_block
        for block in blocks:
            before.next_free_block, block.prev_free_block = block, before
            before = block
        before.next_free_block, behind.prev_free_block = behind, before
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list:
        """All free blocks, next to be taken first."""
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor) -> Iterator:
        """Free blocks in order, those after `cursor`."""
        block = (self.fake_free_list_head if cursor is None else cursor).next_free_block
        while block is not None and block is not self.fake_free_list_tail:
            yield block
            block = block.next_free_block


def can_replace(queue) -> bool:
    """Whether `queue` offers nothing that a `RetentionQueue` lacks: another vLLM may."""
    theirs = {name for name, _ in inspect.getmembers(type(queue), callable) if not name.startswith("_")}
    return theirs <= set(dir(RetentionQueue)) and hasattr(queue, "fake_free_list_head")


class Retention:
    """Classes at work on one block pool of vLLM's; `withdraw` leaves it as it was, in the order it has by then."""

    def __init__(self, pool) -> None:
        self.pool = pool
        self.terms = Terms(pool.num_gpu_blocks)
        self.plain = pool.free_block_queue
        pool.free_block_queue = RetentionQueue(self.plain, self.terms)
        cache_full_blocks = pool.cache_full_blocks

        def caching(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs):
            if num_cached_blocks < num_full_blocks:
                self.terms.registered(blocks, num_cached_blocks, num_full_blocks)
            return cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)

        pool.cache_full_blocks = caching

    def withdraw(self) -> None:
        """Gives vLLM its own queue back. Both are one list."""
        # What has a class keeps its place until it is taken.
        self.plain.num_free_blocks = self.pool.free_block_queue.num_free_blocks
        self.pool.free_block_queue = self.plain
        del self.pool.cache_full_blocks
