"""Optuna over constant choices (pip install optuna): how far one number for each head goes, which every learned policy must beat.

    python examples/python/optuna_constants.py --trials 64
"""

import argparse

import optuna

from kvtide.evaluate import Arena

options = argparse.ArgumentParser()
options.add_argument("--scenario", default="chat-24g")
options.add_argument("--trials", type=int, default=64)
options.add_argument("--batch", type=int, default=8)
options.add_argument("--episodes", type=int, default=8)
options = options.parse_args()

arena = Arena(options.scenario)
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1, constant_liar=True))


def policy(trial):
    watermark = trial.suggest_float("watermark", 0.0, 0.5)
    victim = trial.suggest_categorical("victim", ["newest", "fewest-blocks", "most-blocks", "least-progress", "most-slack"])
    admission = trial.suggest_categorical("admission", ["fcfs", "on-time-first", "shortest-on-time-first"])
    return f"fixed:{watermark:.4f},victim={victim},admission={admission}"


for _ in range(0, options.trials, options.batch):
    trials = [study.ask() for _ in range(options.batch)]  # a batch is one call, on all cores
    for trial, score in zip(trials, arena.play([policy(trial) for trial in trials], options.episodes).score()):
        study.tell(trial, score)
default = arena.play("default", options.episodes).score()[0]
print(f"default {default:.4f}, best constant {study.best_value:.4f}: {policy(study.best_trial)}")
