"""The verdict on a run from its notes alone: OK, FAIL with its reasons, VOID when nothing was tried."""

from collections.abc import Callable
from typing import Any

import pytest

from distributedlog.testing.verify.checks.run_check import check_run
from distributedlog.testing.verify.history.observations import (
    FORMAT,
    ObservationWriter,
    read_observations,
)

BOUNDS = {"acked_min": 100, "acked_per_s_min": 10.0, "faults_min": 1}
RECORDS = 20
Lines = list[tuple[Any, ...]]


def run_of(lines: Lines) -> list[bytes]:
    found: list[bytes] = []
    for who, kind, *rest in lines:
        ObservationWriter(who, found.append).record(kind, *rest)
    return found


def sound() -> Lines:
    """Ten seconds: two writers one after the other, a tail, a fault, registers, the last reading."""
    lines: Lines = [
        ("runner", "begin", FORMAT, 1, 0.0),
        ("runner", "run", 0.0, {"bounds": BOUNDS, "begun_at": 1.0}),
        ("runner", "fault", 1, "kill", ["bookie1"], 3.0, "bookie"),
        ("runner", "over", 1, 5.0, "serves"),
        ("runner", "run", 11.0, {"ended_at": 11.0, "failures": []}),
    ]
    whole: list[list[int]] = []
    for writer in (1, 2):
        who, start = f"writer-{writer}", 1.0 + (writer - 1) * 5
        lines += [
            (who, "begin", FORMAT, 9, start),
            (who, "open", writer, "story", True, start, start + 0.01),
        ]
        for n in range(10):
            begun = start + 0.1 + n * 0.4
            place = [writer, n, 0, RECORDS]
            lines.append((who, "ack", writer, n * RECORDS, begun, begun + 0.01, [place]))
            whole.append([*place, len(whole) * RECORDS, len(whole), writer, n * RECORDS])
        lines.append((who, "end", writer, 10 * RECORDS, start + 4.5, ""))
    for who in ("tail", "finish"):
        lines += [
            (who, "begin", FORMAT, 9, 0.5),
            (who, "read", 1, "story", 0.5, None),
            (who, "got", 1, 11.0, [list(piece) for piece in whole]),
            (who, "whole", 1, 11.1),
        ]
    lines += [
        ("r", "begin", FORMAT, 9, 0.5),
        ("r", "ask", 1, "k", "cas", 1.0, 0, "a"),
        ("r", "answer", 1, 1.1, "ok", True, 1, "a"),
        ("r", "ask", 2, "k", "get", 2.0, 0, ""),
        ("r", "answer", 2, 2.1, "ok", True, 1, "a"),
    ]
    return lines


def got(lines: Lines, who: str) -> list[list[int]]:
    """The pieces that a reader noted, to be changed."""
    for line in lines:
        if line[:2] == (who, "got"):
            pieces: list[list[int]] = line[4]
            return pieces
    raise AssertionError(who)


def test_a_sound_run_is_ok() -> None:
    found = check_run(read_observations(run_of(sound())))

    assert (found.verdict, found.reasons) == ("OK", [])
    assert (found.acked, found.lost, found.register_calls) == (400, 0, 2)
    assert found.acked_per_s == 40.0
    assert found.gap_s == pytest.approx(
        1.4
    )  # from the last one of the one to the first of the other
    assert found.gaps_s[1] == pytest.approx(1.4)


def lost(lines: Lines) -> None:
    for who in ("tail", "finish"):
        del got(lines, who)[-1]


def gap(lines: Lines) -> None:
    del got(lines, "finish")[4]


def duplicate(lines: Lines) -> None:
    pieces = got(lines, "finish")
    pieces.append([3, 0, 0, RECORDS, 20 * RECORDS, 99, *pieces[3][6:]])


def reordered(lines: Lines) -> None:
    pieces = got(lines, "finish")
    pieces[2][6:], pieces[3][6:] = pieces[3][6:], pieces[2][6:]


def readers_disagree(lines: Lines) -> None:
    got(lines, "tail")[5][7] += 1


def fenced_writer_comes_back(lines: Lines) -> None:
    """Session 1 handed over more than was acknowledged, and it turns up after session 2."""
    lines[:] = [line for line in lines if line[:3] != ("writer-1", "end", 1)]
    got(lines, "finish").append([3, 0, 0, 1, 20 * RECORDS, 99, 1, 10 * RECORDS])


def unknown_twice(lines: Lines) -> None:
    lines[:] = [line for line in lines if line[:3] != ("writer-2", "end", 2)]
    for n in range(2):
        piece = [3, n, 0, 1, 20 * RECORDS + n, 99, 2, 10 * RECORDS]
        got(lines, "finish").append(piece)


def stale_register(lines: Lines) -> None:
    lines[-1] = ("r", "answer", 2, 2.1, "ok", True, 0, "")


def nobody_read_it(lines: Lines) -> None:
    lines[:] = [line for line in lines if line[:2] != ("finish", "whole")]


def a_node_ended_by_itself(lines: Lines) -> None:
    lines.append(("runner", "run", 12.0, {"failures": ["bookie2 ended by itself: assert"]}))


def broken_off(lines: Lines) -> None:
    lines[:] = [line for line in lines if line[3:4] != (11.0,) or line[1] != "run"]
    del lines[4]


CORRUPTIONS: list[tuple[Callable[[Lines], None], str]] = [
    (lost, "G3 lost"),
    (gap, "G1 gap"),
    (duplicate, "G7 duplicate"),
    (reordered, "G1 order|G3 moved"),
    (readers_disagree, "G5 changed"),
    (fenced_writer_comes_back, "G4: session 1"),
    (unknown_twice, "G7 duplicate"),
    (stale_register, "M5 k"),
    (nobody_read_it, "no client read it completely"),
    (a_node_ended_by_itself, "bookie2 ended by itself"),
    (broken_off, "was aborted"),
]


@pytest.mark.parametrize(("change", "words"), CORRUPTIONS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_corrupted_history_fails(change: Callable[[Lines], None], words: str) -> None:
    lines = sound()
    change(lines)

    found = check_run(read_observations(run_of(lines)))

    assert found.verdict == "FAIL"
    assert any(part in reason for part in words.split("|") for reason in found.reasons), (
        found.reasons
    )


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ({"acked_min": 401}, "400 acknowledged records, the minimum is 401"),
        ({"acked_per_s_min": 41.0}, "40 acknowledged records/s"),
        ({"faults_min": 2}, "1 faults, the minimum is 2"),
    ],
)
def test_a_run_that_tried_too_little_is_void(bound: dict[str, float], words: str) -> None:
    lines = sound()
    lines[1] = ("runner", "run", 0.0, {"bounds": {**BOUNDS, **bound}, "begun_at": 1.0})

    found = check_run(read_observations(run_of(lines)))

    assert found.verdict == "VOID"
    assert words in found.reasons[0]


def test_a_broken_promise_is_worse_than_too_little_load() -> None:
    lines = sound()
    lost(lines)
    lines[1] = ("runner", "run", 0.0, {"bounds": {"acked_min": 9999}, "begun_at": 1.0})

    assert check_run(read_observations(run_of(lines))).verdict == "FAIL"


def test_a_gap_above_the_bound_fails() -> None:
    lines = sound()
    lines[1] = ("runner", "run", 0.0, {"bounds": {"gap_max_s": 1.0}, "begun_at": 1.0})

    found = check_run(read_observations(run_of(lines)))

    assert found.verdict == "FAIL"
    assert "1.4 s without an acknowledged write" in found.reasons[0]
