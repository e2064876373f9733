"""Classes at vLLM's free queue: against a plain model of lists, and at work in the adapter."""

import random
from types import SimpleNamespace

import pytest
from fake_vllm import Block, FreeQueue, Manager, Pool, Request, Scheduler, Status
from tables import asked, kept, leaf, section, table_bytes

from kvtide.retention import (
    EVICT_FIRST,
    KEEP,
    KEEP_LONG,
    KEEP_LONG_TURNOVERS,
    KEEP_TURNOVERS,
    NORMAL,
    Retention,
    RetentionQueue,
    Terms,
    can_replace,
    class_of,
    next_term,
    term_of,
)


def names(queue):
    return [block.block_id for block in queue.get_all_free_blocks()]


def queue_of(count, terms=None):
    blocks = [Block(number) for number in range(1, count + 1)]
    return blocks, RetentionQueue(FreeQueue(blocks), terms or Terms(count + 1))


def test_a_class_falls_one_by_one_as_the_pool_turns_over():
    def classes(retention):
        term, kept, long = term_of(retention, 1000, 100), 100 * KEEP_TURNOVERS, 100 * KEEP_LONG_TURNOVERS
        return [class_of(term, 1000 + later) for later in (0, kept - 1, kept, long - 1, long, long + kept - 1, long + kept)]

    assert classes(EVICT_FIRST) == [EVICT_FIRST] * 7
    assert classes(NORMAL) == [NORMAL] * 7
    assert classes(KEEP) == [KEEP, KEEP, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL]
    assert classes(KEEP_LONG) == [KEEP_LONG] * 4 + [KEEP, KEEP, NORMAL]


def test_what_others_stand_on_keeps_what_is_in_force():
    first, normal, kept = (term_of(retention, 0, 10) for retention in (EVICT_FIRST, NORMAL, KEEP))
    nothing = (True, 0, 0)
    # Nothing branches off: the last release decides.
    assert next_term(first, nothing, kept, is_branch=False) == first
    # Another text continues it.
    assert next_term(first, nothing, kept, is_branch=True) == kept
    assert next_term(first, nothing, nothing, is_branch=True) == normal
    # Nothing has less than what continues it.
    assert next_term(first, kept, nothing, is_branch=False) == kept


def test_what_was_free_before_stays_in_its_order():
    blocks = [Block(number, None if number in (3, 1) else "hash") for number in (3, 1, 4, 2)]
    queue = RetentionQueue(FreeQueue(blocks), Terms(10))
    assert names(queue) == [3, 1, 4, 2]
    assert queue.popleft() is blocks[0]
    fresh = Block(9, "hash")
    queue.terms.terms[9] = term_of(EVICT_FIRST, 0, 10)
    queue.append(fresh)
    # Behind those without an entry, before all that have one.
    assert names(queue) == [1, 9, 4, 2]
    assert [block.block_id for block in queue.popleft_n(2)] == [1, 9]
    assert queue.terms.evicted == 1


def test_a_queue_refuses_what_vllms_refuses():
    blocks, queue = queue_of(2)
    queue.popleft_n(2)
    with pytest.raises(ValueError):
        queue.popleft()
    with pytest.raises(RuntimeError):
        queue.remove(blocks[0])
    assert queue.popleft_n(0) == [] and names(queue) == []
    queue.append_n([])
    queue.prepend_n([])
    queue.append(blocks[1])
    assert (names(queue), queue.num_free_blocks) == ([2], 1)


