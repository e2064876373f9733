"""Worlds and the episodes that are drawn from them, in the words of the command line.

>>> from kvtide.scenario import scenario
>>> scenario("chat-24g")                                     # one of SCENARIOS, as the checkpoint of that name was trained
>>> scenario("experiments/reasoning.toml")                   # an experiment file
>>> scenario(workload="chat:rate=2,duration=600", env="llama-3-8b@h100", slo="chat", load=(0.8, 1.2))
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from os import PathLike
from typing import Any

from kvtide._sim import SCENARIOS, Scenario, ScenarioError

__all__ = ["SCENARIOS", "Scenario", "ScenarioError", "scenario"]

# Options of the command line that describe a world; see `kvtide simulate --help`.
_WORLD = (
    "trace",
    "workload",
    "env",
    "engine",
    "host",
    "prefix_cache",
    "clients",
    "slo",
    "set",
    "scale",
    "jitter",
    "cv",
    "session_rate",
    "memory",
    "interval",
)
# What may be one number, of every episode, or two between which it is drawn.
_RANGES = ("pool", "lengths")
# Settings of episodes and of learning, as in an experiment file.
_EPISODES = ("length_s", "fit", "slos", "clock_spread")
_LEARNING = ("profile", "watermarks", "without_heads", "reward", "validation")
WORDS = ("name", *_WORLD, *_RANGES, "load", *_EPISODES, *_LEARNING)

_LENGTH_S = 300.0


def scenario(
    spec: str | PathLike | Scenario | None = None, /, *, traces: str | PathLike | None = None, **words: Any
) -> Scenario:
    """A scenario: itself, one that ships, an experiment file, or what `words` say.

    Words are the options of `kvtide simulate` (``trace`` or ``workload``, ``env``, ``engine``, ``host``, ``slo``, ``set``, ``clients``,
    …) and the settings of an experiment's episodes: ``load``, ``length_s`` (300), ``fit``, ``profile`` ("full"). A pair for ``load``,
    ``pool`` or ``lengths`` is drawn from anew for each episode. ``traces`` is the folder of recorded traffic for scenarios that ship,
    which is otherwise that of the variable KVTIDE_TRACES; without either they serve generated traffic alone.

    Raises ScenarioError (a ValueError), or OSError for an experiment file that cannot be read.
    """
    if spec is None:
        if traces is not None:
            raise ScenarioError("traces: for a scenario that ships; of your own, name the file as trace")
        return _of_words(words)
    if words:
        raise ScenarioError(f"{', '.join(words)}: a scenario is either named or described, not both")
    if isinstance(spec, Scenario):
        return spec
    if isinstance(spec, str) and spec in SCENARIOS:
        return Scenario.shipped(spec, traces if traces is not None else os.environ.get("KVTIDE_TRACES") or None)
    path = os.fspath(spec)
    if not os.path.exists(path) and os.sep not in path and not path.endswith(".toml"):
        # Neither a name nor a file: what there is says more than that there is no such file.
        return Scenario.shipped(path)
    return Scenario.load(path)


def _of_words(words: dict[str, Any]) -> Scenario:
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise ScenarioError(f"{unknown[0]}: no such word; there are {', '.join(WORDS)}")
    words = {word: value for word, value in words.items() if value is not None}
    world = {word: words[word] for word in _WORLD if word in words}
    episodes = {"fit": 1.0, "length_s": _LENGTH_S} | {word: words[word] for word in _EPISODES if word in words}
    load = words.get("load", 1.0)
    episodes["load"] = _pair("load", load) if _is_pair(load) else [load, load]
    for word in _RANGES:
        value = words.get(word)
        if _is_pair(value):
            episodes[word] = _pair(word, value)
        elif value is not None:
            # `lengths` is text on the command line: one factor, or one for prompts and one for answers.
            world[word] = str(value) if word == "lengths" else value
    if isinstance(world.get("set"), Mapping):
        world["set"] = [f"{key}={value}" for key, value in world["set"].items()]
    # How many environments there are is said elsewhere.
    experiment = {"name": words.get("name", "words"), "profile": "full", "num_envs": 1}
    experiment |= {word: words[word] for word in _LEARNING if word in words}
    # As an experiment file: there is one reader, and one set of messages.
    lines = [f"{key} = {_toml(key, value)}" for key, value in experiment.items() if not isinstance(value, Mapping)]
    tables = {key: value for key, value in experiment.items() if isinstance(value, Mapping)}
    for table, settings in {"world": world, "episodes": episodes, **tables}.items():
        lines += [f"[{table}]", *(f"{key} = {_toml(key, value)}" for key, value in settings.items())]
    try:
        return Scenario("\n".join(lines))
    except ScenarioError as error:
        # Nobody wrote these lines.
        raise ScenarioError(re.sub(r"^line \d+: ", "", str(error))) from None


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _pair(word: str, value: Sequence) -> list:
    if len(value) != 2:
        raise ScenarioError(f"{word} = {value!r}: expected one number, or the lowest and the highest")
    return list(value)


def _toml(word: str, value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Integral():
            return str(int(value))
        case Real():
            return repr(float(value))
        case str() | PathLike():
            # What JSON escapes, TOML does in the same way.
            return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case Sequence():
            return "[" + ", ".join(_toml(word, of) for of in value) + "]"
    raise ScenarioError(f"{word} = {value!r}: expected text, a number, or a sequence of them")
