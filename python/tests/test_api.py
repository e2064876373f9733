"""The API: tables, observations, guard."""

import array
import json
import math
import os
from pathlib import Path

import pytest
from tables import leaf, split, table_bytes

import kvtide
from kvtide import Guard, Observation, Observer, Table, TableError

NUMBERS = dict(
    block_size=16, num_gpu_blocks=100, free_gpu_blocks=25, max_num_seqs=10, max_num_batched_tokens=1000,
    ttft_target_us=2_000_000, tpot_target_us=100_000,
)  # fmt: skip
FREE = [split("free_fraction", 1, 0.5), leaf(watermark=4), leaf(watermark=0)]


def always(level):
    """A table that looks at the free fraction and does the same whatever it is."""
    return [split("free_fraction", 1, 0.5), leaf(watermark=level), leaf(watermark=level)]


def observe(**numbers):
    return Observer().observe(**{"now_us": 0, **NUMBERS, **numbers})


def test_a_table_says_what_it_is(tmp_path):
    path = tmp_path / "policy.kvt"
    path.write_bytes(table_bytes(FREE, metadata={"name": "free", "slo": "ttft:1,tpot:2"}))
    table = Table.load(path)
    assert (table.profile, table.heads, table.leaves, table.depth) == ("watermark", ["watermark"], 2, 1)
    assert table.metadata == {"name": "free", "slo": "ttft:1,tpot:2"}
    assert table.ranges["growth_8"] == (-1e6, 1e6)
    assert (table.size, table.data) == (path.stat().st_size, path.read_bytes())


def test_it_decides_and_says_why():
    table = Table.from_bytes(table_bytes(FREE))
    tight = table.decide(observe(free_gpu_blocks=25))
    assert (tight.watermark, tight.victim, tight.preemption, tight.admission) == (0.05, "newest", "recompute", "fcfs")
    assert table.decide(observe(free_gpu_blocks=51)).watermark == 0.0
    assert table.explain(observe(free_gpu_blocks=25)) == [
        {"feature": "free_fraction", "value": 0.25, "threshold": 0.5, "greater": False}
    ]


def test_heads_outside_the_profile_are_the_engines():
    nodes = [leaf(watermark=3, victim=2, preemption=0, admission=2)]
    expected = {
        "watermark": (0.03, "newest", "recompute", "fcfs"),
        "core": (0.03, "most-blocks", "recompute", "fcfs"),
        "full": (0.03, "most-blocks", "recompute", "shortest-on-time-first"),
    }
    for profile, wanted in expected.items():
        controls = Table.from_bytes(table_bytes(nodes, profile)).decide(observe())
        assert (controls.watermark, controls.victim, controls.preemption, controls.admission) == wanted
    assert Table.from_bytes(table_bytes(nodes, "core")).decide(observe(), swap=True).preemption == "swap"


def test_the_golden_file_names_another_schema(golden):
    with pytest.raises(TableError) as error:
        Table.load(golden / "v1_small.kvt")
    assert error.value.reason == "schema"
    assert "made for schema 0123456789abcdef" in str(error.value)


def test_wrong_files_give_named_exceptions(golden, tmp_path):
    good = (golden / "v1_small.kvt").read_bytes()
    wrong = {
        "truncated": b"",
        "magic": b"PK" + good[2:],
        "text_mode": good.replace(b"\r\n", b"\n"),
        "crc": good[:100] + bytes([good[100] ^ 1]) + good[101:],
        "trailing_bytes": good + b"\0",
        "too_large": b"\0" * (256 * 1024 + 1),
        "schema": table_bytes(FREE, schema=1),
        "leaf_choice": table_bytes([leaf(watermark=20)]),
    }
    for reason, data in wrong.items():
        path = tmp_path / reason
        path.write_bytes(data)
        for read, source in ((Table.from_bytes, data), (Table.load, path)):
            with pytest.raises(TableError) as error:
                read(source)
            assert error.value.reason == reason
    assert issubclass(TableError, ValueError)
    with pytest.raises(FileNotFoundError):
        Table.load(tmp_path / "missing")


def test_every_cut_of_a_table_is_refused():
    data = table_bytes(FREE, metadata={"name": "free"})
    for end in range(len(data)):
        with pytest.raises(TableError):
            Table.from_bytes(data[:end])


