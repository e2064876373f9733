"""Order of admission, with the numbers of the simulator's own tests (`envs/src/sched/waiting.rs`, `ageing.rs`)."""

import random
from types import SimpleNamespace

from fake_vllm import Queue

from kvtide.admission import Ageing, Entry, rank
from kvtide.vllm import ordered

SECOND = 1_000_000


def queue_of(entries, order, now_us, max_wait_us=1000):
    queue = ordered(Queue)()
    failures = []
    queue.attach(lambda request: request.entry, lambda: failures.append(1))
    queue.ageing.bound = lambda: max_wait_us
    for index, (tokens, arrival_us, late_at_us) in enumerate(entries):
        queue.add_request(SimpleNamespace(request_id=str(index), entry=Entry(tokens, arrival_us, late_at_us)))
    queue.order, queue.now_us, queue.failures = order, now_us, failures
    return queue


def test_late_requests_come_after_those_on_time_and_before_nobody_who_waited_too_long():
    entries = [(30, 0, 50), (20, 0, 200), (10, 0, 200)]
    names = {
        ("fcfs", 100): "0",
        ("on-time-first", 100): "1",
        ("shortest-on-time-first", 100): "2",
        ("on-time-first", 300): "0",
        ("shortest-on-time-first", 1001): "0",
    }
    for (order, now_us), wanted in names.items():
        assert queue_of(entries, order, now_us).peek_request().request_id == wanted


def test_what_is_looked_at_is_what_is_taken():
    stream = random.Random(1)
    queue = queue_of([], "fcfs", 0, 5000)
    oracle, taken = [], 0
    for step in range(3000):
        queue.now_us += stream.randrange(20)
        queue.order = ["fcfs", "on-time-first", "shortest-on-time-first"][step // 100 % 3]
        if stream.random() < 0.5:
            entry = Entry(stream.randrange(1, 50), queue.now_us, queue.now_us + stream.randrange(500))
            request = SimpleNamespace(request_id=str(step), entry=entry)
            if stream.random() < 0.2:
                queue.prepend_request(request)
                oracle.insert(0, request)
            else:
                queue.add_request(request)
                oracle.append(request)
        elif oracle:
            shortest = queue.order == "shortest-on-time-first"
            wanted = oracle[0] if queue.order == "fcfs" else min(
                oracle, key=lambda request: rank(request.entry, shortest, queue.now_us, 5000))  # fmt: skip
            assert queue.peek_request() is wanted
            if stream.random() < 0.6:
                assert queue.pop_request() is wanted
                oracle.remove(wanted)
                taken += 1
            elif stream.random() < 0.2:
                queue.remove_requests([wanted])
                oracle.remove(wanted)
        assert list(queue) == oracle
    assert taken > 300
    assert queue.failures == []
    assert set(queue.entries) == {request.request_id for request in oracle}


def test_a_queue_that_fails_is_first_come_first_served():
    queue = queue_of([(9, 0, 50), (1, 0, 500)], "on-time-first", 100)
    del queue.entries["1"]
    assert queue.peek_request().request_id == "0"
    assert (queue.order, queue.failures) == ("fcfs", [1])
    assert queue.pop_request().request_id == "0"


def test_the_bound_is_a_multiple_of_what_queue_order_would_have_given():
    ageing = Ageing()
    ageing.arrive(0, 100)
    ageing.arrive(SECOND, 10)
    assert ageing.bound(5 * SECOND, 3.0) == 5 * SECOND
    ageing.admit(10, 4 * SECOND)
    assert ageing.bound(5 * SECOND, 3.0) == 5 * SECOND
    ageing.admit(100, 8 * SECOND)
    assert ageing.bound(5 * SECOND, 3.0) == 24 * SECOND


def test_a_long_wait_is_forgotten_after_ten_minutes():
    ageing = Ageing()
    for arrived, admitted in ((0, 30), (100, 110), (640, 641)):
        ageing.arrive(arrived * SECOND, 7)
        ageing.admit(7, admitted * SECOND)
    assert ageing.bound(0, 1.0) == 10 * SECOND


def test_a_token_that_comes_late_lengthens_a_waiting_request():
    queue = queue_of([(5, 0, 500), (6, 0, 500)], "shortest-on-time-first", 100)
    first = queue[0]
    assert queue.peek_request() is first
    first.num_tokens = 7
    queue.lengthen(first)
    assert queue.peek_request().request_id == "1"
    assert (queue.ageing.waiting, queue.entries["0"].tokens) == (13, 7)
