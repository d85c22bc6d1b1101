"""Renaming: one transaction, which whoever has the log open does not notice (H30)."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.log_keys import name_key, state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.services.log_watch import LogChange, LogWatch
from distributedlog.metadata.model.transaction import KeyValue, Put, Transaction, TransactionReply
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.interfaces.errors import (
    InvalidLogName,
    InvalidRequest,
    LogExists,
    LogNotFound,
    LogRecreated,
    OutcomeUnknown,
    OwnershipAcquireFailed,
    QuorumUnreachable,
)
from tests.log.conftest import World
from tests.log.records import everything, put
from tests.metadata.local_metadata import LocalMetadata


async def test_a_renamed_log_keeps_all_but_its_name(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        log = ns.open_log("old")
        places = await put(log, 1, 2)
        await log.positions.advance("cold", places[1])
        incarnation = (await log.snapshot()).incarnation
        async with log.open_reader() as reader:
            assert (await reader.read_next()).txid == 1  # type: ignore[union-attr]

            await ns.rename_log("old", "new")

            assert [name async for name in ns.logs()] == ["new"]
            renamed = ns.open_log("new", incarnation=incarnation)
            await put(renamed, 3)
            assert [record.txid for record in await reader.read_bulk(2)] == [2, 3]
        assert [record.txid for record in await everything(renamed)] == [1, 2, 3]
        assert await renamed.positions.list() == {"cold": places[1]}
        state = await world.metadata.get(state_key(await ns.resolve_name("new")))
        assert state is not None
        assert LogState.decode(state.value).name == "new"


async def test_a_handle_of_the_old_name_is_told_the_new_one(
    world: World, autojump_clock: MockClock
) -> None:
    """With an incarnation; without one the name is free, as it is after a deletion."""
    async with world.log("old") as log, world.process() as ns:
        held = ns.open_log("old", incarnation=(await log.snapshot()).incarnation)
        await ns.rename_log("old", "new")

        with pytest.raises(LogNotFound, match='is called "new" now'):
            await held.snapshot()
        await ns.create_log("old")
        with pytest.raises(LogRecreated, match='is called "new" now'):
            await held.snapshot()


async def test_what_cannot_be_renamed_stays_as_it_is(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process("alpha") as ns:
        await ns.create_log("a")
        await ns.create_log("b")
        with pytest.raises(LogExists):
            await ns.rename_log("a", "b")
        with pytest.raises(LogNotFound):
            await ns.rename_log("c", "d")
        with pytest.raises(InvalidRequest):
            await ns.rename_log("a", "a")
        with pytest.raises(InvalidLogName):
            await ns.rename_log("a", "/a")
        async with ns.open_log("a").open_writer():
            with pytest.raises(OwnershipAcquireFailed, match="alpha") as caught:
                await ns.rename_log("a", "d")
            assert caught.value.owner == "alpha"
        assert [name async for name in ns.logs()] == ["a", "b"]
        await ns.rename_log("a", "d")
        assert [name async for name in ns.logs()] == ["b", "d"]


async def test_a_paused_writer_goes_on_under_the_new_name(
    world: World, autojump_clock: MockClock
) -> None:
    """H12: it lost its lock and nothing else; its next roll meets the other state and keeps the name."""
    async with world.process(segment_bytes_max=200) as ns:
        await ns.create_log("old")
        log_id = await ns.resolve_name("old")
        async with ns.open_log("old").open_writer() as writer:
            await writer.write(LogRecord(1, bytes(40)))
            found = await world.metadata.get(b"log/%016x/lock" % log_id)
            assert found is not None
            await world.metadata.revoke_lease(found.lease)
            await ns.rename_log("old", "new")
            for txid in range(2, 20):
                await writer.write(LogRecord(txid, bytes(40)))
        log = ns.open_log("new")
        assert [record.txid for record in await everything(log)] == list(range(1, 20))
        described = await log.describe()
        assert (described.state.name, len(described.segments) > 3) == ("new", True)


class LateAnswers(LocalMetadata):
    """The outcome of some transactions is not known, done or not."""

    unknown: Callable[[], bool] | None = None

    async def transact(self, transaction: Transaction) -> TransactionReply:
        if self.unknown is None:
            return await super().transact(transaction)
        done = self.unknown()
        self.unknown = None
        if done:
            await super().transact(transaction)
        raise OutcomeUnknown("no answer")


@pytest.mark.parametrize("done", [True, False])
async def test_a_rename_of_unknown_outcome_is_made_known(
    world: World, autojump_clock: MockClock, done: bool
) -> None:
    """G7: asked again, it finds its own work, and does it where it was not done."""
    world.metadata = LateAnswers()
    world.ledgers.metadata = world.metadata
    async with world.process() as ns:
        await ns.create_log("old")
        log_id = await ns.resolve_name("old")
        world.metadata.unknown = lambda: done

        await ns.rename_log("old", "new")

        assert await ns.resolve_name("new") == log_id
        assert not await ns.log_exists("old")


class Afterwards(LocalMetadata):
    """One transaction is done, its answer is lost, and something else is done before anybody asks."""

    then: Callable[[], Awaitable[object]] | None = None

    async def transact(self, transaction: Transaction) -> TransactionReply:
        then, self.then = self.then, None
        reply = await super().transact(transaction)
        if then is not None:
            await then()
            raise OutcomeUnknown("no answer")
        return reply


async def test_a_rename_that_was_done_and_undone_touches_no_other_log(
    world: World, autojump_clock: MockClock
) -> None:
    """G7: the log of the first try is meant, not the one that has its old name meanwhile."""
    world.metadata = Afterwards()
    world.ledgers.metadata = world.metadata
    async with world.process() as ns:
        for away, says in (("elsewhere", 'is called "elsewhere" now'), (None, "was deleted")):
            await ns.create_log("old")

            async def then(away: str | None = away) -> None:
                if away is None:
                    await ns.delete_log("new")
                else:
                    await ns.rename_log("new", away)
                await ns.create_log("old")
                await put(ns.open_log("old"), 7)

            world.metadata.then = then
            with pytest.raises(LogNotFound, match=says):
                await ns.rename_log("old", "new")
            assert [record.txid for record in await everything(ns.open_log("old"))] == [7]
            assert not await ns.log_exists("new")
            await ns.delete_log("old")
        await ns.create_log("old")

        async def only_made_anew() -> None:
            await ns.create_log("old")

        world.metadata.then = only_made_anew
        await ns.rename_log("old", "new")  # done, whatever has the old name
        assert [name async for name in ns.logs()] == ["elsewhere", "new", "old"]


class Away(LateAnswers):
    """After a lost answer nobody answers at all."""

    away = False

    async def transact(self, transaction: Transaction) -> TransactionReply:
        self.away = self.unknown is not None
        return await super().transact(transaction)

    async def get(self, key: bytes) -> KeyValue | None:
        if self.away:
            raise QuorumUnreachable("no answer")
        return await super().get(key)


@pytest.mark.parametrize("done", [True, False])
async def test_a_rename_that_nobody_can_make_known_is_unknown(
    world: World, autojump_clock: MockClock, done: bool
) -> None:
    """G7: `QuorumUnreachable` would say that it was certainly not done."""
    world.metadata = metadata = Away()
    world.ledgers.metadata = world.metadata
    async with world.process() as ns:
        await ns.create_log("old")
        metadata.unknown = lambda: done

        with pytest.raises(OutcomeUnknown, match="renamed"):
            await ns.rename_log("old", "new")

        metadata.away = False
        assert await ns.log_exists("new") == done


class Overtaken(LocalMetadata):
    """Something else is done right before one transaction."""

    before: Callable[[], Awaitable[object]] | None = None

    async def transact(self, transaction: Transaction) -> TransactionReply:
        before, self.before = self.before, None
        if before is not None:
            await before()
        return await super().transact(transaction)


async def test_a_rename_takes_back_nothing_that_came_between(
    world: World, autojump_clock: MockClock
) -> None:
    """H30: it writes the state that it has read, changed by the name alone, or reads it again."""
    metadata = world.metadata = Overtaken()
    world.ledgers.metadata = metadata
    async with world.process() as ns:
        log = ns.open_log("old")
        places = await put(log, 1, 2)
        metadata.before = partial(log.truncate, places[1])

        await ns.rename_log("old", "new")

        assert metadata.before is None
        described = await ns.open_log("new").describe()
        assert (described.state.name, described.state.truncated_to) == ("new", places[1])


async def test_a_deletion_that_meets_a_rename_deletes_no_other_name(
    world: World, autojump_clock: MockClock
) -> None:
    """It is by the name that the log was meant."""
    async with world.process("alpha") as ns:
        await ns.create_log("old")
        log_id = await ns.resolve_name("old")
        await ns.rename_log("old", "new")

        async def found_before(name: str) -> int:
            return log_id

        ns.resolve_name = found_before  # type: ignore[method-assign]
        with pytest.raises(LogNotFound, match='is called "new" now'):
            await ns.delete_log("old")
        del ns.resolve_name
        await ns.delete_log("new")
        assert [name async for name in ns.logs()] == []


async def told(watch: LogWatch) -> list[tuple[str, str, str]]:
    found: list[LogChange] = []
    while (change := await watch.next(wait_s=1)) is not None:
        found.append(change)
    return [(one.kind, one.name, one.old_name) for one in found]


async def test_a_watch_tells_a_rename_as_one_change(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await ns.create_log("a/1")
        async with (
            ns.watch_logs() as all_,
            ns.watch_logs("a/") as below,
            ns.watch_logs("b/") as other,
        ):
            await ns.rename_log("a/1", "a/2")
            await ns.rename_log("a/2", "b/2")
            assert await told(all_) == [("renamed", "a/2", "a/1"), ("renamed", "b/2", "a/2")]
            assert list(all_.logs) == ["b/2"]
            await trio.sleep(1)
            assert list(below.logs) == ["a/1"]  # what was not taken is undone
            assert await told(below) == [("renamed", "a/2", "a/1"), ("deleted", "a/2", "")]
            assert await told(other) == [("created", "b/2", "")]


async def test_a_watch_without_names_tells_changes_and_what_it_missed(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H29: it cannot tell the difference, so it says that there is one."""
    world.metadata = LocalMetadata(KeyValueState(history_bytes_max=500))
    world.ledgers.metadata = world.metadata
    monkeypatch.setattr("distributedlog.log.services.log_watch.CHANGES_MAX", 1)
    monkeypatch.setattr("tests.metadata.local_metadata.WATCH_EVENTS_MAX", 4)
    async with world.process() as ns:
        await ns.create_log("first")
        async with ns.watch_logs(keep_names=False) as watch:
            with pytest.raises(InvalidRequest):
                _ = watch.logs
            await ns.rename_log("first", "second")
            await ns.delete_log("second")
            assert await told(watch) == [("renamed", "second", "first"), ("deleted", "second", "")]
            for n in range(30):
                await ns.create_log(f"new-{n}")
            found = await told(watch)
            assert ("relisted", "", "") in found
            await ns.create_log("last")
            assert await told(watch) == [("created", "last", "")]