class Model:
    """The same by definition: a list a class, searched, and when who entered."""

    def __init__(self, blocks, num_blocks):
        self.lists, self.terms, self.evicted, self.num_blocks = [blocks, [], [], [], []], {}, 0, num_blocks
        self.times, self.is_flat = [], False

    def enter(self, number, retention):
        self.lists[retention + 1].append(number)
        self.times = [other for other in self.times if other != number] + [number]

    def age(self):
        for above in (KEEP_LONG, KEEP):
            members = self.lists[above + 1]
            while members and (now := class_of(self.terms[members[0]], self.evicted)) < above:
                self.enter(members.pop(0), now)

    def pop(self):
        if any(self.lists[3:]):
            self.age()
        place, members = next((place, members) for place, members in enumerate(self.lists) if members)
        if place == 0:
            return members.pop(0)
        self.evicted += 1
        # By time alone, it is the one of all classes that entered first.
        oldest = next(number for number in self.times if any(number in some for some in self.lists))
        members = next(some for some in self.lists if oldest in some) if self.is_flat else members
        return members.pop(members.index(oldest) if self.is_flat else 0)

    def order(self):
        return sum(self.lists, [])


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_operations_is_that_of_lists(seed):
    stream, count = random.Random(seed), 24
    blocks, queue = queue_of(count)
    model = Model([block.block_id for block in blocks], count + 1)
    held = []
    for step in range(4000):
        kind = stream.choice(["pop", "pop", "append", "append", "prepend", "remove"])
        if step % 100 == 0:
            queue.is_flat = model.is_flat = stream.random() < 0.4
        if kind == "pop" and queue.num_free_blocks:
            taken = queue.popleft_n(stream.randint(1, min(4, queue.num_free_blocks)))
            assert [block.block_id for block in taken] == [model.pop() for _ in taken]
            for block in taken:
                block.block_hash = None
                model.terms.pop(block.block_id, None)
            held += taken
        elif kind in ("append", "prepend") and held:
            back = [held.pop(stream.randrange(len(held))) for _ in range(stream.randint(1, min(4, len(held))))]
            if kind == "prepend":
                for block in back:
                    block.block_hash = None
                queue.prepend_n(back)
                model.lists[0] = [block.block_id for block in back] + model.lists[0]
                continue
            for block in back:
                block.block_hash = "hash"
                term = term_of(stream.choice((EVICT_FIRST, NORMAL, NORMAL, KEEP, KEEP_LONG)), queue.terms.evicted, count + 1)
                queue.terms.terms[block.block_id] = model.terms[block.block_id] = term
                model.enter(block.block_id, class_of(term, model.evicted))
            queue.append_n(back)
        elif kind == "remove" and any(model.lists[1:]):
            number = stream.choice(sum(model.lists[1:], []))
            queue.remove(blocks[number - 1])
            next(members for members in model.lists if number in members).remove(number)
            held.append(blocks[number - 1])
        assert (names(queue), queue.num_free_blocks) == (model.order(), len(model.order())), f"step {step}"
        assert queue.terms.evicted == model.evicted
    assert model.evicted > 500


def test_who_has_outlived_two_terms_at_once_falls_two_classes():
    blocks, queue = queue_of(4)
    queue.popleft_n(4)
    for block, retention in zip(blocks, (KEEP_LONG, KEEP_LONG, NORMAL, KEEP_LONG), strict=True):
        block.block_hash = "hash"
        queue.terms.terms[block.block_id] = term_of(retention, 0, 5)
        queue.append(block)
    # One that stands before others may hold them up.
    queue.terms.terms[1] = term_of(KEEP_LONG, 5 * KEEP_TURNOVERS, 5)
    queue.terms.evicted = 5 * (KEEP_LONG_TURNOVERS + KEEP_TURNOVERS)
    assert queue.popleft() is blocks[2]
    assert names(queue) == [2, 4, 1] and queue.kept == {1}
    assert [end.block_id for end in queue.ends[1:]] == [4, 1, 1]


def test_set_aside_classes_are_one_queue_in_the_order_of_time():
    blocks, queue = queue_of(6)
    queue.popleft_n(6)
    for block, retention in zip(blocks, (KEEP_LONG, NORMAL, EVICT_FIRST, KEEP, NORMAL), strict=False):
        block.block_hash = "hash"
        queue.terms.terms[block.block_id] = term_of(retention, 0, 7)
        queue.append(block)
    queue.prepend_n([blocks[5]])
    assert names(queue) == [6, 3, 2, 5, 4, 1]
    queue.is_flat = True
    # What has no entry goes first, as it does under LRU.
    assert [block.block_id for block in queue.popleft_n(3)] == [6, 1, 2]
    # And classes are in force again, as far as there are any left.
    queue.is_flat = False
    assert [block.block_id for block in queue.popleft_n(3)] == [3, 5, 4]
    assert (queue.terms.evicted, queue.kept, queue.num_free_blocks) == (5, set(), 0)
    assert names(queue) == [] and all(end is queue.fake_free_list_head for end in queue.ends)


