"""What is wrong with a cluster, from its metadata: named, with what it waits for, and about whom."""

from typing import Any

import pytest
import trio.testing

from distributedlog.cluster.coordination.gc_hold import hold_deletions
from distributedlog.cluster.coordination.repair_settings import change_repair_settings
from distributedlog.cluster.repair import decommission as leaving
from distributedlog.cluster.status import cluster_overview as overview
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.metadata.model.interface import MemberStatus
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.declarations.health_conditions import (
    Code,
    HealthCondition,
    Severity,
    condition,
)
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.conditions import codes_of
from tests.metadata.local_metadata import LocalMetadata
from tests.runtime.pipe import PipeNetwork

LEADER = MemberStatus("m1", "h:1", "leader", 1, 1, True, "1", ())
FOLLOWER = MemberStatus("m2", "h:2", "follower", 1, 1, True, "2", ())


class Quorum(LocalMetadata):
    """That says who its nodes are."""

    listener = ""
    members = (LEADER,)
    hangs = False

    async def status(self) -> list[MemberStatus]:
        return list(self.members)

    async def range(self, *arguments: Any, **named: Any) -> Any:
        if self.hangs:
            await trio.sleep_forever()
        return await super().range(*arguments, **named)


async def _look(quorum: Quorum, timeout_s: float = 30.0) -> dict[str, Any]:
    shown: Any = quorum
    return await overview.status(shown, timeout_s)


async def _quorum(
    *bookies: str, conditions: tuple[HealthCondition, ...] = (), label: str = "", pulls: bool = True
) -> Quorum:
    made = Quorum()
    for bookie in bookies:
        there = BookieRegistration(
            bookie, {"": ("h", 1)}, conditions=conditions, copies_assigned_ledgers=pulls
        )
        cookie = Put(
            keys.cookie_key(bookie), pack({"label": label or f"n{bookie}", "incarnation": 1})
        )
        await made.transact(Transaction((), (cookie, Put(keys.bookie_key(bookie), there.encode()))))
    return made


async def _closed(quorum: Quorum, ledger_id: int, *bookies: str) -> None:
    ledger = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, bookies, 0),), bytes(16))
    await quorum.transact(transactions.creation_ops(ledger, ()))
    closed = ledger.close_by_writer(9, 100)
    await quorum.transact(transactions.close_ops(closed, 1, ()))


def _about(found: dict[str, Any], bookie: str) -> list[dict[str, Any]]:
    return [one for one in found["conditions"] if one["parameters"].get("bookie") == bookie]


async def test_a_drain_that_waits_for_somebody_says_for_whom() -> None:
    """H102: a drain needs no help unless no bookie can take its place."""
    quorum = await _quorum("b1", "b2", "b3")
    await _closed(quorum, 5, "b1", "b2", "b3")
    await leaving.request_decommission(quorum, "b1")

    [waits] = _about(await _look(quorum), "b1")
    assert (waits["code"], waits["severity"]) == (Code.BOOKIE_LEAVING, "degraded")
    told = {name: waits["parameters"][name] for name in ("ledgers", "stuck", "ledger", "running")}
    assert told == {"ledgers": 1, "stuck": 1, "ledger": 5, "running": 1}

    await quorum.transact(
        Transaction(
            (),
            (
                Put(
                    keys.bookie_key("b4"),
                    BookieRegistration("b4", {"": ("h", 1)}).encode(),
                ),
                Put(keys.cookie_key("b4"), pack({"label": "nb4", "incarnation": 1})),
            ),
        )
    )
    found = await _look(quorum)
    [waits] = _about(found, "b1")
    assert (waits["code"], waits["severity"]) == (Code.BOOKIE_LEAVING, "healing")
    assert found["health"] == "healing"


async def test_a_bookie_that_is_down_and_decommissioned_is_one_condition() -> None:
    quorum = await _quorum("b1", "b2", "b3")
    await _closed(quorum, 5, "b1", "b2", "b3")
    await leaving.request_decommission(quorum, "b1")
    await quorum.transact(Transaction((), (Delete(keys.bookie_key("b1")),)))

    [waits] = _about(await _look(quorum), "b1")

    assert (waits["code"], waits["parameters"]["running"]) == (Code.BOOKIE_LEAVING, 0)


@pytest.mark.parametrize("running", [True, False])
async def test_a_drained_bookie_does_not_make_the_cluster_unhealthy(running: bool) -> None:
    """Whatever is wrong with it, and whether its process has been stopped or not."""
    quorum = await _quorum("b2", "b3", "b4")
    asked, broken = condition(Code.READ_ONLY_REQUESTED), condition(Code.DISK_READ_ERRORS)
    one = BookieRegistration(
        "b1",
        {"": ("h", 1)},
        read_only=True,
        ledgers=7,
        conditions=(asked, broken),
        copies_assigned_ledgers=True,
    )
    cookie = Put(keys.cookie_key("b1"), pack({"label": "nb1", "incarnation": 1}))
    put = [cookie, *([Put(keys.bookie_key("b1"), one.encode())] if running else [])]
    await quorum.transact(Transaction((), tuple(put)))
    await leaving.request_decommission(quorum, "b1")

    found = await _look(quorum)

    assert (found["health"], found["healthy"]) == ("healthy", True)
    drained, *others = _about(found, "b1")
    assert (drained["code"], drained["parameters"]["running"]) == (
        Code.BOOKIE_DRAINED,
        int(running),
    )
    assert [(each["code"], each["severity"]) for each in others] == (
        [(Code.DISK_READ_ERRORS, "info")] if running else []
    )
    [row] = [each for each in found["bookies"] if each["id"] == "b1"]
    assert (row["state"], row["ledgers"]) == ("draining", 0), (
        "what its disk still has is not needed"
    )


