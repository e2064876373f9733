"""Worlds in words, by name and from files."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from kvtide._sim import StepCost
from kvtide.scenario import SCENARIOS, Scenario, ScenarioError, scenario

ROOT = Path(__file__).resolve().parents[2]
WORDS = {"workload": "chat:rate=2,duration=60", "length_s": 20, "set": {"num_gpu_blocks": 1200}}


def test_a_node_loads_neither_numpy_nor_gymnasium():
    code = "import sys, kvtide; assert not {'numpy', 'gymnasium', 'kvtide.gym'} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_ships_needs_no_trace(name, monkeypatch):
    monkeypatch.delenv("KVTIDE_TRACES", raising=False)
    found = scenario(name)
    assert found.name == name
    assert "trace =" not in found.toml
    assert found.num_worlds >= 1
    assert scenario(found) is found


def test_recorded_traffic_is_looked_for_where_it_is_said_to_be(monkeypatch, tmp_path):
    with pytest.raises(ScenarioError, match="azure2023_conv.*: cannot open"):
        scenario("chat-24g", traces=tmp_path)
    monkeypatch.setenv("KVTIDE_TRACES", str(tmp_path))
    with pytest.raises(ScenarioError, match="azure2023_conv.*: cannot open"):
        scenario("chat-24g")


def test_an_experiment_is_read_from_its_file(tmp_path):
    found = scenario(ROOT / "experiments" / "reasoning-core.toml")
    assert (found.name, found.profile, found.host, found.interval) == ("reasoning-core", "core", "vllm-0.33", 8)
    with pytest.raises(FileNotFoundError):
        scenario(tmp_path / "none.toml")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('name = "wrong"\nprofile = "fill"\n[world]\n[episodes]\nfit = 1.0\nlength_s = 9.0\nload = [1.0, 1.0]\n')
    with pytest.raises(ScenarioError, match=r"wrong.toml: profile = fill: expected watermark, core, full or cache"):
        scenario(wrong)


def test_words_are_those_of_the_command_line():
    found = scenario(**WORDS, env="llama-3-8b@h100", slo="chat", clients=8, load=(0.8, 1.2), pool=(0.7, 1.3), lengths="0.5:2")
    for said in ('env = "llama-3-8b@h100"', 'slo = "chat"', "clients = 8", "load = [0.8, 1.2]", "pool = [0.7, 1.3]", 'lengths = "0.5:2"'):
        assert said in found.toml
    # A number is of every episode, and of the world.
    assert "pool = 0.8" in scenario(**WORDS, pool=0.8).toml
    assert repr(found).startswith("<Scenario words: chat:")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "no traffic: give a trace or a workload"),
        ({"workloads": "chat:rate=2"}, "workloads: no such word; there are name, trace, workload"),
        ({"workload": "chatter:rate=2"}, "workload: .*known are chat, code"),
        ({"workload": "chat:rate=2,duration=60", "env": "gpt@h100"}, "gpt"),
        ({"workload": "chat:rate=2,duration=60", "interval": "often"}, "interval: invalid type"),
        ({"workload": "chat:rate=2,duration=60", "interval": 0}, "interval"),
        ({"workload": "chat:rate=2,duration=60", "set": ["blocks=2"]}, "blocks"),
        ({"workload": "chat:rate=2,duration=60", "load": (1.0, 0.5)}, r"episodes.load = \[1, 0.5\]"),
        ({"workload": "chat:rate=2,duration=60", "load": (1, 2, 3)}, "load = .*expected one number"),
        ({"workload": "chat:rate=2,duration=60", "load": float("nan")}, "episodes.load"),
        ({"workload": "chat:rate=2,duration=60", "length_s": 1e9}, "episodes.length_s"),
        ({"workload": "chat:rate=2,duration=60", "slo": object()}, "slo = .*expected text"),
        ({"workload": "chat:rate=2,duration=60", "memory": "cuda"}, "memory"),
        ({"workload": "chat:rate=2,duration=60", "traces": "/"}, "traces: for a scenario that ships"),
    ],
)
def test_what_cannot_be_is_refused_by_name(words, message):
    with pytest.raises(ScenarioError, match=message):
        scenario(**words)


def test_a_scenario_is_named_or_described():
    with pytest.raises(ScenarioError, match="load: a scenario is either named or described"):
        scenario("chat-24g", load=1.0)
    with pytest.raises(ScenarioError, match="no scenario \"chat\"; there are agentic, chat-24g"):
        scenario("chat")


def test_it_pickles(monkeypatch, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("time,prompt_tokens,output_tokens\n" + "".join(f"{second},100,20\n" for second in range(60)))
    monkeypatch.chdir(tmp_path)
    found = scenario(trace="trace.csv", length_s=20)
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert hash(again) == hash(found)
    assert isinstance(again, Scenario)
    assert again != scenario(**WORDS)


def test_steps_are_priced_as_the_simulator_does():
    cost = StepCost("llama-3-8b@h100")
    assert cost.step_us(64, 64 * 1024, []) < cost.step_us(64, 64 * 1024, [(0, 2048)])
