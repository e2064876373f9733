"""The waiting queue: vLLM's interface, and the simulator's order (whose rules have tests of their own in `rules/`)."""

import random
from types import SimpleNamespace

import pytest

from kvtide import WaitingQueue

FOREVER = 1 << 62
ORDERS = ("fcfs", "on-time-first", "shortest-on-time-first")


def request_of(name, tokens, arrival_us, admit_by_us):
    return SimpleNamespace(request_id=name, entry=(tokens, arrival_us, admit_by_us, admit_by_us))


def queue_of(entries=(), order="fcfs", now_us=0):
    failures = []
    queue = WaitingQueue(lambda request: request.entry, failures.append)
    for index, entry in enumerate(entries):
        queue.add_request(request_of(str(index), *entry))
    queue.order, queue.now_us = order, now_us
    return queue, failures


def names(requests):
    return [request.request_id for request in requests]


@pytest.mark.parametrize(
    ("order", "now_us", "wanted"),
    [("fcfs", 100, "0"), ("on-time-first", 100, "1"), ("shortest-on-time-first", 100, "2"), ("on-time-first", 300, "0"),
     ("shortest-on-time-first", 10_000_001, "0")],
)  # fmt: skip
def test_late_requests_come_after_those_on_time_and_before_nobody_who_waited_too_long(order, now_us, wanted):
    queue, _ = queue_of([(30, 0, 50), (20, 0, 200), (10, 0, 200)], order, now_us)
    assert queue.peek_request().request_id == wanted


def rank(request, order, now_us):
    """Written again, and obviously: nobody here waits longer than the bound."""
    tokens, _, admit_by_us, _ = request.entry
    if order == "fcfs":
        return 0
    return (now_us > admit_by_us, tokens if order == "shortest-on-time-first" and now_us <= admit_by_us else 0)


def test_what_is_looked_at_is_what_is_taken_and_iteration_is_in_queue_order():
    stream = random.Random(1)
    queue, failures = queue_of()
    oracle, now_us, taken = [], 0, 0
    for step in range(4000):
        now_us += stream.randrange(20)
        queue.now_us, queue.order = now_us, ORDERS[step // 100 % 3]
        draw = stream.random()
        if draw < 0.4:
            request = request_of(str(step), stream.randrange(1, 50), now_us, now_us + stream.randrange(500))
            queue.add_request(request)
            oracle.append(request)
        elif draw < 0.5:
            back = [request_of(f"{step}.{index}", 5, now_us, FOREVER) for index in range(stream.randrange(3))]
            queue.prepend_requests(back)
            oracle[:0] = reversed(back)
        elif draw < 0.55 and oracle:
            gone = stream.sample(oracle, min(3, len(oracle)))
            queue.remove_requests([*gone, request_of("nobody", 1, 1, 1)])
            oracle = [request for request in oracle if request not in gone]
        elif draw < 0.6 and oracle:
            gone = stream.choice(oracle)
            queue.remove_request(gone)
            oracle.remove(gone)
        elif oracle:
            wanted = min(oracle, key=lambda request: rank(request, queue.order, now_us))
            assert queue.peek_request() is wanted
            if stream.random() < 0.7:
                assert queue.pop_request() is wanted
                oracle.remove(wanted)
                taken += 1
        assert (list(queue), len(queue), bool(queue)) == (oracle, len(oracle), bool(oracle))
    assert taken > 500
    assert failures == []


def test_whoever_is_passed_over_does_not_shorten_what_waiting_too_long_is():
    second = 1_000_000
    queue, _ = queue_of([(1000, 0, FOREVER), (10, second, FOREVER)], now_us=second)
    for _ in range(100):
        queue.prepend_requests([queue.pop_request()])
    queue.now_us = 10 * second
    assert names([queue.pop_request(), queue.pop_request()]) == ["0", "1"]
    # In queue order somebody waited for 9 s, so that 6 s are not too long.
    queue.add_request(request_of("long", 100, 10 * second, FOREVER))
    queue.add_request(request_of("short", 1, 10 * second, FOREVER))
    queue.now_us, queue.order = 16 * second, "shortest-on-time-first"
    assert queue.peek_request().request_id == "short"


def test_a_request_that_cannot_be_read_is_queued_all_the_same():
    queue, failures = queue_of([(9, 0, 50)], "on-time-first", 100)
    queue.add_request(SimpleNamespace(request_id="odd", entry=None))
    queue.prepend_request(SimpleNamespace(request_id="odder"))
    assert [type(error) for error in failures] == [TypeError, AttributeError]
    assert names(queue) == ["odder", "0", "odd"]
    assert [queue.pop_request().request_id for _ in range(3)] == ["odder", "odd", "0"]


def test_nobody_waits():
    queue, _ = queue_of(order="on-time-first")
    for take in (queue.peek_request, queue.pop_request):
        with pytest.raises(IndexError):
            take()
    with pytest.raises(ValueError, match="does not wait"):
        queue.remove_request(request_of("a", 1, 1, 1))
    with pytest.raises(ValueError, match="no order of admission"):
        queue.order = "random"


def test_a_clock_that_goes_back_stands_still():
    queue, _ = queue_of(now_us=100)
    queue.now_us = 50
    assert queue.now_us == 100


def test_who_is_looked_at_and_not_taken_was_refused():
    queue, _ = queue_of([(1, 0, 50), (2, 0, 50)])
    assert not queue.take_refusal()
    queue.peek_request()
    queue.pop_request()
    assert not queue.take_refusal()
    queue.peek_request()
    assert queue.take_refusal()
    assert not queue.take_refusal()


def test_a_token_that_comes_late_lengthens_a_waiting_request():
    queue, _ = queue_of([(5, 0, 500), (6, 0, 500)], "shortest-on-time-first", 100)
    first = queue.peek_request()
    assert first.request_id == "0"
    queue.lengthen(first, 7)
    assert queue.peek_request().request_id == "1"
    # Whoever has no more than before, or does not wait, is let be.
    queue.lengthen(first, 5)
    queue.lengthen(request_of("nobody", 1, 1, 1), 9)
    assert queue.peek_request().request_id == "1"
