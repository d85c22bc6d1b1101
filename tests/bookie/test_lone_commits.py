"""Commits in the call that received a lone writer's adds: as durable, ordered, and fatal as any other."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.storage.group_commit import CONCURRENT_ADDS_S
from distributedlog.bookie.storage.journal import INLINE_BLOCK_BYTES_MAX
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.runtime.disk.preallocation import STEP_BYTES
from distributedlog.runtime.interfaces.errors import DiskFailed
from distributedlog.runtime.protocol.frames import Op, envelope

from .kit import (
    KEY,
    OPTIONS,
    SMALL,
    Adder,
    CutDisk,
    PowerCut,
    add_acked,
    journal_names,
    read_all,
    record,
    running,
    some_files,
)
from .test_server import Writing, served

LONG = bytes(INLINE_BLOCK_BYTES_MAX)


def inline_disk() -> CutDisk:
    """A disk that syncs on the loop."""
    disk = CutDisk()
    disk.inline = True
    return disk


@asynccontextmanager
async def at_rest(disk: CutDisk) -> AsyncIterator[tuple[BookieStore, Adder]]:
    """A store that has nothing to do, and a connection that has added one entry."""
    async with running(disk, SMALL) as store:
        adder = await add_acked(store, 7)
        await trio.sleep(1.0)
        yield store, adder


async def test_a_lone_record_is_durable_and_acknowledged_in_the_call_that_brought_it(
    autojump_clock: MockClock,
) -> None:
    """G2: the acknowledgement comes after the sync, and no turn of the loop lies between."""
    disk = inline_disk()
    async with at_rest(disk) as (_, adder):
        syncs = disk.syncs

        adder.send(record(7, 1, b"lone"))

        assert adder.acked == 2
        assert disk.syncs == syncs + 1
        assert any(
            b"lone" in disk.durable(name, 0, disk.files[name].size())
            for name in journal_names(disk)
        )


async def test_where_syncs_run_in_a_thread_nothing_is_acknowledged_in_the_call(
    autojump_clock: MockClock,
) -> None:
    disk = CutDisk()
    async with at_rest(disk) as (_, adder):
        adder.send(record(7, 1))

        assert adder.acked == 1
        await adder.all_acked()


async def test_adds_of_several_connections_share_a_commit(autojump_clock: MockClock) -> None:
    """What all of them sent is received first: a sync each would be what a group commit is there to spare."""
    disk = inline_disk()
    async with at_rest(disk) as (store, adder):
        other = Adder(store, 8)
        other.send(record(8, 0))
        adder.send(record(7, 1))
        assert (adder.acked, other.acked) == (1, 0)
        commits = store.info()["commits"]
        await adder.all_acked()
        await other.all_acked()
        assert store.info()["commits"] == commits + 1  # type: ignore[operator]

        await trio.sleep(2 * CONCURRENT_ADDS_S)
        adder.send(record(7, 2))
        assert adder.acked == 3


async def test_a_long_block_is_left_to_the_journal(autojump_clock: MockClock) -> None:
    """More may gather before it is taken: at full speed that is what makes few syncs of much."""
    async with at_rest(inline_disk()) as (_, adder):
        adder.send(record(7, 1, LONG))

        assert adder.acked == 1
        await adder.all_acked()


async def test_a_lone_commit_takes_no_turn_before_one_that_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    """A fence that came before joins the same block, and is durable with it (inv. 11)."""
    disk = inline_disk()
    async with at_rest(disk) as (store, adder):
        told: list[int] = []
        store.fence(9, KEY, lambda ledger, _: told.append(ledger.id))
        adder.send(record(7, 1))

        assert (told, adder.acked) == ([], 1)
        await adder.all_acked()
        assert told == [9]


async def test_a_sync_that_fails_in_a_lone_commit_ends_the_node_and_acknowledges_nothing(
    autojump_clock: MockClock,
) -> None:
    """It is no fault of the connection in whose call it happened."""
    disk = inline_disk()
    adders: list[Adder] = []
    with pytest.RaisesGroup(DiskFailed, flatten_subgroups=True):
        async with at_rest(disk) as (_, adder):
            adders.append(adder)
            disk.fail_syncs = True
            adder.send(record(7, 1))
            assert adder.acked == 1
            adder.send(record(7, 2))
            assert adder.acked == 1
            await trio.sleep(1.0)

    assert adders[0].acked == 1
    assert adders[0].refused == []


async def test_a_rule_broken_in_a_lone_commit_ends_the_node(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for the peer's fault, what is durable, and acknowledged perhaps, would be in no index."""
    told = False

    def broken(*_: object) -> None:
        raise AssertionError("planted")

    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        async with at_rest(inline_disk()) as (store, adder):
            monkeypatch.setattr(store.group_commit, "on_synced", broken)
            adder.send(record(7, 1))
            told = True
            await trio.sleep(1.0)
            pytest.fail("the node goes on")

    assert told, "it was raised in the call of the connection"


