"""A table for another engine is refused, one for another model, host or targets is warned of, and counted."""

import pytest
from fake_vllm import Scheduler
from tables import leaf, table_bytes

from kvtide.fit import WrongEngine, check_engine, differences

HOST = "vllm-0.33"


@pytest.mark.parametrize(
    ("env", "models", "differs"),
    [
        ("llama-3-8b@rtx-4090; llama-3-8b@a10", ("meta-llama/Meta-Llama-3-8B-Instruct",), False),
        ("llama-3-8b@h100", ("/models/prod", "llama", "LlamaForCausalLM"), False),
        # How the clock of the card is known is no matter of the engine.
        ("llama-3-8b@h100-datasheet", ("meta-llama/Meta-Llama-3-8B-Instruct",), False),
        ("llama-3-8b@h100", ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B",), False),
        ("llama-3-8b@h100; qwen2.5-7b@h200", ("Qwen/Qwen2.5-7B-Instruct", "qwen2"), False),
        ("llama-3-8b@h100", ("meta-llama/Llama-3.3-70B-Instruct", "llama"), True),
        ("llama-3-8b@h100", ("Qwen/Qwen2.5-7B-Instruct", "qwen2"), True),
        ("llama-3-8b@h100", ("facebook/opt-125m", "opt"), True),
        ("qwen3-30b-a3b@h100", ("Qwen/Qwen3-30B-A3B", "qwen3_moe"), False),
        ("qwen3-30b-a3b@h100", ("Qwen/Qwen3-4B", "qwen3"), True),
        ("mixtral-8x7b@h100", ("mistralai/Mixtral-8x7B-v0.1", "mixtral"), False),
        # Who says nothing is not contradicted.
        ("llama-3-8b@h100", (), False),
        ("", ("Qwen/Qwen2.5-7B-Instruct",), False),
    ],
)
def test_models_are_compared_by_what_their_names_say(env, models, differs):
    assert ("model" in differences({"env": env} if env else {}, HOST, models)) is differs


@pytest.mark.parametrize("metadata", [{"engine": "v0"}, {"engine": "v0", "host": HOST}, {"host": "sglang-0.5"}])
def test_another_engine_is_refused_by_name(metadata):
    with pytest.raises(WrongEngine, match="v0" if "engine" in metadata else "sglang-0.5"):
        check_engine(metadata, HOST)


def test_the_same_engine_and_tables_that_say_nothing_are_taken():
    for metadata in ({}, {"engine": "v1"}, {"engine": "v1", "host": HOST}, {"host": "kvtide"}, {"host": "vllm-0.34"}):
        check_engine(metadata, HOST)
    assert set(differences({"host": "vllm-0.34"}, HOST, ())) == {"host"}
    check_engine({"engine": "v1", "host": "sglang-0.5"}, "sglang-0.5")


@pytest.fixture
def acting(environ, monkeypatch):
    monkeypatch.setenv("KVTIDE_MODE", "act")
    monkeypatch.setenv("KVTIDE_RELOAD_S", "0")
    return environ


def test_a_refused_table_leaves_the_engine_alone_and_says_why(acting, caplog):
    acting.write_bytes(table_bytes([leaf(watermark=10)], metadata={"engine": "v0"}))
    scheduler = Scheduler()
    assert "is refused (engine): made for the engine v0" in caplog.text
    assert scheduler.kvtide.metrics.of("reloads") == {"engine": 1}
    assert scheduler.kvtide.metrics.of("fallbacks") == {"host": 1}
    assert scheduler.kv_cache_manager.watermark_blocks == 0


def test_a_mismatch_is_said_once_a_table_and_shown_until_another_is_loaded(acting, caplog, monkeypatch):
    monkeypatch.setenv("KVTIDE_SLO", "ttft:1,tpot:1")
    served = type("Config", (), {"model": "Qwen/Qwen2.5-7B-Instruct", "served_model_name": ["chat"], "hf_config": None})

    class Named(Scheduler):
        def __init__(self):
            from fake_vllm import VllmScheduler

            VllmScheduler.__init__(self)
            self.vllm_config.model_config = served
            from kvtide.vllm import attach

            self.kvtide, self.kvtide_recording = attach(self)

    acting.write_bytes(table_bytes([leaf()], metadata={"env": "llama-3-8b@a10", "slo": "ttft:2000", "name": "theirs"}))
    scheduler = Named()
    metrics = scheduler.kvtide.metrics
    assert metrics.mismatches == {"model", "slo"}
    if metrics.exported:
        gauge = metrics.exported["table_mismatch"]
        shown = {what: gauge.labels("vllm", "act", what)._value.get() for what in ("model", "slo", "host")}
        assert shown == {"model": 1.0, "slo": 1.0, "host": 0.0}
    for _ in range(50):
        scheduler.schedule()
    assert caplog.text.count("made for llama-3-8b, here is qwen2.5-7b-instruct, chat") == 1
    acting.write_bytes(table_bytes([leaf(watermark=1)], metadata={"env": "qwen2.5-7b@h200", "slo": "ttft:1,tpot:1"}))
    scheduler.kvtide.pilot.poll(1 << 60)
    assert metrics.mismatches == frozenset()