def test_observations_are_those_of_the_runtime():
    """The fixture is written by `runtime/tests/python_fixture.rs` with the runtime's own types."""
    fixture = json.loads((Path(__file__).parent / "observations.json").read_text())
    assert fixture["features"] == list(kvtide.FEATURE_NAMES)
    observer = Observer()
    for shot in fixture["shots"]:
        numbers = dict(shot["numbers"], running=[tuple(row) for row in shot["running"]])
        waiting = [tuple(row) for row in shot["waiting"]]
        ways = {
            "tuples": dict(waiting=waiting),
            "lists": dict(waiting=[list(row) for row in waiting]),
            "ends": dict(waiting=waiting[:16], newest=waiting[::-1][:64], num_waiting=len(waiting)),
            "buffer": dict(waiting=flat(waiting), running=flat(numbers["running"])),
        }
        for way, arguments in ways.items():
            # Each way from the same state: an observer remembers.
            other = Observer()
            for earlier in fixture["shots"]:
                last = other.observe(**{**earlier["numbers"], "running": [tuple(r) for r in earlier["running"]],
                                        "waiting": [tuple(r) for r in earlier["waiting"]]}) \
                    if earlier is not shot else other.observe(**{**numbers, **arguments})  # fmt: skip
                if earlier is shot:
                    break
            assert list(last) == shot["values"], way
        assert list(observer.observe(**numbers, waiting=waiting)) == shot["values"]


def flat(rows):
    return array.array("q", [-1 if number is None else number for row in rows for number in row])


def test_an_observation_is_a_sequence_with_names():
    seen = observe(free_gpu_blocks=25)
    assert len(seen) == len(Observation.names) == 35
    assert seen["free_fraction"] == seen[0] == 0.25
    assert seen[-1] == seen["token_time"]
    assert seen.as_dict()["free_fraction"] == 0.25
    with pytest.raises(KeyError):
        seen["nothing"]
    with pytest.raises(IndexError):
        seen[35]
    assert Observation(list(seen)) == seen
    with pytest.raises(ValueError, match="expected 35 values, found 1"):
        Observation([0.0])


def test_wrong_rows_are_exceptions():
    for rows in ([(1, 2)], [(1, 2, 3, 4, "five")], array.array("q", [1, 2, 3]), 5):
        with pytest.raises((TypeError, ValueError)):
            observe(running=rows)
    with pytest.raises(TypeError):
        Observer().observe(now_us=0)
    with pytest.raises(OverflowError):
        observe(free_gpu_blocks=-1)
    huge = 2**63 - 1
    assert all(map(math.isfinite, observe(running=[(huge,) * 5, (-huge,) * 5], waiting=[(huge,) * 4, (-huge,) * 4])))


def test_the_guard_falls_back_and_says_why():
    table = Table.from_bytes(table_bytes(always(10), ranges={"free_fraction": (0.0, 0.5)}))
    guard = Guard(table, fallback_watermark=0.02, out_of_range_decisions=2, recovery_decisions=3)
    inside, outside = observe(free_gpu_blocks=25), observe(free_gpu_blocks=90)
    assert guard.decide(inside).watermark == 0.25
    assert guard.decide(inside, age_us=2_000_000).watermark == 0.02
    assert guard.last_fallback == "stale"
    assert guard.decide(Observation([math.nan] * 35)).watermark == 0.02
    assert guard.last_fallback == "non_finite"
    assert guard.decide(outside).watermark == 0.25
    assert guard.decide(outside).watermark == 0.02
    assert guard.outside == ["free_fraction"]
    assert [guard.decide(inside).watermark for _ in range(3)] == [0.02, 0.02, 0.25]
    counters = guard.counters
    assert counters["decisions"] == 8
    assert counters["decisions"] == counters["table_decisions"] + sum(counters[name] for name in kvtide.FALLBACK_REASONS)
    assert counters["out_of_range"] == 3


def test_an_excursion_and_the_counters_outlive_a_table():
    def made(level):
        return Table.from_bytes(table_bytes(always(level), ranges={"free_fraction": (0.0, 0.5)}))

    guard = Guard(made(10), fallback_watermark=0.02, out_of_range_decisions=1, recovery_decisions=2)
    assert guard.decide(observe(free_gpu_blocks=90)).watermark == 0.02
    guard.replace(made(5))
    assert [guard.decide(observe(free_gpu_blocks=25)).watermark for _ in range(2)] == [0.02, 0.08]
    assert (guard.counters["decisions"], guard.counters["out_of_range"]) == (3, 2)


