"""Tables of README.md out of results/."""
import json
import re
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).parent
# Two-sided 95 % of Student's t, by draws.
T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
TABLE = "table:checkpoints/agentic/policy.kvt"
ORDERS = ("lru", "arc", "t-lru", "intent-aware", "deadline-aware")


def lines(kind):
    for file in sorted((HERE / "results").glob(f"{kind}-*.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            yield file.stem.split("-", 1)[1], line


def by_draw(rows):
    """Means over loads, a number for each draw."""
    return [mean(of) for of in zip(*rows, strict=True)]


def gain(of, than):
    """Points by which the one is better, and its interval over draws."""
    each = [100 * (a - b) for a, b in zip(by_draw(of), by_draw(than), strict=True)]
    spread = T[len(each)] * stdev(each) / len(each) ** 0.5 if len(each) > 1 else float("nan")
    return f"{mean(each):+.1f} ± {spread:.1f}"


def percent(rows):
    return f"{100 * mean(by_draw(rows)):.1f}"


def each_load(rows):
    return ", ".join(f"{100 * mean(of):.0f}" for of in rows)


def table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows])


def in_pool():
    """By world, policy and order; the learned retention stands among the orders."""
    found = {}
    for world, line in lines("pool"):
        order, policy = line["settings"].get("eviction", "lru"), line["policy"]
        if order == "lru" and policy == TABLE:
            order = "learned"
        found[world, "default" if policy == "default" else "table", order] = line
    return found


def pool():
    found, rows = in_pool(), []
    for world in dict.fromkeys(world for world, _, _ in found):
        for policy in ("default", "table"):
            than = found[world, policy, "lru"]
            for order in (*ORDERS[:3], "learned", *ORDERS[3:]):
                line = found.get((world, policy, order))
                if line is None:
                    continue
                is_it = line is than
                rows.append([
                    world, policy, order, percent(line["attained"]), each_load(line["attained"]),
                    "" if is_it else gain(line["attained"], than["attained"]), percent(line["hits"]),
                    "" if is_it else gain(line["hits"], than["hits"]), f"{mean(by_draw(line['ttft_p99'])):.1f}",
                ])  # fmt: skip
    head = ["traffic", "policy", "order", "attained %", "by load", "over lru", "hits %", "over lru", "TTFT p99 s"]
    return table(head, rows)


def by_class():
    rows = []
    for (world, policy, order), line in in_pool().items():
        if "groups" in line:
            names = sorted({name for of in line["groups"] for run in of for name in run})
            shares = [f"{100 * mean(run[name] for of in line['groups'] for run in of):.1f}" for name in names]
            rows.append((names, [world, policy, order, *shares]))
    names = rows[0][0] if rows else []
    return table(["traffic", "policy", "order", *("default" if name == "-" else name for name in names)], [row for _, row in rows])


def host():
    def key(world, line):
        settings = line["settings"]
        return world, settings["host_cache"], int(settings["num_cpu_blocks"]), settings["host_cache_order"]

    found = {key(world, line): line for world, line in lines("host")}
    rows = []
    for (world, cache, blocks, order), line in sorted(found.items(), key=lambda one: (*one[0][:3], ORDERS.index(one[0][3]))):
        than = found[world, cache, blocks, "lru"]
        is_it = line is than
        rows.append([
            world, cache, f"{blocks:,}", order, percent(line["attained"]), each_load(line["attained"]),
            "" if is_it else gain(line["attained"], than["attained"]), percent(line["host_hits"]),
            "" if is_it else gain(line["host_hits"], than["host_hits"]),
        ])  # fmt: skip
    return table(["traffic", "stored", "blocks", "order", "attained %", "by load", "over lru", "from the host %", "over lru"], rows)


readme = HERE / "README.md"
text = readme.read_text()
for name, made in (("pool", pool), ("by_class", by_class), ("host", host)):
    block = f"<!-- {name} -->\n{made()}\n<!-- / -->"
    text = re.sub(rf"<!-- {name} -->.*?<!-- / -->", lambda _, block=block: block, text, flags=re.S)
readme.write_text(text)
