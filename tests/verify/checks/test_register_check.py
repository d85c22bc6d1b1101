"""The register checker: planted anomalies, and agreement with a search over all orders."""

import random
from itertools import count

import pytest

from distributedlog.testing.verify.checks.history_check import Violation
from distributedlog.testing.verify.checks.register_check import check_registers
from distributedlog.testing.verify.history.run_history import Outcome, RegisterCall


def get(version: int, value: str, begun: float, ended: float, process: str = "p") -> RegisterCall:
    return RegisterCall(
        process, "k", "get", begun, ended_at=ended, outcome=Outcome.OK, version=version, value=value
    )


def cas(
    expected: int, wrote: str, begun: float, ended: float, found: tuple[int, str] | None = None
) -> RegisterCall:
    """``found`` None: it succeeded."""
    version, value = found or (expected + 1, wrote)
    return RegisterCall(
        "p", "k", "cas", begun, expected, wrote, ended, Outcome.OK, found is None, version, value
    )


def unknown(expected: int, wrote: str, begun: float) -> RegisterCall:
    return RegisterCall("p", "k", "cas", begun, expected, wrote)


def test_a_sound_history_passes() -> None:
    calls = [
        get(0, "", 0, 1),
        cas(0, "a", 1, 2),
        get(1, "a", 3, 4),
        unknown(1, "b", 5),
        get(1, "a", 6, 7),
        get(2, "b", 8, 9),
        cas(1, "c", 9, 10, found=(2, "b")),
        cas(2, "d", 11, 12),
    ]

    assert check_registers(calls) == 8


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([cas(0, "a", 0, 1), get(0, "", 2, 3)], "read version 0"),
        ([cas(0, "a", 0, 1), cas(0, "b", 2, 3)], "made twice"),
        ([cas(0, "a", 0, 1), get(1, "b", 2, 3)], "is a and b"),
        ([get(1, "a", 0, 1)], "made by no call"),
        ([get(0, "a", 0, 1)], "at version 0"),
        ([cas(0, "a", 0, 1), cas(2, "c", 2, 3)], "version 2 .* made by no call"),
        ([get(1, "a", 0, 1), cas(0, "a", 2, 3)], "before its write began"),
        ([get(1, "a", 0, 1), unknown(0, "a", 2)], "before its write began"),
        ([cas(1, "b", 0, 1), unknown(0, "a", 2)], "before its write began"),
        ([cas(0, "a", 0, 1, found=(0, ""))], "refused at version 0"),
        (
            [cas(0, "a", 0, 1), cas(1, "b", 2, 3), get(2, "b", 4, 5), get(1, "a", 6, 7)],
            "read version 1",
        ),
    ],
)
def test_a_planted_anomaly_is_found(calls: list[RegisterCall], message: str) -> None:
    with pytest.raises(Violation, match=message):
        check_registers(calls)


def test_registers_are_judged_apart() -> None:
    other = get(0, "", 5, 6)
    other.key = "other"

    assert check_registers([cas(0, "a", 0, 1), other]) == 2


def linearizable(calls: list[RegisterCall]) -> bool:
    """By search: some order of the calls, each at a moment inside its interval, explains the answers."""

    def search(left: tuple[int, ...], version: int, value: str) -> bool:
        answered = [i for i in left if calls[i].outcome is Outcome.OK]
        if not answered:
            return True
        horizon = min(calls[i].ended_at for i in answered)
        for i in left:
            call = calls[i]
            if call.begun_at > horizon:
                continue
            rest = tuple(j for j in left if j != i)
            if call.kind == "get":
                if (call.version, call.value) == (version, value) and search(rest, version, value):
                    return True
            elif call.outcome is Outcome.UNKNOWN or call.succeeded:
                if (
                    call.expected == version
                    and (call.outcome is Outcome.UNKNOWN or call.version == version + 1)
                    and search(rest, version + 1, call.wrote)
                ):
                    return True
            elif (
                call.expected != version
                and (call.version, call.value) == (version, value)
                and search(rest, version, value)
            ):
                return True
        return False

    return search(tuple(range(len(calls))), 0, "")


def random_history(rng: random.Random) -> list[RegisterCall]:
    """True concurrency on a true register; then, often, a lie."""
    calls: list[RegisterCall] = []
    names = count()
    version, value, now = 0, "", 0.0
    for _ in range(rng.randrange(2, 7)):
        now += rng.random()
        begun, ended = now - rng.random() * 2, now + rng.random() * 2
        if rng.random() < 0.5:
            calls.append(get(version, value, begun, ended))
            continue
        expected = version if rng.random() < 0.7 else max(0, version + rng.choice((-1, 1)))
        wrote = f"v{next(names)}"
        if expected == version:
            version, value = version + 1, wrote
            call = cas(expected, wrote, begun, ended)
        else:
            call = cas(expected, wrote, begun, ended, found=(version, value))
        if rng.random() < 0.25:
            call = unknown(expected, wrote, begun)
        calls.append(call)
    if rng.random() < 0.6:
        lie = rng.choice(calls)
        if lie.outcome is Outcome.OK:
            lie.version = max(0, lie.version + rng.choice((-1, 0, 1)))
            lie.begun_at += rng.uniform(-3, 3)
            lie.ended_at = max(lie.begun_at + 0.1, lie.ended_at)
    return calls


def test_the_checker_agrees_with_a_search() -> None:
    rng = random.Random(5)
    verdicts = []
    for _ in range(1500):
        calls = random_history(rng)
        try:
            check_registers(calls)
            found = True
        except Violation:
            found = False
        assert found == linearizable(calls), calls
        verdicts.append(found)

    assert 300 < sum(verdicts) < 1300