async def test_lone_commits_roll_files_and_are_read_and_replayed(autojump_clock: MockClock) -> None:
    disk = inline_disk()
    async with running(disk, SMALL) as store:
        adder = await some_files(store)
        assert store.info()["rolls"]
        sent = adder.sent
        assert await read_all(store, 7, 0, 99) == dict(enumerate(sent))
    disk = disk.cut(random.Random(1), 0.0)
    async with running(disk, SMALL) as store:
        assert await read_all(store, 7, 0, 99) == dict(enumerate(sent))


async def test_a_lone_commit_into_what_is_being_zeroed_waits_for_the_zeros(
    autojump_clock: MockClock,
) -> None:
    """H16: zeros that land after the sync would take an acknowledged record with them."""
    disk = inline_disk()
    disk.zeros_s = 0.1
    options = replace(OPTIONS, zero_ahead_bytes=STEP_BYTES)
    async with running(disk, options) as store:
        adder = Adder(store, 7)
        late = 0
        for entry in range(40):
            adder.send(record(7, entry, bytes(900)))
            late += adder.acked <= entry
            await adder.all_acked()
            await trio.sleep(0.02)
        assert late > 1, "commits ran into a step"
        assert late < 40, "others ran into none"
    disk = disk.cut(random.Random(1), 0.0)

    async with running(disk, options) as store:
        assert await read_all(store, 7, 0, 39) == dict(enumerate(adder.sent))


@pytest.mark.parametrize("step", range(1, 24))
async def test_a_power_cut_at_every_step_of_lone_commits_loses_nothing_acknowledged(
    step: int, autojump_clock: MockClock
) -> None:
    """G2, H1: the write, the sync and what follows are in one call, and each of them may be the last."""
    disk = inline_disk()
    adders: list[Adder] = []
    try:
        async with at_rest(disk) as (_, adder):
            adders.append(adder)
            disk.fuse = step
            for entry in range(1, 12):
                adder.send(record(7, entry))
                await trio.sleep(0.001)
            assert step > 20, "the fuse is longer than the commits"
            disk.off = True
    except* PowerCut:
        pass
    acked = adders[0].acked
    disk = disk.cut(random.Random(step), 0.5)

    async with running(disk, SMALL) as store:
        found = await read_all(store, 7, 0, acked - 1)
    assert found == dict(enumerate(adders[0].sent[:acked]))


async def test_what_came_before_a_frame_that_ends_the_connection_is_committed(
    autojump_clock: MockClock,
) -> None:
    """One receive may hold an add and then garbage: the add is kept, as if they had come apart."""
    async with served(disk=inline_disk()) as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 5)
        writing.stream.send(record(5, 0))
        await writing.until_acked(1)
        await trio.sleep(1.0)
        added = record(5, 1)
        closed = trio.Event()
        client.on_closed.append(lambda _: closed.set())
        client.link.send(
            envelope(Op.ADD, len(added), ident=writing.stream.stream_number)
            + added
            + envelope(Op.META_STATUS, 0)
        )
        await closed.wait()
        await trio.sleep(0.1)

        assert await read_all(bookie.store, 5, 0, 1) == {0: record(5, 0), 1: added}


async def test_lone_records_over_a_connection_come_in_few_turns(autojump_clock: MockClock) -> None:
    """The receiving task does it all: the journal's own commits only what others gathered."""
    async with served(disk=inline_disk()) as (bookie, nursery):
        client = await bookie.dial(nursery)
        writing = Writing(client, 5)
        writing.stream.send(record(5, 0))
        await writing.until_acked(1)
        await trio.sleep(1.0)
        turns = 0

        class Turns(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                nonlocal turns
                turns += "Journal" in task.name

        trio.lowlevel.add_instrument(counted := Turns())
        for entry in range(1, 50):
            writing.stream.send(record(5, entry))
            await writing.until_acked(entry + 1)
        trio.lowlevel.remove_instrument(counted)

        assert turns == 0
