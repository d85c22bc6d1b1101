"""Records that refer to each other both ways, and what is found where one side is missing."""

from typing import Any

import pytest

from distributedlog.cluster.status.reference_check import ReferenceCheck
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.log.model.log_keys import segment_key, staged_ledger_key
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.metadata.model.interface import RangePage
from distributedlog.metadata.model.transaction import Delete, KeyValue, Put, Transaction
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.metadata.local_metadata import LocalMetadata

BOOKIES = ("b1", "b2", "b3")


async def _do(metadata: LocalMetadata, *operations: Put | Delete) -> None:
    await metadata.transact(Transaction((), operations))


async def _stored(metadata: LocalMetadata, count: int) -> None:
    """Logs 1 to 10, whose segments lie in ledgers 1 to ``count``."""
    for ledger_id in range(1, count + 1):
        owner = (ledger_id % 10 + 1, ledger_id)
        fragments = (Fragment(0, BOOKIES, 0),)
        ledger = LedgerMetadata(ledger_id, 3, 3, 2, fragments, bytes(16), owner=owner)
        await metadata.transact(transactions.creation_ops(ledger, ()))
        segment = SegmentRecord(owner[1], ledger_id, 1, 0)
        await _do(metadata, Put(segment_key(*owner), segment.encode()))


async def _found(metadata: LocalMetadata) -> list[tuple[int | None, str]]:
    return [(one.ledger, one.what) async for one in ReferenceCheck(metadata).audit()]


async def test_what_fits_is_counted_and_nothing_is_found() -> None:
    metadata = LocalMetadata()
    await _stored(metadata, 25)
    await _do(
        metadata,
        Put(keys.ledger_key(26), b"junk"),
        Put(keys.bookie_ledgers_prefix("b1") + b"x", b""),
    )

    references = ReferenceCheck(metadata)
    (found,) = [one async for one in references.audit()]
    assert (found.ledger, keys.printable_key(keys.ledger_key(26)) in found.what) == (None, True)
    assert (references.ledgers, references.segments, references.entries) == (25, 25, 75)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (Delete(keys.bookie_ledger_key("b2", 7)), "its record lists bookie b2"),
        (Put(keys.bookie_ledger_key("b0", 7), b""), "only the index lists bookie b0"),
        (Put(keys.bookie_ledger_key("b9", 7), b""), "only the index lists bookie b9"),
        (Delete(segment_key(8, 7)), "its segment 7 of log 0000000000000008 does not refer to it"),
        (Delete(keys.ledger_key(7)), "the index of b1 lists it, but it does not exist"),
    ],
)
async def test_each_side_that_is_missing_is_found(change: Put | Delete, what: str) -> None:
    metadata = LocalMetadata()
    await _stored(metadata, 9)
    await _do(metadata, change)

    found = await _found(metadata)

    assert {ledger for ledger, _ in found} == {7}
    assert any(said.startswith(what) for _, said in found), found


async def test_a_segment_without_its_ledger_and_a_ledger_of_no_log_are_found() -> None:
    metadata = LocalMetadata()
    await _stored(metadata, 3)
    loose = LedgerMetadata(8, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16))
    noted = LedgerMetadata(9, 3, 3, 2, (Fragment(0, BOOKIES, 0),), bytes(16))
    for ledger in (loose, noted):
        await metadata.transact(transactions.creation_ops(ledger, ()))
    await _do(metadata, Put(staged_ledger_key(5, 9), b""))
    gone = [
        Delete(keys.ledger_key(3)),
        *(Delete(keys.bookie_ledger_key(one, 3)) for one in BOOKIES),
    ]
    await _do(metadata, *gone)

    assert await _found(metadata) == [
        (8, "no log refers to it, and it is not recorded as staged or replaced"),
        (3, "segment 3 of log 0000000000000004 refers to it, but it does not exist"),
    ]


@pytest.mark.parametrize("key", [keys.ledger_key(7), segment_key(8, 7)])
async def test_a_record_that_cannot_be_read_does_not_end_the_audit(key: bytes) -> None:
    """It is named, and what is wrong beside it is found."""
    metadata = LocalMetadata()
    await _stored(metadata, 9)
    await _do(metadata, Put(key, b"junk"), Delete(keys.bookie_ledger_key("b2", 9)))

    (ledger, what), *others = sorted(await _found(metadata), key=lambda one: one[0] or 0)
    assert (ledger, keys.printable_key(key) in what) == (None, True)
    assert others == [(9, "its record lists bookie b2")]


async def test_a_log_whose_records_store_a_flag_as_a_txid_is_found() -> None:
    """Older programs stored what they were given, and could read such a log no more."""
    metadata = LocalMetadata()
    await _stored(metadata, 9)
    fields = unpack(SegmentRecord(8, 7, 1, 0).encode(), "as it is")
    fields[8] = fields[9] = True
    await _do(metadata, Put(segment_key(8, 7), pack(fields)), Put(b"log/%016x/state" % 8, b"junk"))

    found = dict(await _found(metadata))

    assert "segment 8 of log 0000000000000008 stores true or false" in found[7]
    assert "state" in found[None]


class Changing(LocalMetadata):
    """A store in which a ledger is moved after the index was read, and before its record is."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = 0
        self.reads = 0

    async def get(self, key: bytes) -> KeyValue | None:
        self.reads += 1
        return await super().get(key)

    async def range(self, start: bytes, end: bytes, *, limit: int = 1000) -> RangePage:
        self.reads += 1
        if self.moves and start.startswith(keys.LEDGER_PREFIX):
            self.moves -= 1
            item: Any = await super().get(keys.ledger_key(5))
            ledger = LedgerMetadata.decode(item.key, item.value)
            moved = LedgerMetadata(
                5, 3, 3, 2, (Fragment(0, ("b1", "b2", "b4"), 0),), bytes(16), owner=ledger.owner
            )
            await self.transact(transactions.change_ops(ledger, moved, item.version))
        return await super().range(start, end, limit=limit)


async def test_what_changes_meanwhile_is_looked_at_again_and_a_ledger_costs_no_read() -> None:
    """100,000 ledgers are some 600 pages, not half a million questions."""
    metadata = Changing()
    await _stored(metadata, 500)
    await _do(metadata, Put(keys.bookie_ledger_key("b4", 500), b""))
    metadata.moves, metadata.reads = 1, 0

    assert await _found(metadata) == [(500, "only the index lists bookie b4")]
    assert metadata.reads < 30
