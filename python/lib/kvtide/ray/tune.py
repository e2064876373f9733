"""Ray Tune over `kvtide.evaluate`: any searcher of Tune's looks for a policy, or for settings of a node.

>>> from ray import tune
>>> from kvtide.ray.tune import trial
>>> of = lambda config: f"fixed:{config['watermark']},budget={config['budget']}"
>>> space = {"watermark": tune.choice([0, 0.02, 0.05, 0.1]), "budget": tune.choice([512, 1024, 2048])}
>>> tuner = tune.Tuner(
...     trial(of, {"workload": "chat:rate=5,duration=600"}, loads=[1.0, 1.3], seeds=8),
...     param_space=space,
...     tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=32),
... )
>>> tuner.fit().get_best_result().config

Needs ``ray[tune]``. A trial that is lost is Tune's to begin again (`tune.FailureConfig`), and comes to the same.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kvtide.evaluate import Arena, Candidates, Spec

__all__ = ["trial"]

_open: dict[str, Arena] = {}


def trial(
    policy: Callable[[dict[str, Any]], Candidates | dict[str, Any]], scenario: Spec, *, seeds: int | Iterable[int], **options: Any
) -> Callable[[dict[str, Any]], dict[str, float]]:
    """A trainable for Tune: plays ``policy(config)`` and reports `score`, `attainment`, `longest_wait_ms` and `output_tok_s`.

    `policy` gives a policy in the words of the command line or a point of the arena's, or, as a mapping, words that replace some
    of the scenario's: settings of a node are tuned so, under its engine's default. `scenario` and `options` are those of
    `kvtide.evaluate.Arena`.
    """

    def kvtide_trial(config):
        asked = policy(config)
        if isinstance(asked, dict):
            arena, candidates = _arena({**scenario, **asked}, options), ["default"]
        else:
            arena, candidates = _arena(scenario, options), asked
        played = arena.play(candidates, seeds, threads=1)
        # What a trainable returns is its last report.
        return {
            "score": float(played.score()[0]),
            "attainment": float(np.mean(played.attainment[0])),
            "longest_wait_ms": float(np.nanmax(played.longest_wait_ms[0], initial=0.0)),
            "output_tok_s": float(np.mean(played.output_tok_s[0])),
        }

    return kvtide_trial


def _arena(scenario: Spec, options: dict[str, Any]) -> Arena:
    """A worker prepares the arena it was asked for last once."""
    key = repr((scenario, sorted(options.items())))
    if key not in _open:
        _open.clear()
        _open[key] = Arena(scenario, **options)
    return _open[key]
