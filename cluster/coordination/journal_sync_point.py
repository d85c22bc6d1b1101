"""How far a bookie's journal was synced, as the cluster knows it: ``seen/<bookie>``.

A copy of a bookie's directory that was taken while it ran is whole in itself, and so is what is left where
the newest files and the index went together: only somebody else can tell that there was more. So the bookie
notes the last block that it knows synced: before it serves, with each renewal of its lease, and at a clean
end. A start that finds less denies nothing (`bookie/store/startup.py`).

The note is taken after the sync: one ahead of the disk would make every power cut look like a loss (H82).
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
"""For the note at a clean end."""

_REACH = fields(format=number(), start=number(), durable_to=number(0, SEQUENCE_MAX - 1))

log = get_logger("distributedlog.cluster.coordination.journal_sync_point")


@dataclass(frozen=True, slots=True)
class JournalSyncPoint:
    """The content of ``seen/<bookie>``."""

    start: int
    """Which start of the directory noted it, counted from 1."""
    durable_to: int
    """The sequence of the last block of its journal that was known synced."""

    def encode(self) -> bytes:
        """As the key's value."""
        return pack({"format": FORMAT, "start": self.start, "durable_to": self.durable_to})

    @classmethod
    def decode(cls, key: bytes, value: Buffer) -> "JournalSyncPoint":
        """Raises `CorruptData`, `UnsupportedFormat`."""
        what = f"the note {keys.printable_key(key)} of how far a journal was synced"
        values = decode_versioned(value, FORMAT, _REACH, what)
        return cls(values["start"], values["durable_to"])


async def known_sync_point(metadata: Metadata, bookie_id: str) -> tuple[int, str]:
    """The sequence that the cluster knows synced, 0 for none; and why it cannot tell, "" where it can.

    Ask after the cookie was counted up: no earlier start notes anything after that.
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
    """What one start of a bookie notes. ``durable_to`` is asked each time; ``guard`` is its cookie's."""

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
        """Note it where it has moved. Raises `ForeignData` when the cookie has, `QuorumUnreachable`, …"""
        durable_to = self._durable_to()
        if durable_to == self._stored:
            return
        put = Put(self._key, JournalSyncPoint(self._start, durable_to).encode())
        reply = await self._metadata.transact(Transaction((self._guard,), (put,)))
        if not reply.succeeded:
            raise ForeignData(
                "this node was started somewhere else with a copy of its directory, or decommissioned"
            )
        self._stored = durable_to

    async def store_last(self) -> None:
        """At a clean end, within `STORE_LAST_S`; failing that the last renewal's stands."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STORE_LAST_S) as scope:
            try:
                await self.store()
            except DistributedLogError as error:
                log.info("the journal's end was not noted: %s", error)
        if scope.cancelled_caught:
            log.info("the journal's end was not noted: no answer within %g s", STORE_LAST_S)
