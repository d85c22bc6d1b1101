"""Notes: what a process wrote is read back; what it did not live to write is unknown, never false."""

import pytest

from distributedlog.runtime.interfaces.errors import CorruptData
from distributedlog.testing.verify.history.observations import (
    FORMAT,
    ObservationWriter,
    read_observations,
)
from distributedlog.testing.verify.history.run_history import Outcome


def lines_of(*observations: tuple[object, ...], who: str = "w") -> list[bytes]:
    lines: list[bytes] = []
    book = ObservationWriter(who, lines.append)
    book.record("begin", FORMAT, 1, 0.0)
    for kind, *rest in observations:
        book.record(str(kind), *rest)
    return lines


def test_a_writer_a_reader_and_a_register_are_read_back() -> None:
    lines = lines_of(
        ("open", 7, "story", True, 0.5, 0.6),
        ("ack", 7, 0, 1.0, 1.2, [[1, 0, 0, 2], [1, 1, 0, 1]]),
        ("fail", 7, 3, 2, 2.0, 2.1, "unknown", "WriteFailed: x"),
        ("end", 7, 5, 3.0, "WriteFailed: x"),
        ("read", 1, "story", 0.7, [1, 0, 1]),
        ("got", 1, 1.5, [[1, 0, 1, 1, 1, 9, 7, 1]]),
        ("whole", 1, 1.6),
        ("ask", 1, "k", "cas", 4.0, 0, "a"),
        ("answer", 1, 4.1, "ok", True, 1, "a"),
        ("ask", 2, "k", "cas", 5.0, 1, "b"),
    )

    observations = read_observations(lines)

    story = observations.logs["story"]
    assert (story.acked[0].count, story.failed[0].count, story.sessions[7].submitted) == (3, 2, 5)
    assert story.readings[0].pieces[0].sequence_id == 1
    assert story.readings[0].is_complete
    first, second = observations.registers
    assert (first.outcome, first.ended_at, first.version) == (Outcome.OK, 4.1, 1)
    assert (second.outcome, second.ended_at) == (Outcome.UNKNOWN, float("inf"))


def test_a_line_that_was_torn_off_is_left_out() -> None:
    lines = lines_of(("open", 7, "story", True, 0.5, 0.6), ("ack", 7, 0, 1.0, 1.2, [[1, 0, 0, 2]]))
    lines[-1] = lines[-1][:-4]

    observations = read_observations(lines)

    assert observations.logs["story"].acked == []
    assert observations.logs["story"].sessions[7].submitted is None


def test_calls_and_readings_are_numbered_anew_in_each_life() -> None:
    """A client that was killed and started again must not answer the calls of its former life."""
    first = lines_of(("ask", 1, "k", "cas", 1.0, 0, "a"))
    second = lines_of(("ask", 1, "k", "get", 2.0, 0, ""), ("answer", 1, 2.1, "ok", True, 0, ""))

    observations = read_observations([*first, *second])

    assert [call.outcome for call in observations.registers] == [Outcome.UNKNOWN, Outcome.OK]
    assert observations.clients == {"w": 2}


@pytest.mark.parametrize(
    "line", [b"nothing\n", b"[1]\n", b'["w","dance",1]\n', b'["w","ack",99,0,0,0,[]]\n']
)
def test_what_no_client_of_ours_wrote_is_refused(line: bytes) -> None:
    with pytest.raises(CorruptData, match="line 2"):
        read_observations([*lines_of(), line])
