"""What the log part needs of ledgers (`distributedlog/log/interfaces/segment_store.py`), asked of the model
that its tests stand on and of the real client over model bookies: the same answers."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.log.interfaces.segment_store import SegmentEntryWriter
from distributedlog.metadata.model.transaction import Transaction
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    DistributedLogError,
    InvalidRequest,
    LedgerFenced,
    NoSuchLedger,
)
from tests.ledger.model_bookie import model_cluster
from tests.log.conftest import World


class Side:
    """A store of metadata and the ledgers over it."""

    def __init__(self, store: Any, ledgers: Any) -> None:
        self.store = store
        self.ledgers = ledgers

    async def create(
        self,
        *,
        on_confirmed: Callable[[int], None] = lambda _: None,
        on_failed: Callable[[DistributedLogError], None] = lambda _: None,
        **options: Any,
    ) -> SegmentEntryWriter:
        prepared = await self.ledgers.prepare(**options)
        assert (await self.store.transact(prepared.create_ops())).succeeded
        writer: SegmentEntryWriter = self.ledgers.writer(
            prepared, on_confirmed=on_confirmed, on_failed=on_failed
        )
        assert writer.ledger_id == prepared.ledger_id
        return writer

    async def filled(self, count: int, **options: Any) -> SegmentEntryWriter:
        """A ledger with so many entries, all confirmed and published."""
        writer = await self.create(**options)
        for number in range(count):
            add(writer, b"%d" % number)
        await until(writer, count - 1)
        writer.publish_lac()
        await trio.sleep(0.1)
        return writer


def add(writer: SegmentEntryWriter, payload: bytes) -> int:
    return writer.add([payload[:1], payload[1:]], len(payload))


async def until(writer: SegmentEntryWriter, lac: int) -> None:
    with trio.fail_after(10):
        while writer.lac < lac:  # noqa: ASYNC110 (virtual time)
            await trio.sleep(0.01)


@pytest.fixture(params=["model", "client"])
async def side(request: pytest.FixtureRequest, autojump_clock: MockClock) -> AsyncIterator[Side]:
    if request.param == "model":
        async with trio.open_nursery() as nursery:
            world = World(nursery)
            yield Side(world.metadata, world.ledgers)
            nursery.cancel_scope.cancel()
    else:
        async with model_cluster(3) as cluster:
            yield Side(cluster.store, await cluster.client())


async def test_a_ledger_is_created_once_and_under_an_id_of_its_own(
    side: Side, autojump_clock: MockClock
) -> None:
    first, second = await side.ledgers.prepare(), await side.ledgers.prepare()

    assert first.ledger_id != second.ledger_id
    assert (await side.store.transact(first.create_ops())).succeeded
    assert not (await side.store.transact(first.create_ops())).succeeded


async def test_entries_are_confirmed_in_order_and_read_as_they_were_written(
    side: Side, autojump_clock: MockClock
) -> None:
    heard: list[int] = []
    writer = await side.create(on_confirmed=heard.append)
    payloads = [b"a", b"bcd", b"", b"ef" * 50]

    assert [add(writer, payload) for payload in payloads] == [0, 1, 2, 3]
    assert writer.lac == -1  # nothing is confirmed before it was waited for
    await until(writer, 3)
    writer.publish_lac()
    await trio.sleep(0.1)

    assert heard == sorted(set(heard))
    assert heard[-1] == 3
    reader = await side.ledgers.open(writer.ledger_id)
    assert (reader.lac, reader.closed) == (3, False)
    found: list[Any] = []
    while len(found) < 4:
        part = await reader.read(len(found), 3, bytes_max=1)
        assert part  # at least one, however little is asked for
        found += part
    assert [(e.entry, bytes(e.payload)) for e in found] == list(enumerate(payloads))
    assert [e.length_so_far for e in found] == [1, 4, 4, 104]
    reader.close()


async def test_what_was_proved_is_readable_and_never_less(
    side: Side, autojump_clock: MockClock
) -> None:
    writer = await side.filled(3)
    reader = await side.ledgers.open(writer.ledger_id)

    reader.record_lac(1)
    assert reader.lac == 2
    reader.record_lac(7)
    assert reader.lac == 7
    reader.close()


async def test_a_wait_hands_over_what_comes_and_ends_in_time(
    side: Side, autojump_clock: MockClock
) -> None:
    writer = await side.filled(1)
    reader = await side.ledgers.open(writer.ledger_id)
    began = trio.current_time()
    assert await reader.wait(0, wait_s=2) == 0
    assert trio.current_time() == pytest.approx(began + 2, abs=0.2)
    given: list[int] = []

    def take(entries: Any) -> int:
        given.extend(entry.entry for entry in entries)
        return len(entries)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: reader.wait(0, wait_s=5, on_entries=take))
        for _ in range(3):
            await trio.sleep(0.2)
            add(writer, b"more")
            await until(writer, writer.lac + 1)

    assert given in (
        [],
        [1, 2, 3],
    )  # taken as they come, or left for `read`; never in part, never out of order
    assert reader.lac == 3
    reader.close()


async def test_a_close_is_a_share_of_a_transaction(side: Side, autojump_clock: MockClock) -> None:
    writer = await side.filled(2, owner=(7, 1), custom={"log": b"l"})
    reader = await side.ledgers.open(writer.ledger_id)
    await writer.wait_settled()

    share = writer.close_ops({"end": b"note"})
    with pytest.raises(AlreadyClosed):
        add(writer, b"late")
    await writer.wait_settled()
    assert isinstance(writer.close_ops({"end": b"note"}), Transaction)  # may be asked again
    assert (await side.store.transact(share)).succeeded
    assert not (await side.store.transact(share)).succeeded

    await reader.wait(1, wait_s=2)
    assert (reader.closed, reader.lac) == (True, 1)
    closed = await side.ledgers.recover(writer.ledger_id)  # a closed one is returned as it is
    assert (closed.last_entry, closed.length) == (1, 2)
    found = await side.ledgers.find(writer.ledger_id)
    assert (found.closed, found.last_entry, found.length) == (True, 1, 2)
    assert (found.owner, found.custom["log"], found.custom["end"]) == ((7, 1), b"l", b"note")


async def test_recovery_keeps_what_was_confirmed_and_fences_the_writer(
    side: Side, autojump_clock: MockClock
) -> None:
    failed: list[DistributedLogError] = []
    writer = await side.filled(3, on_failed=failed.append)

    closed = await side.ledgers.recover(writer.ledger_id)
    again = await side.ledgers.recover(writer.ledger_id)

    assert (closed.last_entry, closed.length) == (again.last_entry, again.length) == (2, 3)
    if writer.error is None:
        add(writer, b"never")  # a bookie says so
        await trio.sleep(1)
    assert isinstance(writer.error, LedgerFenced)
    with pytest.raises(LedgerFenced):
        add(writer, b"never")
    assert len(failed) == 1
    assert writer.lac == 2
    with pytest.raises(LedgerFenced):
        await writer.wait_settled()


async def test_a_ledger_that_was_recovered_is_not_closed_by_its_writer(
    side: Side, autojump_clock: MockClock
) -> None:
    writer = await side.filled(1)
    await writer.wait_settled()
    share = writer.close_ops()
    await side.ledgers.recover(writer.ledger_id)

    assert not (await side.store.transact(share)).succeeded


async def test_an_empty_ledger_is_recovered_to_nothing(
    side: Side, autojump_clock: MockClock
) -> None:
    writer = await side.create()

    closed = await side.ledgers.recover(writer.ledger_id)

    assert (closed.last_entry, closed.length) == (-1, 0)


async def test_a_writer_that_was_given_up_takes_nothing_and_tells_nobody(
    side: Side, autojump_clock: MockClock
) -> None:
    failed: list[DistributedLogError] = []
    writer = await side.filled(1, on_failed=failed.append)

    writer.abort()
    writer.abort()

    with pytest.raises(AlreadyClosed):
        add(writer, b"late")
    await trio.sleep(1)
    assert failed == []
    with pytest.raises(AlreadyClosed) as settled:
        await writer.wait_settled()
    with pytest.raises(AlreadyClosed) as shared:
        writer.close_ops()
    assert settled.value is shared.value is writer.error
    reader = await side.ledgers.open(writer.ledger_id)
    assert (reader.closed, reader.lac) == (False, 0)
    reader.close()


async def test_what_does_not_exist_is_a_definite_answer(
    side: Side, autojump_clock: MockClock
) -> None:
    writer = await side.filled(1, incarnation=9)
    await writer.wait_settled()
    assert (await side.store.transact(writer.close_ops())).succeeded
    found = await side.ledgers.find(writer.ledger_id)
    assert (found.incarnation, found.owner) == (9, None)

    assert (await side.store.transact(found.link_ops((9, 4)))).succeeded
    linked = await side.ledgers.find(writer.ledger_id)
    assert linked.owner == (9, 4)
    with pytest.raises(InvalidRequest):
        linked.delete_ops()
    assert not (await side.store.transact(found.delete_ops())).succeeded  # of what it was

    share = await side.ledgers.delete_ops(writer.ledger_id)
    assert (await side.store.transact(share)).succeeded
    for unknown in (writer.ledger_id, 10**6):
        for call in (side.ledgers.open, side.ledgers.find, side.ledgers.recover):
            with pytest.raises(NoSuchLedger):
                await call(unknown)
    assert await side.ledgers.delete_ops(10**6) == Transaction()
