"""What a worker does, without Ray: settings by content, and who is not of the same build."""

import json

import pytest

sim = pytest.importorskip("kvtide._sim")

from kvtide.ray import serve, work  # noqa: E402


def setting(tmp_path, text=b"1"):
    """A setting of one file, and where the file lies on the machine that asks."""
    path = tmp_path / "here" / "trace.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    file = {"name": "here/trace.csv", "blake3": sim.file_digest(path), "bytes": len(text)}
    return json.dumps({"build": sim.BUILD, "files": [file], "work": {}}), path


def test_a_file_that_is_there_is_not_fetched(tmp_path):
    text, path = setting(tmp_path)
    work.place(tmp_path / "beneath", text, [path], lambda index: pytest.fail("fetched"))
    assert (tmp_path / "beneath/here/trace.csv").resolve() == path.resolve()


def test_a_file_that_is_not_there_comes_once_and_is_kept_by_content(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTIDE_RAY_CACHE", str(tmp_path / "cache"))
    text, path = setting(tmp_path)
    path.write_bytes(b"another")
    fetched = []
    for beneath in ("a", "b"):
        work.place(tmp_path / beneath, text, [path], lambda index: fetched.append(index) or b"1")
        assert (tmp_path / beneath / "here/trace.csv").read_bytes() == b"1"
    assert fetched == [0]
    # What went bad is fetched again.
    next((tmp_path / "cache/files").iterdir()).write_bytes(b"bad")
    work.place(tmp_path / "c", text, [path], lambda index: fetched.append(index) or b"1")
    assert fetched == [0, 0]


def test_what_is_not_what_is_meant_is_no_result(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTIDE_RAY_CACHE", str(tmp_path / "cache"))
    text, path = setting(tmp_path)
    path.unlink()
    work.place(tmp_path / "beneath", text, [path], lambda index: b"2")
    with pytest.raises(sim.WorkError, match="another file"):
        sim.Workshop(text, tmp_path / "beneath")


def test_a_tool_of_another_build_is_refused_by_name(monkeypatch):
    with pytest.raises(RuntimeError, match=f"the wheel is of build {sim.BUILD}, the tool of 0123abcd"):
        serve._foreman("auto", "0123abcd")


def test_a_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("KVTIDE_RAY_CACHE", str(tmp_path / "link"))
    with pytest.raises(OSError, match="KVTIDE_RAY_CACHE"):
        work.folder()
