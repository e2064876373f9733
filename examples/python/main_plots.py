# %% [markdown]
# # What a policy does to a node
# Cells for Jupyter, VS Code or Spyder; `python examples/python/main_plots.py` writes the same pictures to files.
# Needs matplotlib beside the wheel.

# %%
import sys
from pathlib import Path

import matplotlib

if "ipykernel" not in sys.modules:
    matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from kvtide.evaluate import Arena, simulate

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 and "ipykernel" not in sys.modules else ".")
WORLD = {"workload": "chat:rate=5,duration=120", "slo": "chat", "env": "llama-3-8b@rtx-4090"}
POLICIES = ["default", "fixed:0.05", "fixed:0.05,victim=most-slack,admission=on-time-first"]
LOADS = [0.3, 0.4, 0.5, 0.6, 0.8]
SEEDS = range(1, 4)

# %% [markdown]
# ## Attainment against load
# The share of requests that meet all of their targets, mean and range over seeds.

# %%
played = Arena(WORLD, loads=LOADS).play(POLICIES, SEEDS)
figure, axes = plt.subplots()
for policy, attained in zip(POLICIES, played.attainment):
    (line,) = axes.plot(LOADS, 100 * attained.mean(axis=1), marker="o", label=policy)
    axes.fill_between(LOADS, 100 * attained.min(axis=1), 100 * attained.max(axis=1), color=line.get_color(), alpha=0.2)
axes.set(xlabel="load", ylabel="attained, %", ylim=(0, 101))
axes.legend()
figure.savefig(FOLDER / "attainment.svg")

# %% [markdown]
# ## Waits
# Which share of the requests had its first token by then.

# %%
runs = {policy: simulate(policy, load=0.6, seed=1, **WORLD) for policy in POLICIES}
figure, axes = plt.subplots()
for policy, run in runs.items():
    waits = np.sort(run.requests["wait_s"])  # NaN, of those who had none, come last
    axes.step(waits, 100 * np.arange(1, len(waits) + 1) / len(waits), where="post", label=policy)
axes.set(xlabel="time to first token, s", ylabel="requests, %", xscale="symlog")
axes.legend()
figure.savefig(FOLDER / "waits.svg")

# %% [markdown]
# ## Blocks over time
# How full the pool is, and who waits.

# %%
figure, (blocks, queue) = plt.subplots(2, sharex=True)
for policy, run in runs.items():
    steps = run.steps
    blocks.plot(steps["time_s"], 100 * steps["used_blocks"] / steps["num_blocks"], label=policy, linewidth=0.8)
    queue.plot(steps["time_s"], steps["waiting"], linewidth=0.8)
blocks.set(ylabel="blocks in use, %", ylim=(0, 101))
queue.set(xlabel="time, s", ylabel="waiting requests")
blocks.legend()
figure.savefig(FOLDER / "blocks.svg")