async def test_a_bookie_that_died_heals_where_another_one_can_take_its_place() -> None:
    quorum = await _quorum("b1", "b2", "b3", "b4")
    await _closed(quorum, 5, "b1", "b2", "b3")
    await quorum.transact(Transaction((), (Delete(keys.bookie_key("b1")),)))

    found = await _look(quorum)

    [down] = _about(found, "b1")
    assert (down["code"], down["parameters"]["ledgers"]) == (Code.BOOKIE_DOWN, 1)
    assert found["health"] == "healing"


async def test_one_dead_bookie_of_three_waits_for_an_operator_and_writes_continue() -> None:
    quorum = await _quorum("b1", "b2", "b3")
    await _closed(quorum, 5, "b1", "b2", "b3")
    await quorum.transact(Transaction((), (Delete(keys.bookie_key("b1")),)))

    found = await _look(quorum)

    [down] = _about(found, "b1")
    assert down["code"] == Code.BOOKIE_DOWN_NO_REPLACEMENT
    assert (down["parameters"]["ledgers"], down["parameters"]["spare"]) == (1, 0)
    assert found["health"] == "degraded"


async def test_a_dead_bookie_that_no_ledger_needs_is_no_harm() -> None:
    quorum = await _quorum("b1", "b2", "b3", "b4")
    await quorum.transact(Transaction((), (Delete(keys.bookie_key("b1")),)))

    found = await _look(quorum)

    assert codes_of(found["conditions"]) == [Code.BOOKIE_DOWN_UNUSED]
    assert found["health"] == "healthy"


@pytest.mark.parametrize("bookies", [("b1",), ("b1", "b2")])
async def test_a_cluster_in_which_no_ledger_can_be_created_is_down(
    bookies: tuple[str, ...],
) -> None:
    """Two bookies that ever were: a ledger has three slots, and nothing to name in the third."""
    found = await _look(await _quorum(*bookies))

    assert found["health"] == "down"
    [no_ledgers] = found["conditions"]
    assert no_ledgers["code"] == Code.NO_NEW_LEDGERS
    assert no_ledgers["parameters"]["writable"] == len(bookies)


@pytest.mark.parametrize(
    ("closed", "health"), [((), "healthy"), (("b1",), "degraded"), (("b1", "b2"), "down")]
)
@pytest.mark.parametrize("leaves", [True, False])
async def test_health_follows_the_bookies_that_can_take_a_new_ledger(
    closed: tuple[str, ...], health: str, leaves: bool
) -> None:
    """A ledger can be created while one of three is read-only or leaves, and not while two are."""
    quorum = await _quorum("b1", "b2", "b3")
    for bookie in closed:
        one = BookieRegistration(
            bookie, {"": ("h", 1)}, read_only=True, copies_assigned_ledgers=True
        )
        await quorum.transact(Transaction((), (Put(keys.bookie_key(bookie), one.encode()),)))
        if leaves:
            await leaving.request_decommission(quorum, bookie)

    found = await _look(quorum)

    if leaves and len(closed) == 1:
        health = "healthy"  # no ledger needs it
    assert found["health"] == health
    assert (Code.NO_NEW_LEDGERS in codes_of(found["conditions"])) == (len(closed) == 2)


async def test_repairs_of_the_last_hour_are_shown_and_nothing_is_wrong() -> None:
    """`dlog status --wait` ends; an operator who looks within an hour sees it."""
    repaired = (condition(Code.ENTRIES_REPAIRED, ledgers=3),)
    quorum = await _quorum("b1", "b2", "b3", conditions=repaired)

    found = await _look(quorum)

    assert (found["health"], found["healthy"]) == ("healthy", True)
    assert [one["parameters"]["bookie"] for one in found["conditions"]] == ["b1", "b2", "b3"]
    assert found["reasons"][0].startswith("bookie nb1 (b1): ")


async def test_the_texts_of_an_older_version_are_shown_and_decide_nothing_but_a_look() -> None:
    """Also one that says that all is lost: its words are not read."""
    for text in ("healed: entries of 3 ledgers had rotted", "no room", "limbo", "\x00without a"):
        legacy = (condition(Code.LEGACY_TEXT, text=text),)
        found = await _look(await _quorum("b1", "b2", "b3", conditions=legacy))

        assert found["health"] == "degraded"
        assert set(codes_of(found["conditions"])) == {Code.LEGACY_TEXT}


