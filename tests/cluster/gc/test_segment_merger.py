"""The elected bookie merges for logs that want it, and deletes what was left when its time is over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import trio
from trio.testing import MockClock

from distributedlog.cluster.gc.segment_merger import EVERY_S, Merge, SegmentMerger
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from distributedlog.ledger.model.ledger_transactions import creation_ops, deletion_ops
from distributedlog.log.model.log_keys import (
    encode_log_id,
    name_key,
    replaced_ledger_key,
    segment_key,
)
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.log.model.stored_settings import StoredSettings, bind_key, conf_key
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.runtime.interfaces.errors import CorruptData, LogNotFound
from tests.cluster.gc.test_segment_purger import Elected
from tests.metadata.local_metadata import LocalMetadata


class Asked:
    """What is merged, by log."""

    def __init__(self) -> None:
        self.logs: list[tuple[int, int | None]] = []
        self.opened = 0

    async def merge(
        self,
        log_id: int,
        *,
        newest_kept: int,
        segments_min: int,
        span_ms: int | None,
        merges_max: int,
    ) -> int:
        self.logs.append((log_id, span_ms))
        if log_id == 3:
            raise CorruptData("a copy is rotten")
        if log_id == 4:
            raise LogNotFound("it was deleted")
        return segments_min

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Merge]:
        self.opened += 1
        yield self.merge


async def share(metadata: LocalMetadata, ledger_id: int) -> Transaction:
    found = await metadata.get(keys.ledger_key(ledger_id))
    assert found is not None
    return deletion_ops(LedgerMetadata.decode(found.key, found.value), found.version)


def merging(metadata: LocalMetadata, asked: Asked, election: Elected) -> SegmentMerger:
    return SegmentMerger(metadata, election, partial(share, metadata), open_merger=asked.open)


async def put(metadata: LocalMetadata, *puts: Put) -> None:
    await metadata.transact(Transaction((), puts))


async def test_logs_with_the_switch_are_merged(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Their own setting stands over the namespace's; one that fails holds nobody up."""
    metadata, asked, election = LocalMetadata(), Asked(), Elected()
    merger = merging(metadata, asked, election)
    nursery.start_soon(merger.run)
    await trio.sleep(3.5 * EVERY_S)
    assert asked.opened == 0, "no log wants it: nobody is connected"

    names = [Put(name_key("ns", f"l{n}"), encode_log_id(n)) for n in range(1, 7)]
    on, off = StoredSettings({"merging": True}), StoredSettings({"merging": False})
    aged = StoredSettings({"merging": True, "retention_s": 800.0})
    await put(
        metadata,
        *names,
        Put(conf_key(2), off.encode()),
        Put(conf_key(5), aged.encode()),
        Put(conf_key(6), b"\x00 not readable"),
        Put(conf_key(7), StoredSettings({"merging": True, "retention_s": float("inf")}).encode()),
        Put(conf_key(8), StoredSettings({"merging": True, "retention_s": 1e306}).encode()),
        Put(conf_key(9), on.encode()),
        Put(bind_key("ns"), on.encode()),
    )
    await trio.sleep(EVERY_S)
    plain = [(n, None) for n in (1, 3, 4, 7, 8, 9)]
    assert sorted(asked.logs) == sorted([*plain, (5, 100_000)])
    assert merger.merged_segments == 5 * 32

    election.won = False
    await trio.sleep(5 * EVERY_S)
    assert len(asked.logs) == 7


async def test_what_was_left_is_deleted_after_its_time(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """By this process's own time while it is elected: an election begins it anew."""
    metadata, asked, election = LocalMetadata(), Asked(), Elected()
    for ledger_id, lies_in in ((100, 300), (200, 200)):
        made = LedgerMetadata(
            ledger_id, 1, 1, 1, (Fragment(0, ("b1",), 0),), bytes(16), owner=(7, ledger_id)
        )
        await metadata.transact(creation_ops(made, ()))
        record = SegmentRecord(ledger_id, lies_in, 1, 0)
        await put(metadata, Put(segment_key(7, ledger_id), record.encode()))
        await put(metadata, Put(replaced_ledger_key(7, ledger_id), b""))
    merger = merging(metadata, asked, election)
    nursery.start_soon(merger.run)

    async def state(ledger_id: int) -> LedgerState:
        found = await metadata.get(keys.ledger_key(ledger_id))
        assert found is not None
        return LedgerMetadata.decode(found.key, found.value).state

    await trio.sleep(3000)
    election.won = False
    await trio.sleep(Random(1).uniform(100, 200))
    election.won = True
    await trio.sleep(3500)
    assert await state(100) is LedgerState.OPEN

    await trio.sleep(300)
    assert await state(100) is LedgerState.DELETING
    assert await state(200) is LedgerState.OPEN, "a segment lies in it"
    assert await metadata.get(replaced_ledger_key(7, 200)) is None
    assert merger.deleted_ledgers == 1
