"""How far a journal was synced is noted where no copy of its directory reaches (H80, H82)."""

import pytest
import trio
import trio.testing

from distributedlog.cluster.coordination.journal_sync_point import (
    SEQUENCE_MAX,
    JournalSyncPoint,
    JournalSyncStore,
    known_sync_point,
)
from distributedlog.cluster.coordination.registration_lease import RegistrationLease
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.metadata.model.transaction import Compare, Put, Transaction
from distributedlog.runtime.interfaces.errors import CorruptData, ForeignData, UnsupportedFormat
from distributedlog.runtime.protocol.frames import pack
from tests.metadata.local_metadata import LocalMetadata

KEY = keys.sync_point_key("b1")
COOKIE = keys.cookie_key("b1")


async def _put(metadata: LocalMetadata, key: bytes, value: bytes) -> int:
    return (await metadata.transact(Transaction((), (Put(key, value),)))).revision


async def test_it_is_noted_with_each_renewal_and_only_where_it_moved(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    metadata = LocalMetadata()
    durable_to = 7
    notes = JournalSyncStore(metadata, "b1", Compare.version(COOKIE, 0), 1, lambda: durable_to)
    membership = RegistrationLease(
        metadata,
        b"bookie/b1",
        lambda: b"here",
        Compare.version(COOKIE, 0),
        lease_s=6.0,
        on_renewed=notes.store,
    )
    await notes.store()
    await membership.register()
    nursery.start_soon(membership.run)

    assert await known_sync_point(metadata, "b1") == (7, "")
    durable_to = 9
    await trio.sleep(2.5)
    assert await known_sync_point(metadata, "b1") == (9, "")
    noted = await metadata.get(KEY)
    await trio.sleep(60)
    assert await metadata.get(KEY) == noted
    nursery.cancel_scope.cancel()


async def test_nobody_notes_after_another_start_has_counted_the_cookie_up() -> None:
    """What a start has read before it opens its journal is what counts."""
    metadata = LocalMetadata()
    revision = await _put(metadata, COOKIE, b"1")
    durable_to = 3
    first = JournalSyncStore(
        metadata, "b1", Compare.mod_revision(COOKIE, revision), 1, lambda: durable_to
    )
    await first.store()
    await _put(metadata, COOKIE, b"2")
    durable_to = 4

    with pytest.raises(ForeignData):
        await first.store()
    await first.store_last()  # at an end nobody minds

    assert await known_sync_point(metadata, "b1") == (3, "")


async def test_what_cannot_be_read_is_a_doubt_and_no_end_of_the_node() -> None:
    metadata = LocalMetadata()
    assert await known_sync_point(metadata, "b1") == (0, "")
    for value in (b"", b"\xc1", pack([1]), pack({"format": 1, "start": 1, "durable_to": "²"})):
        await _put(metadata, KEY, value)

        durable_to, doubt = await known_sync_point(metadata, "b1")

        assert durable_to == 0
        assert "seen/b1" in doubt


@pytest.mark.parametrize("durable_to", [-1, SEQUENCE_MAX, True, 1.5, None])
def test_a_note_holds_a_sequence_or_is_damaged(durable_to: object) -> None:
    value = pack({"format": 1, "start": 1, "durable_to": durable_to})

    with pytest.raises(CorruptData):
        JournalSyncPoint.decode(KEY, value)


def test_a_note_comes_back_and_a_newer_format_is_refused() -> None:
    assert JournalSyncPoint.decode(KEY, JournalSyncPoint(4, 17).encode()) == JournalSyncPoint(4, 17)
    with pytest.raises(UnsupportedFormat):
        JournalSyncPoint.decode(KEY, pack({"format": 2, "start": 1, "durable_to": 1}))
