"""Draws docs/attainment.svg, the picture of the README, from results/*.txt: python3 experiments/picture.py

With `-` it is printed instead, for a test to see that the picture is that of the results.
"""
import pathlib
import re
import sys

from table import of_comparisons

RESULTS = pathlib.Path(__file__).parent / "results"
TO = pathlib.Path(__file__).parent.parent / "docs" / "attainment.svg"
PANELS = [
    ("chat-24g", "Azure conversations, 24 GB card"),
    ("chat-80g", "Mooncake conversations, 80 GB card"),
    ("reasoning", "long answers, closed loop, 80 GB card"),
]
# Prefix of a policy's name, what the picture calls it, colour, dashes.
SERIES = [
    ("best-fixed", "best fixed watermark, in hindsight", "#7a7a7a", ""),
    ("best-static", "best constant choice of everything, in hindsight", "#2a6fbb", "5 4"),
    ("table:", "the table, behind its guard", "#c8501e", ""),
]
WIDTH, HEIGHT, LEFT, TOP, GAP, BOTTOM = 900, 320, 52, 62, 24, 42
LOWEST, HIGHEST = 30, 100
PANEL = (WIDTH - LEFT - 12 - GAP * (len(PANELS) - 1)) / len(PANELS)


def at_loads(name):
    """Loads, and what each policy attains at each of them, in per cent."""
    lines = RESULTS / f"{name}.jsonl"
    if lines.exists() and (found := of_comparisons(lines)) is not None:
        rows, loads = found
        return [float(load) for load in loads], {policy: row["shares"] for policy, row in rows.items()}
    loads, rows, inside = [], {}, False
    for line in (RESULTS / f"{name}.txt").read_text().splitlines():
        if line.startswith("at load"):
            loads, inside = [float(load) for load in line.split()[2:]], True
        elif inside and not line.strip():
            break
        elif inside and (attained := re.findall(r"([\d.]+) %", line)):
            rows[line.split()[0]] = [float(share) for share in attained]
    return loads, rows


def y_of(share):
    return TOP + (HIGHEST - share) / (HIGHEST - LOWEST) * (HEIGHT - TOP - BOTTOM)


def text(x, y, words, anchor="middle", size=12, fill="#333", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{extra}>{words}</text>'


def panel(index, name, title):
    left = LEFT + index * (PANEL + GAP)
    loads, rows = at_loads(name)
    span = loads[-1] - loads[0]

    def x_of(load):
        return left + 14 + (load - loads[0]) / span * (PANEL - 28)

    yield text(left + PANEL / 2, TOP - 12, title, size=13, fill="#111")
    for share in range(40, HIGHEST + 1, 20):
        yield f'<path d="M{left:.1f} {y_of(share):.1f}h{PANEL:.1f}" stroke="#ddd"/>'
        if index == 0:
            yield text(left - 8, y_of(share) + 4, f"{share} %", "end")
    yield f'<path d="M{left:.1f} {HEIGHT - BOTTOM:.1f}h{PANEL:.1f}" stroke="#888"/>'
    written = None
    for load in loads:
        x = x_of(load)
        yield f'<path d="M{x:.1f} {HEIGHT - BOTTOM:.1f}v4" stroke="#888"/>'
        # A label needs some room; the tick says where the others are.
        if written is None or x - written > 34:
            yield text(x, HEIGHT - BOTTOM + 17, f"{load:g}", size=11)
            written = x
    for prefix, _, colour, dashes in SERIES:
        shares = next(shares for policy, shares in rows.items() if policy.startswith(prefix))
        points = [(x_of(load), y_of(share)) for load, share in zip(loads, shares, strict=True)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)


def picture():
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="Helvetica, Arial, sans-serif" role="img">')
    yield "<title>Share of requests that meet all three targets, against load</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    x = LEFT
    for _, label, colour, dashes in SERIES:
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        yield f'<path d="M{x} 18h26" stroke="{colour}" stroke-width="2"{dashed}/><circle cx="{x + 13}" cy="18" r="3" fill="{colour}"/>'
        yield text(x + 33, 22, label, "start")
        x += 33 + 6.3 * len(label) + 24
    for index, (name, title) in enumerate(PANELS):
        yield from panel(index, name, title)
    yield text(WIDTH / 2, HEIGHT - 6, "load (share of the recorded requests, or of the clients)", size=12)
    yield "</svg>"


if __name__ == "__main__":
    drawn = "\n".join(picture()) + "\n"
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(drawn)
    else:
        TO.write_text(drawn)