async def test_a_rename_that_a_watch_missed_is_told_as_one(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that another log took over is told as gone and come: no order of renames is right."""
    world.metadata = LocalMetadata(KeyValueState(history_bytes_max=500))
    world.ledgers.metadata = world.metadata
    monkeypatch.setattr("distributedlog.log.services.log_watch.CHANGES_MAX", 1)
    monkeypatch.setattr("tests.metadata.local_metadata.WATCH_EVENTS_MAX", 4)
    async with world.process() as ns:
        for name in ("a", "b", "c"):
            await ns.create_log(name)
        async with ns.watch_logs() as watch:
            logs = dict(watch.logs)
            for n in range(3):
                await ns.create_log(f"new-{n}")
            await trio.sleep(1)  # it holds one change, and follows no further
            await ns.rename_log("a", "x")
            await ns.rename_log("b", "a")
            await ns.rename_log("c", "y")
            for n in range(20):
                await ns.create_log(f"late-{n}")
            kinds = set[str]()
            while (change := await watch.next(wait_s=5)) is not None:
                kinds.add(change.kind)
                if change.kind != "created":
                    assert logs.pop(change.old_name or change.name) == change.incarnation
                if change.kind != "deleted":
                    assert logs.setdefault(change.name, change.incarnation) == change.incarnation
            assert (logs, kinds) == (watch.logs, {"created", "deleted", "renamed"})
            assert sorted(logs) == [name async for name in ns.logs()]


async def test_logs_are_listed_by_pages(world: World, autojump_clock: MockClock) -> None:
    """Over a key that cannot be read, too."""
    async with world.process() as ns:
        names = [f"p/{n}" for n in range(7)]
        for name in (*names, "o", "q"):
            await ns.create_log(name)
        bad = [Put(name_key("ns", "p/2") + bytes([n]), b"no id") for n in range(5)]
        await world.metadata.transact(Transaction((), tuple(bad)))
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await ns.log_page("p/", after, limit=3)
            assert len(page.names) <= 3
            assert [f"{await ns.resolve_name(name):016x}" for name in page.names] == [
                *page.incarnations
            ]
            found += page.names
            after = page.next
        assert found == names
        assert (await ns.log_page("p/", "p/6")).names == ()
        assert (await ns.log_page("p/", "a")).names[0] == "p/0"
        assert [name async for name in ns.logs("p/")] == names
        for limit in (0, 10_001, True):
            with pytest.raises(InvalidRequest):
                await ns.log_page(limit=limit)
