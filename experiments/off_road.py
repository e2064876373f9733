"""The matrix of experiments/off-road.sh: every shipped table, behind its guard, off the road it was made on.

What a table is held against is the constant it could be replaced by: the watermark that did best on the traffic it was
trained on, which it also falls back to. Every load that is run counts.
"""

import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
KVTIDE = os.environ.get("KVTIDE", "target/release/kvtide")
TRACES = os.environ.get("TRACES", "../shared/traces")
RUNS = pathlib.Path(os.environ.get("OFF_ROAD_RUNS", "runs/off-road"))
SEEDS = os.environ.get("OFF_ROAD_SEEDS", "311..312")
# The address of a Ray cluster, whose workers then serve the runs, and how many cells are under way at once.
RAY = os.environ.get("OFF_ROAD_RAY")
AT_ONCE = int(os.environ.get("OFF_ROAD_AT_ONCE", "8"))
# Names of cells, between commas; all of them if not said.
CELLS = set(filter(None, os.environ.get("OFF_ROAD_CELLS", "").split(",")))
# Another simulator may come to other results.
PROGRAM = hashlib.sha256(pathlib.Path(KVTIDE).read_bytes()).hexdigest()[:16]
MOST_LOST, LONGEST_WAIT = 1.0, 3.0
REPEATABLE = {"--set"}


def options(words):
    """`--flag value` pairs; what comes later replaces what came before, but for what may be given twice."""
    found = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        found[flag] = found.get(flag, []) + [value] if flag in REPEATABLE else [value]
    return found


def read_cells():
    """Tables by group, and (group, cell, options) in the order of the file."""
    tables, bases, cells, alike = {}, {}, [], []
    for number, line in enumerate((HERE / "off-road.cells").read_text().splitlines(), 1):
        words = shlex.split(line, comments=True)
        match words:
            case []:
                continue
            case ["tables", group, *names]:
                tables[group] = names
            case ["base", group, *rest]:
                bases[group] = options(rest)
            case ["cell", group, name, *rest]:
                cells.append((group, name, bases[group] | options(rest)))
            case ["like", group, other, *rest]:
                alike.append((group, other, options(rest)))
            case _:
                sys.exit(f"off-road.cells:{number}: {line!r} is not tables, base, cell or like")
    for group, other, rest in alike:
        cells += [(group, name, found | rest) for theirs, name, found in cells if theirs == other]
    return tables, cells


class Table:
    """A shipped table, and what stands in its metadata."""

    def __init__(self, name):
        self.name, self.path = name, f"checkpoints/{name}/policy.kvt"
        shown = subprocess.run([KVTIDE, "inspect", self.path, "--json"], capture_output=True, text=True)
        if shown.returncode:
            sys.exit(f"{shlex.join(shown.args)}: {shown.stderr.strip()}")
        said = json.loads(shown.stdout)["data"]["metadata"]
        if "fallback" not in said:
            sys.exit(f"{self.path} does not say what it falls back to; export it again")
        self.constant = f"fixed:{said['fallback'].strip()}"
        self.policy = f"table:{self.path}"
        self.digest = hashlib.sha256(pathlib.Path(self.path).read_bytes()).hexdigest()[:16]


def asked(group, cell, found, tables):
    """What `kvtide evaluate` is told of a cell, where its runs are kept, and a mark that says of what they are."""
    constants = sorted({table.constant for table in tables})
    words = [word for flag, values in found.items() for value in values for word in (flag, value.format(traces=TRACES))]
    if "--loads" not in found:
        words += ["--loads", "auto"]
    policies = ["default", "best-fixed", *constants, *(table.policy for table in tables)]
    words += ["--seeds", SEEDS, *(word for policy in policies for word in ("--policy", policy))]
    stamp = json.dumps([words, [table.digest for table in tables], PROGRAM])
    return words, RUNS / f"{group}-{cell}.jsonl", RUNS / f"{group}-{cell}.stamp", stamp


