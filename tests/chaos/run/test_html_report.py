"""The report stands alone: one file, no network, everything in it escaped; also for odd runs."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from distributedlog.testing.chaos.run.html_report import page, write_report
from distributedlog.testing.verify.checks.run_check import check_run, to_json
from distributedlog.testing.verify.history.observations import read_observations
from tests.verify.checks.test_run_check import Lines, lost, run_of, sound


def result_of(lines: Lines) -> dict[str, Any]:
    observations = read_observations(run_of(lines))
    return {
        **{key: value for key, value in observations.run.items() if key != "bounds"},
        **to_json(check_run(observations), observations),
        "scenario": "a <b> & c",
        "seed": 7,
        "command": "dlog chaos run 'a b' --seed 7",
        "history": {"bytes": 10, "sha256": "ab" * 32},
    }


class _Page(HTMLParser):
    """Tags in order; what is left open; addresses outside."""

    VOID = ("meta", "line", "rect", "circle", "polygon", "polyline", "br", "link", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.outside: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_it_is_one_sound_page_that_loads_nothing() -> None:
    text = page(result_of(sound()))

    found = _Page(text)

    assert found.open == []
    assert found.outside == []
    assert "http" not in text
    assert {"svg", "table", "polygon"} <= set(found.seen)
    assert "a <b> & c, seed 7" in found.words
    assert "dlog chaos run 'a b' --seed 7" in found.words


def test_the_verdict_and_its_reasons_are_on_top() -> None:
    lines = sound()
    lost(lines)

    words = _Page(page(result_of(lines))).words

    assert words.index("FAIL") < words.index("G3 lost") < words.index("Time line")


def test_words_of_nodes_cannot_break_the_page() -> None:
    lines = sound()
    lines[3] = ("runner", "over", 1, 5.0, "</script><script>alert(1)</script>")
    lines[2] = ("runner", "fault", 1, "</script><b>", ["<i>"], 3.0, "bookie")

    found = _Page(page(result_of(lines)))

    assert found.open == []
    assert found.seen.count("script") == 2


def test_the_picture_stands_alone_under_the_verdict(tmp_path: Path) -> None:
    lines = sound()
    lines[2] = ("runner", "fault", 1, "</script><b>", ["<i>"], 3.0, "bookie")
    result = result_of(lines)

    write_report(result, tmp_path / "report.html")

    text = (tmp_path / "picture.svg").read_text()
    root = ElementTree.fromstring(text)
    said = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert said[0].startswith("OK: a <b> & c, seed 7: ")
    assert "</script><b>" in said
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("acked", [[], [0], [0, 0, 5]])
def test_a_run_without_writes_is_drawn_too(acked: list[int]) -> None:
    result = result_of(sound())
    nothing: list[float | None] = [None] * len(acked)
    result["time_line"] = {"acked": acked, "p50_ms": nothing, "p99_ms": nothing, "max_ms": nothing}
    result["latency_ms"] = {}
    result["load_s"] = float(len(acked))

    assert _Page(page(result)).open == []


def test_the_data_of_the_page_is_json() -> None:
    text = page(result_of(sound()))
    start = text.index('id="d">') + len('id="d">')

    data = json.loads(text[start : text.index("</script>", start)])

    assert data["acked"][0] == 60
    assert data["faults"][0]["kind"] == "kill"
