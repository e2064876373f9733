"""What is in the wheel besides code: who made it, under which licence, where to read on. `make python-test` builds it."""

import os
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def wheel():
    folder = os.environ.get("KVTIDE_WHEELS")
    if folder is None:
        pytest.skip("KVTIDE_WHEELS is not set: a folder with the wheel")
    (path,) = Path(ROOT, folder).glob("kvtide-*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def member(wheel, ending):
    (name,) = [name for name in wheel.namelist() if name.endswith(ending)]
    return wheel.read(name).decode()


def test_its_metadata_is_complete(wheel):
    metadata = Parser().parsestr(member(wheel, ".dist-info/METADATA"))
    assert metadata["Name"] == "kvtide"
    assert metadata["License-Expression"] == "MIT OR Apache-2.0"
    assert sorted(metadata.get_all("License-File")) == ["LICENSE-APACHE", "LICENSE-MIT"]
    assert {url.split(",")[0] for url in metadata.get_all("Project-URL")} >= {"Homepage", "Changelog", "Issues"}
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert metadata.get_payload().startswith("# kvtide for Python")
    # A node needs nothing; whoever trains, what they train with.
    assert all("extra == " in needed for needed in metadata.get_all("Requires-Dist"))


@pytest.mark.parametrize("name", ["LICENSE-MIT", "LICENSE-APACHE"])
def test_the_licences_are_in_it(wheel, name):
    assert member(wheel, f".dist-info/licenses/{name}") == (ROOT / name).read_text()


def test_both_engines_find_the_plugin_and_types_are_there(wheel):
    entry_points = member(wheel, ".dist-info/entry_points.txt")
    assert "[vllm.general_plugins]\nkvtide=kvtide.vllm:register" in entry_points
    assert "[sglang.srt.plugins]\nkvtide=kvtide.sglang:register" in entry_points
    assert "kvtide/py.typed" in wheel.namelist()
    assert not [name for name in wheel.namelist() if "test" in name]