def judge(group, cell, found, tables):
    """Every run of a cell, from the file it was kept in or run now."""
    words, kept, mark, stamp = asked(group, cell, found, tables)
    if not (kept.exists() and mark.exists() and mark.read_text() == stamp):
        mark.unlink(missing_ok=True)
        kept.unlink(missing_ok=True)
        run = subprocess.run([KVTIDE, "evaluate", *words, "--out", str(kept)], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{group} {cell}: {shlex.join(words)}\n{run.stderr}")
        mark.write_text(stamp)
    return list(runs(kept.read_text()))


def spread(cells):
    """Runs what is not kept yet of `cells`, as `judge` takes them, on the Ray cluster at OFF_ROAD_RAY, several cells side by side.

    What was begun goes on where it was left: what it was of stands in a mark of its own.
    """
    from kvtide.ray.matrix import Evaluation, EvaluationError, evaluate_all

    missing = []
    for cell in cells:
        words, kept, mark, stamp = asked(*cell)
        if kept.exists() and mark.exists() and mark.read_text() == stamp:
            continue
        mark.unlink(missing_ok=True)
        begun = mark.with_suffix(".begun")
        if not (begun.exists() and begun.read_text() == stamp):
            kept.unlink(missing_ok=True)
            begun.write_text(stamp)
        missing.append((f"{cell[0]} {cell[1]}", Evaluation(words, kept), mark, begun, stamp))
    try:
        done = evaluate_all((of for _, of, *_ in missing), address=RAY, at_once=AT_ONCE, tool=KVTIDE)
        for (name, _, mark, begun, stamp), _ in zip(missing, done, strict=True):
            print(name, file=sys.stderr)
            mark.write_text(stamp)
            begun.unlink()
    except EvaluationError as error:
        sys.exit(str(error))


def runs(text):
    """The runs of JSON Lines, which had not always an envelope."""
    for line in map(json.loads, text.splitlines()):
        if line.get("type", "run") == "run":
            yield line.get("data", line)


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


class Cell:
    """One table in one world, beside its constant."""

    def __init__(self, group, name, table, rows):
        self.group, self.name, self.table = group, name, table
        of = lambda policy, load=None: [
            row for row in rows if row["policy"] == policy and (load is None or row["load"] == load)
        ]
        attained = lambda policy, load=None: 100 * mean(row["slo_attainment"] for row in of(policy, load))
        # Where nobody gets a first token nobody's wait has an end.
        longest = lambda row: float("inf") if row["longest_wait_ms"] is None else row["longest_wait_ms"]
        wait = lambda policy, load: mean(longest(row) for row in of(policy, load))
        self.loads = list(dict.fromkeys(row["load"] for row in rows))
        mine, constant = table.policy, table.constant
        self.attained = {name: attained(policy) for name, policy in
                         [("default", "default"), ("best-fixed", "best-fixed"), ("constant", constant), ("table", mine)]}
        self.gain = self.attained["table"] - self.attained["constant"]
        self.at_worst = min(attained(mine, load) - attained(constant, load) for load in self.loads)
        self.wait = max(wait(mine, load) / max(wait(constant, load), 1) for load in self.loads)
        guards = [row["guard"] for row in of(mine)]
        decisions = sum(guard["decisions"] for guard in guards)
        self.fallen_back = sum(sum(guard.get("fallbacks", {}).values()) for guard in guards) / max(decisions, 1)
        outside = {}
        for guard in guards:
            for feature, count in guard.get("out_of_range", {}).items():
                outside[feature] = outside.get(feature, 0) + count
        self.outside = sorted(outside, key=outside.get, reverse=True)[:2]

    def fails(self):
        return self.gain < -MOST_LOST or self.wait > LONGEST_WAIT

    def text(self):
        shares = "".join(f"{self.attained[key]:11.1f} %" for key in ("default", "best-fixed", "constant", "table"))
        return (f"{self.name:16}{shares}{self.gain:+9.1f}{self.at_worst:+9.1f}{self.wait:8.2f}×{100 * self.fallen_back:8.0f} %"
                f"  {', '.join(self.outside)}{'   <' if self.fails() else ''}")  # fmt: skip


HEAD = (f"{'world':16}{'default':>13}{'best-fixed':>13}{'constant':>13}{'table':>13}{'points':>9}{'at worst':>9}{'wait':>9}"
        f"{'fallback':>10}  out of range")  # fmt: skip


def main():
    tables, cells = read_cells()
    wanted = set(sys.argv[1:])
    known = {name for names in tables.values() for name in names}
    if wanted - known:
        print(f"no table {', '.join(sorted(wanted - known))}; known: {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    if CELLS - {name for _, name, _ in cells}:
        print(f"no cell {', '.join(sorted(CELLS - {name for _, name, _ in cells}))}; see off-road.cells", file=sys.stderr)
        return 2
    RUNS.mkdir(parents=True, exist_ok=True)
    loaded = {}
    asked_for = []
    for group, name, found in cells:
        if CELLS and name not in CELLS:
            continue
        names = [table for table in tables[group] if not wanted or table in wanted]
        for table in names:
            if table not in loaded:
                loaded[table] = Table(table)
        mine = [loaded[table] for table in names]
        if mine:
            asked_for.append((group, name, found, mine))
    if RAY:
        spread(asked_for)
    judged = []
    for group, name, found, mine in asked_for:
        print(f"{group} {name}", file=sys.stderr)
        rows = judge(group, name, found, mine)
        judged += [Cell(group, name, table, rows) for table in mine]
    for group in tables:
        for table in dict.fromkeys(cell.table for cell in judged if cell.group == group):
            print(f"\n{table.name} on the roads of {group}, beside {table.constant}, seeds {SEEDS}\n{HEAD}")
            for cell in (cell for cell in judged if cell.group == group and cell.table is table):
                print(cell.text())
    worst = min(judged, key=lambda cell: cell.gain)
    longest = max(judged, key=lambda cell: cell.wait)
    print(f"\nworst of {len(judged)}: {worst.table.name}, {worst.group} {worst.name}: {worst.gain:+.1f} points against its "
          f"constant, {worst.at_worst:+.1f} at the worst load")  # fmt: skip
    print(f"longest wait: {longest.table.name}, {longest.group} {longest.name}: {longest.wait:.2f} × its constant's")
    print("Points: attained less what the constant attains, over every load run and every seed.")
    return 1 if any(cell.fails() for cell in judged) else 0


sys.exit(main())
