"""Writes the model cards in checkpoints/ from manifests, tables and results: experiments/run.sh cards

Nothing in a card is typed by hand but what a policy is for.
"""
import json
import os
import pathlib
import re
import subprocess

from table import RESULTS, read, title

ROOT = pathlib.Path(__file__).parent.parent
CHECKPOINTS = ROOT / "checkpoints"
KVTIDE = os.environ.get("KVTIDE", str(ROOT / "target/release/kvtide"))

PURPOSE = {
    "chat-24g": "All heads, for conversations on a card with little memory for blocks.",
    "chat-80g": "All heads, for long conversations (prompts of 7,000 tokens and more) on an 80 GB card.",
    "reasoning": "All heads, for long answers on an 80 GB card.",
    "reasoning-core": "Watermark and victim, for long answers: admission stays in the order of the queue.",
    "reasoning-watermark": "The watermark alone, for long answers: what a stock flag could do, moved with the load.",
    "reasoning-sglang": "The watermark alone, for long answers on SGLang, by what its scheduler shows.",
    "reasoning-tier": "Watermark, victim and preemption mode on a node with a host tier of 16,384 blocks, which neither vLLM nor "
                      "SGLang has: for nodes that embed the runtime.",  # fmt: skip
    "agentic": "All heads, for agents in sessions with long common prefixes on an 80 GB card.",
}
SCENARIOS = {
    "chat-24g": ["chat-24g", "chat-24g-generated", "chat-24g-code"],
    "chat-80g": ["chat-80g"],
    "reasoning": ["reasoning", "reasoning-open", "reasoning-heavy"],
    "reasoning-core": ["reasoning-core", "reasoning-core-open", "reasoning-core-heavy"],
    "reasoning-watermark": ["reasoning-watermark", "reasoning-watermark-open", "reasoning-watermark-heavy"],
    "reasoning-sglang": ["reasoning-sglang"],
    "reasoning-tier": ["reasoning-tier"],
    "agentic": ["agentic", "agentic-coding"],
}


def inspected(name):
    """Metadata of a table, with its size and its heads."""
    shown = subprocess.run(
        [KVTIDE, "inspect", str(CHECKPOINTS / name / "policy.kvt"), "--json"], capture_output=True, text=True, check=True
    ).stdout
    table = json.loads(shown)["data"]
    heads = next(list(node["leaf"]) for node in table["nodes"] if "leaf" in node)
    order = [head for head in ("watermark", "victim", "preemption", "admission", "eviction", "budget") if head in heads]
    return table["metadata"] | {"profile": f"{table['profile']} ({', '.join(order)})"}


def off_road(name):
    """Rows of the committed matrix about a table, with the group they are of."""
    rows, group = [], None
    path = RESULTS / "off-road.txt"
    for line in path.read_text().splitlines() if path.exists() else []:
        if found := re.match(r"(\S+) on the roads of ([^,]+), beside", line):
            group = found[2] if found[1] == name else None
        elif group and (found := re.match(
            r"(\S+)\s+[\d.]+ %\s+[\d.]+ %\s+([\d.]+) %\s+([\d.]+) %\s+([+-][\d.]+)\s+([+-][\d.]+)\s+([\d.]+)×\s+(\d+) %", line
        )):  # fmt: skip
            world, constant, table, points, at_worst, wait, fallback = found.groups()
            rows.append((float(points), group, world, constant, table, at_worst, float(wait), fallback))
    return rows


def worlds(experiment):
    """What it was trained on: a line a world, from the experiment in the manifest."""
    import tomllib

    parsed = tomllib.loads(experiment)
    for entry in [parsed, *parsed.get("also", [])]:
        world, episodes = entry["world"], entry["episodes"]
        traffic = world.get("workload") or pathlib.Path(world["trace"]).name
        more = [f"{key} {world[key]}" for key in ("clients", "lengths", "cv") if key in world]
        more += [f"{key} {low:g} to {high:g}" for key in ("load", "pool", "lengths") if key in episodes
                 for low, high in [episodes[key]]]  # fmt: skip
        if "slos" in episodes:
            more.append(f"{len(episodes['slos'])} classes of targets")
        if episodes["fit"] < 1:
            more.append(f"the first {episodes['fit']:.0%} of it")
        yield f"`{traffic}` on {world['env']}, {', '.join(more)}"


