"""Numbers a second from what nodes count, and those of the last hour."""

import itertools
import tracemalloc

import pytest

from distributedlog.console.cluster_state import cut, mark_slow, number
from distributedlog.console.rate_history import (
    FORGET_S,
    RESOLUTIONS,
    SAMPLE_S_MAX,
    SERIES,
    WINDOW_S,
    PointHistory,
    RateHistory,
    SampleClock,
)
from distributedlog.console.suggested_command import command_for
from distributedlog.runtime.declarations.health_conditions import Code, HealthCondition, Severity
from distributedlog.runtime.declarations.meters import DURATION_BUCKETS_S


def test_a_rate_is_by_the_clock_of_who_looks() -> None:
    rates = RateHistory()

    assert rates.rates("b1", 10.0, {"bytes": 100}) == {"bytes": None}  # not 0: not known
    assert rates.rates("b1", 12.0, {"bytes": 300}) == {"bytes": 100.0}
    assert rates.rates("b2", 12.0, {"bytes": 7}) == {"bytes": None}


def test_a_node_that_began_anew_has_no_rate_and_no_negative_one() -> None:
    """H263, H264."""
    rates = RateHistory()
    rates.rates("b1", 0.0, {"bytes": 1000, "entries": 10})

    assert rates.rates("b1", 1.0, {"bytes": 5, "entries": 20}) == {"bytes": None, "entries": None}
    assert rates.rates("b1", 2.0, {"bytes": 6, "entries": 20}) == {"bytes": 1.0, "entries": 0.0}


def test_two_that_look_at_once_get_the_same_rate() -> None:
    rates = RateHistory()
    rates.rates("b1", 0.0, {"bytes": 0})

    assert rates.rates("b1", 1.0, {"bytes": 50}) == {"bytes": 50.0}
    assert rates.rates("b1", 1.0, {"bytes": 50}) == {"bytes": 50.0}


def _counts(**at: int) -> list[int]:
    found = [0] * (len(DURATION_BUCKETS_S) + 1)
    for bucket, count in at.items():
        found[int(bucket[1:])] = count
    return found


def test_a_quantile_is_of_what_came_lately() -> None:
    rates = RateHistory()
    assert rates.quantile("b1", 0.0, _counts(b12=1000), 0.99) is None  # of before we looked
    assert rates.quantile("b1", 1.0, _counts(b12=1000, b3=100), 0.99) == DURATION_BUCKETS_S[3]
    assert rates.quantile("b1", 2.0, _counts(b12=1002, b3=100), 0.99) == DURATION_BUCKETS_S[12]

    late = 2.0 + 2 * WINDOW_S
    assert rates.quantile("b1", late, _counts(b12=1002, b3=150), 0.99) == DURATION_BUCKETS_S[3]
    assert rates.quantile("b1", late + 1, _counts(b2=1), 0.99) is None  # it began anew


def test_what_nobody_looks_at_is_forgotten() -> None:
    rates = RateHistory()
    for number_ in range(500):
        rates.rates(f"log {number_}", 0.0, {"records": 1})
        rates.quantile(f"b{number_}", 0.0, _counts(), 0.5)
    rates.rates("log", 1000.0, {"records": 1})

    assert len(rates._samples) == len(rates._rates) == 1
    assert not rates._buckets


def test_a_disk_is_slow_among_its_peers() -> None:
    rows = [{"sync_p99_s": one, "slow": False} for one in (0.005, 0.004, 0.05, None)]
    mark_slow(rows)
    assert [row["slow"] for row in rows] == [False, False, True, False]

    alone = [{"sync_p99_s": one, "slow": False} for one in (0.005, 5.0)]
    mark_slow(alone)
    assert not any(row["slow"] for row in alone)  # who of two is the slow one?


def test_what_a_peer_says_is_a_number_or_nothing() -> None:
    said = {"a": 1, "b": "<b>", "c": [1], "d": 2**70, "e": None}

    assert [number(said, name) for name in "abcdef"] == [1, None, None, None, None, None]
    assert cut("x" * 1000) == "x" * 299 + "…"


ID = "0123456789abcdef"


