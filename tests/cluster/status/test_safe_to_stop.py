"""May nodes be stopped: answered from the metadata, and never yes where it is not known."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from distributedlog.cluster.status.safe_to_stop import (
    LEDGERS_PER_CODE_MAX,
    StopCheck,
    check_stop,
    decommission,
)
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange, encode_missing_ranges
from distributedlog.metadata.model.interface import MemberRole, MemberStatus, Metadata, Scan
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.declarations.health_conditions import Code, HealthCondition, condition
from distributedlog.runtime.interfaces.errors import (
    ConfirmationRequired,
    InvalidRequest,
    VersionConflict,
)
from distributedlog.runtime.protocol.frames import pack
from tests.conditions import codes_of
from tests.metadata.local_metadata import LocalMetadata

B1, B2, B3, B4, B5 = "aaaa1111", "bbbb2222", "cccc3333", "dddd4444", "eeee5555"
NAMES = {B1: "b1", B2: "b2", B3: "b3", B4: "b4"}
MEMBERS = [MemberStatus(name, f"{name}:1", "follower", 1, 1, True) for name in ("m1", "m2", "m3")]


class World:
    def __init__(self) -> None:
        self.metadata = LocalMetadata()
        self.members = MEMBERS

    async def put(self, key: bytes, value: bytes) -> None:
        await self.metadata.transact(Transaction((), (Put(key, value),)))

    async def bookies(self, *ids: str) -> None:
        for one in ids:
            await self.put(keys.cookie_key(one), pack({"label": NAMES[one], "incarnation": 1}))
            await self.registered(one)

    async def registered(
        self, one: str, *conditions: HealthCondition, read_only: bool = False
    ) -> None:
        said = BookieRegistration(one, {"": ("h", 1)}, conditions=conditions, read_only=read_only)
        await self.put(keys.bookie_key(one), said.encode())

    async def down(self, one: str) -> None:
        await self.metadata.transact(Transaction((), (Delete(keys.bookie_key(one)),)))

    async def ledger(
        self,
        ledger_id: int,
        *fragments: Sequence[str],
        closed: bool = True,
        quorums: tuple[int, int] = (3, 2),
    ) -> None:
        made = LedgerMetadata(
            ledger_id, len(fragments[0]), *quorums,
            tuple(Fragment(5 * at, tuple(one), at) for at, one in enumerate(fragments)),
            bytes(16), owner=(7, 2), custom={"log": b"orders"},
        )  # fmt: skip
        await self.metadata.transact(transactions.creation_ops(made, ()))
        if closed:
            await self.metadata.transact(
                transactions.close_ops(made.close_by_writer(9, 100), 1, ())
            )

    async def ask(self, *names: str) -> StopCheck:
        return await check_stop(self.metadata, self.members, names)


@pytest.fixture
async def world() -> World:
    made = World()
    await made.bookies(B1, B2, B3)
    return made


async def test_one_of_three_bookies_may_be_stopped_and_two_may_not(world: World) -> None:
    await world.ledger(1, (B1, B2, B3))
    await world.ledger(2, (B1, B2, B3), closed=False)

    one = await world.ask("b1")
    assert (one.is_safe, one.nodes, one.ledgers) == (True, (B1,), 2)

    two = await world.ask("b1", B2)
    assert not two.is_safe
    assert codes_of(two.conditions) == [
        Code.STOP_NO_NEW_LEDGERS,
        Code.STOP_ONE_COPY,
        Code.STOP_NO_RECOVERY,
    ]
    writers, copies, recovery = two.conditions
    assert writers.integer("writable") == 1
    assert copies.parameters == {"ledger": 1, "copies": 3, "write_quorum": 3}
    assert recovery.parameters == {"ledger": 2, "log": "orders", "segment": 2}


async def test_no_bookie_may_be_stopped_if_no_ledger_could_be_created_then(world: World) -> None:
    assert (await world.ask("b1")).is_safe
    await world.registered(B2, read_only=True)

    assert codes_of((await world.ask("b1")).conditions) == [Code.STOP_NO_NEW_LEDGERS]
    assert (await world.ask("b2")).is_safe  # it takes none now either


async def test_what_misses_a_copy_already_is_waited_for(world: World) -> None:
    await world.bookies(B4)
    await world.ledger(1, (B1, B2, B3))
    await world.put(keys.missing_ranges_key(1), encode_missing_ranges([MissingRange(B3, 0, 5)]))

    assert (await world.ask("b1")).conditions == (
        condition(Code.STOP_ONE_COPY, ledger=1, copies=2, write_quorum=3),
    )
    assert (await world.ask("b3")).is_safe  # it has none of those
    assert (await world.ask("b4")).is_safe


async def test_a_bookie_that_is_down_is_no_copy(world: World) -> None:
    await world.bookies(B4)
    await world.ledger(1, (B1, B2, B3))
    await world.ledger(2, (B1, B2), quorums=(2, 2))
    assert (await world.ask("b1")).is_safe
    await world.down(B2)

    found = await world.ask("b1")
    assert found.conditions == (
        condition(Code.STOP_ONE_COPY, ledger=1, copies=2, write_quorum=3),
        condition(Code.STOP_NO_COPY, ledger=2, open=0, log="", segment=-1),
    )
    assert await world.ask("b2") == await world.ask("b2", "b2")


async def test_a_bookie_in_limbo_is_no_copy_and_is_named(world: World) -> None:
    await world.bookies(B4)
    await world.ledger(1, (B1, B2, B3), closed=False)
    await world.registered(B3, condition(Code.LIMBO, ledgers=1, below=0, cause="a file is gone"))

    found = await world.ask("b1")
    assert codes_of(found.conditions) == [Code.STOP_NO_RECOVERY, Code.STOP_COPIES_UNCERTAIN]
    assert found.conditions[1].bookie == B3
    assert (await world.ask("b4")).is_safe  # nothing depends on that

    await world.registered(B3, condition(Code.LIMBO_ENDED, cause="a file was gone"))
    assert (await world.ask("b1")).is_safe  # a copy again, though it is still reported


@pytest.mark.parametrize("text", ["healed: ledgers were in limbo", "its certificate ends", "?"])
async def test_a_text_of_an_older_version_may_say_limbo_and_counts_as_if_it_did(
    world: World, text: str
) -> None:
    """Texts are not read. A bookie of a version without codes that reports anything is no certain copy."""
    await world.bookies(B4)
    await world.ledger(1, (B1, B2, B3), closed=False)
    await world.registered(B3, condition(Code.LEGACY_TEXT, text=text))

    assert codes_of((await world.ask("b1")).conditions) == [
        Code.STOP_NO_RECOVERY,
        Code.STOP_COPIES_UNCERTAIN,
    ]


async def test_an_open_ledger_of_no_log_is_reported_without_a_segment(world: World) -> None:
    made = LedgerMetadata(1, 3, 3, 3, (Fragment(0, (B1, B2, B3), 0),), bytes(16))
    await world.metadata.transact(transactions.creation_ops(made, ()))

    [found] = (await world.ask("b1")).conditions

    assert found.code == Code.STOP_NO_ACKS
    assert (found.text("log"), found.integer("segment")) == ("", -1)


async def test_a_writer_without_enough_acknowledgements(world: World) -> None:
    await world.ledger(1, (B1, B2, B3), closed=False, quorums=(3, 3))
    [found] = (await world.ask("b1")).conditions
    assert (found.code, found.integer("acks")) == (Code.STOP_NO_ACKS, 2)

    await world.bookies(B4)  # who takes the place
    assert (await world.ask("b1")).is_safe
    await world.registered(B4, read_only=True)
    assert not (await world.ask("b1")).is_safe


async def test_an_earlier_fragment_of_an_open_ledger_counts_too(world: World) -> None:
    await world.bookies(B4)
    await world.ledger(1, (B1, B2), (B3, B4), closed=False, quorums=(2, 1))
    await world.down(B2)

    [found] = (await world.ask("b1")).conditions
    assert (found.code, found.integer("open")) == (Code.STOP_NO_COPY, 1)


@pytest.mark.parametrize(
    ("stopped", "dead", "may"),
    [("m1", "", True), ("m1", "m2", False), ("m1", "m1", True)],
)
async def test_a_majority_of_the_voters_is_left(
    world: World, stopped: str, dead: str, may: bool
) -> None:
    world.members = [
        MemberStatus(one.name, one.address, one.role, 1, 1, one.name != dead) for one in MEMBERS
    ]
    found = await world.ask(stopped)

    assert found.is_safe == may
    few = condition(Code.STOP_NO_MAJORITY, answering=1, voters=3, names="m3", needed=2)
    assert found.conditions == (() if may else (few,))


@pytest.mark.parametrize("role", [MemberRole.DAMAGED, MemberRole.EMPTY])
async def test_damaged_voters_empty_ones_and_learners_are_no_voters_that_answer(
    world: World, role: str
) -> None:
    """One that has lost its disk answers, as it waits to be let in: it has no vote until then."""
    roles = {"m1": "follower", "m2": role, "m3": "leader", "m4": "learner"}
    world.members = [MemberStatus(name, "", role, 1, 1, True) for name, role in roles.items()]

    assert not (await world.ask("m1")).is_safe
    assert (await world.ask("m4")).is_safe
    assert (await world.ask("m2")).is_safe


async def test_what_cannot_be_read_is_no_yes(world: World) -> None:
    await world.put(keys.ledger_key(9), b"\xc1")

    assert (await world.ask("b1")).conditions == (
        condition(Code.STOP_RECORD_UNREADABLE, key="ledger/0000000000000009"),
    )


async def test_a_name_that_is_nobodys_or_two_nodes_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest, match="no bookie is called nobody"):
        await world.ask("nobody")
    world.members = [*MEMBERS, MemberStatus("b1", "", "learner", 1, 1, True)]
    with pytest.raises(InvalidRequest, match="give the bookie's ID"):
        await world.ask("b1")


async def test_of_many_ledgers_some_are_named_and_the_others_counted(world: World) -> None:
    for ledger_id in range(LEDGERS_PER_CODE_MAX + 5):
        await world.ledger(ledger_id, (B1, B2), quorums=(2, 2))
    found = await world.ask("b1", "b2")

    assert len(found.conditions) == LEDGERS_PER_CODE_MAX + 2
    assert found.conditions[-1] == condition(Code.STOP_MORE, count=5)


async def leaving(world: World) -> set[str]:
    return {item.key.decode()[-8:] async for item in Scan(world.metadata, keys.LEAVING_PREFIX)}


async def test_decommission_is_refused_when_no_log_could_be_created_afterwards() -> None:
    w = World()
    await w.bookies(B1, B2, B3)
    await decommission(w.metadata, B1)

    with pytest.raises(ConfirmationRequired, match="1 bookie could take"):
        await decommission(w.metadata, B2)

    assert await leaving(w) == {B1}
    await decommission(w.metadata, B1)  # once more, to see how far it is
    await decommission(w.metadata, B2, force=True)
    assert await leaving(w) == {B1, B2}


async def test_decommission_of_a_lost_bookie_is_not_refused() -> None:
    """Where no log can be created anyway, a bookie that leaves does not stop writes."""
    w = World()
    await w.bookies(B1, B2, B3)
    await w.down(B1)
    await w.down(B2)

    await decommission(w.metadata, B1)

    assert await leaving(w) == {B1}


async def test_one_of_two_decommissions_at_the_same_moment_is_refused() -> None:
    """What one is based on is compared by the metadata nodes: the other one came between."""
    w = World()
    await w.bookies(B1, B2, B3)

    class Slow:
        """Metadata that lets the other request pass before the first change."""

        def __getattr__(self, name: str) -> Any:
            return getattr(w.metadata, name)

        async def transact(self, asked: Transaction) -> Any:
            if not await leaving(w):
                await decommission(w.metadata, B2)
            return await w.metadata.transact(asked)

    with pytest.raises(ConfirmationRequired):
        await decommission(cast("Metadata", Slow()), B1)

    assert await leaving(w) == {B2}


async def test_decommission_ends_if_other_bookies_change_all_the_time() -> None:
    w = World()
    await w.bookies(B1, B2, B3, B4)
    await w.put(keys.cookie_key(B5), pack({"label": "b5", "incarnation": 1}))

    class Restless:
        """Metadata whose bookies change before each transaction."""

        changes = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(w.metadata, name)

        async def transact(self, asked: Transaction) -> Any:
            self.changes += 1
            assert self.changes < 100
            ends, starts = (B4, B5) if self.changes % 2 else (B5, B4)
            await w.down(ends)
            await w.registered(starts)
            return await w.metadata.transact(asked)

    with pytest.raises(VersionConflict, match="other bookies"):
        await decommission(cast("Metadata", Restless()), B1)

    assert await leaving(w) == set()


async def test_decommission_of_an_unknown_bookie_is_refused() -> None:
    w = World()
    await w.bookies(B1, B2, B3)

    with pytest.raises(InvalidRequest, match="has no cookie"):
        await decommission(w.metadata, B4)
