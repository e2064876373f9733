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


def test_what_a_prompt_has_beyond_its_blocks_is_the_answers():
    weights = [[1.0], [0.5, 0.5], [1.0, 0, 0], [0, 0, 1.0, 0]]
    assert record.conversation(iter(weights), 3, 2) == {"prompt_blocks": 1, "rows": [[1.0], [0.5, 0.5]]}


def test_a_layer_with_a_window_has_weights_of_the_latest_tokens():
    # Where there is none, the folder of that name in the repository is found by it, which has no `nn`.
    pytest.importorskip("torch.nn")
    import torch

    # Two queries, the second of token 3: one layer sees all four tokens, one the last two and the query before it, one has no attention.
    all_of_it = torch.tensor([[[[0.5, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4]]]])
    window = torch.tensor([[[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]]])
    rows = [record.mean_row((all_of_it, None, window), query, 3 + query) for query in (0, 1)]
    assert rows[0] == pytest.approx([0.25, 0.375, 0.375])
    assert rows[1] == pytest.approx([0.05, 0.1, 0.4, 0.45])
    with pytest.raises(record.Unrecordable, match="nothing of its attention"):
        record.mean_row((None,), 0, 1)


def test_a_tiny_model_is_recorded():
    # Where there is none, the folder of that name in the repository is found by it, which has no `nn`.
    pytest.importorskip("torch.nn")
    import torch

    pytest.importorskip("transformers")
    model, prompts = record.tiny()
    sampler = record.Sampler(0.0, 1)
    line = record.recorded(model, prompts[0][0], None, 16, 32, sampler)
    assert line["prompt_blocks"] == 4
    assert [len(row) for row in line["rows"]] == [4, 5, 6]
    assert all(abs(sum(row) - 1) < 1e-4 for row in line["rows"])
    # What the model said, given to it: a block of queries at a time is the same as one query at a time.
    with torch.no_grad():
        whole = model.generate(prompts[0][0], max_new_tokens=32, do_sample=False)
    again = record.recorded(model, prompts[0][0], whole[:, 64:], 16, 32, sampler)
    for ours, theirs in zip(line["rows"], again["rows"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    drawn = [record.recorded(model, prompts[1][0], None, 16, 32, record.Sampler(1.0, seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    # The model has 1024 tokens.
    assert record.recorded(model, prompts[0][0].repeat(1, 16), None, 16, 32, sampler) == "too long for the model's 1024 tokens"
    cut = record.recorded(model, prompts[0][0].repeat(1, 15), None, 16, 512, sampler)
    assert (cut["prompt_blocks"], len(cut["rows"])) == (60, 5)
    assert record.recorded(model, prompts[0][0][:, :15], None, 16, 32, sampler) == "shorter than a block"


def test_an_answer_ends_where_the_model_ends_it():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model, prompts = record.tiny()
    sampler = record.Sampler(0.0, 1)
    likeliest = [model(prompts[0][0]).logits[0, -1].argmax().item()]
    model.generation_config.eos_token_id = likeliest
    assert record.recorded(model, prompts[0][0], None, 16, 32, sampler) == "without a full block of an answer"


def test_prompts_are_lines_or_objects(tmp_path):
    def read(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return record.texts(tmp_path / name)

    assert read("a.txt", "one\n\n two \n") == [{"prompt": "one"}, {"prompt": "two"}]
    assert read("a.jsonl", '{"prompt": "a\\nb", "answer": "c"}\n{"prompt": "d"}\n') == [
        {"prompt": "a\nb", "answer": "c"},
        {"prompt": "d"},
    ]
    for line, part in [("{", ":2: Expecting"), ("[]", 'no field "prompt"'), ('{"prompt": "a", "answer": 1}', '"answer" is not a text')]:
        with pytest.raises(record.Unrecordable, match=part):
            read("b.jsonl", '{"prompt": "a"}\n' + line + "\n")


def test_nothing_is_left_of_a_file_that_cannot_be_made(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    (tmp_path / "old.jsonl").write_text("kept")
    monkeypatch.setattr("sys.argv", ["record", "--tiny", "--block-tokens", "4096", "--answer-tokens", "4096", str(tmp_path / "old.jsonl")])
    assert record.main() == 2
    said = capsys.readouterr().err
    assert "left out 4 of 4 prompts: shorter than a block" in said and "0 conversations of 4 prompts; it takes two" in said
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"] and (tmp_path / "old.jsonl").read_text() == "kept"
    monkeypatch.setattr("sys.argv", ["record", "--tiny", str(tmp_path / "nowhere" / "a.jsonl")])
    assert record.main() == 2
    assert "nowhere" in capsys.readouterr().err
