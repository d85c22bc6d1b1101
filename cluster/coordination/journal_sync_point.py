"""Store how far a bookie has synced its journal in the progress record ``seen/<bookie>``.

A copy of a bookie's directory that was taken while it ran is consistent in itself. So is a directory that
lost the newest journal and index files together. Only another node can detect that data is missing. So the
bookie records the last block that it has synced: before it serves, with each renewal of its lease, and at a
clean end. A start that finds fewer blocks enters the limbo state, in which it denies no entry
(`bookie/store/startup.py`).

The record is stored after the sync. If it were ahead of the disk, every power failure would look like a loss
(H82).
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from ...ledger.model import ledger_keys as keys
from ...metadata.model.interface import Metadata
from ...metadata.model.transaction import Compare, Put, Transaction
from ...runtime.interfaces.errors import (
    CorruptData,
    DistributedLogError,
    ForeignData,
    UnsupportedFormat,
)
from ...runtime.interfaces.host import Buffer
from ...runtime.interfaces.log_lines import get_logger
from ...runtime.protocol.frames import pack
from ...runtime.protocol.schema import decode_versioned, fields, number

FORMAT = 1
SEQUENCE_MAX = 1 << 62
STORE_LAST_S = 1.0
"""Time limit for the record at a clean end."""

_REACH = fields(format=number(), start=number(), durable_to=number(0, SEQUENCE_MAX - 1))

log = get_logger("distributedlog.cluster.coordination.journal_sync_point")


@dataclass(frozen=True, slots=True)
class JournalSyncPoint:
    """The value of ``seen/<bookie>``."""

    start: int
    """The start of the directory that stored the record, counted from 1."""
    durable_to: int
    """The sequence number of the last synced block of its journal."""

    def encode(self) -> bytes:
        """Return the value of the key."""
        return pack({"format": FORMAT, "start": self.start, "durable_to": self.durable_to})

    @classmethod
    def decode(cls, key: bytes, value: Buffer) -> "JournalSyncPoint":
        """Decode the value of a key.

        Raises:
            CorruptData: The value is invalid.
            UnsupportedFormat: The value is from a newer version.
        """
        what = f"the progress record {keys.printable_key(key)}"
        values = decode_versioned(value, FORMAT, _REACH, what)
        return cls(values["start"], values["durable_to"])


async def known_sync_point(metadata: Metadata, bookie_id: str) -> tuple[int, str]:
    """Return the last journal block that a bookie has recorded as synced.

    Call this after the cookie was updated, because no earlier start can store a record after that.

    Returns:
        The sequence number, 0 if there is no record; and the reason if the record is unreadable, otherwise
        "".
    """
    key = keys.sync_point_key(bookie_id)
    item = await metadata.get(key)
    if item is None:
        return 0, ""
    try:
        return JournalSyncPoint.decode(key, item.value).durable_to, ""
    except (CorruptData, UnsupportedFormat) as error:
        return 0, str(error)


class JournalSyncStore:
    """Stores the progress record of one start of a bookie.

    ``durable_to`` returns the last synced block. ``guard`` holds while the bookie's cookie is unchanged.
    """

    def __init__(
        self,
        metadata: Metadata,
        bookie_id: str,
        guard: Compare,
        start: int,
        durable_to: Callable[[], int],
    ) -> None:
        self._metadata = metadata
        self._key = keys.sync_point_key(bookie_id)
        self._guard = guard
        self._start = start
        self._durable_to = durable_to
        self._stored = -1

    async def store(self) -> None:
        """Store the record if it has changed.

        Raises:
            ForeignData: The cookie has changed: another process started with a copy of the directory, or the
                bookie was decommissioned.
            QuorumUnreachable: No metadata quorum answered.
        """
        durable_to = self._durable_to()
        if durable_to == self._stored:
            return
        put = Put(self._key, JournalSyncPoint(self._start, durable_to).encode())
        reply = await self._metadata.transact(Transaction((self._guard,), (put,)))
        if not reply.succeeded:
            raise ForeignData(
                "another process started with a copy of this node's directory, or the node was decommissioned"
            )
        self._stored = durable_to

    async def store_last(self) -> None:
        """Store the record at a clean end, within `STORE_LAST_S`.

        If this fails, the record of the last renewal remains.
        """
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STORE_LAST_S) as scope:
            try:
                await self.store()
            except DistributedLogError as error:
                log.info("the journal's end was not recorded: %s", error)
        if scope.cancelled_caught:
            log.info("the journal's end was not recorded: no answer within %g s", STORE_LAST_S)
