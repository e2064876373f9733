"""Writes the tables of README.md beside it from results/: experiments/levers/run.sh table

What stands between `<!-- NAME -->` and `<!-- / -->` is replaced by what the function of that name says.
"""
import json
import math
import pathlib

HERE = pathlib.Path(__file__).parent
BUDGETS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
WORLDS = ["code", "azure", "mix", "tight", "mooncake", "agentic", "coding", "reasoning"]
CLOCKS = ["rtx-4090", "rtx-4090-estimated", "rtx-4090-measured", "h100-datasheet", "h100"]
# Two-sided 95 % of Student's t, by draws less one.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262}


def rows(header, lines):
    cells = lambda line: "| " + " | ".join(line) + " |"  # noqa: E731
    return "\n".join([cells(header), cells(["---"] * len(header)), *map(cells, lines)])


def load(name):
    path = HERE / "results" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def places(kind):
    """Worlds and clocks that have results of a kind, in order."""
    found = [path.stem.removeprefix(f"{kind}-") for path in (HERE / "results").glob(f"{kind}-*.jsonl")]
    order = lambda at: (WORLDS.index(at.split("@")[0]) if at.split("@")[0] in WORLDS else 99, at.split("@")[0], CLOCKS.index(at.split("@")[1]))  # noqa: E731
    return sorted(found, key=order)


def budget(row):
    return row["settings"]["max_num_batched_tokens"]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def by_draw(row):
    """Attained of every draw, over loads."""
    return [mean(draw) for draw in zip(*row["attained"], strict=True)]


def left_out(candidates):
    """Attained of every draw by what attains most of the others, so that nothing is judged on what chose it."""
    each = [by_draw(row) for row in candidates]
    draws = range(len(each[0]))
    choice = [max(each, key=lambda one: sum(value for at, value in enumerate(one) if at != draw)) for draw in draws]
    return [choice[draw][draw] for draw in draws]


def best(candidates):
    return max(candidates, key=lambda row: mean(by_draw(row)))


def interval(values):
    """Mean and half of the 95 % interval over draws."""
    center, count = mean(values), len(values)
    spread = math.sqrt(sum((value - center) ** 2 for value in values) / (count - 1) / count)
    return center, T95[count - 1] * spread


def points(gains):
    center, half = interval(gains)
    return f"{center * 100:+.1f} ± {half * 100:.1f}"


def fewer(now, before):
    """Share of violations that are gone, and its range over draws."""
    each = [1 - (1 - a) / (1 - b) for a, b in zip(now, before, strict=True)]
    whole = 1 - (1 - mean(now)) / (1 - mean(before))
    return f"{whole * 100:.0f} % [{min(each) * 100:.0f}, {max(each) * 100:.0f}]"


def less(now, before):
    return [a - b for a, b in zip(now, before, strict=True)]


def watermark(row):
    return float(row["policy"].removeprefix("fixed:").split(",")[0]) if row["policy"].startswith("fixed") else 0.0


def short(policy):
    for long, brief in [("fixed:", ""), ("admission=shortest-on-time-first", "shortest on time"), ("admission=on-time-first", "on time"), ("victim=", ""), (",", ", ")]:
        policy = policy.replace(long, brief)
    return policy


def constant(row, upto=1.0):
    return not row["policy"].startswith("ppas") and watermark(row) <= upto


def at_budget(found, tokens, upto=1.0):
    return [row for row in found if budget(row) == tokens and constant(row, upto)]


def attained_cells(attained, top):
    """A cell for every budget, that of the best in bold; a dash where there is none."""
    shown = {tokens: f"{mean(of) * 100:.1f}" for tokens, of in attained.items()}
    return [f"**{shown[tokens]}**" if tokens == top else shown.get(tokens, "–") for tokens in BUDGETS]


