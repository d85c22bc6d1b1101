"""What dead writers left open on bookies that are away is closed; the living are left in peace (H96, H97)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.cluster.gc.maintenance_clients import make_closer
from distributedlog.cluster.repair.lost_bookies import BookieLiveness
from distributedlog.cluster.repair.open_ledger_closer import TASKS, OpenLedgerCloser, OrphanCloser
from distributedlog.cluster.repair.replication_worker import EVERY_S
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.log.format.record import LogRecord
from distributedlog.log.interfaces.segment_store import SegmentEntryStore
from distributedlog.log.model.log_keys import lock_key, segment_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.namespace import Namespace
from distributedlog.log.services.lease_session import LeaseSessions
from distributedlog.log.takeover.orphaned_segment import (
    OBSERVATION_INTERVAL_S,
    close_if_unchanged,
    observe_orphan,
)
from distributedlog.metadata.model.transaction import Transaction
from distributedlog.runtime.interfaces.errors import LedgerFenced, QuorumUnreachable, WriterFenced
from tests.log.conftest import World
from tests.log.records import everything
from tests.metadata.local_metadata import LocalMetadata

from ..bookie_world import KEY


@pytest.fixture
async def world(nursery: trio.Nursery, autojump_clock: MockClock) -> World:
    return World(nursery)


class Reach:
    """The store, from a process that may be cut off from it; or in which something happens meanwhile."""

    def __init__(self, metadata: LocalMetadata) -> None:
        self._metadata = metadata
        self.cut = False
        self.cut_at: bytes | None = None
        """At the first transaction that puts this key: it is not done."""
        self.before: Callable[[int], Awaitable[None]] | None = None
        """Awaited before each transaction, with its number from 0."""
        self.transactions = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._metadata, name)
        if not self.cut or name == "watch":
            return call

        async def unreachable(*_: Any, **__: Any) -> None:
            await trio.sleep(1)
            raise QuorumUnreachable("cut off")

        return unreachable

    async def transact(self, change: Transaction) -> Any:
        self.cut = self.cut or self.cut_at in [one.key for one in change.operations]
        if self.cut:
            await trio.sleep(1)
            raise QuorumUnreachable("cut off")
        number, self.transactions = self.transactions, self.transactions + 1
        if self.before is not None:
            await self.before(number)
        return await self._metadata.transact(change)


def _process(
    world: World, nursery: trio.Nursery, owner: str, **options: Any
) -> tuple[Namespace, Reach]:
    """A process whose metadata goes through a `Reach`."""
    namespace, reach = world.namespace(nursery, owner, options), Reach(world.metadata)
    namespace.context = replace(
        namespace.context, metadata=reach, lease_sessions=LeaseSessions(reach, nursery.start_soon)
    )
    return namespace, reach


async def _state(world: World, log_id: int) -> LogState:
    found = await world.metadata.get(state_key(log_id))
    assert found is not None
    return LogState.decode(found.value)


def _closes(
    world: World, by: Namespace, absences: BookieLiveness | None = None
) -> OpenLedgerCloser:
    absences = absences if absences is not None else BookieLiveness(300.0)
    return OpenLedgerCloser(world.metadata, absences, None)  # type: ignore[arg-type]


async def _look_for(
    ledgers: OpenLedgerCloser, by: Namespace, logs: set[int], seconds: float
) -> None:
    """As `run` does, every 5 s."""
    end = trio.current_time() + seconds
    while trio.current_time() <= end:
        await ledgers.run_pass(make_closer(by.context), logs)
        await trio.sleep(EVERY_S)


# --- which logs -----------------------------------------------------------------------------------


class Counted(LocalMetadata):
    """Counts records that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0

    async def get(self, key: bytes) -> Any:
        self.gets += 1
        return await super().get(key)


