"""Prints the results as Markdown tables: experiments/run.sh table

What ships is the table, so a row is of a table; the checkpoint it was made from stands beside it.
"""
import json
import pathlib
import re

RESULTS = pathlib.Path(__file__).parent / "results"
SCENARIOS = [
    "chat-24g", "chat-24g-generated", "chat-24g-code", "chat-80g", "reasoning", "reasoning-open", "reasoning-heavy", "reasoning-core",
    "reasoning-core-open", "reasoning-core-heavy", "reasoning-watermark", "reasoning-watermark-open",
    "reasoning-watermark-heavy", "reasoning-sglang", "reasoning-tier", "agentic", "agentic-coding", "day-24g", "day-80g",
]
TIME = r"(–|[\d.]+ m?s)"
ROW = re.compile(rf"^(\S+)\s+([\d.]+) %\s+(?:reference|–|\S+ \[.*?\] pts)\s+\d+\s+{TIME}\s+{TIME}\s+{TIME}\s+\d+\s+(.*)$")
FEWER = re.compile(r"-?\d+ %(?: \[-?\d+, -?\d+\])?|–")
AT_LOAD = re.compile(r"([\d.]+ %|–)\s+([\d.]+×|–)")


def seconds(text):
    if text == "–":
        return None
    value, unit = text.split()
    return float(value) * (0.001 if unit == "ms" else 1.0)


def rest(of):
    """`1 trace, 5 draws, 12 stretches`, as tables say it."""
    if not of or "draws" not in of:
        return "–"
    parts = [(of["traces"], "trace", "s"), (of["draws"], "draw", "s"), (of.get("stretches"), "stretch", "es")]
    return ", ".join(f"{count} {name}{'' if count == 1 else end}" for count, name, end in parts if count is not None)


def percent_of(interval):
    """`62 % [58, 66]`, as tables say it."""
    if interval is None:
        return "–"
    whole = lambda share: int(share * 100 + (0.5 if share >= 0 else -0.5))  # noqa: E731
    ends = "" if interval["low"] is None else f" [{whole(interval['low'])}, {whole(interval['high'])}]"
    return f"{whole(interval['mean'])} %{ends}"


def of_comparisons(path):
    """What `read` gives, from the `comparison` lines of a file of results; `None` of a file that has none."""
    lines = map(json.loads, path.read_text().splitlines())
    compared = [line["data"] for line in lines if line.get("type") == "comparison"]
    if not compared:
        return None
    rows = {}
    for line in compared:
        wait = lambda times: None if times is None else round(times, 2)  # noqa: E731
        rows[line["policy"]] = dict(
            attained=round(line["slo_attainment"] * 100, 1),
            ttft=None if line["ttft_p99_ms"] is None else round(line["ttft_p99_ms"] / 1e3, 2),
            evidence=rest(line["slo_attainment_mean"]),
            fewer={against["than"]: percent_of(against["fewer_violations"]) for against in line["against"]},
            waits=[wait(at["longest_wait_times"]) for at in line["loads"]],
            shares=[round(at["slo_attainment"]["mean"] * 100, 1) for at in line["loads"] if at["slo_attainment"]],
        )
    return rows, [f"{at['load']:g}" for at in compared[0]["loads"]]


def read(path):
    """Rows by policy, with what each has fewer violations than and its longest wait at each load; `None` of an older form.

    From the `comparison` lines beside the text, which came with the envelope, or from the text of before."""
    lines = path.with_suffix(".jsonl")
    if lines.exists() and (found := of_comparisons(lines)) is not None:
        return found
    rows, references, loads, part = {}, [], [], ""
    text = path.read_text()
    if "violations over every load run" not in text:
        return None
    for line in text.splitlines():
        name, rest = (line.split() or [""])[0], line[len((line.split() or [""])[0]):]
        if line.startswith("fewer violations than"):
            references, part = line.removeprefix("fewer violations than").split("load at 90 %")[0].split(), "fewer"
        elif line.startswith("at load"):
            loads, part = rest.split()[1:], "loads"
        elif line.startswith("gain over"):
            part = "gains"
        elif not part and (row := ROW.match(line)):
            name, attained, ttft, _, _, evidence = row.groups()
            rows[name] = dict(attained=float(attained), ttft=seconds(ttft), evidence=evidence, fewer={}, waits=[])
        elif part == "fewer" and name in rows:
            rows[name]["fewer"] = dict(zip(references, FEWER.findall(rest)))
        elif part == "loads" and name in rows:
            rows[name]["waits"] = [None if wait == "–" else float(wait[:-1]) for _, wait in AT_LOAD.findall(rest)]
    return rows, loads