def budget_rows(upto):
    lines = []
    for at in places("budgets"):
        found = load(f"budgets-{at}")
        measured = sorted({budget(row) for row in found})
        attained = {tokens: left_out(at_budget(found, tokens, upto)) for tokens in measured}
        top = max(attained, key=lambda tokens: mean(attained[tokens]))
        chosen = left_out([row for row in found if constant(row, upto)])
        cells = attained_cells(attained, top)
        lines.append([*at.split("@"), *cells, points(less(chosen, attained[2048])), fewer(chosen, attained[2048]),
                      short(best(at_budget(found, top, upto))["policy"])])
    return rows(["traffic", "clock", *(f"{tokens:,}" for tokens in BUDGETS), "best over 2,048", "fewer violations", "best constant"], lines)


def budgets():
    return budget_rows(0.5)


def budgets_wide():
    return budget_rows(1.0)


def knowing(found):
    """Attained of every draw by the best constant of all loads, by the best of each load, and the budgets of those; chosen on the other draws."""
    overall, count = left_out(found), len(found[0]["loads"])
    alone = [[{"attained": [row["attained"][which]], **{key: row[key] for key in ("settings", "policy")}} for row in found] for which in range(count)]
    each = [mean(draw) for draw in zip(*map(left_out, alone), strict=True)]
    return overall, each, [budget(best(of)) for of in alone]


def by_load():
    """What it gains to know the load."""
    lines = []
    for at in places("budgets"):
        found = [row for row in load(f"budgets-{at}") if constant(row)]
        overall, each, tops = knowing(found)
        only = budget(best(found))
        heads, heads_each, _ = knowing([row for row in found if budget(row) == only])
        cells = [f"{tokens:,}" for tokens in tops]
        lines.append([*at.split("@"), *cells, *["–"] * (4 - len(cells)), f"{mean(overall) * 100:.1f} ({only:,})", points(less(each, overall)),
                      points(less(heads_each, heads))])
    return rows(["traffic", "clock", "lowest load", "second", "third", "highest", "best constant of all", "knowing the load", "at that budget"], lines)


def defaults():
    lines = []
    for at in places("budgets"):
        found = load(f"budgets-{at}")
        of = {budget(row): by_draw(row) for row in found if row["policy"] == "default"}
        top = max(of, key=lambda tokens: mean(of[tokens]))
        cells = attained_cells(of, top)
        lines.append([*at.split("@"), *cells, points(less(of[top], of[2048]))])
    return rows(["traffic", "clock", *(f"{tokens:,}" for tokens in BUDGETS), "best over 2,048"], lines)


def edge():
    """Watermarks beyond the grid, under the order of admission that attains most, where all of them were run."""
    marks = [0.01, 0.12, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9]
    lines = []
    for at in places("budgets"):
        found = load(f"budgets-{at}")
        for tokens in (512, 2048):
            of = {watermark(row): by_draw(row) for row in found
                  if budget(row) == tokens and row["policy"].endswith(",admission=shortest-on-time-first") and "victim" not in row["policy"]}
            if not {0.5, 0.6, 0.7, 0.9} <= set(of):
                continue
            top = max(marks, key=lambda mark: mean(of[mark]))  # noqa: B023
            inside, wide = left_out(at_budget(found, tokens, 0.5)), left_out(at_budget(found, tokens))
            cells = [f"**{mean(of[mark]) * 100:.1f}**" if mark == top else f"{mean(of[mark]) * 100:.1f}" for mark in marks]
            lines.append([*at.split("@"), f"{tokens:,}", *cells, points(less(wide, inside))])
    return rows(["traffic", "clock", "tokens a step", *map(str, marks), "gain of the wider grid"], lines)


def ppas():
    lines = []
    for at in places("budgets"):
        found = load(f"budgets-{at}")
        if not any(row["policy"].startswith("ppas") for row in found):
            continue
        reference = next(row for row in found if budget(row) == 2048 and row["policy"] == "default")
        shown = [(f"{tokens:,} tokens", next(row for row in found if budget(row) == tokens and row["policy"] == "default")) for tokens in (256, 512, 1024, 2048, 16384)]
        shown += [(f"`{row['policy']}`", row) for row in found if row["policy"].startswith("ppas")]
        least = min((mean(row["e2e_mean"]), name) for name, row in shown)[1]
        most = max((mean(by_draw(row)), name) for name, row in shown)[1]
        for name, row in shown:
            second = lambda figure: f"{mean(row[figure]) / 1000:.2f}"  # noqa: E731
            mark = lambda text, is_it: f"**{text}**" if is_it else text  # noqa: E731
            change = mean(row["e2e_mean"]) / mean(reference["e2e_mean"]) - 1
            lines.append([*at.split("@"), name, mark(f"{mean(by_draw(row)) * 100:.1f}", name == most), points(less(by_draw(row), by_draw(reference))),
                          second("ttft_mean"), second("ttft_p50"), second("ttft_p99"), mark(second("e2e_mean"), name == least), f"{change * 100:+.1f} %"])
    return rows(["traffic", "clock", "as it comes, with", "attained %", "over 2,048", "TTFT mean s", "p50", "p99", "E2E mean s", "to 2,048"], lines)


