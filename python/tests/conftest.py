"""What the tests share."""

import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "runtime" / "tests" / "golden"
sys.path.insert(0, str(Path(__file__).parent))
# A shell that starts this in the background has it ignore Ctrl-C, and the tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def golden():
    return GOLDEN


@pytest.fixture
def environ(monkeypatch, tmp_path):
    """A table path in the environment, and nothing else of kvtide's."""
    import os

    for name in list(os.environ):
        if name.startswith("KVTIDE_"):
            monkeypatch.delenv(name)
    path = tmp_path / "policy.kvt"
    monkeypatch.setenv("KVTIDE_TABLE", str(path))
    return path
