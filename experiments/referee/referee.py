"""The whole comparison, learners in turn so that what else the machine does hits all alike: `referee.py [--seeds 1..5] [--only learn|speed]`.

Every line that a learner tells, and how it was judged, goes to `results.jsonl`; what is in there already is not done again. `table.py` and
`picture.py` make of it what README.md shows.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

from learn import LEARNERS
from ours import BUILT, ROOT
from settings import LEARN, SPEED
from worlds import EXPERIMENT

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
RUNS = ROOT / "runs" / "referee"
# Episodes that nobody trained on, the same for all.
JUDGED = range(1000, 1064)
REFERENCES = ("default", "fixed:0.05", "table:" + str(ROOT / "checkpoints" / "reasoning-core" / "policy.kvt"))
TURNS = 3


def rows():
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def thinned(told, most=40):
    """Of a run so many iterations at most: several as one, whose means are over the episodes of all."""
    iterations = [row["data"] for row in told if row["type"] == "iteration"]
    block = -(-len(iterations) // most)
    kept = []
    for first in range(0, len(iterations), block):
        some = iterations[first : first + block]
        row = some[-1] | {"episodes": sum(one["episodes"] for one in some)}
        for column in ("return", "attained"):
            row.pop(column, None)
            if any(column in one for one in some):
                row[column] = round(sum(one[column] * one["episodes"] for one in some if column in one) / row["episodes"], 5)
        kept.append({"type": "iteration", "data": row})
    return kept + [row for row in told if row["type"] != "iteration"]


def add(lines):
    """A run goes in whole or not at all."""
    with RESULTS.open("a") as file:
        file.write("".join(line + "\n" for line in lines))


def run(learner, problem, seed, setting, folder, threads=None):
    shutil.rmtree(folder, ignore_errors=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"RAYON_NUM_THREADS": str(threads)} if threads else {})
    command = [sys.executable, HERE / "learn.py", learner, problem, str(seed), setting, str(folder)]
    told = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [json.loads(line) for line in told]


def judged():
    return {(row["data"]["learner"], row["data"]["problem"], row["data"]["seed"]) for row in rows() if row["type"] == "judged"}


def learn(seeds):
    first, last = (int(seed) for seed in seeds.split(".."))
    for seed in range(first, last + 1):
        for problem in LEARN:
            # Each has its turn at being first.
            for learner in LEARNERS[seed % len(LEARNERS) :] + LEARNERS[: seed % len(LEARNERS)]:
                if (learner, problem, seed) in judged():
                    continue
                folder = RUNS / f"{learner}-{problem}-{seed}"
                told = run(learner, problem, seed, "learn", folder)
                found = {"learner": learner, "problem": problem, "seed": seed}
                if problem == "cartpole":
                    found |= {"return": next(row["data"]["return"] for row in told if row["type"] == "greedy")}
                else:
                    found |= attained(f"checkpoint:{checkpoint(learner, folder)}")
                add(map(json.dumps, [*thinned(told), {"type": "judged", "data": found}]))
                print(json.dumps(found), file=sys.stderr, flush=True)
    for policy in REFERENCES:
        name = policy.replace(str(ROOT) + "/", "")
        if (name, "kv", 0) not in judged():
            add([json.dumps({"type": "judged", "data": {"learner": name, "problem": "kv", "seed": 0} | attained(policy)})])


def checkpoint(learner, folder):
    """What was learned, as a checkpoint of ours."""
    if learner == "ours":
        return folder / "run" / "checkpoint"
    command = [BUILT / "kvtide-train", "import-policy", folder / "import.toml", "--out", folder / "imported", "--quiet"]
    subprocess.run(command, check=True)
    return folder / "imported"


def attained(policy):
    """Of episodes that nobody trained on, taking the likeliest choices."""
    from kvtide.evaluate import Arena

    played = Arena(EXPERIMENT, part="unseen").play([policy], JUDGED)
    return {"attained": float(played.score()[0]), "return": float(played.returns.mean()), "preemptions": float(played.preemptions.mean())}


def speed():
    """Samples a second, in turn; also with nothing on more than one thread, neither environments nor ours."""
    done = {(row["data"]["learner"], row["data"]["problem"], row["data"]["setting"], row["data"]["turn"]) for row in rows() if row["type"] == "speed"}
    for turn in range(1, TURNS + 1):
        for setting in SPEED:
            for problem in LEARN:
                for learner in (*LEARNERS, "ours, one thread", "sb3, one thread"):
                    if (learner, problem, setting, turn) in done:
                        continue
                    own, _, one = learner.partition(", ")
                    told = run(own, problem, turn, setting, RUNS / "speed", threads=1 if one else None)
                    last = [row["data"] for row in told if row["type"] == "iteration"][-1]
                    found = {"learner": learner, "problem": problem, "setting": setting, "turn": turn, "samples": last["samples"]}
                    found |= {key: last[key] for key in ("seconds", "cpu_s", "acting_s") if key in last}
                    add([json.dumps({"type": "speed", "data": found})])
                    print(json.dumps(found), file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1..5", help="FIRST..LAST, both counted")
    parser.add_argument("--only", choices=("learn", "speed"))
    options = parser.parse_args()
    if options.only != "learn":
        speed()
    if options.only != "speed":
        learn(options.seeds)


if __name__ == "__main__":
    main()
