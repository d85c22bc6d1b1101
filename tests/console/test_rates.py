"""Numbers a second from what nodes count."""

import pytest

from distributedlog.console.advice import command_for
from distributedlog.console.cluster_state import cut, mark_slow, number
from distributedlog.console.rates import WINDOW_S, Rates
from distributedlog.runtime.meters import SECONDS


def test_a_rate_is_by_the_clock_of_who_looks() -> None:
    rates = Rates()

    assert rates.look("b1", 10.0, {"bytes": 100}) == {"bytes": None}  # not 0: not known
    assert rates.look("b1", 12.0, {"bytes": 300}) == {"bytes": 100.0}
    assert rates.look("b2", 12.0, {"bytes": 7}) == {"bytes": None}


def test_a_node_that_began_anew_has_no_rate_and_no_negative_one() -> None:
    """H263, H264."""
    rates = Rates()
    rates.look("b1", 0.0, {"bytes": 1000, "entries": 10})

    assert rates.look("b1", 1.0, {"bytes": 5, "entries": 20}) == {"bytes": None, "entries": None}
    assert rates.look("b1", 2.0, {"bytes": 6, "entries": 20}) == {"bytes": 1.0, "entries": 0.0}


def test_two_that_look_at_once_get_the_same_rate() -> None:
    rates = Rates()
    rates.look("b1", 0.0, {"bytes": 0})

    assert rates.look("b1", 1.0, {"bytes": 50}) == {"bytes": 50.0}
    assert rates.look("b1", 1.0, {"bytes": 50}) == {"bytes": 50.0}


def _counts(**at: int) -> list[int]:
    found = [0] * (len(SECONDS) + 1)
    for bucket, count in at.items():
        found[int(bucket[1:])] = count
    return found


def test_a_quantile_is_of_what_came_lately() -> None:
    rates = Rates()
    assert rates.quantile("b1", 0.0, _counts(b12=1000), 0.99) is None  # of before we looked
    assert rates.quantile("b1", 1.0, _counts(b12=1000, b3=100), 0.99) == SECONDS[3]
    assert rates.quantile("b1", 2.0, _counts(b12=1002, b3=100), 0.99) == SECONDS[12]

    late = 2.0 + 2 * WINDOW_S
    assert rates.quantile("b1", late, _counts(b12=1002, b3=150), 0.99) == SECONDS[3]
    assert rates.quantile("b1", late + 1, _counts(b2=1), 0.99) is None  # it began anew


def test_what_nobody_looks_at_is_forgotten() -> None:
    rates = Rates()
    for number_ in range(500):
        rates.look(f"log {number_}", 0.0, {"records": 1})
        rates.quantile(f"b{number_}", 0.0, _counts(), 0.5)
    rates.look("log", 1000.0, {"records": 1})

    assert len(rates._seen) == len(rates._rates) == 1
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
    ("reason", "command"),
    [
        (f"bookie b1 ({ID}) is down (3 ledgers miss …)", f"dlog ledger list --bookie {ID}"),
        (f"bookie b1 ({ID}) is to leave, and 2 ledgers are on it", f"dlog decommission {ID}"),
        (f"bookie b1 ({ID}): some ledgers are in limbo: disk", "dlog bookies"),
        (f"bookie b1 ({ID}): healed: ledgers were in limbo: disk", f"dlog scrub {ID}"),
    ],
)
def test_a_reason_about_a_bookie_has_its_command(reason: str, command: str) -> None:
    assert command_for(reason, ID) == command


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("3 ledgers miss copies of some entries", "dlog under-replicated"),
        ("1 ledger misses copies of some entries", "dlog under-replicated"),
        ("1,200 ledgers miss copies of some entries", "dlog under-replicated"),
        (
            "1 ledger has entries with at most one copy that can be reached, such as ledger 17",
            "dlog ledger show 17",
        ),
        (
            "2 ledgers have entries with at most one copy that can be reached, such as ledger 17",
            "dlog ledger show 17",
        ),
        ("damaged records: 2 in the metadata store, such as log/1", "dlog audit"),
        ("nothing is deleted: the metadata was restored; …", "dlog metadata gc show"),
        ("metadata node m2 at h:1 does not answer", "dlog metadata show"),
        ("metadata node m2 at h:1 is empty and waits to be let in: …", "dlog metadata replace m2"),
        ("no metadata quorum: 1 of 3 nodes answer, and no leader does; …", "dlog metadata show"),
        ("something new", ""),
    ],
)  # fmt: skip
def test_a_reason_has_its_command(reason: str, command: str) -> None:
    assert command_for(reason) == command


@pytest.mark.parametrize(
    "reason",
    [
        f'bookie $(reboot) ({ID}): "dlog x; rm -rf /" is to leave',
        "metadata node m2;reboot at h:1 is empty and waits to be let in",
        "metadata node $(reboot) at h:1 is empty and waits to be let in",
        f"bookie `reboot` ({ID}) is down (1; reboot)",
    ],
)
def test_what_a_node_says_never_becomes_a_command(reason: str) -> None:
    """H257: people paste it into a shell."""
    for about in ("", ID, "$(reboot)", "reboot; 0123456789abcdef"):
        assert set(command_for(reason, about)) <= set("abcdefghijklmnopqrstuvwxyz0123456789 -")
        assert "reboot" not in command_for(reason, about)


@pytest.mark.parametrize(
    "reason",
    [
        f"bookie b1 ({ID}): look at (fedcba9876543210) is to leave",
        f"bookie b1 (fedcba9876543210) is to leave, (x ({ID}) is down",
    ],
)
def test_no_node_has_a_command_about_another_one_copied(reason: str) -> None:
    """A label and a reason are a node's own words; whom to decommission is not."""
    assert "fedcba" not in command_for(reason, ID)