async def test_the_logs_of_open_ledgers_are_found_and_closed_ones_are_read_once() -> None:
    """Of 100,000 closed ledgers on a bookie that is away each is read once, and not every five seconds."""
    metadata, absences = Counted(), BookieLiveness(300.0)
    fragments = (Fragment(0, ("b1", "b2", "b3"), 0),)
    for ledger_id, owner in ((1, (77, 1)), (2, (78, 1)), (3, None), (4, (79, 1))):
        ledger = LedgerMetadata(ledger_id, 3, 3, 2, fragments, KEY, owner=owner)
        await metadata.transact(transactions.creation_ops(ledger, ()))
        if ledger_id == 4:
            closed = ledger.close_by_writer(9, 100)
            await metadata.transact(transactions.close_ops(closed, 1, ()))
        if ledger_id == 2:
            await metadata.transact(transactions.change_ops(ledger, ledger.in_recovery(), 1))
    ledgers = OpenLedgerCloser(metadata, absences, None)  # type: ignore[arg-type]
    assert await ledgers.find_open_logs() == set()
    members = {"b1", "b2", "b3"}
    absences.observe(
        0.0,
        ensemble_bookies=sorted(members),
        registered=members - {"b3"},
        bookies_with_cookie=members,
        leaving=set(),
    )
    metadata.gets = 0

    assert await ledgers.find_open_logs() == {77, 78}
    assert metadata.gets == 4
    assert await ledgers.find_open_logs() == {77, 78}
    assert metadata.gets == 7

    absences.observe(
        1.0,
        ensemble_bookies=sorted(members),
        registered=members,
        bookies_with_cookie=members,
        leaving={"b2"},
    )
    assert await ledgers.find_open_logs() == {77, 78}  # it runs, and is to leave
    absences.reset()
    assert await ledgers.find_open_logs() == set()


class Slow(LocalMetadata):
    """Each record takes a millisecond."""

    async def get(self, key: bytes) -> Any:
        await trio.sleep(0.001)
        return await super().get(key)


async def test_what_is_open_is_found_soon_among_many_that_are_closed(
    autojump_clock: MockClock,
) -> None:
    """Two looks must fit between two losses 45 s apart: records are not asked for one after the other."""
    metadata, absences = Slow(), BookieLiveness(300.0)
    members = ("b1", "b2", "b3")
    for ledger_id in range(1, 2001):
        ledger = LedgerMetadata(
            ledger_id, 3, 3, 2, (Fragment(0, members, 0),), KEY, owner=(77, ledger_id)
        )
        await metadata.transact(transactions.creation_ops(ledger, ()))
        if ledger_id < 2000:
            closed = ledger.close_by_writer(9, 100)
            await metadata.transact(transactions.close_ops(closed, 1, ()))
    absences.observe(
        0.0,
        ensemble_bookies=list(members),
        registered={"b1"},
        bookies_with_cookie=set(members),
        leaving={"b2", "b3"},
    )
    ledgers = OpenLedgerCloser(metadata, absences, None)  # type: ignore[arg-type]
    began = trio.current_time()

    assert await ledgers.find_open_logs() == {77}
    assert trio.current_time() - began < 0.2  # 2,000 records, each once though two bookies have it


# --- closing --------------------------------------------------------------------------------------


