"""The report of a run as one standalone HTML file.

It begins with the result. Then follows a time line of rate, latency and faults in one chart, so that the
effect of a fault is visible, and tables. The chart is inline SVG. The only script shows the values at the
mouse pointer. The light colors are for printing and for use in other pages.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ....runtime.disk.output_file import write_file
from ...verify.report.svg_chart import LEFT, RIGHT, WIDTH
from .run_timeline import COLOURS, LINES, picture, still

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
    """Write the report, and its chart next to it; return its path.

    ``result`` is that of `run_check.to_json`, with the fields of the runner.
    """
    write_file(path, page(result))
    write_file(path.with_name("picture.svg"), still(result))
    return path


def page(result: Mapping[str, Any]) -> str:
    """Return the whole page."""
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
{picture(result)}
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
    figures = [
        (f"{result['acked']:,}", "records acknowledged"),
        (f"{result['lost']:,}", "of them lost"),
        (f"{result['unknown']:,}", "of unknown outcome"),
        (f"{result['acked_per_s']:,.0f}/s", "mean rate"),
        (f"{result['gap_s']:.2f} s", f"longest gap in writes, at {result['gap_at_s']:.0f} s"),
        (_time(latency.get("p50")), "p50 to acknowledgement"),
        (_time(latency.get("p99")), "p99"),
        (f"{result['read']:,}", f"records read, {result['readings']} readings"),
        (f"{result['register_calls']:,}", "metadata calls, linearizable"),
        (f"{len(result['faults'])}", "faults"),
    ]
    cells = "".join(
        f"<div><b>{escape(figure)}</b><span>{escape(caption)}</span></div>"
        for figure, caption in figures
    )
    return f'<div class="numbers">{cells}</div>'


def _time(ms: float | None) -> str:
    """Return a time with three digits."""
    if ms is None:
        return "none"
    return f"{ms:.3g} ms" if ms < 999.5 else f"{ms / 1000:.3g} s"


def _legend(faults: Sequence[Mapping[str, Any]]) -> str:
    kinds = dict.fromkeys(str(fault["kind"]) for fault in faults)
    kind_entries = "&ensp;".join(
        f'<span class="swatch" style="background:{COLOURS.get(kind, "#555")}"></span>{escape(kind)}'
        for kind in kinds
    )
    lines = "&ensp;".join(
        f'<span class="swatch" style="background:{colour}"></span>{name}'
        for name, colour in LINES.items()
    )
    return f"<div>{lines}&emsp;{kind_entries}</div>"


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
        '<table><tr><th class="n">no.</th><th class="n">at</th><th class="n">for</th><th>fault</th>'
        '<th>target</th><th class="n">longest gap</th><th>outcome</th></tr>'
        f"{''.join(rows)}</table>"
    )


def _brief(fault: Mapping[str, Any]) -> str:
    text = f"{fault['words']}: {fault['end_words']}"
    return text if len(text) <= 260 else text[:257] + "..."


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
    text = (
        f"{result.get('bookies', '?')} bookies, {result.get('metadata_nodes', '?')} metadata nodes as"
        f" {result.get('adapter', '?')}, on {result.get('machine', '?')}."
        f" History: {history['bytes']:,} bytes, sha256 <code>{history['sha256']}</code>"
    )
    return f"<pre>{escape(chr(10).join(lines))}</pre><p>{text}</p>"


def _data(result: Mapping[str, Any]) -> str:
    time_line = result["time_line"]
    faults = [
        {key: fault[key] for key in ("number", "kind", "targets", "at_s", "seconds")}
        for fault in result["faults"]
    ]
    script_data = {
        **time_line,
        "faults": faults,
        "seconds": result["load_s"],
        "width": WIDTH,
        "left": LEFT,
        "right": RIGHT,
    }
    return json.dumps(script_data).replace("</", "<\\/")
