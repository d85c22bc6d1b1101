"""The time line of a run as one SVG chart of faults, records per second and latency."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import log10
from typing import Any

from ...verify.report.svg_chart import (
    LEFT,
    WIDTH,
    Scale,
    decades,
    grid,
    milliseconds,
    nice,
    seconds_axis,
    standalone,
)

RATE_HEIGHT, LATENCY_HEIGHT, LANE_HEIGHT = 190, 150, 16
GAP, HEAD_HEIGHT = 34, 54
LINES = {"records/s": "#2e86c1", "p50": "#229954", "p99": "#ca6f1e", "max": "#e6b0aa"}
COLOURS = {
    "kill": "#c0392b",
    "restart": "#d98880",
    "pause": "#8e5bb0",
    "partition": "#2471a3",
    "slow-link": "#5dade2",
    "power-cut": "#17202a",
    "disk-full": "#b9770e",
    "sync-errors": "#d35400",
    "damage": "#7b241c",
    "clock": "#148f77",
    "files-limit": "#7f8c8d",
    "kill-client": "#ec7063",
    "pause-client": "#bb8fce",
    "run-client": "#f1948a",
    "slow-disk": "#ca6f1e",
    "rot-everywhere": "#641e16",
    "strangers": "#d4ac0d",
    "settings": "#1e8449",
    "wrong-memory": "#6c3483",
}


def picture(result: Mapping[str, Any], header: str = "") -> str:
    """Return the SVG chart of a result (`run_check.to_json`).

    Its time axis is from ``LEFT`` to ``WIDTH - RIGHT``. ``header`` is drawn above it, in ``HEAD_HEIGHT``.
    """
    header_height = HEAD_HEIGHT if header else 0
    time_line, faults = result["time_line"], result["faults"]
    scale = Scale(result["load_s"])
    lanes = _lanes(faults)
    lanes_top = 22
    rate_top = lanes_top + max(1, len(lanes)) * LANE_HEIGHT + 16
    latency_top = rate_top + RATE_HEIGHT + GAP
    bottom = latency_top + LATENCY_HEIGHT
    parts = [_bands(faults, scale, lanes_top, bottom)]
    parts += _lane_bars(lanes, scale, lanes_top)
    parts += _rate(time_line["acked"], scale, rate_top)
    parts += _latency(time_line, scale, latency_top)
    parts += seconds_axis(scale, bottom)
    cross = (
        f'<line id="cross" x1="0" x2="0" y1="{lanes_top}" y2="{bottom}" stroke="#1c2833"'
        ' stroke-width="1" visibility="hidden"/>'
    )
    return (
        f'<svg id="line" viewBox="0 {-header_height} {WIDTH} {bottom + 30 + header_height}" role="img"'
        f' aria-label="records a second, latency and faults">{header}{"".join(parts)}{cross}</svg>'
    )


def still(result: Mapping[str, Any]) -> str:
    """Return the chart as a standalone file, with the result and a legend."""
    caption = (
        f"{result['verdict']}: {result.get('scenario', 'a history')}, seed {result.get('seed', '?')}:"
        f" {result['acked']:,} records acknowledged, {result['lost']:,} of them lost,"
        f" {len(result['faults'])} faults"
    )
    parts = [f'<text x="{LEFT}" y="-34" style="font-size:15px">{escape(caption)}</text>']
    kinds = dict.fromkeys(str(fault["kind"]) for fault in result["faults"])
    legend = [*LINES.items(), *((kind, COLOURS.get(kind, "#555")) for kind in kinds)]
    x = LEFT
    for name, colour in legend:
        parts.append(f'<rect x="{x}" y="-19" width="10" height="10" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="-10">{escape(name)}</text>')
        x += 30 + 7 * len(name)
    return standalone(picture(result, "".join(parts)))


def _lanes(faults: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Assign faults to as few rows as possible without overlaps."""
    lanes: list[list[Mapping[str, Any]]] = []
    for fault in sorted(faults, key=lambda candidate: float(candidate["at_s"])):
        for lane in lanes:
            if lane[-1]["at_s"] + lane[-1]["seconds"] <= fault["at_s"]:
                lane.append(fault)
                break
        else:
            lanes.append([fault])
    return lanes


