"""The dashboards for Grafana, made of the tables of metrics: ``python -m tests.test_dashboards`` prints them.

A panel a metric, with what it means, what is normal and what to do otherwise as its description; and one
dashboard of the whole cluster, of those that say first how it is.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from distributedlog.runtime.declarations.meters import Metric
from tests.test_metrics import ROWS, TABLES

PLACE = Path(__file__).resolve().parent.parent / "ops" / "grafana"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, PANEL = 24, 8, 8
OVERVIEW = (
    "dlog_metadata_leader",
    "dlog_bookie_registered",
    "dlog_bookie_writable",
    "dlog_cluster_underreplicated_ledgers",
    "dlog_cluster_ledgers_to_move",
    "dlog_cluster_blocked_ledgers",
    "dlog_bookie_limbo_ledgers",
    "dlog_bookie_limbo_unknown",
    "dlog_bookie_rotten_ledgers",
    "dlog_bookie_disk_free_bytes",
    "dlog_bookie_payload_bytes_total",
    "dlog_bookie_read_bytes_total",
    "dlog_bookie_journal_sync_seconds",
    "dlog_bookie_loop_late_seconds",
    "dlog_metadata_term",
    "dlog_client_write_seconds",
    "dlog_client_writers_failed_total",
)
"""In this order: is my data safe, is it working, how much is done."""
TITLES = {
    "bookie": "Bookies",
    "metadata": "Metadata nodes",
    "proxy": "Proxies",
    "gateway": "Gateways",
    "client": "Programs that write and read",
    "cluster": "Repair",
    "spark": "Spark",
}


def _unit(name: str) -> str:
    """As Grafana calls it."""
    base = name.removesuffix("_total")
    rate = name.endswith("_total")
    if base.endswith("_bytes"):
        return "Bps" if rate else "bytes"
    if base.endswith("_seconds"):
        return "s"
    return "ops" if rate else "short"


def _targets(rows: Sequence[Metric]) -> Iterable[tuple[str, str]]:
    """Expression and legend of each line: rows of one name, told apart by a label."""
    one = rows[0]
    of = '{instance=~"$instance"}'
    apart = "query" if one.name.startswith("dlog_spark_") else one.label[0]
    legend = "{{instance}}" + (f" {{{{{apart}}}}}" if apart else "")
    if one.kind == "histogram":
        for share in (0.5, 0.99):
            by = f"instance, {apart}, le" if apart else "instance, le"
            rate = f"rate({one.name}_bucket{of}[$__rate_interval])"
            yield (
                f"histogram_quantile({share}, sum by ({by}) ({rate}))",
                f"{legend} p{share * 100:g}",
            )
    elif one.kind == "counter":
        yield f"rate({one.name}{of}[$__rate_interval])", legend
    else:
        yield f"{one.name}{of}", legend


def _panel(number: int, rows: Sequence[Metric]) -> dict[str, Any]:
    one = rows[0]
    said = [one.help]
    if one.normal:
        said.append(f"Normal: {one.normal}.")
    if one.remedy:
        said.append(f"Otherwise: {one.remedy}.")
    per_line = WIDTH // PANEL
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": one.name.removeprefix("dlog_").removesuffix("_total").replace("_", " "),
        "description": " ".join(said),
        "datasource": SOURCE,
        "gridPos": {
            "x": number % per_line * PANEL,
            "y": number // per_line * HEIGHT,
            "w": PANEL,
            "h": HEIGHT,
        },
        "fieldConfig": {
            "defaults": {
                "unit": _unit(one.name),
                "min": 0,
                "custom": {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {"tooltip": {"mode": "multi"}, "legend": {"placement": "bottom"}},
        "targets": [
            {"refId": "AB"[n], "expr": expr, "legendFormat": legend, "datasource": SOURCE}
            for n, (expr, legend) in enumerate(_targets(rows))
        ],
    }


def _dashboard(uid: str, title: str, names: Iterable[str]) -> str:
    panels = [_panel(n, ROWS[name]) for n, name in enumerate(names)]
    first = panels[0]["targets"][0]["expr"]
    metric = re.findall(r"dlog_\w+", first)[0]
    instance = {
        "name": "instance",
        "type": "query",
        "datasource": SOURCE,
        "query": {
            "query": f"label_values({'up' if uid == 'dlog-cluster' else metric}, instance)",
            "refId": "i",
        },
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }
    head = {
        "uid": uid,
        "title": title,
        "tags": ["dlog"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                instance,
            ]
        },
        "links": [{"type": "dashboards", "tags": ["dlog"], "title": "dlog", "asDropdown": True}],
    }
    lines = ",\n  ".join(json.dumps(panel, sort_keys=True) for panel in panels)
    rest = json.dumps(head, indent=1, sort_keys=True).removesuffix("\n}")
    return f'{rest},\n "panels": [\n  {lines}\n ]\n}}\n'


def made() -> dict[str, str]:
    """File name to text."""
    found = {"cluster.json": _dashboard("dlog-cluster", "dlog: the cluster", OVERVIEW)}
    for part, rows in TABLES.items():
        names = dict.fromkeys(one.name for one in rows)
        file = "repair" if part == "cluster" else part
        found[f"{file}.json"] = _dashboard(f"dlog-{file}", f"dlog: {TITLES[part]}", names)
    return found


def test_the_dashboards_are_those_of_the_tables() -> None:
    there = {path.name: path.read_text() for path in PLACE.glob("*.json")}

    assert there == made(), "python -m tests.test_dashboards prints them anew"


def test_each_metric_has_a_panel_and_no_two_panels_lie_on_each_other() -> None:
    shown = set()
    for text in made().values():
        board = json.loads(text)
        places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in board["panels"]]
        assert len(set(places)) == len(places)
        assert len({one["id"] for one in board["panels"]}) == len(places)
        for panel in board["panels"]:
            for target in panel["targets"]:
                shown |= set(re.findall(r"dlog_\w+", target["expr"]))
    assert {name.removesuffix("_bucket") for name in shown} == set(ROWS)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_reads_each_expression(tmp_path: Path) -> None:
    rules: list[dict[str, str]] = []
    for text in made().values():
        for panel in json.loads(text)["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$__rate_interval", "5m")
                rules.append({"record": f"panel:{len(rules)}", "expr": expr})
    file = tmp_path / "panels.yml"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))

    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert b"%d rules found" % len(rules) in done.stdout


if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    for name, text in made().items():
        (PLACE / name).write_text(text)
