"""What is served, recorded: what is in the trace and what is not, and that nothing of it reaches vLLM."""

import gzip
import json
import logging
import os
import resource
import shutil
import stat
from types import SimpleNamespace

import pytest
from fake_vllm import Request, Scheduler, Status, VllmScheduler
from tables import leaf, table_bytes
from test_vllm import crowd

import kvtide
from kvtide import vllm as adapter
from kvtide.recording import Recording, of_rank
from kvtide.settings import SettingError, Settings

FIELDS = {"arrival_us", "prompt_tokens", "output_tokens", "hash_ids", "hash_block_tokens", "tenant", "cache_salt", "priority"}


@pytest.fixture
def recorded(environ, monkeypatch, tmp_path):
    """Records without a table; the path that is given."""
    monkeypatch.delenv("KVTIDE_TABLE")
    path = tmp_path / "traffic.jsonl"
    monkeypatch.setenv("KVTIDE_RECORD", str(path))
    return path


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(Recording, "clock", staticmethod(lambda: now[0]))
    monkeypatch.setattr(Recording, "wall_clock", staticmethod(lambda: now[0]))
    return now


def serve(scheduler, requests, clock, step_s=0.02):
    """Serves requests that arrive where they say, from now on."""
    start, pending = clock[0], list(requests)
    for request in pending:
        request.arrival_time += start
    while pending or scheduler.requests:
        while pending and pending[0].arrival_time <= clock[0]:
            scheduler.add_request(pending.pop(0))
        scheduler.update_from_output(scheduler.schedule())
        clock[0] += step_s
    scheduler.shutdown()


def rows_of(path):
    text = gzip.open(path, "rt").read() if path.name.endswith("gz") else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def meta_of(path):
    return json.loads((path.parent / (path.name.partition(".")[0] + ".meta.json")).read_text())


def numbered(path):
    stem, _, suffix = path.name.partition(".")
    return sorted(path.parent.glob(f"{stem}-*.{suffix}"))