@pytest.mark.parametrize(
    ("code", "parameters", "command"),
    [
        (Code.BOOKIE_DOWN, {"bookie": ID}, f"dlog ledger list --bookie {ID}"),
        (Code.BOOKIE_LEAVING, {"bookie": ID}, f"dlog decommission {ID}"),
        (Code.LIMBO, {"bookie": ID}, "dlog bookies"),
        (Code.LIMBO_ENDED, {"bookie": ID}, f"dlog scrub {ID}"),
        (Code.UNDER_REPLICATED, {"ledgers": 3}, "dlog under-replicated"),
        (Code.ONE_COPY_LEFT, {"ledgers": 2, "ledger": 17}, "dlog ledger show 17"),
        (Code.ONE_COPY_LEFT, {"ledger": "17; reboot"}, ""),
        (Code.DAMAGED_RECORDS, {"records": 2}, "dlog audit"),
        (Code.DELETIONS_HELD, {"cause": "restored"}, "dlog metadata gc show"),
        (Code.METADATA_NODE_DOWN, {"node": "m2"}, "dlog metadata show"),
        (Code.METADATA_NODE_EMPTY, {"node": "m2"}, "dlog metadata replace m2"),
        (Code.METADATA_NODE_EMPTY, {"node": "m2;reboot"}, "dlog metadata show"),
        (Code.NO_METADATA_QUORUM, {"answering": 1}, "dlog metadata show"),
        ("moon_phase", {}, ""),
    ],
)
def test_a_condition_has_its_command(
    code: str, parameters: dict[str, str | int], command: str
) -> None:
    assert command_for(HealthCondition(code, Severity.DEGRADED, parameters)) == command


HOSTILE = ("$(reboot)", "m2;reboot", "`reboot`", "reboot; 0123456789abcdef", f"{ID}\nreboot")


@pytest.mark.parametrize("code", [*Code, "reboot"])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_parameter_never_becomes_a_command(code: str, hostile: str) -> None:
    """H257: people paste it into a shell. Parameters come from nodes and from keys."""
    for name in ("bookie", "node", "ledger", "cause"):
        for also in ({}, {"bookie": ID}):
            command = command_for(
                HealthCondition(code, Severity.DOWN, {"text": hostile, **also, name: hostile})
            )
            assert set(command) <= set("abcdefghijklmnopqrstuvwxyz0123456789 -")
            assert "reboot" not in command


def _rows(
    history: PointHistory, now: float, resolution: int, name: str
) -> dict[float, float | None]:
    """The figures of one name by the start of their interval, in seconds."""
    found = history.points(now, round(now * 1000))[resolution]
    column = 1 + SERIES.index(name)
    step_s = found["step_ms"] / 1000
    return {row[0] * step_s: row[column] for row in found["rows"]}


def _sampled(history: PointHistory, times: list[float], value: float) -> None:
    for start, end in itertools.pairwise(times):
        history.add(start, end, dict.fromkeys(SERIES, value))


def test_a_rate_belongs_to_all_intervals_between_its_samples() -> None:
    history = PointHistory()
    history.add(100.0, 102.5, {"in_bytes_s": 10.0})
    history.add(102.5, 104.0, {"in_bytes_s": 20.0})

    assert _rows(history, 104.0, 0, "in_bytes_s") == {100: 10, 101: 10, 102: 15, 103: 20}


def test_five_minutes_have_seconds_and_the_hour_has_ten_seconds() -> None:
    history = PointHistory()
    _sampled(history, [float(second) for second in range(3 * 3600)], 7.0)
    now = 3 * 3600 - 1.0

    seconds, tens = (list(_rows(history, now, one, "records_s")) for one in (0, 1))
    assert (seconds[0], seconds[-1], len(seconds)) == (now - 300, now - 1, 300)
    assert (tens[0], tens[-1], len(tens)) == (now - 3609, now - 19, 360)
    assert set(_rows(history, now, 1, "records_s").values()) == {7.0}


