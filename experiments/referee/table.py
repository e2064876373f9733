"""Prints what came of it as Markdown, from results.jsonl: `table.py`."""

import json
import pathlib
import statistics

from settings import LEARN, SPEED

RESULTS = pathlib.Path(__file__).parent / "results.jsonl"
NAMES = {"ours": "kvtide", "sb3": "stable-baselines3 PPO", "sb3-maskable": "sb3-contrib MaskablePPO", "plain": "plain PyTorch PPO"}
PROBLEMS = {"cartpole": "CartPole-v1", "kv": "KvCacheEnv"}


def read():
    """Rows by their type."""
    found = {}
    for line in RESULTS.read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["type"], []).append(row["data"])
    return found


def spread(values, form):
    """Median and extremes, of several."""
    if len(values) == 1:
        return form.format(values[0])
    return f"{form.format(statistics.median(values))} [{form.format(min(values))}, {form.format(max(values))}]"


def of(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def learned(rows):
    print("| learner | CartPole-v1: return of the likeliest choices | CPU s | KvCacheEnv: attained, likeliest choices | return | CPU s |")
    print("|---|---|---|---|---|---|")
    seconds = {}
    for row in rows["iteration"]:
        seconds[row["learner"], row["problem"], row["seed"]] = row["cpu_s"]
    for learner in (*NAMES, *dict.fromkeys(row["learner"] for row in rows["judged"] if row["seed"] == 0)):
        cells = []
        for problem in LEARN:
            judged = of(rows["judged"], learner=learner, problem=problem)
            took = [seconds[learner, problem, row["seed"]] for row in judged if row["seed"]]
            if problem == "kv":
                cells.append(spread([100 * row["attained"] for row in judged], "{:.1f} %") if judged else "–")
            cells.append(spread([row["return"] for row in judged], "{:.0f}") if judged else "–")
            cells.append(spread(took, "{:.0f}") if took else "–")
        print(f"| {NAMES.get(learner, learner)} | {' | '.join(cells)} |")


def speeds(rows):
    for setting in SPEED:
        for problem, title in PROBLEMS.items():
            print(f"\n**{title}, {setting}**\n\n| learner | samples/s | ours is faster by | samples per CPU second | ours is cheaper by |")
            print("|---|---|---|---|---|")
            mine = of(rows["speed"], problem=problem, setting=setting)
            for learner in dict.fromkeys(row["learner"] for row in mine):
                told = of(mine, learner=learner)
                # Beside ours on as many threads.
                ours = {row["turn"]: row for row in of(mine, learner="ours" + learner[len(learner.partition(",")[0]) :])}
                rate = spread([row["samples"] / row["seconds"] for row in told], "{:,.0f}")
                cpu = spread([row["samples"] / row["cpu_s"] for row in told], "{:,.0f}")
                times = {"seconds": "", "cpu_s": ""}
                for key in times:
                    # Of the same turn, so that what else the machine did is much the same.
                    factor = [(row[key] / row["samples"]) / (ours[row["turn"]][key] / ours[row["turn"]]["samples"]) for row in told]
                    times[key] = "–" if learner.startswith("ours") else spread(factor, "{:.1f}") + " ×"
                own, _, threads = learner.partition(", ")
                name = f"{NAMES[own]}, {threads}" if threads else NAMES[own]
                print(f"| {name} | {rate} | {times['seconds']} | {cpu} | {times['cpu_s']} |")


if __name__ == "__main__":
    found = read()
    learned(found)
    speeds(found)
