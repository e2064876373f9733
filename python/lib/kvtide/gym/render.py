"""What an episode looks like: a few lines, or a picture of its course."""

from collections import deque

import numpy as np

from kvtide import FEATURE_NAMES

# Decisions of a picture, two columns each.
_SPAN, _WIDTH, _PANEL, _LEFT = 240, 480, 80, 4
_FREE, _EVICTABLE, _RUNNING, _WAITING = (
    FEATURE_NAMES.index(name) for name in ("free_fraction", "evictable_fraction", "running", "waiting")
)
_BACK, _GRID, _INK = (255, 255, 255), (222, 222, 222), (60, 60, 60)
_BLUE, _ORANGE, _GREEN, _GREY = (31, 119, 180), (230, 120, 20), (44, 140, 60), (170, 170, 170)
# Three columns by five rows a letter, row by row.
_FONT = {
    "A": "75755",
    "B": "65656",
    "C": "74447",
    "D": "65556",
    "E": "74647",
    "G": "74557",
    "H": "55755",
    "I": "72227",
    "K": "55655",
    "L": "44447",
    "N": "65555",
    "O": "75557",
    "R": "65655",
    "S": "74717",
    "T": "72222",
    "U": "55557",
    "W": "55577",
    " ": "00000",
}


def text(scenario, state, reward):
    """The node in numbers, for a terminal."""
    total, free, cached = (state[key] for key in ("num_gpu_blocks", "free_gpu_blocks", "evictable_blocks"))
    full = round(20 * (1 - free / max(1, total)))
    on_time = f"{state['on_time']} of {state['requests']} requests so far missed nothing"
    return "\n".join(
        (
            f"{scenario.name} at load {state['load']:.3g}: {state['elapsed_s']:.1f} s, {state['decisions']} decisions",
            f"blocks    [{'#' * full}{'.' * (20 - full)}] {total - free} of {total} in use, {cached} kept of those free",
            f"requests  {state['running']} running, {state['waiting']} waiting, {state['completed']} done; {on_time}",
            f"so far    {state['preemptions']} preemptions, {state['output_tok_s']:.0f} output tokens/s",
            f"reward    {reward:+.4f}, {state['return']:+.3f} in all",
        )
    )


class History:
    """The last decisions of each environment, for pictures."""

    def __init__(self, num_envs):
        self._envs = [deque(maxlen=_SPAN) for _ in range(num_envs)]

    def clear(self, mask=None):
        """Forgets the environments in `mask`, or all."""
        for env, rows in enumerate(self._envs):
            if mask is None or mask[env]:
                rows.clear()

    def add(self, observations, rewards):
        """What every environment shows now."""
        for rows, seen, reward in zip(self._envs, observations, rewards, strict=True):
            rows.append((1 - seen[_FREE], seen[_EVICTABLE], seen[_RUNNING], seen[_WAITING], reward))

    def picture(self, env):
        """Three panels over the last decisions: blocks in use, requests, rewards."""
        rows = np.array(self._envs[env], dtype=np.float64).reshape(-1, 5)
        requests = max(1e-9, rows[:, 2:4].max(initial=0.0))
        low, high = min(0.0, rows[:, 4].min(initial=0.0)), max(1e-9, rows[:, 4].max(initial=0.0))
        return np.concatenate(
            (
                _panel((("BLOCKS IN USE", _BLUE, rows[:, 0], 0, 1), ("CACHED", _GREY, rows[:, 1], 0, 1))),
                _panel((("RUNNING", _GREEN, rows[:, 2], 0, requests), ("WAITING", _ORANGE, rows[:, 3], 0, requests))),
                _panel((("REWARD", _INK, rows[:, 4], low, high),)),
            )
        )


def _panel(lines):
    """Lines of (name, colour, values, lowest, highest) over a grid."""
    picture = np.full((_PANEL, _WIDTH, 3), _BACK, dtype=np.uint8)
    picture[[10, 44, 78]] = _GRID
    column = _LEFT
    for name, colour, values, low, high in lines:
        column = _write(picture, name, colour, column)
        # From the top down, below the names.
        heights = np.clip((values - low) / (high - low), 0.0, 1.0)
        ys = 78 - np.rint(heights * 68).astype(np.intp)
        for x, (y, before) in enumerate(zip(ys, np.concatenate((ys[:1], ys)), strict=False)):
            picture[min(y, before) : max(y, before) + 1, 2 * x : 2 * x + 2] = colour
    return picture


def _write(picture, name, colour, column):
    """`name` in the upper margin; the column after it."""
    for letter in name:
        for row, bits in enumerate(_FONT[letter]):
            for place in range(3):
                if int(bits) >> (2 - place) & 1:
                    picture[2 + row, column + place] = colour
        column += 4
    return column + 8
