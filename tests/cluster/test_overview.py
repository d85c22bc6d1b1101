"""What is wrong with a cluster, from its metadata: named, with what it waits for, and about whom."""

from typing import Any

import trio.testing

from distributedlog.cluster import leaving, overview
from distributedlog.cluster.restored import RESUME, hold
from distributedlog.ledger import keys, transactions
from distributedlog.ledger.metadata import Fragment, LedgerMetadata
from distributedlog.ledger.registration import BookieRegistration
from distributedlog.metadata.interface import MemberStatus
from distributedlog.metadata.local import LocalMetadata
from distributedlog.metadata.transaction import Delete, Put, Transaction
from distributedlog.runtime.frames import pack
from distributedlog.runtime.reasons import HEALED

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
    *bookies: str, reasons: tuple[str, ...] = (), label: str = "", pulls: bool = True
) -> Quorum:
    made = Quorum()
    for bookie in bookies:
        there = BookieRegistration(bookie, {"": ("h", 1)}, reasons=reasons, pulls=pulls)
        cookie = Put(
            keys.cookie_key(bookie), pack({"label": label or f"n{bookie}", "incarnation": 1})
        )
        await made.transact(Transaction((), (cookie, Put(keys.bookie_key(bookie), there.encode()))))
    return made


async def _closed(quorum: Quorum, ledger_id: int, *bookies: str) -> None:
    ledger = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, bookies, 0),), bytes(16))
    await quorum.transact(transactions.creation_share(ledger, ()))
    closed = ledger.close_by_writer(9, 100)
    await quorum.transact(transactions.closing_share(closed, 1, ()))


async def test_a_drain_that_waits_for_somebody_says_for_whom() -> None:
    """H102: healing goes by itself; where no bookie can take its place nobody mends it."""
    quorum = await _quorum("b1", "b2", "b3")
    await leaving.ask_to_leave(quorum, "b1")

    found = await _look(quorum)
    assert (found["health"], found["reasons"]) == (
        "healing",
        ["bookie nb1 (b1) is to leave, and holds nothing any more: it may be stopped"],
    )
    assert found["about"] == ["b1"]

    await _closed(quorum, 5, "b1", "b2", "b3")
    found = await _look(quorum)
    [reason] = found["reasons"]
    assert reason.startswith("bookie nb1 (b1) is to leave, and 1 ledger is on it, such as 5: no")
    assert found["health"] == "degraded"

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
    assert found["reasons"][0].endswith("such as 5: waits for its copy")
    assert found["health"] == "healing"


async def test_a_bookie_that_is_down_and_is_to_leave_says_both() -> None:
    quorum = await _quorum("b1", "b2", "b3")
    await _closed(quorum, 5, "b1", "b2", "b3")
    await leaving.ask_to_leave(quorum, "b1")
    await quorum.transact(Transaction((), (Delete(keys.bookie_key("b1")),)))

    found = await _look(quorum)

    assert [reason.partition(" (b1) ")[2][:17] for reason in found["reasons"][:2]] == [
        "is down (1 ledger",
        "is to leave, and ",
    ]


async def test_what_was_healed_is_told_and_nothing_is_wrong() -> None:
    """`dlog status --wait healthy` goes on; who comes an hour later hears of it."""
    quorum = await _quorum("b1", "b2", reasons=(f"{HEALED}entries of 3 ledgers had rotted",))

    found = await _look(quorum)

    assert (found["health"], found["healthy"]) == ("healthy", True)
    assert found["about"] == ["b1", "b2"]
    assert found["reasons"][0].startswith("bookie nb1 (b1): healed: entries of 3 ledgers")


async def test_bookies_are_in_the_order_of_their_names() -> None:
    quorum = await _quorum("a2", label="b10")
    for bookie, label in (("a3", "b9"), ("a1", "b9"), ("a0", "c")):
        cookie = Put(keys.cookie_key(bookie), pack({"label": label, "incarnation": 1}))
        await quorum.transact(Transaction((), (cookie,)))

    found = (await _look(quorum))["bookies"]

    assert [one["id"] for one in found] == ["a1", "a3", "a2", "a0"]


async def test_who_holds_deletions_is_told_how_they_go_on() -> None:
    quorum = await _quorum("b1", "b2", "b3")
    for why, told in (
        ("an operator looks", f'nothing is deleted: an operator looks; look, then: "{RESUME}"'),
        (f"restored; look, then: {RESUME}", f"nothing is deleted: restored; look, then: {RESUME}"),
    ):
        await hold(quorum, why)
        assert (await _look(quorum))["reasons"] == [told]


async def test_that_nobody_would_repair_is_told() -> None:
    """Each is started with `repair = false`: copies that are lost do not come back."""
    quorum = await _quorum("b1", "b2", pulls=False)

    found = await _look(quorum)

    assert found["health"] == "degraded"
    assert found["reasons"] == ["no bookie repairs: all are started with repair = false"]


async def test_names_of_others_move_no_cursor() -> None:
    """H265: a label is what a bookie says of itself."""
    quorum = await _quorum("b1", label="\x1b[2Jb\u202e1\n", reasons=("x",))

    found = await _look(quorum)

    assert all(reason.isprintable() for reason in found["reasons"])
    assert len(found["about"]) == len(found["reasons"])


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
    assert "no leader does" in found["reasons"][0]

    quorum.members = (LEADER,)
    begun = trio.current_time()
    await _look(quorum, 60.0)
    assert trio.current_time() - begun == 30.0  # there is one: it is asked for longer


async def test_what_nobody_knows_has_the_keys_of_what_is_known() -> None:
    found = await _look(await _quorum("b1", "b2", "b3"))

    assert overview.unknown("why").keys() == found.keys()


async def test_who_looks_each_second_has_logs_and_damage_looked_for_seldom(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With 10,000 logs their names were read each second, for a number."""
    quorum: Any = await _quorum("b1", "b2", "b3")
    seldom = overview.Seldom()
    assert (await overview.status(quorum, 30.0, seldom))["logs"] == 0
    name = Put(overview.NAME_PREFIX + b"ns/one", bytes(8))
    await quorum.transact(Transaction((), (name, Put(keys.under_key(7), b"\xc1"))))

    found = await overview.status(quorum, 30.0, seldom)
    assert (found["logs"], found["damaged_records"]) == (0, [])
    assert (await _look(quorum))["logs"] == 1, "who asks once is told what is there now"

    await trio.sleep(overview.SELDOM_S)
    found = await overview.status(quorum, 30.0, seldom)
    assert (found["logs"], len(found["damaged_records"])) == (1, 1)
