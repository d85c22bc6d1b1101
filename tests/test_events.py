"""What is told: names that stay, documented as the code says, said with the fields that they have."""

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributedlog.bookie.declarations import events as bookie_events
from distributedlog.cluster.declarations import events as cluster_events
from distributedlog.cluster.process.stderr_logs import (
    KEYS_MAX,
    LINES_PER_SECOND,
    LINES_PER_WINDOW,
    TEXT_MAX,
    WINDOW_S,
    JsonFormatter,
    RateLimitFilter,
    TextFormatter,
)
from distributedlog.console import actions as console_events
from distributedlog.ledger.declarations import events as ledger_events
from distributedlog.log.declarations import events as log_events
from distributedlog.metadata.declarations import events as metadata_events
from distributedlog.proxy.declarations import events as proxy_events
from distributedlog.runtime.declarations import events as runtime_events
from distributedlog.runtime.declarations.events import SUBJECT_ATTRIBUTE, EventDefinition
from distributedlog.runtime.declarations.options import replace_tables
from distributedlog.runtime.interfaces.log_lines import get_logger
from tests.parts import files_of

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "reference" / "events.md"
MODULES = {
    "runtime": runtime_events,
    "metadata": metadata_events,
    "bookie": bookie_events,
    "cluster": cluster_events,
    "ledger": ledger_events,
    "log": log_events,
    "proxy": proxy_events,
    "console": console_events,
}
TABLES: dict[str, tuple[EventDefinition, ...]] = {
    name: table.EVENTS for name, table in MODULES.items()
}
ALL = [event for table in TABLES.values() for event in table]
NEWS = EventDefinition("test.news", logging.WARNING, "A test.", ("thing", "number"))


def table(events: tuple[EventDefinition, ...]) -> str:
    rows = [("event", "level", "when", "fields", "then"), ("---",) * 5]
    for one in events:
        fields = ", ".join(f"`{name}`" for name in one.fields)
        level = logging.getLevelName(one.level).lower()
        rows.append((f"`{one.name}`", level, one.help, fields, one.remedy))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def renewed() -> str:
    return replace_tables(
        DOCUMENT.read_text(), {name: table(rows) for name, rows in TABLES.items()}
    )


def test_the_tables_of_the_document_are_the_codes() -> None:
    assert DOCUMENT.read_text() == renewed(), "python -m tests.test_events makes them anew"


def test_names_and_fields_are_fit_to_stay() -> None:
    taken = {
        *vars(logging.makeLogRecord({})),
        "message",
        "asctime",
        SUBJECT_ATTRIBUTE,
        "event",
        "at",
        "node",
        "part",
        "level",
    }
    assert len({event.name for event in ALL}) == len(ALL)
    for event in ALL:
        assert re.fullmatch(r"[a-z]+(\.[a-z_]+){1,2}", event.name)
        assert event.help.endswith(".")
        assert not set(event.fields) & taken, "a line of the log has an attribute of that name"


def _said(part: str) -> Iterator[tuple[str, str, set[str | None]]]:
    """(where, constant, names of what is given) of each ``EVENT.emit(…)`` of a part."""
    for path in files_of(part):
        text = path.read_text()
        if ".emit(" not in text:
            continue  # parsing is most of the cost
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "emit"
            ):
                constant = ast.unparse(node.func.value)
                yield f"{path.name}:{node.lineno}", constant, {one.arg for one in node.keywords}


@pytest.mark.parametrize("part", TABLES)
def test_each_is_said_somewhere_and_always_with_its_fields(part: str) -> None:
    constants = {
        name: one for name, one in vars(MODULES[part]).items() if isinstance(one, EventDefinition)
    }
    assert set(constants.values()) == set(TABLES[part])

    said = list(_said(part))
    for where, constant, given in said:
        assert given == set(constants[constant].fields), where
    assert {constant for _, constant, _ in said} == set(constants)


