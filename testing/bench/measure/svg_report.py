"""A run of `dlog bench` as one SVG: what each second did, and the latency by how many were faster.

Latencies are drawn as they are read: p99 is where one in a hundred is slower, each step to the right ten
times fewer.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from typing import Any

from ...verify.report.svg_chart import (
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    decades,
    grid,
    milliseconds,
    nice,
    seconds_axis,
    standalone,
)

TOP, HEIGHT, GAP = 62, 200, 58
SHARES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99)
"""Marks of the axis, in percent."""


def picture(found: Mapping[str, Any], title: str) -> str:
    """The file's text. ``found``: a result (`plan.result`), with latencies or without."""
    parts = [f'<text x="{LEFT}" y="22" style="font-size:15px;fill:#1c2833">{escape(title)}</text>']
    said = f"{found['records']:,} records in {found['seconds']:.1f} s"
    said += f", {found['records_per_s']:,.0f} records/s"
    if latency := found["latency_ms"]:
        shown = (f"{name} {value:.3g} ms" for name, value in latency.items())
        said += f"; {', '.join(shown)}"
    said += f"; other processes took {found['others_cpu_pct']} % of the CPU"
    parts.append(f'<text x="{LEFT}" y="40">{escape(said)}</text>')
    scale = Scale(found["seconds"])
    parts += _rates(found["per_second"], scale)
    bottom = TOP + HEIGHT
    parts += seconds_axis(scale, bottom)
    points = found.get("percentiles_ms") or ()
    if points:
        parts += _percentiles(points, bottom + GAP)
        bottom += GAP + HEIGHT
    svg = f'<svg viewBox="0 0 {WIDTH} {bottom + 30}" role="img" aria-label="{escape(title)}">'
    return standalone(f"{svg}{''.join(parts)}</svg>")


def _rates(seconds: Sequence[float], scale: Scale) -> list[str]:
    most, base = nice(max(seconds, default=1) or 1), TOP + HEIGHT
    found = [
        grid(round(base - share * HEIGHT, 1), f"{most * share:,.0f}")
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    points = [f"{scale.x(0)},{base}"]
    for n, rate in enumerate(seconds):
        y = round(base - rate / most * HEIGHT, 1)
        points += [f"{scale.x(n)},{y}", f"{scale.x(n + 1)},{y}"]
    points.append(f"{scale.x(len(seconds))},{base}")
    found.append(
        f'<polygon points="{" ".join(points)}" fill="#2e86c1" fill-opacity="0.28" stroke="#2e86c1"'
        ' stroke-width="1.2"/>'
    )
    found.append(f'<text x="{LEFT}" y="{TOP - 5}">records a second</text>')
    return found


def _percentiles(points: Sequence[Sequence[float]], top: float) -> list[str]:
    steps = decades([ms for _, ms in points if ms > 0])
    low, high, base = steps[0], steps[-1], top + HEIGHT

    def y(ms: float) -> float:
        share = log10(max(ms, low) / low) / log10(high / low)
        return round(base - share * HEIGHT, 1)

    def x(percent: float) -> float:
        slower = max(1 - percent / 100, 1e-5)
        return round(LEFT - log10(slower) / 5 * (WIDTH - LEFT - RIGHT), 1)

    found = [grid(y(value), milliseconds(value)) for value in steps]
    found += [
        f'<text x="{x(share)}" y="{base + 17}" text-anchor="middle">{share:g} %</text>'
        for share in SHARES
    ]
    line = " ".join(f"{x(percent)},{y(ms)}" for percent, ms in points)
    found.append(f'<polyline points="{line}" fill="none" stroke="#ca6f1e" stroke-width="1.6"/>')
    found.append(f'<text x="{LEFT}" y="{top - 5}">latency that so many did not exceed</text>')
    return found