def clock(metadata):
    """What a card's name meant when this was trained: those with measured kernels are named by what it says of itself."""
    if "kernels" in metadata:
        return f"measured kernels of {metadata['kernels']}; the data sheet of others"
    return "the data sheet of each card (`h100-datasheet` today, where `h100` is measured kernels)"


def card(name):
    manifest = json.loads((CHECKPOINTS / name / "manifest.json").read_text())
    table, metadata = inspected(name), manifest["metadata"]
    loss = table.get("loss.points", "–")
    lines = [
        f"# {name}", "", f"{PURPOSE[name]} A table of {table['leaves']} leaves, made of a linear policy found by cross-entropy search.", "",
        "| | |", "|---|---|",
        f"| made by | `experiments/run.sh train {name}`, `experiments/run.sh ship {name}`, seed {manifest['seed']}; generation "
        f"{manifest['iteration']}, whose table was the best on validation traffic |",
        f"| host | {table['host']} |", f"| profile | {table['profile']} |",
        f"| falls back to | watermark {table['fallback']}, the best constant one on the traffic it was trained on |",
        f"| targets | {metadata['slo'].replace('; ', '<br>')} |",
        f"| trained on | {'<br>'.join(worlds(manifest['experiment']))} |",
        f"| clock | {clock(metadata)} |", "",
    ]  # fmt: skip
    for scenario in SCENARIOS[name]:
        path = RESULTS / f"{scenario}.txt"
        if not path.exists() or (found := read(path)) is None:
            continue
        rows, loads = found
        lines += [f"**{scenario}**, at loads {', '.join(loads)}, all counted:", ""]
        lines += ["| policy | attained | fewer violations than best-fixed | longest wait × the default's, at each load | intervals rest on |", "|---|---|---|---|---|"]
        for policy, row in rows.items():
            what = f"**table:{title(policy)}**" if policy.startswith("table:") else policy.split("/")[0] + (f"/{title(policy)}" if "/" in policy else "")
            waits = ", ".join("–" if wait is None else f"{wait:.2f}" for wait in row["waits"])
            lines.append(f"| {what} | {row['attained']} % | {row['fewer'].get('best-fixed', '–').replace('-', '−')} | {waits} | {row['evidence']} |")
        lines.append("")
    matrix = off_road(name)
    if matrix:
        worst, longest = min(matrix), max(matrix, key=lambda row: row[6])
        lines += [
            f"**Off the road** ([matrix](../../experiments/results/off-road.txt), {len(matrix)} worlds): at worst {worst[0]:+.1f} points "
            f"against watermark {table['fallback']} ({worst[1]} {worst[2]}: {worst[3]} → {worst[4]} %); longest wait at most {longest[6]:.2f} "
            f"times as long ({longest[1]} {longest[2]}). It falls back in {sum(int(row[7]) >= 50 for row in matrix)} of them for most of the time.", "",
        ]  # fmt: skip
    lines += [
        f"The table agrees with its teacher in {100 * float(table['fidelity']):.1f} % of decisions and loses {loss} points of attainment against it on "
        f"{table.get('loss.episodes', '–')} {table.get('loss.traffic', '')} episodes. It decides by {table['features']}.", "",
    ]  # fmt: skip
    (CHECKPOINTS / name / "README.md").write_text("\n".join(lines))


def index():
    lines = [
        "# Checkpoints", "",
        "Small trained checkpoints that ship with the project: manifest, weights, normaliser, and what serves, the decision table distilled "
        "from it, with a card that says what it may be used for and what it is worth. The cards are made by `experiments/run.sh cards`.", "",
        "| checkpoint | host | for | worst world off the road | longest wait |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, purpose in PURPOSE.items():
        matrix = off_road(name)
        worst = f"{min(matrix)[0]:+.1f} points ({min(matrix)[2]})" if matrix else "–"
        wait = f"{max(row[6] for row in matrix):.2f} ×" if matrix else "–"
        lines.append(f"| [{name}]({name}/README.md) | {inspected(name)['host']} | {purpose} | {worst} | {wait} |")
    lines += ["", "Against the constant watermark each could be replaced by; see [experiments/](../experiments/README.md).", ""]
    (CHECKPOINTS / "README.md").write_text("\n".join(lines))


def main():
    for name in PURPOSE:
        card(name)
    index()


if __name__ == "__main__":
    main()
