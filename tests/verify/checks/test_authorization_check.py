"""What is told of rights that came and went: who was refused what, and when."""

import json
from typing import Any

import pytest

from distributedlog.testing.verify.checks.authorization_check import FORGET_S, check_rights
from distributedlog.testing.verify.history.observations import (
    PipelineObservations,
    read_observations,
)

WALK: list[list[Any]] = [
    ["runner", "mode", "report", 10.0, 10.1],
    ["runner", "mode", "required", 20.0, 20.1],
    ["runner", "mode", "report", 30.0, 30.1],
    ["runner", "mode", "open", 40.0, 40.1],
]
CLIENTS: list[list[Any]] = [
    [name, "begin", 1, 7, 1.0] for name in ("runner", "writer-1", "tail-2", "stranger-3")
]


def tried(what: str, begun: float, outcome: str) -> list[Any]:
    return ["stranger-3", "try", what, begun, begun + 0.2, outcome]


def told(*more: list[Any]) -> PipelineObservations:
    lines = [*CLIENTS, *WALK, *more]
    return read_observations(json.dumps(line).encode() + b"\n" for line in lines)


def test_a_walk_on_which_all_is_as_it_should_be() -> None:
    found = check_rights(
        told(
            tried("read", 5.0, "done"),
            tried("write", 12.0, "done"),
            tried("read", 19.9, "done"),  # nobody knows which mode counted
            tried("read", 20.2, "refused"),
            tried("write", 25.0, "failed"),
            tried("read", 29.9, "done"),
            tried("read", 30.2, "refused"),  # told before, and remembered
            tried("write", 30.2 + FORGET_S, "done"),
            tried("write", 41.0, "done"),
            ["writer-1", "note", 25.0, "story does not open: ConnectionLost: it was killed"],
            ["stranger-3", "note", 25.0, "cannot open: NotAllowed: no right"],
        )
    )

    assert (found.violations, found.rounds) == ([], 1)
    assert (found.refused, found.let_in) == (1, 4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (tried("read", 20.2, "done"), "tried to read, in mode required, and succeeded"),
        (tried("write", 5.0, "refused"), "in mode open, and was refused"),
        (tried("write", 15.0, "refused"), "in mode report, and was refused"),
        (tried("read", 30.2 + FORGET_S, "refused"), "in mode report, and was refused"),
        (["tail-2", "note", 25.0, "reading story ended: NotAllowed: no"], "tail-2 is authorized"),
        (["tail-2", "note", 11.0, "reading story ended: WrongLedgerKey: 7"], "WrongLedgerKey: 7"),
    ],
)
def test_what_must_not_be(more: list[Any], words: str) -> None:
    [violation] = check_rights(told(more)).violations

    assert words in violation


def test_what_a_writers_records_and_its_end_say_counts() -> None:
    found = check_rights(
        told(
            ["writer-1", "open", 1, "story", True, 1.0, 1.1],
            ["writer-1", "fail", 1, 0, 3, 22.0, 22.1, "unknown", "WriteFailed: NotAllowed: no"],
            ["writer-1", "end", 1, 3, 22.2, "CapabilityOutdated: ledger 7"],
        )
    )

    assert len(found.violations) == 2


def test_a_round_is_one_that_came_back() -> None:
    more = [["runner", "mode", mode, at, at] for at, mode in ((50.0, "report"), (55.0, "open"))]
    more += [["runner", "mode", "required", 60.0, 60.0]]

    assert check_rights(told(*more)).rounds == 1
    assert check_rights(read_observations([])).rounds == 0


def test_many_violations_are_some_and_a_number() -> None:
    found = check_rights(told(*(tried("read", 21.0 + n / 10, "done") for n in range(50))))

    assert found.violations[-1] == "rights: and 45 more violations"
