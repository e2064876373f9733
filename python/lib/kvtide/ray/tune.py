"""Ray Tune over `kvtide.evaluate`: any searcher of Tune's looks for a policy, or for settings of a node.

>>> from ray import tune
>>> from kvtide.ray import tune as kvtide_tune
>>> trial = kvtide_tune.trial(lambda config: f"fixed:{config['watermark']},budget={config['budget']}",
...                           seeds=range(8), workload="chat:rate=5,duration=600", loads=[1.0, 1.3])
>>> space = {"watermark": tune.choice([0, 0.02, 0.05, 0.1]), "budget": tune.choice([512, 1024, 2048])}
>>> tuner = tune.Tuner(trial, param_space=space, tune_config=tune.TuneConfig(metric="attainment", mode="max", num_samples=32))
>>> tuner.fit().get_best_result().config

Needs ``ray[tune]``. A trial that is lost is Tune's to begin again (`tune.FailureConfig`), its result the same.
"""

__all__ = ["trial"]

_open = {}


def trial(policy, *, seeds, scenario=None, **words):
    """A trainable for Tune: plays ``policy(config)`` and reports `attainment`, `longest_wait_ms` and `output_tok_s`.

    `policy` gives a policy in the words of the command line, a point of the scenario's space, or words that replace some of `words`:
    a node's settings are tuned so, under ``"default"``. `scenario` and `words` are those of `kvtide.evaluate.Scenario`.
    """
    seeds = [int(seed) for seed in seeds]

    def kvtide_trial(config):
        asked = policy(config)
        world, candidates = (words | asked, ["default"]) if isinstance(asked, dict) else (words, asked)
        if isinstance(candidates, str):
            candidates = [candidates]
        played = _scenario(scenario, world).play(candidates, seeds, threads=1)
        # What Tune reports is what the trainable returns.
        return {
            "attainment": float(played.attainment[0].mean()),
            "longest_wait_ms": float(played.longest_wait_ms[0].max()),
            "output_tok_s": float(played.output_tok_s[0].mean()),
        }

    return kvtide_trial


def _scenario(name, words):
    """A worker sets each scenario up once."""
    from kvtide import evaluate

    key = repr((name, sorted(words.items())))
    if key not in _open:
        _open.clear()
        _open[key] = evaluate.Scenario(name, **words) if name is not None else evaluate.Scenario(**words)
    return _open[key]