def title(policy):
    """`chat-24g` of `table:checkpoints/chat-24g/policy.kvt` and of `checkpoint:runs/chat-24g/policy`."""
    path, comma, choices = policy.split(":", 1)[1].partition(",")
    parts = [part for part in path.split("/") if part not in ("policy", "policy.kvt")]
    return (parts or ["policy"])[-1].removesuffix(".kvt") + comma + choices


def percent(rows, policy):
    return f"{rows[policy]['attained']} %" if policy in rows else "–"


def longest_wait(row, fixed):
    """The longest wait × best-fixed's at the load where that is worst."""
    times = [mine / theirs for mine, theirs in zip(row["waits"], fixed["waits"]) if mine is not None and theirs]
    return f"{max(times):.1f}" if times else "–"


def ttft(row):
    return "–" if row["ttft"] is None else f"{row['ttft']:.1f} s"


def first(rows, policy, end):
    """The first row of that policy, whatever follows after `end`; its bare name if there is none."""
    return next((row for row in rows if row == policy or row.startswith(policy + end)), policy)


def lines(name, rows, loads):
    train = first(rows, "best-train", ":")
    once, static = first(rows, "best-static-once", ":"), first(rows, "best-static", ":")
    fixed = rows.get("best-fixed", dict(waits=[], ttft=None))
    checkpoints = {title(row): row for row in rows if row.startswith("checkpoint:")}
    tables = {}
    for row in rows:
        if row.startswith("table:"):
            # The first of a name: a scenario's own, not what it is held against.
            tables.setdefault(title(row), row)
    for policy in {**tables, **checkpoints}:
        judged = tables.get(policy, checkpoints.get(policy))
        row = rows[judged]
        fewer = [row["fewer"].get(key, "–").replace("-", "−") for key in ("default", "best-fixed", train, once, static)]
        yield [
            name, policy, *(percent(rows, key) for key in ("default", "past-future", "primal-dual", "best-fixed", train, once, static)),
            f"**{row['attained']} %**" if policy in tables else "no table", percent(rows, checkpoints.get(policy)), *fewer,
            f"{ttft(fixed)} → {ttft(row)}", longest_wait(row, fixed), ", ".join(loads), row["evidence"],
        ]


HEAD = [
    "policy", "default", "past-future", "primal-dual", "best-fixed", "best-train", "best-static once", "best-static", "table", "its checkpoint",
    "fewer than default", "than best-fixed", "than best-train", "than best-static once", "than best-static", "TTFT p99, best-fixed → policy", "longest wait at the worst load, × best-fixed", "loads, all counted",
    "intervals rest on",
]


def main():
    others = sorted(
        path.stem
        for path in RESULTS.glob("*.txt")
        if path.stem.removesuffix("-references") not in SCENARIOS and path.with_suffix(".jsonl").exists()
    )
    for heading, names in [("scenario", SCENARIOS), ("ablation", others)]:
        print(f"| {heading} | {' | '.join(HEAD)} |")
        print("|---" * (len(HEAD) + 1) + "|")
        older = []
        for name in names:
            path = RESULTS / f"{name}.txt"
            if not path.exists():
                continue
            found = read(path)
            if found is None:
                older.append(name)
                continue
            rows, at_loads = found
            # References that were judged later, on the same draws at the same loads.
            beside = RESULTS / f"{name}-references.txt"
            if beside.exists() and (later := read(beside)) is not None and later[1] == at_loads:
                rows = later[0] | rows
            for cells in lines(name, rows, at_loads):
                print("| " + " | ".join(cells) + " |")
        print()
        if older:
            print(f"Of an older form, which left loads out: {', '.join(older)}. Judge these again.\n")


if __name__ == "__main__":
    main()