def test_a_guard_looks_only_at_what_the_table_decides_by():
    table = Table.from_bytes(table_bytes([leaf(watermark=10)], ranges={"free_fraction": (0.0, 0.5)}))
    guard = Guard(table, out_of_range_decisions=1)
    assert table.features == []
    assert guard.decide(observe(free_gpu_blocks=90)).watermark == 0.25
    assert Table.from_bytes(table_bytes(FREE)).features == ["free_fraction"]


def test_a_table_may_know_what_to_fall_back_to():
    table = Table.from_bytes(table_bytes(FREE, metadata={"fallback": "0.05"}))
    assert table.fallback_watermark == 0.05
    watermarks = {
        (engine, asks): Guard(table, fallback_watermark=engine, asks_table=asks).fallback_watermark
        for engine in (0.0, 0.02) for asks in (False, True)
    }  # fmt: skip
    assert watermarks == {(0.0, False): 0.0, (0.0, True): 0.05, (0.02, False): 0.02, (0.02, True): 0.02}
    assert Table.from_bytes(table_bytes(FREE)).fallback_watermark is None


def test_a_table_that_a_host_can_never_follow_is_refused_by_name():
    def refusal(host, nodes, profile="watermark", ranges=None, **node):
        table = Table.from_bytes(table_bytes(nodes, profile, ranges=ranges))
        try:
            table.check_host(host, **node)
        except TableError as error:
            return error.reason, str(error)
        return None

    tier = [split("host_free_fraction", 1, 0.5), leaf(), leaf()]
    trained_with_one = {"host_free_fraction": (0.75, 1.0)}
    reason, says = refusal("vllm-0.33", tier, ranges=trained_with_one)
    assert reason == "host"
    assert "host_free_fraction, which was 0.75 to 1 in training and is always 0 here: vllm-0.33 has no host tier" in says
    assert refusal("kvtide", tier, ranges=trained_with_one) is None
    assert refusal("vllm-0.33", [leaf()], ranges=trained_with_one) is None
    assert refusal("sglang-0.5", [leaf()], "full")[0] == "profile"
    assert refusal("vllm-0.33", [leaf(preemption=0)], "core")[0] == "host"
    cache = ([split("evictable_fraction", 1, 0.5), leaf(), leaf()], "watermark", {"evictable_fraction": (0.2, 0.9)})
    assert refusal("vllm-0.33", *cache) is None
    assert "runs without its prefix cache" in refusal("vllm-0.33", *cache, prefix_cache=False)[1]
    with pytest.raises(ValueError, match="no host .toaster"):
        refusal("toaster", [leaf()])


def test_the_rate_limit_holds_what_the_table_decided():
    table = Table.from_bytes(table_bytes(FREE, ranges={"free_fraction": (0.0, 1.0)}))
    flapping = [observe(free_gpu_blocks=blocks) for blocks in (25, 90, 25, 90)]

    def decided(guard):
        return [guard.decide(observation).watermark for observation in flapping]

    assert decided(Guard(table)) == [0.05, 0.0, 0.05, 0.0]
    held = Guard(table, hold_decisions=3)
    assert decided(held) == [0.05, 0.05, 0.05, 0.0]
    assert (held.counters["held"], held.counters["table_decisions"]) == (1, 4)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "policy.kvt")
    with pytest.raises(OSError, match="not a regular file"):
        Table.load(tmp_path / "policy.kvt")


def test_a_guard_of_nothing_falls_back():
    guard = Guard(None, fallback_watermark=0.03)
    assert guard.decide(observe()).watermark == 0.03
    assert guard.last_fallback == "no_table"


def test_the_stubs_name_everything():
    stub = (Path(kvtide.__file__).parent / "_kvtide.pyi").read_text()
    for name in kvtide.__all__:
        assert name in stub
        for member in vars(getattr(kvtide, name)) if isinstance(getattr(kvtide, name), type) else ():
            if not member.startswith("_"):
                assert member in stub, f"{name}.{member}"