def finer():
    lines = []
    for at in places("finer"):
        found = load(f"finer-{at}")
        for tokens in sorted({budget(row) for row in found}):
            of = [row for row in found if budget(row) == tokens]
            top = best(of)
            lines.append([*at.split("@"), f"{tokens:,}", f"{mean(left_out(of)) * 100:.1f}", short(top["policy"]), f"{mean(top['ttft_p99']) / 1000:.2f}",
                          f"{mean(top['tpot_p95']):.0f}"])
    return rows(["traffic", "clock", "tokens a step", "attained %", "best constant", "TTFT p99 s", "TPOT p95 ms"], lines)


def spread():
    """The best budget by drawn clocks, and what it gains there."""
    lines = []
    for at in places("spread"):
        found = load(f"spread-{at}")
        tokens = sorted({budget(row) for row in found})
        of = {}
        for clock in sorted({row.get("clock_draw", 0) for row in found}):
            of[clock] = {each: mean(by_draw(best([row for row in found if budget(row) == each and row.get("clock_draw", 0) == clock]))) for each in tokens}
        drawn = [clock for clock in of if clock]
        tops = [max(of[clock], key=of[clock].get) for clock in drawn]
        counted = ", ".join(f"{each:,}: {tops.count(each)}" for each in tokens if each in tops)
        cells = [f"{of[0][each] * 100:.1f} ({min(of[clock][each] for clock in drawn) * 100:.0f} to {max(of[clock][each] for clock in drawn) * 100:.0f})" for each in tokens]
        own = max(of[0], key=of[0].get)
        gains = [of[clock][own] - of[clock][2048] for clock in drawn]
        regret = [max(of[clock].values()) - of[clock][own] for clock in drawn]
        lines.append([*at.split("@"), *cells, counted, f"{points(gains)} ({min(gains) * 100:+.1f} at worst)", f"{max(regret) * 100:.1f}"])
    return rows(["traffic", "clock", "256", "512", "1,024", "2,048", "4,096", "best by drawn clocks", "the profile's best over 2,048", "most it loses to a clock's own"], lines)


def chunks():
    lines = []
    for at in places("chunks"):
        found = load(f"chunks-{at}")
        plain = load(f"budgets-{at}")
        policies = {row["policy"] for row in found}
        draws = len(found[0]["attained"][0])
        beside = [{**row, "attained": [of[:draws] for of in row["attained"]]} for row in plain if row["policy"] in policies]
        free = {tokens: left_out([row for row in beside if budget(row) == tokens]) for tokens in sorted({budget(row) for row in beside})}
        reference = left_out(beside)
        for key, name in (("long_prefill_token_threshold", "chunk"), ("max_num_seqs", "requests")):
            settings = sorted({(budget(row), row["settings"][key]) for row in found if key in row["settings"]})
            of = {pair: left_out([row for row in found if (budget(row), row["settings"].get(key)) == pair]) for pair in settings}
            top = max(of, key=lambda pair: mean(of[pair]))
            beyond = left_out([row for row in found if key in row["settings"]] + beside)
            cells = []
            for tokens in (512, 2048, 8192):
                mine = [pair for pair in settings if pair[0] == tokens]
                if mine and tokens in free:
                    one = max(mine, key=lambda pair: mean(of[pair]))
                    cells.append(f"{mean(free[tokens]) * 100:.1f} → {mean(of[one]) * 100:.1f} ({one[1]:,})")
                else:
                    cells.append("–")
            most = max(free, key=lambda tokens: mean(free[tokens]))
            lines.append([*at.split("@"), name, *cells, f"{mean(free[most]) * 100:.1f} ({most:,})", f"{mean(of[top]) * 100:.1f} ({top[0]:,}; {top[1]:,})",
                          points(less(beyond, reference))])
    return rows(["traffic", "clock", "most of a", "at 512", "at 2,048", "at 8,192", "best budget alone", "best with it", "gain of having both"], lines)


