"""Shared parts of the charts of runs: a time axis in seconds, grid lines, and standalone files."""

from math import log10

LEFT, RIGHT, WIDTH = 64, 16, 1080
"""The plot area in its picture, in units of the SVG's view box."""
STYLE = "svg{background:#fff} text{font:11.5px system-ui,sans-serif;fill:#566573}"


class Scale:
    """Converts seconds to x coordinates."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1.0, seconds)

    def x(self, t: float) -> float:
        """Return the x coordinate of a time. Times outside the run are placed at its ends."""
        inside = min(max(t, 0.0), self.seconds)
        return round(LEFT + inside / self.seconds * (WIDTH - LEFT - RIGHT), 1)


def seconds_axis(scale: Scale, bottom: float) -> list[str]:
    """Return the labels below the plot, at most seventeen."""
    step = next(
        s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 10**9) if scale.seconds / s <= 16
    )
    labels = []
    for t in range(0, int(scale.seconds) + 1, step):
        labels.append(f'<text x="{scale.x(t)}" y="{bottom + 17}" text-anchor="middle">{t} s</text>')
    return labels


def grid(y: float, label: str) -> str:
    """Return a horizontal line across the plot, with a label on its left."""
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e5e8e8"/>'
        f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>'
    )


def nice(value: float) -> float:
    """Return the next value that is 1, 2, 4, 5 or 8 times a power of ten."""
    power = 10.0 ** int(log10(value))
    return next(power * step for step in (1, 2, 4, 5, 8, 10) if power * step >= value)


def decades(values: list[float]) -> list[float]:
    """Return at least two powers of ten that enclose all values, which are above 0."""
    low = 10.0 ** int(log10(max(0.1, min(values, default=1.0))) - 0.9999)
    high = max(10 * low, 10.0 ** int(log10(max(values, default=10.0)) + 0.9999))
    powers = [low]
    while powers[-1] * 1.001 < high:
        powers.append(powers[-1] * 10)
    return powers


def milliseconds(value: float) -> str:
    """Return a time as an axis label."""
    return f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"


def standalone(svg: str) -> str:
    """Return an SVG as a standalone file, for a document or a browser."""
    head, remainder = svg.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{remainder}\n'