def _bands(faults: Iterable[Mapping[str, Any]], scale: Scale, top: float, bottom: float) -> str:
    shapes = []
    for fault in faults:
        x = scale.x(fault["at_s"])
        width = max(1.0, scale.x(fault["at_s"] + fault["seconds"]) - x)
        colour = COLOURS.get(fault["kind"], "#555")
        shapes.append(
            f'<rect x="{x}" y="{top}" width="{width:.1f}" height="{bottom - top}" fill="{colour}"'
            ' opacity="0.08"/>'
        )
    return "".join(shapes)


def _lane_bars(lanes: Sequence[Sequence[Mapping[str, Any]]], scale: Scale, top: float) -> list[str]:
    shapes = [f'<text x="{LEFT - 8}" y="{top + 11}" text-anchor="end">faults</text>']
    for row, lane in enumerate(lanes):
        for fault in lane:
            x, y = scale.x(fault["at_s"]), top + row * LANE_HEIGHT
            width = max(3.0, scale.x(fault["at_s"] + fault["seconds"]) - x)
            title = f"{fault['number']}: {fault['kind']} {', '.join(fault['targets'])}"
            colour = COLOURS.get(fault["kind"], "#555")
            shapes.append(
                f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{LANE_HEIGHT - 4}" rx="2"'
                f' fill="{colour}"><title>{escape(title)}</title></rect>'
            )
    return shapes


def _rate(acked: Sequence[int], scale: Scale, top: float) -> list[str]:
    axis_max = nice(max(acked, default=1) or 1)
    base = top + RATE_HEIGHT

    def y(value: float) -> float:
        return round(base - value / axis_max * RATE_HEIGHT, 1)

    shapes = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = axis_max * share
        shapes.append(grid(y(value), f"{value:,.0f}"))
    points = [f"{scale.x(0)},{base}"]
    for n, count in enumerate(acked):
        second_share = min(1.0, scale.seconds - n)  # the last second may be shorter
        height = y(min(axis_max, count / second_share)) if second_share > 0.2 else y(count)
        points += [f"{scale.x(n)},{height}", f"{scale.x(n + 1)},{height}"]
    points.append(f"{scale.x(len(acked))},{base}")
    shapes.append(
        f'<polygon points="{" ".join(points)}" fill="#2e86c1" fill-opacity="0.28" stroke="#2e86c1"'
        ' stroke-width="1.2"/>'
    )
    shapes.append(f'<text x="{LEFT}" y="{top - 5}">records acknowledged a second</text>')
    return shapes


def _latency(line: Mapping[str, Any], scale: Scale, top: float) -> list[str]:
    values = [v for name in ("p50_ms", "p99_ms", "max_ms") for v in line[name] if v]
    axis_values = decades(values)
    lowest, highest = axis_values[0], axis_values[-1]
    base = top + LATENCY_HEIGHT

    def y(value: float) -> float:
        share = log10(max(value, lowest) / lowest) / log10(highest / lowest)
        return round(base - share * LATENCY_HEIGHT, 1)

    shapes = [grid(y(value), milliseconds(value)) for value in axis_values]
    for name, colour in (("max_ms", "#e6b0aa"), ("p99_ms", "#ca6f1e"), ("p50_ms", "#229954")):
        for line_points in _stretches(line[name]):
            points = " ".join(f"{scale.x(n + 0.5)},{y(v)}" for n, v in line_points)
            if len(line_points) == 1:
                n, v = line_points[0]
                shapes.append(
                    f'<circle cx="{scale.x(n + 0.5)}" cy="{y(v)}" r="1.8" fill="{colour}"/>'
                )
            else:
                shapes.append(
                    f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
                )
    shapes.append(
        f'<text x="{LEFT}" y="{top - 5}">latency to acknowledgement, of each second</text>'
    )
    return shapes


def _stretches(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Split a line where nothing was acknowledged, so that no line is drawn across a gap."""
    result: list[list[tuple[int, float]]] = [[]]
    for n, value in enumerate(values):
        if value is None:
            result.append([])
        else:
            result[-1].append((n, value))
    return [line_points for line_points in result if line_points]
