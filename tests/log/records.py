"""Records as the tests of logs write and read them."""

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import FLAG_CONTROL, LogRecord, build_entry
from distributedlog.log.log import Log
from distributedlog.log.write.log_writer import LogWriter
from distributedlog.log.write.segment_roller import SegmentRoller
from distributedlog.runtime.interfaces.host import Buffer


def rec(txid: int, payload: bytes = b"x") -> LogRecord:
    return LogRecord(txid, payload)


def keeper_of(writer: LogWriter) -> SegmentRoller:
    """The segments under a writer that has the log itself."""
    keeper = writer.send_queue.sink
    assert isinstance(keeper, SegmentRoller)
    return keeper


async def put(log: Log, *txids: int) -> list[DLSN]:
    """A segment of its own, an entry a record, whose payload is its txid as text."""
    async with log.open_writer() as writer:
        return [await writer.write(rec(txid, b"%d" % txid)) for txid in txids]


async def everything(log: Log) -> list[LogRecord]:
    """What can be read now."""
    async with log.open_reader(to="end") as reader:
        return [record async for record in reader]


def control_entry(txid: int, *, records_before: int) -> tuple[list[Buffer], int]:
    """An entry that readers skip; ``txid`` is the last user record's. No version writes one yet."""
    return build_entry(
        (txid,), (b"control",), records_before=records_before, written_ms=0, flags=FLAG_CONTROL
    )
