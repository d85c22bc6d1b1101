"""Writers and readers together, on a model of the ledger part and virtual time."""

from trio.testing import MockClock

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from tests.log.conftest import World


async def test_what_is_written_is_read_in_order(world: World, autojump_clock: MockClock) -> None:
    """G1, G2: DLSNs strictly increase, and every acknowledged record is read in its place."""
    async with world.process() as ns:
        log = ns.open_log("orders")
        async with log.open_writer() as writer:
            written = [await writer.write(LogRecord(i, b"%d" % i)) for i in range(5)]
        async with log.open_reader() as reader:
            found = [await reader.read_next() for _ in range(5)]

    assert written == sorted(set(written))
    assert written[0] == DLSN(1, 0, 0)
    assert [r.dlsn for r in found if r] == written
    assert [(r.txid, r.payload, r.sequence_id) for r in found if r] == [
        (i, b"%d" % i, i) for i in range(5)
    ]