def _lines(caplog: pytest.LogCaptureFixture, sparing: RateLimitFilter) -> list[dict[str, object]]:
    """What would be written of what was said."""
    shown = JsonFormatter("b1")
    return [json.loads(shown.format(one)) for one in caplog.records if sparing.filter(one)]


def test_a_line_has_its_event_its_fields_and_utc(caplog: pytest.LogCaptureFixture) -> None:
    NEWS.emit(get_logger("distributedlog.test"), "%s has %d", "a thing", 7, thing="a", number=7)
    caplog.records[0].created = 1795394467.1209

    [line] = _lines(caplog, RateLimitFilter())
    assert line == {
        "at": "2026-11-23T00:41:07.120Z",
        "level": "warning",
        "node": "b1",
        "part": "test",
        "message": "a thing has 7",
        "event": "test.news",
        "thing": "a",
        "number": 7,
    }


def test_what_a_peer_said_stays_in_its_line_and_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """H265: no line of its own, no escape for a terminal, no megabyte."""
    hostile = '"}\n{"event": "x"}\x1b]0;title\x07' + "x" * 10_000
    NEWS.emit(get_logger("distributedlog.test"), "%s", hostile, thing=hostile, number=1)

    text = JsonFormatter("b1").format(caplog.records[0])
    assert "\n" not in text
    assert "\x1b" not in text
    assert json.loads(text)["thing"] == hostile[:TEXT_MAX]
    assert len(text) < 3 * TEXT_MAX


def test_a_terminal_gets_text_with_the_same_fields(caplog: pytest.LogCaptureFixture) -> None:
    hostile = "a\n\x1b]0;title\x07"
    NEWS.emit(get_logger("distributedlog.test"), "%s has %d", "a thing", 7, thing=hostile, number=7)
    record = caplog.records[0]
    record.created = 1795394467.1209

    text = TextFormatter("b1").format(record)
    assert text.isprintable()
    assert text.startswith("00:41:07.120 warning b1 test: a thing has 7 ")
    assert r"thing=a\n\x1b]0;title\x07 number=7" in text
    record.exc_info = (ValueError, ValueError("a\x1bb"), None)
    assert TextFormatter("b1").format(record).splitlines()[1:] == [r"ValueError: a\x1bb"]


def _news(at: float, thing: str) -> logging.LogRecord:
    made = logging.makeLogRecord({"event": "test.news", SUBJECT_ATTRIBUTE: thing})
    made.created = at
    return made


def test_what_repeats_is_left_out_and_counted() -> None:
    """H265. What it is about tells news apart: another bookie's is not left out."""
    sparing = RateLimitFilter()
    said = [sparing.filter(_news(1000 + number / 100, "b1")) for number in range(500)]
    assert said == [True] * LINES_PER_WINDOW + [False] * (500 - LINES_PER_WINDOW)
    assert sparing.filter(_news(1005, "b2"))

    after = _news(1000 + WINDOW_S, "b1")
    assert sparing.filter(after)
    assert vars(after)["suppressed"] == 500 - LINES_PER_WINDOW


def test_a_process_says_so_many_lines_a_second() -> None:
    sparing = RateLimitFilter()
    lines = [logging.makeLogRecord({}) for _ in range(5_000)]
    for one in lines:
        one.created = 1000.5
    assert sum(map(sparing.filter, lines)) == LINES_PER_SECOND

    later = logging.makeLogRecord({})
    later.created = 1001.5
    assert sparing.filter(later)
    assert vars(later)["dropped"] == 5_000 - LINES_PER_SECOND


def test_a_clock_that_goes_back_silences_nothing_and_keys_are_bounded() -> None:
    sparing = RateLimitFilter()
    for _ in range(LINES_PER_WINDOW + 1):
        sparing.filter(_news(1000, "b1"))
    assert sparing.filter(_news(500, "b1"))
    for number in range(3 * KEYS_MAX):
        sparing.filter(_news(2000 + number, f"peer {number}"))
    assert len(sparing._windows) <= KEYS_MAX


if __name__ == "__main__":
    DOCUMENT.write_text(renewed())
