"""Prints the results as Markdown tables: experiments/run.sh table

What ships is the table, so a row is of a table; the checkpoint it was made from stands beside it.
"""
import pathlib
import re

RESULTS = pathlib.Path(__file__).parent / "results"
SCENARIOS = [
    "chat-24g", "chat-24g-generated", "chat-80g", "reasoning", "reasoning-open", "reasoning-heavy", "reasoning-core",
    "reasoning-core-open", "reasoning-core-heavy", "reasoning-watermark", "reasoning-watermark-open",
    "reasoning-watermark-heavy", "reasoning-sglang", "reasoning-tier", "agentic", "agentic-coding",
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


def read(path):
    """Rows by policy, with what each has fewer violations than and its longest wait at each load; `None` of an older form."""
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
    parts = [part for part in policy.split(":", 1)[1].split("/") if part not in ("policy", "policy.kvt")]
    return (parts or ["policy"])[-1].removesuffix(".kvt")


def percent(rows, policy):
    return f"{rows[policy]['attained']} %" if policy in rows else "–"


def longest_wait(row, fixed):
    """The longest wait × best-fixed's at the load where that is worst."""
    times = [mine / theirs for mine, theirs in zip(row["waits"], fixed["waits"]) if mine is not None and theirs]
    return f"{max(times):.1f}" if times else "–"


def ttft(row):
    return "–" if row["ttft"] is None else f"{row['ttft']:.1f} s"


def lines(name, rows, loads):
    static = next((row for row in rows if row.startswith("best-static")), "best-static")
    fixed = rows.get("best-fixed", dict(waits=[], ttft=None))
    checkpoints = {title(row): row for row in rows if row.startswith("checkpoint:")}
    tables = {title(row): row for row in rows if row.startswith("table:")}
    for policy in {**tables, **checkpoints}:
        judged = tables.get(policy, checkpoints.get(policy))
        row = rows[judged]
        fewer = [row["fewer"].get(key, "–").replace("-", "−") for key in ("default", "best-fixed", static)]
        yield [
            name, policy, *(percent(rows, key) for key in ("default", "best-fixed", static)),
            f"**{row['attained']} %**" if policy in tables else "no table", percent(rows, checkpoints.get(policy)), *fewer,
            f"{ttft(fixed)} → {ttft(row)}", longest_wait(row, fixed), ", ".join(loads), row["evidence"],
        ]


HEAD = [
    "policy", "default", "best-fixed", "best-static", "table", "its checkpoint", "fewer than default", "than best-fixed",
    "than best-static", "TTFT p99, best-fixed → policy", "longest wait at the worst load, × best-fixed", "loads, all counted",
    "intervals rest on",
]


def main():
    others = sorted(
        path.stem for path in RESULTS.glob("*.txt") if path.stem not in SCENARIOS and path.with_suffix(".jsonl").exists()
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
            for cells in lines(name, *found):
                print("| " + " | ".join(cells) + " |")
        print()
        if older:
            print(f"Of an older form, which left loads out: {', '.join(older)}. Judge these again.\n")


if __name__ == "__main__":
    main()
