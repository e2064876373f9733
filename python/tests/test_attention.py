"""What record_attention.py writes of weights that are known; the models are transformers' own."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "record_attention", Path(__file__).parent.parent / "checks" / "record_attention.py"
)
record = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(record)


def test_weights_are_added_up_by_blocks_of_queries_and_keys():
    # Blocks of two tokens, a prompt of two blocks: tokens 2 and 3 are its last block, 4 and 5 the answer's first.
    weights = [[1.0, 0, 0], [0, 0, 0, 1.0], [0.5, 0, 0.5, 0, 0], [0, 0, 0, 0, 0, 1.0]]
    line = record.conversation(iter(weights), 4, 2)
    assert line == {"prompt_blocks": 2, "rows": [[0.5, 0.5], [0.25, 0.25, 0.5]]}


def test_an_answer_without_a_full_block_is_none():
    assert record.conversation(iter([[1.0], [0.5, 0.5], [1.0, 0, 0]]), 2, 2) is None


def test_a_tiny_model_is_recorded():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model, prompts = record.tiny()
    tokens = prompts[0]
    line = record.conversation(record.attended(model, tokens, 64, 16, 32), 64, 16)
    assert line["prompt_blocks"] == 4
    assert [len(row) for row in line["rows"]] == [4, 5, 6]
    assert all(abs(sum(row) - 1) < 1e-4 for row in line["rows"])
