"""Our PPO, as its user runs it: `kvtide-train` by an experiment file; on the cart-pole the program beside the tests that has one."""

import json
import os
import pathlib
import resource
import subprocess
import sys

from settings import CLIP, HIDDEN, MAX_GRAD_NORM, VALUE_COEF
from worlds import EXPERIMENT

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILT = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release"


def ppo(seed, settings):
    """The table `[ppo]`, whole."""
    return {
        "total_decisions": settings.samples,
        "num_steps": settings.num_steps,
        "num_epochs": settings.num_epochs,
        "num_minibatches": settings.batch // settings.minibatch,
        "learning_rate": settings.learning_rate,
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "clip": CLIP,
        "entropy_coef": {"start": settings.entropy_coef, "end": settings.entropy_coef},
        "value_coef": VALUE_COEF,
        "max_grad_norm": MAX_GRAD_NORM,
        "hidden": list(HIDDEN),
        "seed": seed,
    }


def learn(problem, seed, settings, folder, log):
    """Trains; the mean return of its likeliest choices, where that is asked for at once."""
    rows, cpu_s, greedy = (_cartpole if problem == "cartpole" else _kv)(seed, settings, folder)
    for samples, seconds, returns, attained in rows:
        # An iteration is an iteration: all take the same.
        log.row(samples, seconds, returns, attained, cpu_s=cpu_s * samples / settings.samples)
    return greedy


def _cartpole(seed, settings, _):
    rows, cpu_s, greedy = [], 0.0, None
    command = [BUILT / "examples" / "cartpole", str(settings.num_envs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        json.dump(ppo(seed, settings), child.stdin)
        child.stdin.close()
        for line in child.stdout:
            row = json.loads(line)
            if "greedy" in row:
                greedy = row["greedy"]
            else:
                rows.append((row["decisions"], row["seconds"], row["returns"], []))
                cpu_s = _spent(child.pid)
    if child.returncode != 0:
        sys.exit(f"{command[0]}: exit code {child.returncode}")
    return rows, cpu_s, greedy


def _spent(pid):
    """Seconds of all processors that a process and its threads took so far; of one that is gone, nothing is known."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kv(seed, settings, folder):
    folder.mkdir(parents=True, exist_ok=True)
    text = EXPERIMENT.read_text().replace("num_envs = 64\n", f"num_envs = {settings.num_envs}\n")
    values = "".join(f"{key} = {_toml(value)}\n" for key, value in ppo(seed, settings).items())
    experiment = folder / "experiment.toml"
    experiment.write_text(f"{text}\n[ppo]\n{values}")
    command = [BUILT / "kvtide-train", "train", "--quiet", "--experiment", experiment, "--out", folder / "run"]
    subprocess.run(command, check=True)
    # Of the whole process, its start among it.
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = []
    for line in (folder / "run" / "train.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["type"] != "iteration":
            continue
        data = row["data"]
        episodes = data["episodes"]
        # Means of the episodes that ended, as many times.
        count = episodes["count"] if episodes else 0
        returns = [episodes["episodic_return"]] * count if episodes else []
        attained = [episodes["metrics"]["slo_attainment"]] * count if episodes else []
        rows.append((data["decisions"], data["decisions"] / data["sps"], returns, attained))
    return rows, spent.ru_utime + spent.ru_stime, None


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + " }"
    return json.dumps(value)
