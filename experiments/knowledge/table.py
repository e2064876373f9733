"""Writes the tables of README.md beside it from results/: experiments/knowledge/run.sh table

What stands between `<!-- NAME -->` and `<!-- / -->` is replaced by what the function of that name says.
"""
import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
WORLDS = ["azure", "code", "mooncake", "mix", "reasoning"]
RUNGS = ["nothing", "hints", "lengths", "arrivals", "hints+arrivals", "everything"]
HEADS = ["watermark", "victim", "admission", "budget"]


def kind(policy):
    """`everything`, `everything,over=budget`, `constant` or `default`."""
    if not policy.startswith("lookahead:"):
        return "default" if policy == "default" else "constant"
    knows, *parts = policy.removeprefix("lookahead:").split(",")
    over = [part for part in parts if part.startswith("over=")]
    return ",".join([knows, *over])


def runs(world):
    """Attained and requests by policy and draw."""
    path = HERE / "results" / f"{world}.jsonl"
    found = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        if row["type"] == "run":
            row = row["data"]
            found.setdefault(kind(row["policy"]), {})[row["seed"]] = row["slo_attainment"]
    return found


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def cell(world, name):
    """Attained, and how many violations fewer than of the constant, over all draws and in the draws apart."""
    ours, constant = world.get(name), world.get("constant")
    if not ours:
        return "–"
    attained = f"{mean(ours.values()) * 100:.1f} %"
    if name in ("default", "constant"):
        return attained
    each = [1 - (1 - ours[seed]) / (1 - constant[seed]) for seed in ours]
    whole = 1 - (1 - mean(ours.values())) / (1 - mean(constant.values()))
    text = f"{attained}, {whole * 100:.0f} % [{min(each) * 100:.0f}, {max(each) * 100:.0f}]"
    return text.replace("-", "−")


def table(names):
    line = lambda cells: "| " + " | ".join(cells) + " |"  # noqa: E731
    rows = [line(["world", *names]), line(["---"] * (len(names) + 1))]
    found = {world: runs(world) for world in WORLDS}
    rows += [line([world, *(cell(found[world], name) for name in names)]) for world in WORLDS if found[world]]
    return "\n".join(rows)


def ladder():
    return table(["default", "constant", *RUNGS])


def heads():
    return table(["constant", *(f"everything,over={head}" for head in HEADS), "everything"]).replace("everything,over=", "")


def main():
    path = HERE / "README.md"
    text = path.read_text()
    for name, made in (("ladder", ladder()), ("heads", heads())):
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- / -->)", lambda found, made=made: found[1] + made + "\n" + found[2], text, flags=re.S)
    path.write_text(text)


if __name__ == "__main__":
    main()
