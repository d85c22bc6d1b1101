"""Each alert is provoked by a story, has a row that says what to do, and is as fast as the story thinks."""

import re
from pathlib import Path

from tests.chaos import runbooks_story
from tests.chaos.alerts_story import EXPECTED, RULES, faster

NAMES = set(re.findall(r"alert: (\w+)", RULES.read_text()))
OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def test_each_alert_is_provoked_by_a_story() -> None:
    with_another = {"DlogRepairBlocked"}  # before `DlogUnderReplicated`
    assert {*EXPECTED, *runbooks_story.PLAIN, *runbooks_story.TLS, *with_another} == NAMES


def test_each_alert_has_a_row_in_its_runbook() -> None:
    text = OPERATIONS.read_text()
    table = text[text.index("## When an alert is raised") : text.index("## Strangers, and records")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `Dlog")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]

    assert sorted(named) == sorted(NAMES)


def test_a_minute_of_every_rule_is_a_second() -> None:
    rules = faster("for: 35m\n x offset 30m > y[10m] and predict_linear(z[6h], 86400)\n")

    assert rules == "for: 35s\n x offset 30s > y[10s] and predict_linear(z[360s], 1440)\n"
    assert not re.search(r"(for: |offset |\[)\d+[mhd]", faster(RULES.read_text()))