def test_an_interval_without_a_sample_is_missing_and_not_zero() -> None:
    history = PointHistory()
    _sampled(history, [0.0, 1.0, 2.0], 5.0)
    _sampled(history, [40.0, 41.0, 50.0], 6.0)

    assert list(_rows(history, 50.0, 0, "records_s")) == [0, 1, *range(40, 50)]
    assert _rows(history, 50.0, 1, "records_s") == {0: 5.0, 40: 6.0}


def test_a_sample_over_a_long_time_is_a_gap() -> None:
    """A suspended machine: the mean of a night would hide what happened."""
    history = PointHistory()
    history.add(0.0, SAMPLE_S_MAX + 1, {"records_s": 1.0})
    history.add(-float("inf"), 20.0, {"records_s": 1.0})
    history.add(20.0, 20.0, {"records_s": 1.0})

    assert [ring["rows"] for ring in history.points(20.0, 20_000)] == [[], []]


def test_time_of_samples_goes_on_while_the_monotonic_clock_stands_still() -> None:
    clock = SampleClock()
    assert clock.time_s(100.0, 1000.0) == 100.0
    assert clock.time_s(101.0, 1001.5) == 101.0, "the wall clock is adjusted"
    assert clock.time_s(102.0, 1602.5) == 702.0, "ten minutes in suspension"
    assert clock.time_s(103.0, 1603.5) == 703.0


def test_time_of_samples_does_not_follow_a_wall_clock_that_is_set_back() -> None:
    clock = SampleClock()
    times = [
        clock.time_s(now, wall_s) for now, wall_s in ((1.0, 5000.0), (2.0, 1000.0), (3.0, 1001.0))
    ]

    assert times == [1.0, 2.0, 3.0]


def test_a_source_that_was_not_sampled_for_long_has_no_rate() -> None:
    """The mean of hours would be shown as the present rate."""
    rates = RateHistory()
    rates.rates("b1", 0.0, {"bytes": 0})

    assert rates.rates("b1", FORGET_S + 1, {"bytes": 10**9}) == {"bytes": None}
    assert rates.rates("b1", FORGET_S + 2, {"bytes": 10**9 + 5}) == {"bytes": 5.0}


def test_figures_that_are_sampled_at_different_times_share_their_intervals() -> None:
    history = PointHistory()
    history.add(0.0, 1.0, {"in_bytes_s": 1.0, "sync_p99_s": None})
    history.add(0.5, 2.0, {"records_s": 4.0})
    history.add(1.0, 2.0, {"in_bytes_s": 3.0, "sync_p99_s": 0.5})

    assert _rows(history, 2.0, 0, "in_bytes_s") == {0: 1, 1: 3}
    assert _rows(history, 2.0, 0, "records_s") == {0: 4, 1: 4}
    assert _rows(history, 2.0, 0, "sync_p99_s") == {0: None, 1: 0.5}


def test_a_latency_in_ten_seconds_is_the_worst_of_them() -> None:
    history = PointHistory()
    for second in range(10):
        history.add(
            second, second + 1, {"sync_p99_s": 0.9 if second == 4 else 0.1, "entries_s": second}
        )

    assert _rows(history, 10.0, 1, "sync_p99_s") == {0: 0.9}
    assert _rows(history, 10.0, 1, "entries_s") == {0: 4.5}


def test_points_have_wall_time_and_the_newest_can_be_asked_for() -> None:
    history = PointHistory()
    _sampled(history, [float(second) for second in range(50)], 1.0)

    seconds, tens = history.points(49.5, 1_000_000, newest=3)
    assert (seconds["step_ms"], seconds["base_ms"]) == (1000, 1_000_000 - 49_500)
    assert [row[0] for row in seconds["rows"]] == [46, 47, 48]
    assert [row[0] for row in tens["rows"]] == [1, 2, 3]  # the present one is not complete


def test_the_history_has_a_fixed_size() -> None:
    history = PointHistory()
    tracemalloc.start()
    _sampled(history, [second * 1.01 for second in range(5000)], 123456.789)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size < 8 * 2**20
    for ring, (_, length) in zip(history.points(5000.0, 0), RESOLUTIONS, strict=True):
        assert len(ring["rows"]) <= length