def by_stretch(row):
    """Attained requests and requests of every stretch, by draw, over loads."""
    draws = list(zip(*row["stretches"], strict=True))
    table = []
    for draw in draws:
        count = max(len(one) for one in draw)
        table.append([[sum(one[at][which] for one in draw if at < len(one)) for which in (0, 1)] for at in range(count)])
    return table


def gained(candidates):
    """Attained by draw: of the constant that is best over all, of the best of every stretch as chosen on other draws, and in hindsight."""
    tables = [by_stretch(row) for row in candidates]
    draws = range(len(tables[0]))
    total = lambda table, draw: sum(pair[1] for pair in table[draw])  # noqa: E731
    requests = [sum(pair[0] for pair in tables[0][draw]) for draw in draws]
    overall, others, hindsight = [], [], []
    for draw in draws:
        rest = [one for one in draws if one != draw]
        chosen = max(tables, key=lambda table: sum(total(table, one) for one in rest))
        overall.append(total(chosen, draw) / requests[draw])
        sums = [0, 0]
        for at in range(len(tables[0][draw])):
            value = lambda table, one: table[one][at][1] if at < len(table[one]) else 0  # noqa: B023,E731
            by_others = max(tables, key=lambda table: (sum(value(table, one) for one in rest), sum(total(table, one) for one in rest)))
            sums[0] += value(by_others, draw)
            sums[1] += max(value(table, draw) for table in tables)
        others.append(sums[0] / requests[draw])
        hindsight.append(sums[1] / requests[draw])
    return overall, others, hindsight


def changing():
    lines = []
    for at in places("changing"):
        found = load(f"changing-{at}")
        overall, _, _ = gained(found)
        only = best(found)
        budget_alone = [row for row in found if row["policy"] == only["policy"]]
        heads_alone = [row for row in found if budget(row) == budget(only)]
        cells = []
        for candidates in (heads_alone, budget_alone, found):
            base, others, hindsight = gained(candidates)
            cells += [points(less(others, base)), points(less(hindsight, base))]
        lines.append([*at.split("@"), f"{mean(overall) * 100:.1f}", f"{budget(only):,}; {short(only['policy'])}", *cells])
    return rows(["traffic", "clock", "best constant", "which", "other heads by stretch", "in hindsight", "budget by stretch", "in hindsight", "both", "in hindsight"], lines)


def stretches():
    """Which budget is best in which stretch."""
    lines = []
    for at in places("changing"):
        found = load(f"changing-{at}")
        only = best(found)
        tables = {budget(row): by_stretch(row) for row in found if row["policy"] == only["policy"]}
        count = min(len(draw) for table in tables.values() for draw in table)
        cells = []
        for stretch in range(min(count, 12)):
            share = {tokens: sum(draw[stretch][1] for draw in table) / max(1, sum(draw[stretch][0] for draw in table)) for tokens, table in tables.items()}
            top = max(share, key=share.get)
            cells.append(f"{top:,}: {(share[top] - share[budget(only)]) * 100:+.1f}")
        cells += ["–"] * (12 - len(cells))
        lines.append([*at.split("@"), f"{budget(only):,}", *cells])
    return rows(["traffic", "clock", "best overall", *map(str, range(1, 13))], lines)


def main():
    path = HERE / "README.md"
    text = path.read_text()
    for table in (budgets, budgets_wide, by_load, defaults, finer, spread, edge, ppas, chunks, changing, stretches):
        before, rest = text.split(f"<!-- {table.__name__} -->\n")
        _, after = rest.split("<!-- / -->", 1)
        text = f"{before}<!-- {table.__name__} -->\n{table()}\n<!-- / -->{after}"
    path.write_text(text)


if __name__ == "__main__":
    main()
