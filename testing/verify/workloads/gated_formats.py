"""A client that tries the formats which older versions refuse, before and after an upgrade is finalized.

Before, each attempt must raise `UpgradeNotFinalized` and leave the writer usable. Afterwards the same records
must be accepted and read. No other client uses its log.
"""

from contextlib import suppress

import trio

from ....log.format.record import KeyedRecord, LogRecord
from ....log.log import Log
from ....log.namespace import Namespace
from ....log.write.log_writer import LogWriter
from ....runtime.interfaces.errors import DistributedLogError, LogExists, UpgradeNotFinalized
from ..checks.history_check import Violation
from .workload import REST_S, txid_now

LOG = "gated"


class GatedFormatClient:
    """Tries keys, headers and decreasing transaction IDs on one log."""

    def __init__(self) -> None:
        self.refusals = 0
        """The number of records that were refused because the upgrade is not finalized."""
        self.permitted = False
        """Whether the upgrade may be finalized now, so that an attempt may succeed."""

    async def expect_refusals(self, namespace: Namespace) -> None:
        """Try the formats repeatedly, until they may be permitted.

        Raises:
            Violation: A record was accepted before.
        """
        while not self.permitted:
            with suppress(DistributedLogError):  # of a fault
                log = await _open_log(namespace)
                writer = await log.open_writer(takeover=True)
                try:
                    await self._try_each(writer)
                    await writer.aclose()
                finally:
                    await writer.abort()
            await trio.sleep(REST_S)

    async def _try_each(self, writer: LogWriter) -> None:
        last = txid_now() + 1
        await writer.write(LogRecord(last, b"plain"))
        for record in _gated_records(last):
            try:
                await writer.write(record)
            except UpgradeNotFinalized:
                self.refusals += 1
            else:
                if not self.permitted:
                    raise Violation(f"{record} was accepted before the upgrade was finalized")
        await writer.write(LogRecord(last, b"the writer is usable"))

    async def expect_permission(self, namespace: Namespace) -> None:
        """Write a record of each format, and read it.

        Raises:
            Violation: A record has other content.
            DistributedLogError: A record was refused, or the cluster does not work.
        """
        log = await _open_log(namespace)
        last = txid_now() + 1
        records = [LogRecord(last, b"plain"), *_gated_records(last)]
        writer = await log.open_writer(takeover=True)
        try:
            positions = [await writer.write(record) for record in records]
            await writer.aclose()
        finally:
            await writer.abort()
        async with log.open_reader(dlsn=positions[0], to="end") as reader:
            found = [record async for record in reader][: len(records)]
        if found != records:
            raise Violation(f"{found} was read instead of {records}")


def _gated_records(last: int) -> list[LogRecord]:
    """Return records that version 0.1 refuses in a log with this last transaction ID."""
    return [
        KeyedRecord(last, b"keyed", b"k"),
        KeyedRecord(last, b"with headers", None, [(b"name", b"value")]),
        LogRecord(0, b"lower"),
    ]


async def _open_log(namespace: Namespace) -> Log:
    with suppress(LogExists):
        await namespace.create_log(LOG)
    return namespace.open_log(LOG)