def test_a_recording_is_what_was_served(recorded, clock):
    scheduler = Scheduler()
    assert scheduler.kvtide is None
    serve(scheduler, crowd(), clock)
    (path,) = numbered(recorded)
    rows = sorted(rows_of(path), key=lambda row: row["arrival_us"])
    wanted = [(round(request.arrival_time * 1e6), request.num_prompt_tokens, request.wanted) for request in crowd()]
    assert [(row["arrival_us"], row["prompt_tokens"], row["output_tokens"]) for row in rows] == wanted
    for row in rows:
        assert set(row) <= FIELDS
        assert (len(row["hash_ids"]), row["hash_block_tokens"]) == (row["prompt_tokens"] // 16, 16)
        assert all(0 <= hash_id < 1 << 53 for hash_id in row["hash_ids"])
    # All prompts of the fake begin alike: equal prefixes are equal, and nothing else is.
    longest = max((row["hash_ids"] for row in rows), key=len)
    assert all(row["hash_ids"] == longest[: len(row["hash_ids"])] for row in rows)
    assert len(set(longest)) == len(longest)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    meta = meta_of(path)
    assert (meta["rows"], meta["aborted"], meta["dropped"], meta["without_output"]) == (40, 0, 0, 0)
    assert meta["complete"] and meta["file"] == path.name
    assert meta["recording"]["began_unix_us"] == 100_000_000 and meta["recording"]["host"] == "vllm-0.33"


def test_recording_changes_nothing_with_a_table_and_without(recorded, clock, monkeypatch, tmp_path):
    def story(scheduler):
        steps = []
        for request in crowd():
            scheduler.add_request(request)
        while scheduler.requests:
            output = scheduler.schedule()
            scheduler.update_from_output(output)
            steps.append(dict(output.num_scheduled_tokens))
        return steps

    alone = Scheduler()
    assert story(alone) == story(VllmScheduler())
    assert not isinstance(alone.waiting, kvtide.WaitingQueue)
    table = tmp_path / "policy.kvt"
    table.write_bytes(table_bytes([leaf(watermark=10)]))
    for mode in ("shadow", "act"):
        monkeypatch.setenv("KVTIDE_TABLE", str(table))
        monkeypatch.setenv("KVTIDE_MODE", mode)
        scheduler = Scheduler()
        assert (story(scheduler) == story(VllmScheduler())) is (mode == "shadow")
        scheduler.shutdown()
        assert scheduler.kvtide.metrics.counts["record_rows", ""] == 40
        assert scheduler.kvtide.metrics.of("errors") == {}


def test_the_engines_own_hashes_are_hashed_again(recorded, clock):
    scheduler, requests = Scheduler(), []
    for name, tail in (("a", b"x"), ("b", b"x"), ("c", b"y")):
        request = Request(name, 64, 2)
        request.block_hashes = [bytes([block]) * 32 for block in range(3)] + [tail * 32, b"of the answer".ljust(32)]
        requests.append(request)
    serve(scheduler, requests, clock)
    (path,) = numbered(recorded)
    first, second, third = (row["hash_ids"] for row in rows_of(path))
    assert first == second and first[:3] == third[:3] and first[3] != third[3] and len(first) == 4


def test_no_two_files_have_a_hash_in_common_and_no_name_is_told(recorded, clock):
    for _ in range(2):
        request = Request("a-name-of-a-request", 64, 2)
        request.cache_salt, request.lora_request = "salt of Alice", SimpleNamespace(lora_name="adapter of Bob")
        request.priority = 3
        serve(Scheduler(), [request], clock)
    (first,), (second,) = map(rows_of, numbered(recorded))
    assert not set(first["hash_ids"]) & set(second["hash_ids"])
    assert first["tenant"] != second["tenant"] and first["cache_salt"] != second["cache_salt"] != second["tenant"]
    assert first["priority"] == -3
    said = "".join(path.read_text() for path in recorded.parent.iterdir())
    assert not any(name in said for name in ("Alice", "Bob", "a-name"))


def test_the_same_name_as_tenant_and_as_salt_is_not_the_same(recorded, clock):
    request = Request("a", 8, 2)
    request.cache_salt, request.lora_request = "one", SimpleNamespace(lora_name="one")
    serve(Scheduler(), [request], clock)
    ((row,),) = map(rows_of, numbered(recorded))
    assert row["tenant"] != row["cache_salt"] and "hash_ids" not in row


def test_aborted_requests_are_what_they_were_or_are_counted(recorded, clock):
    scheduler = Scheduler()
    for name, prompt in (("a", 100), ("b", 100), ("c", 1500)):
        scheduler.add_request(Request(name, prompt, 50, clock[0]))
    for _ in range(5):
        scheduler.update_from_output(scheduler.schedule())
    scheduler.abort("a")
    # Has no token: it waits.
    assert scheduler.requests["c"].num_output_tokens == 0
    scheduler.abort("c")
    scheduler.shutdown()
    (path,) = numbered(recorded)
    (row,) = rows_of(path)
    assert (row["prompt_tokens"], row["output_tokens"]) == (100, 5)
    meta = meta_of(path)
    assert (meta["rows"], meta["aborted"], meta["without_output"]) == (1, 1, 1)


def test_each_turn_of_a_session_is_a_row(recorded, clock):
    scheduler = Scheduler()
    session = Request("s", 40, 100, clock[0])
    scheduler.add_request(session)
    for _ in range(3):
        scheduler.update_from_output(scheduler.schedule())
    clock[0] += 5
    scheduler._update_request_as_session(session, SimpleNamespace(prompt=20, arrival_time=clock[0]))
    for _ in range(2):
        scheduler.update_from_output(scheduler.schedule())
    scheduler.abort("s")
    scheduler.shutdown()
    rows = rows_of(*numbered(recorded))
    assert [(row["arrival_us"], row["prompt_tokens"], row["output_tokens"]) for row in rows] == [
        (0, 40, 3), (5_000_000, 62, 2),
    ]  # fmt: skip


def recorder(path, file_bytes=1_000_000, files=4):
    return kvtide.Recorder(path, file_bytes, files, bytes(32), "{}")


def fill(recording, rows, blocks=40):
    for index in range(rows):
        assert recording.ended(index, blocks * 16, 1, block_tokens=16, tokens=list(range(blocks * 16)))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_files_are_whole_turned_over_and_bounded(tmp_path, suffix):
    path = tmp_path / f"traffic.{suffix}"
    for _ in range(3):
        recording = recorder(path, file_bytes=200_000, files=3)
        fill(recording, 2_000)
        recording.close()
        assert (recording.written, dict(recording.dropped)) == (2_000, {"queue": 0, "disk": 0, "no_output": 0})
        found = numbered(path)
        assert len(found) <= 3 and (suffix == "jsonl.gz" or len(found) == 3)
        for file in found:
            rows, meta = rows_of(file), meta_of(file)
            assert (len(rows), meta["file"]) == (meta["rows"], file.name)
            # Of the file, not of the recording.
            assert len({tuple(row["hash_ids"]) for row in rows}) == 1
            assert meta["complete"]
        assert len({row["hash_ids"][0] for file in found for row in rows_of(file)}) == len(found)
        if suffix == "jsonl":
            assert all(200_000 <= file.stat().st_size < 600_000 for file in found[:-1])
    # Nothing of another name is touched, and numbers go on.
    assert numbered(path)[-1].name > f"traffic-00003.{suffix}" or suffix == "jsonl.gz"
    assert len(list(tmp_path.iterdir())) == 2 * len(numbered(path))


def test_files_of_another_name_stay(tmp_path):
    others = ["traffic.jsonl", "traffic-1.jsonl", "traffic-00001.jsonl.zst", "traffic-b-00001.jsonl", "xtraffic-00001.jsonl"]
    for name in others:
        (tmp_path / name).write_text("mine\n")
    for _ in range(4):
        recorder(tmp_path / "traffic.jsonl", files=1).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*others, "traffic-00004.jsonl", "traffic-00004.meta.json"]
    )


