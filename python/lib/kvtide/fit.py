"""Whether a table was made for what is served: what the file says of itself, beside what the engine knows of itself.

A table names the engine, the deployments (`llama-3-8b@rtx-4090`) and the host it was trained for. An engine knows names of
its model. Names are text: they are compared by family and size alone, and what either side does not say is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# In what a table may be for something else and still be used.
KNOWN = ("model", "host", "slo")

# 8b, 0.5b, 8x7b; not the 3b of a3b, which are active ones.
SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:x\d+)?(?:\.\d+)?b)(?![a-z0-9])")
FAMILY = re.compile(r"[a-z]+")


class WrongEngine(Exception):
    """A table for another engine than this."""


def check_engine(metadata: Mapping[str, str], host: str) -> None:
    """Raises `WrongEngine` where `metadata` is of a table for another engine than `host`."""
    engine, made_for = metadata.get("engine", "v1"), metadata.get("host", "")
    if engine != "v1":
        raise WrongEngine(f"made for the engine {engine}, vLLM's V0 scheduler or like it; here is {host}, and its engine is v1")
    # `kvtide` is the simulator's own, whose tables must fit by what they decide and see.
    if made_for not in ("", "kvtide") and _product(made_for) != _product(host):
        raise WrongEngine(f"made for {made_for}, here is {host}: export one with --host {host}")


def differences(metadata: Mapping[str, str], host: str, models: Iterable[str]) -> dict[str, str]:
    """In what the table is evidently for something else, and a sentence about each."""
    found = {}
    made_for = metadata.get("host", "")
    if made_for not in ("", "kvtide", host) and _product(made_for) == _product(host):
        found["host"] = f"it was made for {made_for}, here is {host}"
    trained = [env.partition("@")[0].strip() for env in metadata.get("env", "").split(";") if env.strip()]
    served = [_plain(model) for model in models if model]
    if trained and served and not any(_may_be(_plain(model), served) for model in trained):
        found["model"] = f"it was made for {', '.join(dict.fromkeys(trained))}, here is {', '.join(dict.fromkeys(served))}"
    return found


def _product(host: str) -> str:
    return host.partition("-")[0]


def _plain(model: str) -> str:
    """The last part of a path or of a repository's name, in small letters."""
    return model.rstrip("/").rpartition("/")[2].lower().replace("_", "-")


def _may_be(trained: str, served: list[str]) -> bool:
    """Whether a model of these names may be `trained`, as far as the names say."""
    family, size = FAMILY.match(trained), SIZE.search(trained)
    if family is not None and not any(family[0] in name for name in served):
        return False
    sizes = {found[1] for name in served if (found := SIZE.search(name))}
    return size is None or not sizes or size[1] in sizes