async def test_what_a_dead_writer_left_is_closed_after_two_looks(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as ns:
        await ns.create_log("l")
        writer = await ns.open_log("l").open_writer()
        await writer.write(LogRecord(1, b"acknowledged"))
        log_id = await ns.resolve_name("l")
    async with world.process("beta") as ns:
        await trio.sleep(20)  # the lock's lease
        ledgers = _closes(world, ns)
        await _look_for(ledgers, ns, {log_id}, OBSERVATION_INTERVAL_S - EVERY_S)
        assert (await _state(world, log_id)).in_progress
        await _look_for(ledgers, ns, {log_id}, EVERY_S)

        state = await _state(world, log_id)
        assert not state.in_progress
        assert (state.owner, state.next_sequence_id, ledgers.closed_logs) == ("", 1, 1)
        assert [record.txid for record in await everything(ns.open_log("l"))] == [1]
        async with ns.open_log("l").open_writer(wait_s=0) as writer:  # nobody was locked out
            await writer.write(LogRecord(2, b"new"))


async def test_looks_count_only_where_everything_was_known_between_them(
    world: World, autojump_clock: MockClock
) -> None:
    """H96: the quorum was away: locks may have lapsed that their holders take again."""
    async with world.process("alpha") as ns:
        await ns.create_log("l")
        await (await ns.open_log("l").open_writer()).write(LogRecord(1, b""))
        log_id = await ns.resolve_name("l")
    async with world.process("beta") as ns:
        await trio.sleep(20)
        absences = BookieLiveness(300.0)
        ledgers = _closes(world, ns, absences)
        await _look_for(ledgers, ns, {log_id}, OBSERVATION_INTERVAL_S - EVERY_S)
        absences.reset()
        await _look_for(ledgers, ns, {log_id}, OBSERVATION_INTERVAL_S - EVERY_S)
        assert (await _state(world, log_id)).in_progress
        await _look_for(ledgers, ns, {log_id}, EVERY_S)
        assert not (await _state(world, log_id)).in_progress


def _claims(meanwhile: Callable[[], None] = lambda: None) -> tuple[OrphanCloser, list[int]]:
    """Logs that nobody ever moves, and which of them are claimed."""
    claimed: list[int] = []

    async def look(log_id: int) -> object:
        await trio.lowlevel.checkpoint()
        return "as it was"

    async def close(log_id: int, before: object) -> bool:
        claimed.append(log_id)
        await trio.sleep(1)
        meanwhile()
        return True

    return OrphanCloser(look, close, OBSERVATION_INTERVAL_S), claimed


async def test_what_is_left_of_a_pass_is_not_claimed_after_a_gap(autojump_clock: MockClock) -> None:
    """H96: of ten thousand logs a pass takes minutes; the quorum was away, and all locks have lapsed."""
    absences = BookieLiveness(300.0)
    closer, claimed = _claims(meanwhile=absences.reset)
    ledgers = OpenLedgerCloser(LocalMetadata(), absences, None)  # type: ignore[arg-type]
    logs = set(range(TASKS + 9))
    await ledgers.run_pass(closer, logs)
    await trio.sleep(OBSERVATION_INTERVAL_S)

    await ledgers.run_pass(closer, logs)

    assert claimed == list(range(TASKS))


async def test_looks_count_only_where_the_store_was_never_out_of_reach_between_them(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """H96: this process cannot ask for a moment, though whoever is away is known all the time."""
    metadata, absences = LocalMetadata(), BookieLiveness(300.0)
    reach, members = Reach(metadata), {"b1", "b2", "b3"}
    fragments = (Fragment(0, ("b1", "b2", "b3"), 0),)
    ledger = LedgerMetadata(1, 3, 3, 2, fragments, KEY, owner=(77, 1))
    await metadata.transact(transactions.creation_ops(ledger, ()))
    absences.observe(
        0.0,
        ensemble_bookies=sorted(members),
        registered={"b1", "b2"},
        bookies_with_cookie=members,
        leaving=set(),
    )
    closer, claimed = _claims()

    @asynccontextmanager
    async def opening() -> AsyncIterator[OrphanCloser]:
        yield closer

    nursery.start_soon(OpenLedgerCloser(reach, absences, opening).run)
    await trio.sleep(OBSERVATION_INTERVAL_S - EVERY_S - 1)  # looked at 0 and at 5
    reach.cut = True
    await trio.sleep(2)
    reach.cut = False
    await trio.sleep(OBSERVATION_INTERVAL_S)
    assert claimed == []
    await trio.sleep(2 * EVERY_S)
    assert claimed == [77]


async def test_a_look_does_not_count_once_its_bookie_has_been_back(
    autojump_clock: MockClock,
) -> None:
    """H96: an hour later another blip takes a lock: its writer, idle and well in between, is not dead."""
    closer, claimed = _claims()
    metadata, absences = LocalMetadata(), BookieLiveness(300.0)
    ledger = LedgerMetadata(1, 3, 3, 2, (Fragment(0, ("b1", "b2", "b3"), 0),), KEY, owner=(77, 1))
    await metadata.transact(transactions.creation_ops(ledger, ()))
    ledgers = OpenLedgerCloser(metadata, absences, None)  # type: ignore[arg-type]

    async def passes(registered: set[str], seconds: float) -> None:
        end = trio.current_time() + seconds
        while trio.current_time() <= end:
            members = {"b1", "b2", "b3"}
            absences.observe(
                trio.current_time(),
                ensemble_bookies=sorted(members),
                registered=registered,
                bookies_with_cookie=members,
                leaving=set(),
            )
            if wanted := await ledgers.find_open_logs():
                await ledgers.run_pass(closer, wanted)
            await trio.sleep(EVERY_S)

    await passes({"b1", "b2"}, EVERY_S)
    await passes({"b1", "b2", "b3"}, 3600)
    await passes({"b1", "b2"}, OBSERVATION_INTERVAL_S - EVERY_S)
    assert claimed == []
    await passes({"b1", "b2"}, EVERY_S)
    assert claimed == [77]


async def test_writers_that_hold_their_lock_or_write_on_without_it_are_left_in_peace(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """H96, H22b. An idle one that is cut off may be fenced: its next write says so."""
    async with world.process("alpha") as ns:
        cut_off, reach = _process(world, nursery, "beta", rolling=False)
        writers = {}
        for name, by in (("holds", ns), ("busy", cut_off), ("idle", cut_off)):
            await ns.create_log(name)
            writers[name] = await by.open_log(name).open_writer()
            await writers[name].write(LogRecord(1, b""))
        logs = {name: await ns.resolve_name(name) for name in writers}
        ledgers = _closes(world, ns)
        reach.cut = True
        nursery.start_soon(_look_for, ledgers, ns, set(logs.values()), 120.0)
        for txid in range(2, 32):
            await writers["busy"].write(LogRecord(txid, b""))
            await trio.sleep(4)
        await writers["holds"].write(LogRecord(2, b""))
        assert await world.metadata.get(lock_key(logs["busy"])) is None
        assert [(await _state(world, log_id)).epoch for log_id in logs.values()] == [1, 1, 2]
        reach.cut = False
        with pytest.raises((WriterFenced, LedgerFenced)):
            await writers["idle"].write(LogRecord(2, b""))


async def test_a_writer_that_went_over_to_its_next_segment_while_cut_off_is_left_in_peace(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """H96: the segment before it waits for its close, and does not move; the next one does."""
    async with world.process("alpha") as ns:
        cut_off, reach = _process(world, nursery, "beta", segment_bytes_max=4096)
        await ns.create_log("l")
        log_id = await ns.resolve_name("l")
        writer = await cut_off.open_log("l").open_writer()
        reach.cut_at = segment_key(log_id, 1)  # its close
        for txid in range(1, 12):
            await writer.write(LogRecord(txid, b"x" * 500))
            await trio.sleep(0.1)
        assert writer.segment == 2
        assert len((await _state(world, log_id)).in_progress) == 2
        nursery.start_soon(_look_for, _closes(world, ns), ns, {log_id}, 90.0)
        for _ in range(20):
            txid += 1
            await writer.write(LogRecord(txid, b"small"))
            await trio.sleep(4)
        assert await world.metadata.get(lock_key(log_id)) is None
        assert (await _state(world, log_id)).epoch == 1


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_one_who_repairs_and_sleeps_at_any_step_fences_nobody_when_it_wakes(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery, step: int
) -> None:
    """H97: before its claim, before the close, before it gives the log back, another writer has come."""
    async with world.process("alpha") as ns:
        await ns.create_log("l")
        await (await ns.open_log("l").open_writer()).write(LogRecord(1, b"acknowledged"))
        log_id = await ns.resolve_name("l")
    async with world.process("gamma") as ns:
        await trio.sleep(20)
        sleeper, reach = _process(world, nursery, "bookie")
        came = None

        async def come(number: int) -> None:
            nonlocal came
            if number == step:
                came = await ns.open_log("l").open_writer(wait_s=0)
                await came.write(LogRecord(2, b"mine"))

        before = await observe_orphan(sleeper.context, log_id)
        assert before is not None
        await trio.sleep(OBSERVATION_INTERVAL_S)
        reach.before = come
        try:
            await close_if_unchanged(sleeper.context, log_id, before, reason="test")
        except WriterFenced:
            assert step > 0

        assert came is not None, f"there is no step {step}"
        await came.write(LogRecord(3, b"mine"))
        await came.aclose()
        assert [record.txid for record in await everything(ns.open_log("l"))] == [1, 2, 3]


async def test_a_writer_that_has_its_lock_again_before_the_claim_is_left_in_peace(
    world: World, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """H96: idle, cut off in both looks; the state is as it was, the lock alone says that it lives."""
    async with world.process("alpha") as ns:
        cut_off, reach = _process(world, nursery, "beta")
        await ns.create_log("l")
        writer = await cut_off.open_log("l").open_writer()
        await writer.write(LogRecord(1, b""))
        log_id = await ns.resolve_name("l")
        reach.cut = True
        await trio.sleep(30)
        repairer, claims = _process(world, nursery, "bookie")
        before = await observe_orphan(repairer.context, log_id)
        assert before is not None
        await trio.sleep(OBSERVATION_INTERVAL_S)

        async def come(number: int) -> None:
            reach.cut = False
            await trio.sleep(10)
            assert await world.metadata.get(lock_key(log_id)) is not None

        claims.before = come
        assert not await close_if_unchanged(repairer.context, log_id, before, reason="test")
        assert claims.transactions == 1
        await writer.write(LogRecord(2, b""))
        await writer.aclose()


class _Meanwhile:
    """Ledgers; something happens after one was opened."""

    def __init__(self, ledgers: SegmentEntryStore, then: Callable[[], Awaitable[None]]) -> None:
        self._ledgers = ledgers
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledgers, name)

    async def open(self, ledger_id: int, *, replica_offset: int = 0) -> Any:
        reader = await self._ledgers.open(ledger_id, replica_offset=replica_offset)
        await self._then()
        return reader


async def test_a_writer_without_a_lock_that_comes_in_the_second_look_is_left_in_peace(
    world: World, autojump_clock: MockClock
) -> None:
    """H96: it took the log over, which its epoch says; what was looked at is another one's."""
    async with world.process("alpha") as ns:
        await ns.create_log("l")
        await (await ns.open_log("l").open_writer()).write(LogRecord(1, b"acknowledged"))
        log_id = await ns.resolve_name("l")
    async with world.process("gamma") as ns, world.process("bookie") as repairer:
        await trio.sleep(20)
        before = await observe_orphan(repairer.context, log_id)
        assert before is not None
        await trio.sleep(OBSERVATION_INTERVAL_S)
        came: list[Any] = []

        async def come() -> None:
            came.append(await ns.open_log("l").open_writer(lock=False))
            await came[0].write(LogRecord(2, b"mine"))

        slow: Any = _Meanwhile(repairer.context.ledgers, come)
        context = replace(repairer.context, ledgers=slow)
        assert not await close_if_unchanged(context, log_id, before, reason="test")

        await came[0].write(LogRecord(3, b"mine"))
        await came[0].aclose()


async def test_two_who_repair_close_a_log_once(world: World, autojump_clock: MockClock) -> None:
    """H97."""
    async with world.process("alpha") as ns:
        await ns.create_log("l")
        await (await ns.open_log("l").open_writer()).write(LogRecord(1, b""))
        log_id = await ns.resolve_name("l")
    async with world.process("b1") as one, world.process("b2") as other:
        await trio.sleep(20)
        before = await observe_orphan(one.context, log_id)
        assert before is not None
        done: list[object] = []

        async def close(by: Namespace) -> None:
            try:
                done.append(await close_if_unchanged(by.context, log_id, before, reason="test"))
            except WriterFenced as error:
                done.append(error)

        async with trio.open_nursery() as both:
            both.start_soon(close, one)
            both.start_soon(close, other)

        assert done.count(True) == 1
        state = await _state(world, log_id)
        assert (state.epoch, list(state.in_progress), state.next_sequence_id) == (2, [], 1)