def test_rows_are_on_disk_without_being_asked_for(tmp_path):
    recording = recorder(tmp_path / "traffic.jsonl")
    fill(recording, 3)
    pid = os.fork()
    if pid == 0:
        # What a killed process does: nothing more.
        os._exit(0)
    os.waitpid(pid, 0)
    path = tmp_path / "traffic-00001.jsonl"
    for _ in range(200):
        if len(rows_of(path)) == 3:
            break
        import time

        time.sleep(0.05)
    assert len(rows_of(path)) == 3


def test_a_full_disk_ends_the_recording_and_nothing_else(recorded, clock, caplog, monkeypatch):
    """A file may have so many bytes and no more, by the kernel's own limit."""
    import signal

    monkeypatch.setattr(signal, "SIGXFSZ", signal.SIGXFSZ)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    scheduler = Scheduler()
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        with caplog.at_level(logging.ERROR, logger="vllm.kvtide"):
            serve(scheduler, crowd(), clock)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert caplog.text.count("nothing more is recorded") == 1
    (path,) = numbered(recorded)
    # No row is cut off.
    assert len(rows_of(path)) < 40
    assert scheduler.requests == {}


def test_what_there_is_no_room_for_is_dropped_and_counted(tmp_path):
    """A row that alone is more than the queue may hold finds no room, however fast the writer is."""
    recording = recorder(tmp_path / "traffic.jsonl", files=2)
    names = ["a", "b" * (65 << 20), "c"]
    queued = [recording.ended(index, 16, 1, tenant=name) for index, name in enumerate(names)]
    recording.close()
    assert queued == [True, False, True]
    assert dict(recording.dropped) == {"queue": 1, "disk": 0, "no_output": 0} and recording.written == 2
    assert [row["arrival_us"] for row in rows_of(tmp_path / "traffic-00001.jsonl")] == [0, 2]
    assert not recording.ended(0, 1, 1)


