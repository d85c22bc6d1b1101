"""Each alert is provoked by a scenario, has a row that says what to do, and is as fast as stories think."""

import re
from pathlib import Path

from distributedlog.testing.chaos.model.scenario_file import packaged
from tests.chaos.alerts_story import EXPECTED, RULES, faster
from tests.chaos.runbooks_story import RUNBOOKS

NAMES = set(re.findall(r"alert: (\w+)", RULES.read_text()))
DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_each_alert_is_provoked_by_a_scenario() -> None:
    by_hand = [alert for runbook in RUNBOOKS.values() for alert in runbook.alerts]

    assert sorted([*EXPECTED, *by_hand]) == sorted(NAMES)
    assert RUNBOOKS.keys() <= {*packaged()}


def test_the_table_says_which_scenario_provokes_which_alert() -> None:
    text = (DOCS / "operate" / "chaos.md").read_text()
    table = text[text.index("## Rehearse alerts") : text.index("## History file")]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `Dlog")]
    told = {
        alert: re.findall(r"`([\w-]+)`", scenario)[0]
        for alerts, scenario in rows
        for alert in re.findall(r"`(\w+)`", alerts)
    }

    wanted = {alert: name for name, runbook in RUNBOOKS.items() for alert in runbook.alerts}
    assert told == wanted | dict.fromkeys(EXPECTED, "alerts")


def test_each_alert_has_a_section_that_its_rule_links_to() -> None:
    text = (DOCS / "operate" / "alerts.md").read_text()
    sections = dict(re.findall(r"^### (Dlog\w+)\n(.*?)(?=^##|\Z)", text, re.M | re.S))

    assert sections.keys() == NAMES
    for name, section in sections.items():
        assert "The alert ends" in section or "Follow the steps of" in section, name
    linked = re.findall(r"alert: (\w+)\n(?:(?!- alert).)*?runbook: (\S+)", RULES.read_text(), re.S)
    assert dict(linked) == {name: f"docs/operate/alerts.md#{name.lower()}" for name in NAMES}


def test_a_minute_of_every_rule_is_a_second() -> None:
    rules = faster("for: 35m\n x offset 30m > y[10m] and predict_linear(z[6h], 86400)\n")

    assert rules == "for: 35s\n x offset 30s > y[10s] and predict_linear(z[360s], 1440)\n"
    assert not re.search(r"(for: |offset |\[)\d+[mhd]", faster(RULES.read_text()))
