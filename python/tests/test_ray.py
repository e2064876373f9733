"""kvtide on a cluster of two: what comes out is byte for byte what one machine comes to, whoever is killed on the way.

Needs Ray and the tool: `make ray-test` has both. KVTIDE names the tool, which is of the wheel's build.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ray_cluster import cluster, kill_one_at_work

pytest.importorskip("ray", reason="Ray is not installed: make ray-test sets it up")
TOOL = os.environ.get("KVTIDE", "")
if not TOOL:
    pytest.skip("KVTIDE does not name the kvtide program: make ray-test does", allow_module_level=True)


WORLD = ["--workload", "chat:rate=6,duration=500", "--env", "llama-3-8b@rtx-4090"]
MATRIX = [*WORLD, "--load", "0.8,1.2", "--seeds", "1..3", "--policy", "default", "--policy", "best-fixed",
          "--policy", "fixed:0.03", "--policy", "past-future"]  # fmt: skip
SEARCH = """
name = "small"
profile = "core"
method = "cross-entropy"
fallback = 0.0
[world]
workload = "chat:rate=5,duration=400,seed=2"
[episodes]
fit = 0.7
length_s = 120.0
load = [0.8, 1.6]
[validation]
every = 2
episodes = 2
samples = 500
[cross_entropy]
generations = 3
population = 8
episodes = 4
"""


@pytest.fixture(scope="module")
def two():
    with cluster(2) as made:
        yield made


def run(folder, *words, **environment):
    """The tool, started."""
    environment = os.environ | {"KVTIDE_PYTHON": sys.executable} | environment
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([TOOL, *words], cwd=folder, env=environment, text=True, **pipes)


def done(folder, *words, **environment):
    process = run(folder, *words, **environment)
    out, said = process.communicate()
    assert process.returncode == 0, said
    return out, said


def done_with_a_worker_killed(folder, *words):
    """The same, a worker killed by its pid in the middle of a task, until a task was lost."""
    process, said, killed = run(folder, *words), [], []

    def kill():
        while process.poll() is None and not any("done again" in line for line in said):
            killed.append(kill_one_at_work())
            # It takes a moment until it is missed.
            threading.Event().wait(1.0)

    threading.Thread(target=kill, daemon=True).start()
    out = []
    reader = threading.Thread(target=lambda: out.append(process.stdout.read()))
    reader.start()
    for line in process.stderr:
        said.append(line)
    reader.join()
    assert process.wait() == 0, "".join(said)
    assert any("a worker is lost" in line for line in said), f"killed {killed}: {said}"
    return out[0], "".join(said)


def tasks(said):
    return int(re.search(r"(\d+) tasks on", said)[1])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one machine comes to: the lines of the file, and what is printed."""
    folder = tmp_path_factory.mktemp("alone")
    out, _ = done(folder, "evaluate", *MATRIX, "--out", "runs.jsonl")
    return (folder / "runs.jsonl").read_bytes(), out


def test_the_matrix_is_the_same_with_a_worker_killed(two, alone, tmp_path):
    out, said = done_with_a_worker_killed(tmp_path, "evaluate", *MATRIX, "--out", "runs.jsonl", "--ray", two.address)
    assert ((tmp_path / "runs.jsonl").read_bytes(), out) == alone, said


def test_the_matrix_is_the_same_with_a_node_lost(two, alone, tmp_path):
    process = run(tmp_path, "evaluate", *MATRIX, "--out", "runs.jsonl", "--ray", two.address)
    file = tmp_path / "runs.jsonl"
    while process.poll() is None and not (file.exists() and b'"run"' in file.read_bytes()):
        threading.Event().wait(0.05)
    lost = next(iter(two.worker_nodes))
    two.remove_node(lost, allow_graceful=False)
    out, said = process.communicate()
    two.add_node(num_cpus=1, object_store_memory=100 << 20)
    assert process.returncode == 0, said
    assert (file.read_bytes(), out) == alone, said