def test_what_cannot_be_recorded_is_said_and_vllm_goes_on(recorded, monkeypatch, caplog, clock):
    monkeypatch.setenv("KVTIDE_RECORD", str(recorded.parent / "missing" / "traffic.jsonl"))
    scheduler = Scheduler()
    assert scheduler.kvtide_recording is None and "cannot record; vLLM goes on" in caplog.text
    serve(scheduler, crowd(), clock)


def test_a_failure_inside_is_counted_and_goes_no_further(recorded, clock, caplog):
    scheduler = Scheduler()
    request = Request("a", 64, 2, clock[0])
    request.block_hashes = ["no bytes"] * 4
    scheduler.add_request(request)
    recording = scheduler.kvtide_recording
    while scheduler.requests:
        scheduler.update_from_output(scheduler.schedule())
    assert recording.metrics.of("errors") == {"record": 1} and request.status is Status.FINISHED_STOPPED


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KVTIDE_RECORD", "traffic.csv", "ends in .jsonl or .jsonl.gz, found 'traffic.csv'"),
        ("KVTIDE_RECORD_MB", "0", "KVTIDE_RECORD_MB is a number of at least 1, found '0'"),
        ("KVTIDE_RECORD_MB", "nan", "found 'nan'"),
        ("KVTIDE_RECORD_FILES", "-1", "KVTIDE_RECORD_FILES is a number of at least 1, found '-1'"),
    ],
)
def test_settings_are_checked(name, value, said):
    with pytest.raises(SettingError, match=said.replace("'", "'")):
        Settings.from_env({"KVTIDE_RECORD": "traffic.jsonl", name: value})
    good = Settings.from_env({"KVTIDE_RECORD": "traffic.jsonl.gz", "KVTIDE_RECORD_MB": "5", "KVTIDE_RECORD_FILES": "2"})
    assert (good.table, good.record, good.record_mb, good.record_files) == ("", "traffic.jsonl.gz", 5, 2)


def test_every_rank_has_files_of_its_own():
    assert of_rank("/var/traffic.jsonl.gz", 3, 4) == "/var/traffic-dp3.jsonl.gz"
    assert of_rank("/var/traffic.jsonl.gz", 0, 1) == "/var/traffic.jsonl.gz"


def test_the_scheduler_is_replaced_for_recording_alone(recorded, monkeypatch):
    assert Settings.from_env() is not None
    tide, recording = adapter.attach(Scheduler())
    assert tide is None and recording.metrics.mode == "record"


def test_an_engine_of_a_dense_model_is_told_that_it_is_alone(recorded, clock):
    """vLLM sets `data_parallel_size` to 1 for each, and leaves the index: names differ nonetheless."""
    assert of_rank("traffic.jsonl", 2, 1) == "traffic-dp2.jsonl"
    assert of_rank("/var/10.0.0.1.jsonl.gz", 1, 2) == "/var/10.0.0.1-dp1.jsonl.gz"


def test_names_with_dots_are_cut_at_their_end(tmp_path):
    for name in ("10.0.0.1.jsonl", "10.0.0.2.jsonl", "10.0.0.2.jsonl.gz"):
        recorder(tmp_path / name).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "10.0.0.1-00001.jsonl", "10.0.0.1-00001.meta.json",
        # One description each: compressed or not, numbers are not given out twice.
        "10.0.0.2-00001.jsonl", "10.0.0.2-00001.meta.json", "10.0.0.2-00002.jsonl.gz", "10.0.0.2-00002.meta.json",
    ]  # fmt: skip
    with pytest.raises(SettingError, match="found '/var/.jsonl'"):
        Settings.from_env({"KVTIDE_RECORD": "/var/.jsonl"})


def until(true):
    """Waits for the writing thread, which flushes once a second."""
    import time

    for _ in range(400):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("the writer has not come so far")


