"""The line of progress is on a terminal only, and never glued to the next text."""

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from distributedlog.cli.framework.options import Settings
from distributedlog.cli.framework.progress import ProgressLine, show_progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def _terminal() -> Iterator[_Terminal]:
    made = _Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", made)
        patch.setenv("COLUMNS", "40")
        yield made


def _screen(text: str) -> list[str]:
    """Return the lines that a terminal shows at last."""
    lines = [""]
    for part in text.replace("\r", "\0\r").split("\0"):
        if part.startswith("\r"):
            part = part[1:]
            lines[-1] = part.replace("\033[K", "") if "\033[K" in part else part
            lines += lines.pop().split("\n")
        else:
            lines += (lines.pop() + part).split("\n")
    return lines


def test_a_summary_is_not_glued_to_the_progress() -> None:
    settings = Settings()
    with _terminal() as terminal:
        line = ProgressLine(settings)
        line.show("10 records")
        line.show("20 records")
        assert _screen(terminal.getvalue()) == ["20 records"]
        line.note("30 records in 2 s")
        assert _screen(terminal.getvalue()) == ["30 records in 2 s", ""]
        line.remove()  # there is none
        settings.note("done")
        assert _screen(terminal.getvalue()) == ["30 records in 2 s", "done", ""]


def test_a_line_does_not_wrap_and_moves_no_cursor() -> None:
    with _terminal() as terminal:
        ProgressLine(Settings()).show("x\033[2J" + "y" * 100)
        assert _screen(terminal.getvalue()) == [("x\\x1b[2J" + "y" * 100)[:39]]


def test_the_innermost_of_nested_lines_is_shown() -> None:
    with _terminal() as terminal:
        outer, inner = ProgressLine(Settings()), ProgressLine(Settings())
        outer.show("repairing")
        inner.show("no answer yet")
        outer.show("repairing again")
        assert _screen(terminal.getvalue()) == ["no answer yet"]
        inner.remove()
        outer.show("repairing")
        assert _screen(terminal.getvalue()) == ["repairing"]
        outer.remove()
        assert _screen(terminal.getvalue()) == [""]


@pytest.mark.parametrize("settings", [Settings(quiet=True), Settings(json=True)])
def test_nothing_is_shown_to_programs(settings: Settings) -> None:
    with _terminal() as terminal:
        with show_progress(settings, lambda s: f"{s:.0f} s", every_s=1e-4) as line:
            line.show("progress")
        assert terminal.getvalue() == ""


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(Settings(), lambda s: f"{s:.0f} s", every_s=1e-4) as line:
        line.show("progress")
        line.note("a remark")
    assert capsys.readouterr().err == "a remark\n"


def test_a_long_call_shows_its_time_until_it_ends() -> None:
    shown = threading.Event()
    with _terminal() as terminal:

        def text(seconds: float) -> str:
            if terminal.getvalue():
                shown.set()
            return f"measuring: {seconds:.0f} s"

        with show_progress(Settings(), text, every_s=1e-4):
            assert shown.wait(30)
        assert terminal.getvalue().startswith("\rmeasuring: 0 s\033[K")
        assert _screen(terminal.getvalue()) == [""]
