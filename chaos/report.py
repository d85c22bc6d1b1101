"""The report of a run: one HTML file that needs nothing else, and opens offline.

The verdict on top, then one time line: writes a second, latency and faults drawn over each other, so that
the eye sees what a fault did; then tables. Drawn as inline SVG; the only script shows the second under the
mouse. Light on purpose: it is printed and pasted into pages.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import log10
from pathlib import Path
from typing import Any

LEFT, RIGHT, WIDTH = 64, 16, 1080
RATE_HEIGHT, LATENCY_HEIGHT, LANE_HEIGHT = 190, 150, 16
GAP = 34
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
}
VERDICT_COLOURS = {"OK": "#1e8449", "FAIL": "#b03a2e", "VOID": "#9a7d0a"}

STYLE = """
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:#1c2833;background:#fff;
 max-width:1120px;margin:28px auto;padding:0 20px}
h1{font-size:24px;margin:0 0 4px} h2{font-size:17px;margin:30px 0 8px}
.verdict{display:inline-block;color:#fff;font-weight:700;padding:3px 14px;border-radius:4px;margin-right:12px}
.about{color:#566573;margin:0 0 14px} ul.reasons{margin:8px 0;padding-left:20px;color:#922b21}
.numbers{display:grid;grid-template-columns:repeat(5,1fr);gap:10px 20px;margin:14px 0}
.numbers b{display:block;font-size:20px;font-variant-numeric:tabular-nums}
.numbers span{color:#566573;font-size:13px}
table{border-collapse:collapse;width:100%;font-size:13.5px} th{text-align:left;color:#566573;font-weight:600}
th,td{padding:4px 10px 4px 0;border-bottom:1px solid #eaecee;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code,pre{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace} pre{background:#f4f6f7;padding:10px 12px;
 border-radius:4px;overflow-x:auto;margin:6px 0} svg{display:block;width:100%;height:auto}
svg text{font:11.5px system-ui,sans-serif;fill:#566573} .swatch{display:inline-block;width:10px;height:10px;
 border-radius:2px;margin-right:6px} #at{height:1.6em;color:#1c2833;font-size:13.5px;
 font-variant-numeric:tabular-nums} .words{color:#566573}
"""

SCRIPT = """
const d=JSON.parse(document.getElementById('d').textContent),s=document.getElementById('line'),
a=document.getElementById('at'),c=document.getElementById('cross');
s.addEventListener('mousemove',e=>{const r=s.getBoundingClientRect(),x=(e.clientX-r.left)*d.width/r.width,
t=(x-d.left)/(d.width-d.left-d.right)*d.seconds,n=Math.floor(t);if(n<0||n>=d.acked.length){return}
c.setAttribute('x1',x);c.setAttribute('x2',x);c.setAttribute('visibility','visible');
const ms=v=>v==null?'none':v+' ms',f=d.faults.filter(o=>o.at_s<=t&&t<=o.at_s+o.seconds)
.map(o=>o.number+' '+o.kind+' '+o.targets.join(', ')).join('; ');
a.textContent=n+' s: '+d.acked[n].toLocaleString('en')+' records/s, p50 '+ms(d.p50_ms[n])+', p99 '+
ms(d.p99_ms[n])+', max '+ms(d.max_ms[n])+(f?' | '+f:'')});
"""


def write_report(result: Mapping[str, Any], path: Path) -> Path:
    """Write the report of ``result`` (`verify.judgement.to_json` and what the runner added); its path."""
    path.write_text(page(result), encoding="utf-8")
    return path


def page(result: Mapping[str, Any]) -> str:
    """The whole page."""
    name = f"{result.get('scenario', 'a history')}, seed {result.get('seed', '?')}"
    verdict = str(result["verdict"])
    reasons = "".join(f"<li>{escape(str(reason))}</li>" for reason in result["reasons"])
    reasons += "".join(f"<li>{escape(str(remark))}</li>" for remark in result["remarks"])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(verdict)}: {escape(name)}</title>
<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>
<h1><span class="verdict" style="background:{VERDICT_COLOURS[verdict]}">{verdict}</span>{escape(name)}</h1>
<p class="about">{escape(str(result.get("about", "")))}</p>
{f'<ul class="reasons">{reasons}</ul>' if reasons else ""}
{_numbers(result)}
<h2>Time line</h2>
{_legend(result["faults"])}
<div id="at">Move over the picture to see a second of it.</div>
{_picture(result)}
<h2>Faults</h2>
{_faults(result["faults"])}
<h2>Logs</h2>
{_logs(result["logs"])}
<h2>Again</h2>
{_again(result)}
<script type="application/json" id="d">{_data(result)}</script><script>{SCRIPT}</script>
</body></html>
"""


def _numbers(result: Mapping[str, Any]) -> str:
    latency = result["latency_ms"]
    found = [
        (f"{result['acked']:,}", "records acknowledged"),
        (f"{result['lost']:,}", "of them lost"),
        (f"{result['unknown']:,}", "of unknown outcome"),
        (f"{result['acked_per_s']:,.0f}/s", "mean rate"),
        (f"{result['gap_s']:.2f} s", f"longest gap in writes, at {result['gap_at_s']:.0f} s"),
        (f"{latency.get('p50', 0):g} ms", "p50 to acknowledgement"),
        (f"{latency.get('p99', 0):g} ms", "p99"),
        (f"{result['read']:,}", f"records read, {result['readings']} readings"),
        (f"{result['register_calls']:,}", "metadata calls, linearizable"),
        (f"{len(result['faults'])}", "faults"),
    ]
    cells = "".join(f"<div><b>{escape(n)}</b><span>{escape(w)}</span></div>" for n, w in found)
    return f'<div class="numbers">{cells}</div>'


def _legend(faults: Sequence[Mapping[str, Any]]) -> str:
    kinds = dict.fromkeys(str(fault["kind"]) for fault in faults)
    shown = "&ensp;".join(
        f'<span class="swatch" style="background:{COLOURS.get(kind, "#555")}"></span>{escape(kind)}'
        for kind in kinds
    )
    lines = (
        '<span class="swatch" style="background:#2e86c1"></span>records/s&ensp;'
        '<span class="swatch" style="background:#229954"></span>p50&ensp;'
        '<span class="swatch" style="background:#ca6f1e"></span>p99&ensp;'
        '<span class="swatch" style="background:#e6b0aa"></span>max'
    )
    return f"<div>{lines}&emsp;{shown}</div>"


# --- the picture ----------------------------------------------------------------------------------


class _Scale:
    """Seconds to x."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1.0, seconds)

    def x(self, t: float) -> float:
        inside = min(max(t, 0.0), self.seconds)
        return round(LEFT + inside / self.seconds * (WIDTH - LEFT - RIGHT), 1)


def _picture(result: Mapping[str, Any]) -> str:
    line, faults = result["time_line"], result["faults"]
    scale = _Scale(result["load_s"])
    lanes = _lanes(faults)
    lanes_top = 22
    rate_top = lanes_top + max(1, len(lanes)) * LANE_HEIGHT + 16
    latency_top = rate_top + RATE_HEIGHT + GAP
    bottom = latency_top + LATENCY_HEIGHT
    parts = [_bands(faults, scale, lanes_top, bottom)]
    parts += _lane_bars(lanes, scale, lanes_top)
    parts += _rate(line["acked"], scale, rate_top)
    parts += _latency(line, scale, latency_top)
    parts += _seconds_axis(scale, bottom)
    cross = (
        f'<line id="cross" x1="0" x2="0" y1="{lanes_top}" y2="{bottom}" stroke="#1c2833"'
        ' stroke-width="1" visibility="hidden"/>'
    )
    return (
        f'<svg id="line" viewBox="0 0 {WIDTH} {bottom + 30}" role="img"'
        f' aria-label="records a second, latency and faults">{"".join(parts)}{cross}</svg>'
    )


def _lanes(faults: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Faults in as few rows as they fit in without covering each other."""
    lanes: list[list[Mapping[str, Any]]] = []
    for fault in sorted(faults, key=lambda one: float(one["at_s"])):
        for lane in lanes:
            if lane[-1]["at_s"] + lane[-1]["seconds"] <= fault["at_s"]:
                lane.append(fault)
                break
        else:
            lanes.append([fault])
    return lanes


def _bands(faults: Iterable[Mapping[str, Any]], scale: _Scale, top: float, bottom: float) -> str:
    found = []
    for fault in faults:
        x = scale.x(fault["at_s"])
        width = max(1.0, scale.x(fault["at_s"] + fault["seconds"]) - x)
        colour = COLOURS.get(fault["kind"], "#555")
        found.append(
            f'<rect x="{x}" y="{top}" width="{width:.1f}" height="{bottom - top}" fill="{colour}"'
            ' opacity="0.08"/>'
        )
    return "".join(found)


def _lane_bars(
    lanes: Sequence[Sequence[Mapping[str, Any]]], scale: _Scale, top: float
) -> list[str]:
    found = [f'<text x="{LEFT - 8}" y="{top + 11}" text-anchor="end">faults</text>']
    for row, lane in enumerate(lanes):
        for fault in lane:
            x, y = scale.x(fault["at_s"]), top + row * LANE_HEIGHT
            width = max(3.0, scale.x(fault["at_s"] + fault["seconds"]) - x)
            title = f"{fault['number']}: {fault['kind']} {', '.join(fault['targets'])}"
            colour = COLOURS.get(fault["kind"], "#555")
            found.append(
                f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{LANE_HEIGHT - 4}" rx="2"'
                f' fill="{colour}"><title>{escape(title)}</title></rect>'
            )
    return found


def _rate(acked: Sequence[int], scale: _Scale, top: float) -> list[str]:
    most = _nice(max(acked, default=1) or 1)
    base = top + RATE_HEIGHT

    def y(value: float) -> float:
        return round(base - value / most * RATE_HEIGHT, 1)

    found = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = most * share
        found.append(_grid(y(value), f"{value:,.0f}"))
    points = [f"{scale.x(0)},{base}"]
    for n, count in enumerate(acked):
        part = min(1.0, scale.seconds - n)  # of the last second
        height = y(min(most, count / part)) if part > 0.2 else y(count)
        points += [f"{scale.x(n)},{height}", f"{scale.x(n + 1)},{height}"]
    points.append(f"{scale.x(len(acked))},{base}")
    found.append(
        f'<polygon points="{" ".join(points)}" fill="#2e86c1" fill-opacity="0.28" stroke="#2e86c1"'
        ' stroke-width="1.2"/>'
    )
    found.append(f'<text x="{LEFT}" y="{top - 5}">records acknowledged a second</text>')
    return found


def _latency(line: Mapping[str, Any], scale: _Scale, top: float) -> list[str]:
    values = [v for name in ("p50_ms", "p99_ms", "max_ms") for v in line[name] if v]
    low = 10 ** int(log10(max(0.1, min(values, default=1.0))) - 0.9999)
    high = max(10 * low, 10 ** int(log10(max(values, default=10.0)) + 0.9999))
    base = top + LATENCY_HEIGHT

    def y(value: float) -> float:
        share = log10(max(value, low) / low) / log10(high / low)
        return round(base - share * LATENCY_HEIGHT, 1)

    found, value = [], float(low)
    while value <= high * 1.001:
        found.append(_grid(y(value), f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"))
        value *= 10
    for name, colour in (("max_ms", "#e6b0aa"), ("p99_ms", "#ca6f1e"), ("p50_ms", "#229954")):
        for stretch in _stretches(line[name]):
            points = " ".join(f"{scale.x(n + 0.5)},{y(v)}" for n, v in stretch)
            if len(stretch) == 1:
                n, v = stretch[0]
                found.append(
                    f'<circle cx="{scale.x(n + 0.5)}" cy="{y(v)}" r="1.8" fill="{colour}"/>'
                )
            else:
                found.append(
                    f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
                )
    found.append(
        f'<text x="{LEFT}" y="{top - 5}">latency to acknowledgement, of each second</text>'
    )
    return found


def _stretches(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Broken where nothing was acknowledged: no line is drawn over a hole."""
    found: list[list[tuple[int, float]]] = [[]]
    for n, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append((n, value))
    return [stretch for stretch in found if stretch]


def _seconds_axis(scale: _Scale, bottom: float) -> list[str]:
    step = next(
        s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 10**9) if scale.seconds / s <= 16
    )
    found = []
    for t in range(0, int(scale.seconds) + 1, step):
        found.append(f'<text x="{scale.x(t)}" y="{bottom + 17}" text-anchor="middle">{t} s</text>')
    return found


def _grid(y: float, label: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e5e8e8"/>'
        f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>'
    )


def _nice(value: float) -> float:
    """The next 1, 2, 4, 5 or 8 times a power of ten."""
    power = 10.0 ** int(log10(value))
    return next(power * step for step in (1, 2, 4, 5, 8, 10) if power * step >= value)


# --- tables ---------------------------------------------------------------------------------------


def _faults(faults: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for fault in faults:
        colour = COLOURS.get(fault["kind"], "#555")
        rows.append(
            f'<tr><td class="n">{fault["number"]}</td><td class="n">{fault["at_s"]:.1f} s</td>'
            f'<td class="n">{fault["seconds"]:.1f} s</td>'
            f'<td><span class="swatch" style="background:{colour}"></span>{escape(fault["kind"])}</td>'
            f"<td>{escape(', '.join(fault['targets']))}</td>"
            f'<td class="n">{fault["gap_s"]:.2f} s</td>'
            f'<td class="words">{escape(_brief(fault))}</td></tr>'
        )
    return (
        '<table><tr><th class="n">no.</th><th class="n">at</th><th class="n">for</th><th>what</th>'
        '<th>whom</th><th class="n">longest gap</th><th>what came of it</th></tr>'
        f"{''.join(rows)}</table>"
    )


def _brief(fault: Mapping[str, Any]) -> str:
    words = f"{fault['words']}: {fault['end_words']}"
    return words if len(words) <= 260 else words[:257] + "..."


def _logs(logs: Sequence[Mapping[str, Any]]) -> str:
    names = ("records", "acked", "lost", "unknown", "refused", "sessions", "readings", "read")
    head = "".join(f'<th class="n">{name}</th>' for name in names)
    rows = "".join(
        f"<tr><td>{escape(str(log['log']))}</td>"
        + "".join(f'<td class="n">{log[name]:,}</td>' for name in names)
        + "</tr>"
        for log in logs
    )
    return f"<table><tr><th>log</th>{head}</tr>{rows}</table>"


def _again(result: Mapping[str, Any]) -> str:
    history = result["history"]
    lines = [
        f"{result.get('command', 'dlog chaos run FILE')}",
        "dlog chaos check history",
    ]
    words = (
        f"{result.get('bookies', '?')} bookies, {result.get('metadata_nodes', '?')} metadata nodes as"
        f" {result.get('adapter', '?')}, on {result.get('machine', '?')}."
        f" History: {history['bytes']:,} bytes, sha256 <code>{history['sha256']}</code>"
    )
    return f"<pre>{escape(chr(10).join(lines))}</pre><p>{words}</p>"


def _data(result: Mapping[str, Any]) -> str:
    line = result["time_line"]
    faults = [
        {key: fault[key] for key in ("number", "kind", "targets", "at_s", "seconds")}
        for fault in result["faults"]
    ]
    found = {
        **line, "faults": faults, "seconds": result["load_s"], "width": WIDTH, "left": LEFT, "right": RIGHT,
    }  # fmt: skip
    return json.dumps(found).replace("</", "<\\/")
