"""What is counted: named as Prometheus wants it, documented as the code says, printed from a live node."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from distributedlog.bookie.declarations.metrics import METRICS as BOOKIE
from distributedlog.cluster.node.node_pages import node_pages, not_ready_reasons
from distributedlog.cluster.repair.repair_metrics import METRICS as REPAIR
from distributedlog.gateway.metrics import METRICS as GATEWAY
from distributedlog.log.services.log_metrics import METRICS as CLIENT
from distributedlog.metadata.declarations.metrics import METRICS as METADATA
from distributedlog.proxy.declarations.metrics import METRICS as PROXY
from distributedlog.runtime.declarations.health_conditions import KINDS, Code
from distributedlog.runtime.declarations.meters import (
    DURATION_BUCKETS_S,
    DurationHistogram,
    Metric,
    samples,
)
from distributedlog.runtime.declarations.metrics_text import metrics_text
from distributedlog.runtime.declarations.options import replace_tables
from distributedlog.spark.monitor.query_metrics import METRICS as SPARK

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
TABLES: dict[str, tuple[Metric, ...]] = {
    "bookie": BOOKIE,
    "cluster": REPAIR,
    "metadata": METADATA,
    "proxy": PROXY,
    "gateway": GATEWAY,
    "client": CLIENT,
    "spark": SPARK,
}
ROWS: dict[str, list[Metric]] = {}
"""By name: one, or several with a label each."""
for _rows in TABLES.values():
    for _row in _rows:
        ROWS.setdefault(_row.name, []).append(_row)


def table(metrics: tuple[Metric, ...]) -> str:
    rows = [("metric", "kind", "what", "normal", "otherwise"), ("---",) * 5]
    for one in metrics:
        name, value = one.label
        shown = f"`{one.name}{{{name}={value}}}`" if name else f"`{one.name}`"
        rows.append((shown, one.kind, one.help, one.normal, one.remedy))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def renewed() -> str:
    made = {name: table(rows) for name, rows in TABLES.items()}
    return replace_tables(DOCUMENT.read_text(), {**made, "conditions": conditions()})


def conditions() -> str:
    rows = [("code", "severity", "parameters"), ("---",) * 3]
    for code, kind in KINDS.items():
        names = ", ".join(f"`{name}`" for name in sorted(kind.parameters))
        rows.append((f"`{code}`", kind.severity.word, names))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_tables_of_the_document_are_the_codes() -> None:
    assert DOCUMENT.read_text() == renewed(), "python -m tests.test_metrics makes them anew"


@pytest.mark.parametrize("part", TABLES)
def test_names_are_as_prometheus_wants_them(part: str) -> None:
    for one in TABLES[part]:
        assert re.fullmatch(rf"dlog_{part}_[a-z_]+", one.name)
        assert one.name.endswith("_total") == (one.kind == "counter")
        assert not re.search(r"_(ms|us|s|kb|mb)(_|$)", one.name)
        assert one.help.endswith(".")
        assert bool(one.normal) or not one.remedy or part == "bookie"
    keys = [(one.name, one.label) for one in TABLES[part]]
    assert len(set(keys)) == len(keys)


def test_a_histogram_says_what_was_observed() -> None:
    buckets = DurationHistogram()
    buckets.observe(0.00001)
    buckets.observe(DURATION_BUCKETS_S[3], 2)
    buckets.observe(1000.0)
    row = Metric("dlog_bookie_x_seconds", "histogram", "x", "X.")
    [found] = samples((row,), {"x": buckets.snapshot()})
    text = metrics_text([found], {"name": "b"}).decode()
    counts = dict(re.findall(r'x_seconds_bucket\{le="([^"]+)"\} ([0-9.]+)', text))
    assert float(counts["5e-05"]) == 1
    assert float(counts[str(DURATION_BUCKETS_S[3])]) == 3
    assert float(counts["+Inf"]) == 4
    assert "dlog_bookie_x_seconds_count 4.0" in text


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"x": "many"},
        {"x": None},
        {"x": {"counts": [1], "total": 1}},
        {"x": {"counts": ["a"] * 21, "total": 1}},
        {"x": {"counts": [1] * 21, "total": "long"}},
        {"x": {"counts": [-1] * 21, "total": 1}},
    ],
)
def test_what_a_node_of_another_version_says_is_left_out(said: dict[str, object]) -> None:
    row = Metric("dlog_bookie_x_seconds", "histogram", "x", "X.")
    assert samples((row,), said) == []


def test_names_full_of_markup_stay_names() -> None:
    name = 'a"b\\c\nd<img src=x>'
    text = metrics_text([], {"name": name}).decode()
    [info] = [one for one in text_string_to_metric_families(text) if one.name == "dlog_node_info"]
    assert info.samples[0].labels["name"] == name


@pytest.mark.parametrize(
    ("kind", "info", "ready"),
    [
        ("bookie", {"registered": True, "read_only": False}, True),
        ("bookie", {"registered": False, "read_only": False}, False),
        (
            "bookie",
            {"registered": True, "read_only": True, "read_only_codes": ["disk"]},
            False,
        ),
        ("metadata", {"role": "leader"}, True),
        ("metadata", {"role": "follower"}, True),
        ("metadata", {"role": "candidate"}, False),
        ("metadata", {"role": "waiting for m2"}, False),
    ],
)
def test_who_should_get_work(kind: str, info: dict[str, object], ready: bool) -> None:
    assert (not_ready_reasons(kind, info) == []) == ready


async def test_a_node_that_starts_is_not_ready_and_has_no_numbers() -> None:
    from distributedlog.runtime.machine import real_host

    pages = node_pages(real_host("n"), "b1", [])
    assert (await pages["/ready"]()).status == 503
    assert (await pages["/health"]()).status == 503
    assert b'kind="starting"' in (await pages["/metrics"]()).body


async def test_a_page_is_asked_once_a_second(autojump_clock: trio.testing.MockClock) -> None:
    from distributedlog.cluster.node.node_pages import CachedPage
    from distributedlog.cluster.process.http_server import NodePage

    asked = 0

    async def ask() -> NodePage:
        nonlocal asked
        asked += 1
        await trio.sleep(0.01)
        return NodePage(200, b"%d" % asked)

    once = CachedPage(ask)
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(once.page)
    assert asked == 1
    await trio.sleep(1)
    assert (await once.page()).body == b"2"


OPS = DOCUMENT.parents[2] / "ops" / "prometheus"
ALERTS = [
    (block.split("\n", 1)[0], block)
    for block in (OPS / "rules.yml").read_text().split("- alert: ")[1:]
]


def test_alerts_name_what_there_is() -> None:
    known = set(ROWS)
    known |= {f"{name}_bucket" for name, rows in ROWS.items() if rows[0].kind == "histogram"}
    found = set(re.findall(r"dlog_[a-z_]+", (OPS / "rules.yml").read_text()))
    assert found
    assert found - known == set()


@pytest.mark.parametrize(("name", "block"), ALERTS, ids=[name for name, _ in ALERTS])
def test_each_alert_says_where_its_remedy_stands(name: str, block: str) -> None:
    [(file, anchor)] = re.findall(r"^ +runbook: (docs/[\w/-]+\.md)#([\w-]+)$", block, re.M)
    headings = re.findall(r"^#+ (.*)$", (DOCUMENT.parents[2] / file).read_text(), re.M)
    anchors = {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}
    assert anchor in anchors


@pytest.mark.parametrize(("name", "block"), ALERTS, ids=[name for name, _ in ALERTS])
def test_codes_of_an_alert_are_health_conditions(name: str, block: str) -> None:
    for codes in re.findall(r'^ +codes: "(.*)"$', block, re.M):
        assert codes.split() == sorted(codes.split())
        assert {*codes.split()} <= {*Code}


def test_each_alert_has_a_test_in_which_it_is_raised_and_one_in_which_it_is_not() -> None:
    raised: set[str] = set()
    quiet: set[str] = set()
    for block in (OPS / "rules_test.yml").read_text().split("- eval_time: ")[1:]:
        [name] = re.findall(r"alertname: (\w+)", block)
        (raised if "exp_alerts:" in block else quiet).add(name)

    assert raised == quiet == {name for name, _ in ALERTS}


def promtool(*arguments: str, given: bytes = b"") -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=OPS, input=given, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")


@needs_promtool
def test_promtool_takes_the_rules_and_raises_each_alert() -> None:
    promtool("check", "rules", "rules.yml")
    promtool("test", "rules", "rules_test.yml")


@needs_promtool
@pytest.mark.parametrize("part", TABLES)
def test_promtool_takes_what_the_tables_print(part: str) -> None:
    rows = TABLES[part]
    said = {
        one.key: DurationHistogram().snapshot() if one.kind == "histogram" else 1 for one in rows
    }
    promtool("check", "metrics", given=metrics_text(samples(rows, said), {"name": part}))


if __name__ == "__main__":
    DOCUMENT.write_text(renewed())