def test_a_file_that_is_removed_is_followed_by_the_next(tmp_path):
    recording, path = recorder(tmp_path / "traffic.jsonl"), tmp_path / "traffic-00001.jsonl"
    fill(recording, 3)
    until(lambda: path.stat().st_size)
    path.unlink()
    fill(recording, 5)
    recording.close()
    (path,) = numbered(tmp_path / "traffic.jsonl")
    assert (path.name, len(rows_of(path)), meta_of(path)["rows"]) == ("traffic-00002.jsonl", 5, 5)
    assert len(list(tmp_path.iterdir())) == 2 and recording.failure is None


def test_a_file_that_is_emptied_has_whole_rows(tmp_path):
    """As logrotate's copytruncate does."""
    recording, path = recorder(tmp_path / "traffic.jsonl"), tmp_path / "traffic-00001.jsonl"
    fill(recording, 3)
    until(lambda: path.stat().st_size)
    os.truncate(path, 0)
    fill(recording, 5)
    recording.close()
    assert len(rows_of(path)) == 5


def test_a_removed_folder_ends_the_recording_and_counts_what_is_lost(tmp_path):
    (tmp_path / "there").mkdir()
    recording, path = recorder(tmp_path / "there" / "traffic.jsonl"), tmp_path / "there" / "traffic-00001.jsonl"
    fill(recording, 3)
    until(lambda: path.stat().st_size)
    shutil.rmtree(tmp_path / "there")
    fill(recording, 5)
    recording.close()
    assert (recording.written, dict(recording.dropped)["disk"]) == (3, 5) and recording.failure


def test_a_recording_stays_where_it_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    recording = recorder("traffic.jsonl", file_bytes=1_000)
    monkeypatch.chdir(tmp_path / "elsewhere")
    fill(recording, 3)
    recording.close()
    assert list((tmp_path / "elsewhere").iterdir()) == [] and meta_of(tmp_path / "traffic-00001.jsonl")["rows"]


def test_two_that_record_to_one_name_leave_each_other_alone(tmp_path):
    path = tmp_path / "traffic.jsonl"
    slow, fast = recorder(path, file_bytes=20_000, files=2), recorder(path, file_bytes=20_000, files=2)
    fill(slow, 1)
    fill(fast, 3_000)
    fast.close()
    fill(slow, 2)
    slow.close()
    first, *others = numbered(path)
    # Not among the last two, and somebody is writing it.
    assert first.name == "traffic-00001.jsonl" and len(rows_of(first)) == 3
    assert len(others) == 2
    # Who is gone writes nothing.
    recorder(path, files=2).close()
    assert first not in numbered(path) and len(numbered(path)) == 2


def test_what_clients_may_send_is_recorded(recorded, clock):
    requests = [Request(name, 64, 2) for name in "abc"]
    requests[0].priority, requests[1].priority = 2**40, -(2**31)
    requests[2].cache_salt = "\ud800"
    requests[2].lora_request = SimpleNamespace(lora_name="名前 ü")
    scheduler = Scheduler()
    serve(scheduler, requests, clock)
    (path,) = numbered(recorded)
    assert sorted(row.get("priority", 0) for row in rows_of(path)) == [-(2**31) + 1, 0, 2**31 - 1]
    assert any("tenant" in row and "cache_salt" in row for row in rows_of(path))


def test_a_clock_that_is_set_moves_no_arrival(recorded, clock):
    scheduler = Scheduler()
    clock[0] += 300
    # Stamped just before somebody set the clock an hour ahead, a day back, and not at all.
    for name, stamp in (("a", clock[0] - 3_600), ("b", clock[0] + 86_400), ("c", clock[0] - 0.5)):
        scheduler.add_request(Request(name, 64, 1, stamp))
    while scheduler.requests:
        scheduler.update_from_output(scheduler.schedule())
    scheduler.shutdown()
    (path,) = numbered(recorded)
    assert sorted(row["arrival_us"] for row in rows_of(path)) == [299_500_000, 300_000_000, 300_000_000]
