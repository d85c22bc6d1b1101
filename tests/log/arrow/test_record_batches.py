"""The `pyarrow.RecordBatchReader` of the blocking and asyncio APIs, over a model of the ledger part."""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from distributedlog import aio, blocking
from distributedlog.blocking import Namespace
from distributedlog.log.arrow.arrow_reader import ArrowReader
from distributedlog.log.format.dlsn import DLSN
from distributedlog.runtime.interfaces.errors import AlreadyClosed, LogTruncated
from tests.extras import INSTALL_ARROW
from tests.face_world import model_namespace

pytestmark = pytest.mark.extra
pa = pytest.importorskip("pyarrow", reason=INSTALL_ARROW)

RECORDS = 400
SMALL = {"read_ahead_bytes": 1, "read_bytes": 1}
"""Options with which at most one entry is fetched ahead."""


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with blocking._Opened(model_namespace(), "test", Namespace) as opened:
        fill(opened)
        yield opened


def fill(namespace: Namespace) -> None:
    with namespace.open_log("l").open_writer() as writer:
        for first in range(0, RECORDS, 20):
            part = [*range(first, first + 20)]
            writer.submit_columns(part, [b"%d" % txid for txid in part])
            writer.commit()


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> "SimpleQueue[ArrowReader]":
    """The readers whose fetch was stopped."""
    found: SimpleQueue[ArrowReader] = SimpleQueue()
    original = ArrowReader.aclose

    async def aclose(self: ArrowReader) -> None:
        await original(self)
        found.put(self)

    monkeypatch.setattr(ArrowReader, "aclose", aclose)
    return found


def test_blocking_log_is_a_table(namespace: Namespace) -> None:
    reader = namespace.open_log("l").to_arrow(columns=["txid", "payload"])

    assert isinstance(reader, pa.RecordBatchReader)
    table = reader.read_all()

    assert table.column("txid").to_pylist() == [*range(RECORDS)]
    assert table.column("payload").to_pylist() == [b"%d" % txid for txid in range(RECORDS)]


def test_asyncio_log_is_a_table_in_another_thread() -> None:
    async def read() -> Any:
        async with aio._Opened(model_namespace(), "test", aio.Namespace) as namespace:
            async with namespace.open_log("l").open_writer() as writer:
                await writer.write_bulk([b"a", b"b"])
            reader = await namespace.open_log("l").to_arrow(columns=["payload"])
            return await asyncio.to_thread(reader.read_all)

    assert asyncio.run(read()).column("payload").to_pylist() == [b"a", b"b"]


def test_a_pull_raises_the_typed_error_of_the_reader(namespace: Namespace) -> None:
    log = namespace.open_log("l", config=SMALL)
    reader = log.to_arrow(batch_bytes_max=1)
    reader.read_next_batch()
    log.truncate(DLSN(1, RECORDS // 20 - 1, 0))

    with pytest.raises(LogTruncated):
        reader.read_all()


def test_a_reader_ends_with_its_namespace() -> None:
    with blocking._Opened(model_namespace(), "test", Namespace) as namespace:
        fill(namespace)
        reader = namespace.open_log("l", config=SMALL).to_arrow(batch_bytes_max=1)
        reader.read_next_batch()

    with pytest.raises(AlreadyClosed):
        reader.read_all()


def test_a_dropped_reader_stops_to_fetch_without_a_warning(
    namespace: Namespace, closed: "SimpleQueue[ArrowReader]"
) -> None:
    reader = namespace.open_log("l", config=SMALL).to_arrow(batch_bytes_max=1)
    reader.read_next_batch()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del reader
        gc.collect()
        closed.get(timeout=30)

    assert found == []


def test_the_fetch_ends_with_the_last_batch(
    namespace: Namespace, closed: "SimpleQueue[ArrowReader]"
) -> None:
    reader = namespace.open_log("l").to_arrow()

    assert sum(batch.num_rows for batch in reader) == RECORDS

    closed.get(timeout=30)
    assert list(reader) == []


def test_threads_that_share_a_reader_receive_each_batch_once(namespace: Namespace) -> None:
    reader = namespace.open_log("l", config=SMALL).to_arrow(columns=["txid"], batch_bytes_max=1)

    def pull(_: int) -> list[int]:
        return [txid for batch in reader for txid in batch.column("txid").to_pylist()]

    with ThreadPoolExecutor(4) as pool:
        found = [txid for part in pool.map(pull, range(4)) for txid in part]

    assert sorted(found) == [*range(RECORDS)]


def test_an_interrupted_pull_loses_no_entry(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = namespace.open_log("l").to_arrow(columns=["txid"])
    original, interrupts = ArrowReader.build, [KeyboardInterrupt()]

    def build(self: ArrowReader, entries: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return original(self, entries)

    monkeypatch.setattr(ArrowReader, "build", build)
    with pytest.raises(KeyboardInterrupt):
        reader.read_next_batch()

    assert reader.read_all().column("txid").to_pylist() == [*range(RECORDS)]