def test_a_shared_head_stays_until_what_others_put_behind_it_is_gone():
    terms = Terms(10)
    blocks = {number: Block(number, "hash") for number in range(1, 10)}
    one, other = [blocks[number] for number in (1, 2, 3)], [blocks[number] for number in (1, 4)]
    terms.registered(one, 0, 3)
    terms.release(one, 0, (NORMAL, NORMAL))
    terms.registered(other, 1, 2)
    terms.release(other, 1, (EVICT_FIRST, EVICT_FIRST))
    assert [terms.of(number) for number in (1, 2, 3, 4)] == [NORMAL, NORMAL, NORMAL, EVICT_FIRST]
    for number in (4, 3, 2):
        terms.lost(number)
    terms.release([blocks[1]], 1, (EVICT_FIRST, EVICT_FIRST))
    assert terms.of(1) == EVICT_FIRST
    # A block that is used again has nothing of its earlier content.
    terms.lost(1)
    terms.registered([blocks[1]], 0, 1)
    assert (terms.of(1), terms.children[1], terms.evicted) == (NORMAL, 0, 4)


def test_classes_come_and_go_with_the_order_left_as_it_is():
    pool = Pool(9)
    plain = pool.free_block_queue
    retention = Retention(pool)
    queue = pool.free_block_queue
    taken = queue.popleft_n(4)
    pool.cache_full_blocks("a", taken, 0, 3)
    assert [block.block_hash is None for block in taken] == [False, False, False, True]
    assert retention.terms.parents[taken[1].block_id] == taken[0].block_id
    retention.terms.release(taken, 1, (KEEP, EVICT_FIRST))
    queue.prepend_n([taken[3]])
    queue.append_n(taken[2::-1])
    assert names(queue) == [4, 5, 6, 7, 8, 3, 2, 1]
    assert queue.popleft_n(7)[-1].block_id == 2
    retention.withdraw()
    assert pool.free_block_queue is plain and plain.num_free_blocks == 1
    assert "cache_full_blocks" not in vars(pool)


def test_another_queue_than_is_known_is_left_alone():
    class Newer(FreeQueue):
        def popleft(self):
            """Known."""

    class Unknown(Newer):
        def split(self):
            """Nobody here knows how."""

    assert can_replace(Newer([])) and not can_replace(Unknown([]))
    assert not can_replace(SimpleNamespace())


@pytest.fixture
def keeping(environ, monkeypatch):
    monkeypatch.setenv("KVTIDE_MODE", "act")
    environ.write_bytes(table_bytes([leaf()]))
    scheduler = Scheduler(num_blocks=41)
    asked = []

    def retain(request, blocks, head):
        asked.append((request.request_id, request.status, len(blocks), head))
        return KEEP, EVICT_FIRST

    scheduler.kvtide.set_retain(retain)
    return scheduler, asked


def test_a_request_is_asked_about_when_it_gives_its_blocks_back(keeping):
    scheduler, asked = keeping
    scheduler.add_request(Request("a", 100, 2))
    for _ in range(2):
        scheduler.update_from_output(scheduler.schedule())
    assert asked == [("a", Status.FINISHED_STOPPED, 7, 0)]
    assert scheduler.kvtide.found == {} and not scheduler.kvtide.metrics.of("errors")
    # It was preempted: admitted again, it may have found some.
    scheduler.add_request(Request("b", 100, 9))
    scheduler.schedule()
    request = scheduler.running.pop()
    scheduler._preempt_request(request)
    assert asked[1:] == [("b", Status.RUNNING, 7, 0)]
    # What it found at first counts: what it finds now is its own.
    scheduler.kvtide.found["b"] = 3
    for _ in range(9):
        scheduler.update_from_output(scheduler.schedule())
    assert asked[2:] == [("b", Status.FINISHED_STOPPED, 7, 3)] and scheduler.kvtide.found == {}


def test_a_failure_leaves_the_blocks_to_vllm(keeping):
    scheduler, _ = keeping
    scheduler.kvtide.retain = lambda *_: 1 / 0
    scheduler.add_request(Request("a", 100, 1))
    scheduler.update_from_output(scheduler.schedule())
    assert not scheduler.requests and scheduler.kvtide.metrics.of("errors") == {"gives_back": 1}
    scheduler.kvtide.set_retain(None)
    assert scheduler.kvtide.retention is None


# What a request found is kept, what it computed goes first.
BY_PART = section([asked("part", 1, 0.5), kept(KEEP), kept(EVICT_FIRST)])


@pytest.fixture
def acting(environ, monkeypatch):
    monkeypatch.setenv("KVTIDE_MODE", "act")
    monkeypatch.setenv("KVTIDE_RELOAD_S", "0")
    return environ