def test_what_was_interrupted_goes_on(two, alone, tmp_path):
    process = run(tmp_path, "evaluate", *MATRIX, "--out", "runs.jsonl", "--ray", two.address)
    file = tmp_path / "runs.jsonl"
    while process.poll() is None and not (file.exists() and file.read_bytes().count(b"\n") > 10):
        threading.Event().wait(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    begun = file.read_bytes()
    assert alone[0].startswith(begun) and begun != alone[0]
    out, said = done(tmp_path, "evaluate", *MATRIX, "--out", "runs.jsonl", "--resume", "--ray", two.address)
    assert (file.read_bytes(), out) == alone
    # What is kept is not run again.
    kept = sum(json.loads(line)["type"] in ("run", "tried") for line in begun.splitlines())
    whole = sum(json.loads(line)["type"] in ("run", "tried") for line in alone[0].splitlines())
    assert tasks(said) <= whole - kept, (said, kept, whole)


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_search_is_the_same_with_a_worker_killed(two, tmp_path):
    (tmp_path / "small.toml").write_text(SEARCH)
    train = ["train", "--experiment", "small.toml"]
    done(tmp_path, *train, "--out", "alone")
    done_with_a_worker_killed(tmp_path, *train, "--out", "spread", "--ray", two.address)
    for part in ("checkpoint", "policy"):
        assert tree(tmp_path / "alone" / part) == tree(tmp_path / "spread" / part)


def test_loads_are_looked_for_by_workers_too(two, tmp_path):
    words = ["evaluate", *WORLD, "--load", "auto", "--seeds", "1..2", "--policy", "default", "--json"]
    alone, _ = done(tmp_path, *words)
    spread, said = done(tmp_path, *words, "--ray", two.address)
    assert spread == alone and tasks(said) > 8, said


def test_traffic_is_shipped_by_what_it_holds(two, tmp_path):
    rows = "".join(f"2024-01-01 00:{row // 60:02}:{row % 60:02}.0,{200 + row % 90},{60 + row % 50}\n" for row in range(600))
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    words = ["evaluate", "--trace", "trace.csv", "--load", "1,2", "--policy", "default", "--json"]
    alone, _ = done(tmp_path, *words)
    spread, _ = done(tmp_path, *words, "--ray", two.address)
    assert spread == alone


def test_many_worlds_come_in_their_order(two, tmp_path):
    from kvtide.ray import matrix

    def worlds():
        for rate in (3, 1, 2):
            words = ["--workload", f"chat:rate={rate},duration=60", "--policy", "default"]
            yield matrix.Evaluation(words, tmp_path / f"{rate}.jsonl")

    found = list(matrix.evaluate_all(worlds(), address=two.address, at_once=2, tool=TOOL))
    assert [rows[0]["trace"].split("rate=")[1][0] for rows in found] == ["3", "1", "2"]
    # Again: from the files.
    assert list(matrix.evaluate_all(worlds(), address=two.address, at_once=2, tool=TOOL)) == found
    with pytest.raises(matrix.EvaluationError, match="no policy|unknown policy"):
        matrix.evaluate("--workload", "chat:rate=1,n=9", "--policy", "nonsense", address=two.address, out=tmp_path / "x", tool=TOOL)


def test_no_cluster_is_an_error(tmp_path):
    words = ["evaluate", *WORLD, "--policy", "default", "--ray", "127.0.0.1:1"]
    process = run(tmp_path, *words)
    out, said = process.communicate()
    assert (process.returncode, out) == (2, ""), said
    assert said.splitlines()[-1].startswith("error: --ray 127.0.0.1:1: Ray at 127.0.0.1:1: no cluster answers"), said


def test_a_wheel_without_ray_is_named(tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/__init__.py").write_text("raise ImportError('hidden')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = run(tmp_path, "evaluate", *WORLD, "--policy", "default", "--ray", "auto", PYTHONPATH=paths)
    _, said = process.communicate()
    assert process.returncode == 2 and "pip install 'kvtide[ray]'" in said, said


def test_this_tool_is_of_this_build():
    from kvtide._sim import BUILD

    said = subprocess.run([TOOL, "--version"], capture_output=True, text=True).stdout
    assert BUILD[:12] in said or "unknown" in BUILD, f"{said.strip()}, the wheel is of {BUILD}: build both at one commit"
    assert Path(TOOL).is_file()
