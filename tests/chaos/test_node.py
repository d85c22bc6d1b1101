"""The moved clock and the last words."""

from pathlib import Path

from distributedlog.chaos.last_words import last_words
from distributedlog.chaos.node import MovedClock
from distributedlog.runtime import machine


def test_the_wall_clock_is_off_by_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    file.write_text("-86400.5")

    moved = MovedClock(str(file))()

    assert abs(machine._wall_ms() - moved - 86_400_500) < 10_000


def test_without_a_file_it_is_right(tmp_path: Path) -> None:
    assert abs(MovedClock(str(tmp_path / "clock"))() - machine._wall_ms()) < 10_000


def test_the_last_error_is_what_a_node_ended_with() -> None:
    log = (
        '{"level": "info", "message": "serves"}\n'
        '{"level": "error", "message": "DiskFailed: x"}\n'
        '{"level": "info", "message": "goodbye"}\n'
    )

    assert last_words(log) == "DiskFailed: x"
    assert last_words('{"level": "info", "message": "serves"}\n') == "serves"
    assert (
        last_words("Traceback (most recent call last):\nAssertionError: no\n")
        == "AssertionError: no"
    )
    assert last_words("") == ""
