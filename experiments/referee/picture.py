"""Draws results.svg from results.jsonl: return and attainment against samples and seconds: `picture.py`."""

import pathlib
import statistics

from settings import LEARN
from table import NAMES, PROBLEMS, of, read

TO = pathlib.Path(__file__).parent / "results.svg"
COLOURS = {"ours": "#c8501e", "sb3": "#2a6fbb", "sb3-maskable": "#3f9a58", "plain": "#7a7a7a"}
# Problem, column of its rows, how it reads, lowest and highest shown.
PANELS = (
    ("cartpole", "return", "return", 0, 500),
    ("kv", "return", "return", 40, 120),
    ("kv", "attained", "attained, %", 70, 82),
)
CART_POINTS = 20
WIDTH, PANEL_W, PANEL_H, LEFT, TOP, ACROSS, DOWN = 900, 376, 190, 60, 66, 64, 68


def text(x, y, words, anchor="middle", size=12, fill="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{words}</text>'


def curve(rows, problem, column):
    """Of a seed: (samples, processor seconds, mean over the episodes since the last point). A point of the cart-pole is a twentieth of its samples;
    one of the nodes is an episode of each of them, so that every point has all loads: those of a high load end together."""
    every = LEARN[problem].planned().samples / CART_POINTS
    points, total, count = [], 0.0, 0
    for row in rows:
        if column in row:
            total, count = total + row[column] * row["episodes"], count + row["episodes"]
        is_whole = count >= LEARN[problem].num_envs if problem == "kv" else row["samples"] >= every * (len(points) + 1) - 1
        if is_whole:
            points.append((row["samples"], row["cpu_s"], total / count if count else None))
            total, count = 0.0, 0
    return points


def curves(rows, problem, column):
    """Points of each learner: median samples and seconds, lowest, mean and highest over the seeds."""
    found = {}
    for learner in NAMES:
        told = of(rows["iteration"], learner=learner, problem=problem)
        seeds = [curve(of(told, seed=seed), problem, column) for seed in sorted({row["seed"] for row in told})]
        found[learner] = []
        # Of the last episodes not every seed has as many.
        for points in zip(*seeds, strict=False):
            values = [value for _, _, value in points if value is not None]
            if values:
                seconds = statistics.median(seconds for _, seconds, _ in points)
                samples = statistics.median(samples for samples, _, _ in points)
                found[learner].append((samples, seconds, min(values), statistics.mean(values), max(values)))
    return found


def ticks(most):
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 2e4, 5e4, 1e5, 2e5) if most / step <= 6)
    return [step * index for index in range(1, int(most / step) + 1)]


def panel(left, top, found, axis, problem, label, lowest, highest):
    most = max(point[axis] for points in found.values() for point in points)
    scale = 100.0 if label.endswith("%") else 1.0

    def x_of(value):
        return left + value / most * PANEL_W

    def y_of(value):
        return top + (highest - min(max(value * scale, lowest), highest)) / (highest - lowest) * PANEL_H

    yield text(left + PANEL_W / 2, top - 8, f"{PROBLEMS[problem]}: {label}, as drawn in training", size=13, fill="#111")
    for step in range(5):
        value = lowest + (highest - lowest) * step / 4
        y = y_of(value / scale)
        yield f'<path d="M{left:.1f} {y:.1f}h{PANEL_W}" stroke="#ddd"/>' + text(left - 6, y + 4, f"{value:g}", "end", 11)
    for value in ticks(most):
        said = f"{value:g} CPU s" if axis == 1 else f"{value / 1000:g}k"
        yield text(x_of(value), top + PANEL_H + 16, said, size=11)
    for learner, points in found.items():
        edge = [(x_of(point[axis]), y_of(point[2])) for point in points] + [(x_of(point[axis]), y_of(point[4])) for point in reversed(points)]
        area = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        yield f'<polygon points="{area}" fill="{COLOURS[learner]}" fill-opacity="0.12"/>'
        line = " ".join(f"{x_of(point[axis]):.1f},{y_of(point[3]):.1f}" for point in points)
        yield f'<polyline points="{line}" fill="none" stroke="{COLOURS[learner]}" stroke-width="2"/>'


def picture():
    rows = read()
    height = TOP + len(PANELS) * (PANEL_H + DOWN)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="Helvetica, Arial, sans-serif" role="img">'
    yield "<title>Four learners of one algorithm on two problems</title>"
    yield f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    x = LEFT
    for learner, name in NAMES.items():
        yield f'<path d="M{x} 18h26" stroke="{COLOURS[learner]}" stroke-width="2"/>' + text(x + 33, 22, name, "start")
        x += 33 + 6.6 * len(name) + 24
    yield text(LEFT, 38, "against decisions and processor seconds; mean over five seeds, shaded from the lowest to the highest of them", "start", 11)
    for row, (problem, column, label, lowest, highest) in enumerate(PANELS):
        found = {learner: points for learner, points in curves(rows, problem, column).items() if points}
        for axis in (0, 1):
            left, top = LEFT + axis * (PANEL_W + ACROSS), TOP + row * (PANEL_H + DOWN)
            yield from panel(left, top, found, axis, problem, label, lowest, highest)
    yield "</svg>"


if __name__ == "__main__":
    TO.write_text("\n".join(picture()) + "\n")
