"""What a worker does: opens a setting once, and does its tasks one by one.

Files that a setting names come from where they lie on the machine that asks, if this machine has the same there, and from Ray's
object store otherwise; either way what is read is what is meant, by its BLAKE3. They are kept by content for the next time.
"""

import os
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvtide._sim import WorkError, Workshop, file_digest

__all__ = ["do", "folder", "place"]

# Settings kept open; each is a world with its traffic.
_MOST_OPEN = 4
_open: dict[str, Workshop] = {}


def do(setting: str, told: Sequence[Any], task: str) -> tuple[bool, str, dict[str, float]]:
    """Does `task` in the setting called so; ``(whether it was done, the answer or the reason, what it took)``.

    `told` is a list of one reference, which is followed by who has not opened the setting yet.
    """
    begun = time.perf_counter()
    try:
        shop, is_new = _workshop(setting, told)
        opened = time.perf_counter()
        answer = shop.work(task)
    except (WorkError, OSError) as error:
        return False, str(error), _took(begun, begun, True)
    return True, answer, _took(begun, opened, is_new)


def _took(begun: float, opened: float, is_new: bool) -> dict[str, float]:
    ended = time.perf_counter()
    return {"pid": os.getpid(), "opened_s": opened - begun if is_new else 0.0, "seconds": ended - opened}


def _workshop(setting: str, told: Sequence[Any]) -> tuple[Workshop, bool]:
    """The setting, and whether it was opened for this task."""
    if setting in _open:
        return _open[setting], False
    from kvtide.ray import needs_ray

    ray = needs_ray()
    there = ray.get(told[0])
    beneath = folder() / "settings" / setting
    place(beneath, there["text"], there["paths"], lambda index: ray.get(there["files"][index]))
    while len(_open) >= _MOST_OPEN:
        del _open[next(iter(_open))]
    _open[setting] = Workshop(there["text"], beneath)
    return _open[setting], True


def folder() -> Path:
    """Where this machine keeps files it was sent: KVTIDE_RAY_CACHE, or a folder of this user's among the temporary files."""
    given = os.environ.get("KVTIDE_RAY_CACHE")
    path = Path(given) if given else Path(tempfile.gettempdir()) / f"kvtide-ray-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OSError(f"{path} is not a folder of this user's; set KVTIDE_RAY_CACHE")
    return path


def place(beneath: Path, text: str, paths: Sequence[str], fetch: Callable[[int], bytes]) -> None:
    """Puts the files that the setting `text` names where it is opened: links to `paths` where these hold the same, and otherwise to
    what ``fetch(index)`` gives, which is kept by content."""
    for index, ((name, digest, _), path) in enumerate(zip(Workshop.files(text), paths, strict=True)):
        source = Path(path)
        if not (source.is_file() and file_digest(source) == digest):
            source = folder() / "files" / digest
            if not (source.is_file() and file_digest(source) == digest):
                _written(source, fetch(index))
        _linked(beneath / name, source)


def _written(path: Path, data: bytes) -> None:
    """A file of `data`, there as a whole or not at all: other workers of this machine may be about the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.replace(beside, path)


def _linked(path: Path, source: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = f"{path}.{os.getpid()}"
    if os.path.lexists(beside):
        os.unlink(beside)
    os.symlink(source, beside)
    os.replace(beside, path)