async def test_a_code_of_a_newer_version_counts_with_its_severity() -> None:
    newer = HealthCondition("moon_phase", Severity.AT_RISK, {"phase": "full"})
    found = await _look(await _quorum("b1", "b2", "b3", conditions=(newer,)))

    assert found["health"] == "at_risk"
    assert found["reasons"][0] == "bookie nb1 (b1): moon_phase (phase=full, bookie=nb1 (b1))"


async def test_bookies_are_in_the_order_of_their_names() -> None:
    quorum = await _quorum("a2", label="b10")
    for bookie, label in (("a3", "b9"), ("a1", "b9"), ("a0", "c")):
        cookie = Put(keys.cookie_key(bookie), pack({"label": label, "incarnation": 1}))
        await quorum.transact(Transaction((), (cookie,)))

    found = (await _look(quorum))["bookies"]

    assert [one["id"] for one in found] == ["a1", "a3", "a2", "a0"]


async def test_who_holds_deletions_is_told_how_they_go_on() -> None:
    quorum = await _quorum("b1", "b2", "b3")
    await hold_deletions(quorum, "an operator checks")

    [held] = (await _look(quorum))["conditions"]

    assert (held["code"], held["parameters"]) == (
        Code.DELETIONS_HELD,
        {"cause": "an operator checks"},
    )
    assert "dlog metadata gc resume" in held["text"]


async def test_pause_of_repair_is_shown_until_its_end() -> None:
    quorum = await _quorum("b1", "b2", "b3")
    await change_repair_settings(quorum, lambda stored: stored.with_pause(5_000, 60.0))
    shown: Any = quorum

    found = await overview.status(shown, 30.0, now_ms=64_999)
    [paused] = found["conditions"]
    assert (paused["code"], paused["parameters"]) == (
        Code.REPAIR_PAUSED,
        {"until": "1970-01-01T00:01:05Z"},
    )
    assert found["health"] == "healthy"
    assert (await overview.status(shown, 30.0, now_ms=65_000))["conditions"] == []


async def test_that_nobody_would_repair_is_told() -> None:
    """Each is started with `repair = false`: copies that are lost do not come back."""
    quorum = await _quorum("b1", "b2", "b3", pulls=False)

    found = await _look(quorum)

    assert found["health"] == "degraded"
    assert codes_of(found["conditions"]) == [Code.NO_REPAIR]


async def test_names_of_others_move_no_cursor() -> None:
    """H265: a label is what a bookie says of itself."""
    quorum = await _quorum("b1", label="\x1b[2Jb\u202e1\n")
    sent = unpack(BookieRegistration("b1", {"": ("h", 1)}).encode(), "a registration")
    sent["conditions"] = [
        {"code": "odd\x07", "severity": "degraded", "parameters": {"what": "\x1b[2J"}}
    ]
    await quorum.transact(Transaction((), (Put(keys.bookie_key("b1"), pack(sent)),)))

    found = await _look(quorum)

    assert all(reason.isprintable() for reason in found["reasons"])
    assert "odd?" in codes_of(found["conditions"])


async def test_without_a_leader_it_is_said_after_an_elections_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not after half of a timeout, which may be a minute."""
    quorum = await _quorum("b1", "b2", "b3")
    quorum.members = (FOLLOWER,)
    quorum.hangs = True
    begun = trio.current_time()

    found = await _look(quorum, 60.0)

    assert trio.current_time() - begun <= overview.LEADERLESS_S
    assert found["health"] == "down"
    assert Code.NO_METADATA_QUORUM in codes_of(found["conditions"])

    quorum.members = (LEADER,)
    begun = trio.current_time()
    await _look(quorum, 60.0)
    assert trio.current_time() - begun == 30.0  # there is one: it is asked for longer


async def test_a_status_with_silent_nodes_ends_within_its_time_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = PipeNetwork(1)
    await network.host("h").listen(("h", 1))  # accepts connections and never answers
    shown: Any = await _quorum("b1", "b2", "b3")
    begun = trio.current_time()

    found = await overview.status(shown, 1.0, host=network.host("operator"))

    assert trio.current_time() - begun <= 1.0
    assert len(found["bookies"]) == 3


async def test_what_nobody_knows_has_the_keys_of_what_is_known() -> None:
    found = await _look(await _quorum("b1", "b2", "b3"))

    assert overview.unknown("why").keys() == found.keys()


async def test_who_looks_each_second_has_logs_and_damage_looked_for_seldom(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With 10,000 logs their names were read each second, for a number."""
    quorum: Any = await _quorum("b1", "b2", "b3")
    seldom = overview.StatusCache()
    assert (await overview.status(quorum, 30.0, seldom))["logs"] == 0
    name = Put(overview.NAME_PREFIX + b"ns/one", bytes(8))
    await quorum.transact(Transaction((), (name, Put(keys.missing_ranges_key(7), b"\xc1"))))

    found = await overview.status(quorum, 30.0, seldom)
    assert (found["logs"], found["damaged_records"]) == (0, [])
    assert (await _look(quorum))["logs"] == 1, "who asks once is told what is there now"

    await trio.sleep(overview.CACHE_S)
    found = await overview.status(quorum, 30.0, seldom)
    assert (found["logs"], len(found["damaged_records"])) == (1, 1)
