"""A run of `dlog bench` as one SVG chart: the rate of each second, and the latency percentiles.

The percentile axis is logarithmic: each step to the right covers a tenth of the remaining slower records.
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
"""Marks of the percentile axis."""


def picture(bench_result: Mapping[str, Any], title: str) -> str:
    """Return the text of the SVG file for a result of `bench_plan.result`, with or without latencies."""
    parts = [f'<text x="{LEFT}" y="22" style="font-size:15px;fill:#1c2833">{escape(title)}</text>']
    caption = f"{bench_result['records']:,} records in {bench_result['seconds']:.1f} s"
    caption += f", {bench_result['records_per_s']:,.0f} records/s"
    if latency := bench_result["latency_ms"]:
        percentile_texts = (f"{name} {value:.3g} ms" for name, value in latency.items())
        caption += f"; {', '.join(percentile_texts)}"
    caption += f"; other processes used {bench_result['others_cpu_pct']} % of the CPU"
    parts.append(f'<text x="{LEFT}" y="40">{escape(caption)}</text>')
    scale = Scale(bench_result["seconds"])
    parts += _rates(bench_result["per_second"], scale)
    bottom = TOP + HEIGHT
    parts += seconds_axis(scale, bottom)
    points = bench_result.get("percentiles_ms") or ()
    if points:
        parts += _percentiles(points, bottom + GAP)
        bottom += GAP + HEIGHT
    svg = f'<svg viewBox="0 0 {WIDTH} {bottom + 30}" role="img" aria-label="{escape(title)}">'
    return standalone(f"{svg}{''.join(parts)}</svg>")


def _rates(seconds: Sequence[float], scale: Scale) -> list[str]:
    axis_max, base = nice(max(seconds, default=1) or 1), TOP + HEIGHT
    shapes = [
        grid(round(base - share * HEIGHT, 1), f"{axis_max * share:,.0f}")
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    points = [f"{scale.x(0)},{base}"]
    for n, rate in enumerate(seconds):
        y = round(base - rate / axis_max * HEIGHT, 1)
        points += [f"{scale.x(n)},{y}", f"{scale.x(n + 1)},{y}"]
    points.append(f"{scale.x(len(seconds))},{base}")
    shapes.append(
        f'<polygon points="{" ".join(points)}" fill="#2e86c1" fill-opacity="0.28" stroke="#2e86c1"'
        ' stroke-width="1.2"/>'
    )
    shapes.append(f'<text x="{LEFT}" y="{TOP - 5}">records per second</text>')
    return shapes


def _percentiles(points: Sequence[Sequence[float]], top: float) -> list[str]:
    axis_values = decades([ms for _, ms in points if ms > 0])
    lowest, highest, base = axis_values[0], axis_values[-1], top + HEIGHT

    def y(ms: float) -> float:
        share = log10(max(ms, lowest) / lowest) / log10(highest / lowest)
        return round(base - share * HEIGHT, 1)

    def x(percent: float) -> float:
        slower = max(1 - percent / 100, 1e-5)
        return round(LEFT - log10(slower) / 5 * (WIDTH - LEFT - RIGHT), 1)

    shapes = [grid(y(value), milliseconds(value)) for value in axis_values]
    shapes += [
        f'<text x="{x(share)}" y="{base + 17}" text-anchor="middle">{share:g} %</text>'
        for share in SHARES
    ]
    polyline_points = " ".join(f"{x(percent)},{y(ms)}" for percent, ms in points)
    shapes.append(
        f'<polyline points="{polyline_points}" fill="none" stroke="#ca6f1e" stroke-width="1.6"/>'
    )
    shapes.append(f'<text x="{LEFT}" y="{top - 5}">latency percentiles</text>')
    return shapes