def finish(scheduler, name, found=0):
    """A request of 7 blocks that all have entries by the time it is done."""
    scheduler.add_request(Request(name, 100, 2))
    scheduler.update_from_output(scheduler.schedule())
    blocks = scheduler.kv_cache_manager.held[name]
    for place, block in enumerate(blocks[:-1]):
        block.block_hash = f"{name} {place}"
    if scheduler.kvtide.retention is not None:
        scheduler.kvtide.retention.terms.registered(blocks, 0, 6)
    tide = scheduler.kvtide
    if found and tide.visits:
        tide.found[name] = found
        tide.visits[name] = tide.retainer.admitted([b"12345678"] * 6, 100, found, 40, 0, 0, 0)
    scheduler.update_from_output(scheduler.schedule())
    return [tide.retention.terms.of(block.block_id) for block in blocks[:-1]] if tide.retention else []


def test_a_tree_says_what_is_kept(acting):
    acting.write_bytes(table_bytes([leaf()], retention=BY_PART))
    scheduler = Scheduler()
    assert scheduler.kvtide.pilot.table.retains
    assert finish(scheduler, "a") == [EVICT_FIRST] * 6
    assert finish(scheduler, "b", found=2) == [KEEP] * 2 + [EVICT_FIRST] * 4
    assert scheduler.kvtide.metrics.of("retained") == {"evict-first": 2, "keep": 1, "normal": 1}
    counters = scheduler.kvtide.retainer.counters
    assert (counters["decisions"], counters["table_decisions"], counters["keep"]) == (3, 3, 1)
    assert not scheduler.kvtide.metrics.of("errors") and not scheduler.kvtide.visits


def test_a_tree_behind_lru_is_set_aside_with_what_it_has_given(acting, monkeypatch):
    acting.write_bytes(table_bytes([leaf()], retention=BY_PART))
    scheduler = Scheduler()
    tide, queue = scheduler.kvtide, scheduler.kv_cache_manager.block_pool.free_block_queue
    finish(scheduler, "a")
    assert not queue.is_flat

    class Behind:
        is_behind = True

        def __init__(self, retainer):
            self.retainer = retainer

        def __getattr__(self, name):
            return getattr(self.retainer, name)

    monkeypatch.setattr(tide, "retainer", Behind(tide.retainer))
    scheduler.add_request(Request("b", 100, 2))
    scheduler.update_from_output(scheduler.schedule())
    assert queue.is_flat
    # Classes that nobody guards are never set aside.
    tide.is_guarded = False
    scheduler.add_request(Request("c", 100, 2))
    scheduler.update_from_output(scheduler.schedule())
    assert not queue.is_flat and not tide.metrics.of("errors")


def test_another_table_may_have_no_tree(acting):
    acting.write_bytes(table_bytes([leaf()], retention=BY_PART))
    scheduler = Scheduler()
    plain, pool = scheduler.kvtide.retention.plain, scheduler.kv_cache_manager.block_pool
    assert isinstance(pool.free_block_queue, RetentionQueue)
    acting.write_bytes(table_bytes([leaf(watermark=1)], metadata={"name": "without"}))
    scheduler.kvtide.now_us += 10_000_000
    scheduler.kvtide.decide()
    assert scheduler.kvtide.retention is None and pool.free_block_queue is plain


def test_a_tree_for_another_schema_keeps_nothing(acting):
    acting.write_bytes(table_bytes([leaf()], retention=section([kept(KEEP_LONG)], schema=5)))
    scheduler = Scheduler()
    assert scheduler.kvtide.pilot.table is not None and not scheduler.kvtide.pilot.table.retains
    assert scheduler.kvtide.retention is None


def test_shadow_leaves_the_free_queue_alone(environ):
    environ.write_bytes(table_bytes([leaf()], retention=BY_PART))
    scheduler = Scheduler()
    assert scheduler.kvtide.pilot.table.retains and scheduler.kvtide.retention is None


def test_where_nothing_is_cached_a_tree_is_refused(acting, monkeypatch):
    acting.write_bytes(table_bytes([leaf()], retention=BY_PART))

    class Uncached(Manager):
        def __init__(self, *args):
            super().__init__(*args)
            self.enable_caching = False

    monkeypatch.setattr("fake_vllm.Manager", Uncached)
    scheduler = Scheduler()
    assert (scheduler.kvtide.pilot.table, scheduler.kvtide.pilot.refusal) == (None, "profile")
