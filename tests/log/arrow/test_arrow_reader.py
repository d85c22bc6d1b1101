"""A log as Arrow batches in the trio API: its starts and ends, its errors, and the wait for an entry."""

from typing import Any

import pytest
from trio.testing import MockClock

from distributedlog.log.arrow.arrow_reader import ArrowReader
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.log import Log
from distributedlog.runtime.interfaces.errors import (
    AlreadyClosed,
    InvalidRequest,
    LogTruncated,
    RequestTimeout,
)
from tests.extras import INSTALL_ARROW
from tests.log.conftest import World

pytestmark = pytest.mark.extra
pytest.importorskip("pyarrow", reason=INSTALL_ARROW)

from distributedlog.log.arrow.arrow_columns import choose_columns  # noqa: E402


async def fill(log: Log, txids: range, *, entry: int = 5) -> None:
    """Add a closed segment, with `entry` records per entry."""
    async with log.open_writer() as writer:
        for first in range(txids.start, txids.stop, entry):
            part = [*txids][first - txids.start : first - txids.start + entry]
            await writer.submit_columns(part, [b"%d" % txid for txid in part])
            await writer.commit()


async def txids(log: Log, **arguments: Any) -> list[int]:
    found = []
    async with log.to_arrow(columns=["txid"], **arguments) as reader:
        async for batch in reader:
            found += batch.column("txid").to_pylist()
    return found


async def test_batches_have_the_records_of_all_segments_in_order(world: World) -> None:
    async with world.log("l", txids="strict") as log:
        await fill(log, range(10))
        await fill(log, range(10, 20))
        async with log.open_reader(to="end") as plain:
            records = [record async for record in plain]

        async with log.to_arrow(
            columns=["dlsn", "sequence_id", "txid", "payload", "log"]
        ) as reader:
            rows = [row async for batch in reader for row in batch.to_pylist()]

    assert [
        (row["dlsn"], row["sequence_id"], row["txid"], row["payload"], row["log"]) for row in rows
    ] == [(str(one.dlsn), one.sequence_id, one.txid, one.payload, "l") for one in records]


async def test_a_reader_starts_and_stops_where_it_is_asked_to(world: World) -> None:
    async with world.log("l", txids="strict") as log:
        await fill(log, range(20))
        async with log.open_reader(to="end") as plain:
            await plain.read_bulk(7)
            position = plain.position
        late = (await log.describe()).last_dlsn
        assert late is not None

        assert await txids(log, position=position) == [*range(7, 20)]
        assert await txids(log, dlsn=DLSN(1, 1, 3)) == [*range(8, 20)]
        assert await txids(log, txid=15) == [*range(15, 20)]
        assert await txids(log, since=0) == [*range(20)]
        assert await txids(log, to=DLSN(1, 1, 1)) == [*range(7)]
        assert await txids(log, dlsn=DLSN(1, 2, 0), to=DLSN(1, 1, 1)) == []
        assert await txids(log, dlsn=late.next()) == []


async def test_a_reader_does_not_wait_for_records_after_the_end(world: World) -> None:
    async with world.log("l", txids="strict") as log:
        assert await txids(log, to=DLSN(9, 0, 0)) == []
        async with log.open_writer() as writer:
            await writer.write_bulk([b"a", b"b"])
            await writer.commit()

            assert len(await txids(log)) == 2
            assert len(await txids(log, to=DLSN(9, 0, 0))) == 2


async def test_a_sealed_log_ends_without_an_error(world: World) -> None:
    async with world.log("l", txids="strict") as log:
        await fill(log, range(5))
        await log.seal()

        assert await txids(log) == [*range(5)]


async def test_batches_have_at_most_the_requested_bytes_or_one_entry(world: World) -> None:
    async with world.log("l", txids="strict") as log:
        await fill(log, range(100, 160))  # entries of 15 bytes
        sizes = []
        async with log.to_arrow(columns=["txid"], batch_bytes_max=40) as reader:
            async for batch in reader:
                sizes.append(batch.num_rows)

        assert sum(sizes) == 60
        assert max(sizes) == 10
        assert await txids(log, batch_bytes_max=1) == [*range(100, 160)]


async def test_a_truncation_is_reported_after_the_batches_before_it(world: World) -> None:
    async with world.process(read_ahead_bytes=1, read_bytes=1) as namespace:
        await namespace.create_log("l", txids="strict")
        log = namespace.open_log("l")
        await fill(log, range(50))
        found: list[int] = []

        async def read_all(reader: ArrowReader) -> None:
            async for batch in reader:
                found.extend(batch.column("txid").to_pylist())

        async with log.to_arrow(columns=["txid"], batch_bytes_max=1) as reader:
            first = await reader.read_batch()
            assert first is not None
            found += first.column("txid").to_pylist()
            await log.truncate(DLSN(1, 9, 0))
            with pytest.raises(LogTruncated):
                await read_all(reader)

    assert found == [*range(len(found))]
    assert len(found) < 45


async def test_a_wait_for_an_entry_has_a_limit(world: World, autojump_clock: MockClock) -> None:
    async with world.log("l") as log, log.open_reader() as endless:
        reader = ArrowReader(endless, choose_columns(None), batch_bytes_max=1, wait_max_s=60.0)

        with pytest.raises(RequestTimeout, match="no entry arrived for 60 s"):
            await reader.read_batch()


async def test_a_closed_reader_returns_no_batch(world: World) -> None:
    async with world.log("l", txids="strict") as log:
        await fill(log, range(20))
        reader = await log.to_arrow(batch_bytes_max=1)
        await reader.read_batch()

        await reader.aclose()

        with pytest.raises(AlreadyClosed):
            await reader.read_batch()


async def test_wrong_arguments_are_refused_before_a_request(world: World) -> None:
    async with world.log("l") as log:
        wrong: list[dict[str, Any]] = [
            {"to": None},
            {"to": "latest"},
            {"batch_bytes_max": 0},
            {"columns": []},
        ]
        for arguments in wrong:
            with pytest.raises(InvalidRequest):
                log.to_arrow(**arguments)
