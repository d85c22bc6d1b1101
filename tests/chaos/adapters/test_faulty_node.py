"""The moved clock, the wrong memory, and the last words."""

from pathlib import Path

import pytest

from distributedlog.metadata.state.kv_state import VALUE_HEADER, KeyValueState
from distributedlog.runtime import machine
from distributedlog.testing.chaos.adapters.faulty_node import MovedClock, flip_when_told
from distributedlog.testing.chaos.model.adapter import last_error


def test_the_wall_clock_is_off_by_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "clock"
    file.write_text("-86400.5")

    moved = MovedClock(str(file))()

    assert abs(machine._clock_ms() - moved - 86_400_500) < 10_000


def test_without_a_file_it_is_right(tmp_path: Path) -> None:
    assert abs(MovedClock(str(tmp_path / "clock"))() - machine._clock_ms()) < 10_000


def test_one_name_is_kept_wrongly_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        KeyValueState, "_set_stored", KeyValueState._set_stored
    )  # as before, in the end
    told = tmp_path / "memory"
    flip_when_told(told)
    right, wrong = KeyValueState(), KeyValueState()
    names = [(b"name/%d" % n, VALUE_HEADER.pack(1, 0, 1, 1) + b"value") for n in range(3)]

    for key, stored in names:
        right.add_stored(key, stored, 0)
    wrong.add_stored(names[0][0], names[0][1], 0)
    told.touch()
    wrong.add_stored(b"lock/1", names[0][1], 0)
    for key, stored in names[1:]:
        wrong.add_stored(key, stored, 0)
    del wrong.stored_values[b"lock/1"]

    assert not told.exists()
    assert [
        key for key in right.stored_values if right.stored_values[key] != wrong.stored_values[key]
    ] == [b"name/1"]


def test_the_last_error_is_what_a_node_ended_with() -> None:
    log = (
        '{"level": "info", "message": "serves"}\n'
        '{"level": "error", "message": "DiskFailed: x"}\n'
        '{"level": "info", "message": "goodbye"}\n'
    )

    assert last_error(log) == "DiskFailed: x"
    assert last_error('{"level": "info", "message": "serves"}\n') == "serves"
    assert (
        last_error("Traceback (most recent call last):\nAssertionError: no\n")
        == "AssertionError: no"
    )
    assert last_error("") == ""
